"""What a scheme may be, or can do, besides what `discreet.schemes.base.Scheme` says of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.cohort import Cohort
from discreet.evaluation import Map
from discreet.schemes.base import Contribution, Phase, Task, Total


@runtime_checkable
class Fused(Protocol):
    """A scheme that can contribute and add in one go, where stacking K x length is impossible or slow.

    Law: `subtotal` equals the sum, within the phase's groups, of what `contribute` returns.
    """

    def fuses(self, task: Task) -> bool:
        """Whether it can do so for this task."""
        ...

    def subtotal(
        self,
        task: Task,
        phase: Phase,
        payload: Any,
        received: tuple[Total, ...],
        cohort: Cohort,
        parallel: Map,
    ) -> tuple[Total, Contribution]:
        """The cohort's total, and a contribution whose elements have length 0.

        `parallel` maps over pieces of the work; the result does not depend on how many run at a time.
        """
        ...


@runtime_checkable
class Confined(Protocol):
    """A scheme of which every participant has a model of its own that nobody else may see."""

    def confined(self, task: Task, state: Any, participant: int) -> Tensor:
        """The participant's model, shape (n,)."""
        ...


def groups_of(scheme: object) -> int:
    """Into how many groups, each with a sum of its own, a round's clients are dealt: 1 if the scheme does not say."""
    found: int = getattr(scheme, "groups", 1)
    return found


@runtime_checkable
class RecordLevel(Protocol):
    """A private scheme whose promise is about one record, not about one client's whole data."""

    def releases(self, task: Task) -> int:
        """How often a round gives out what `release` says: of all other schemes, once."""
        ...


def releases_a_round(scheme: object, task: Task) -> int:
    """How many releases a round of a private scheme is."""
    return scheme.releases(task) if isinstance(scheme, RecordLevel) else 1


def protected_unit(scheme: object) -> Literal["client", "record"]:
    """Whose data the promise of a private scheme is about."""
    return "record" if isinstance(scheme, RecordLevel) else "client"


def misdeeds_under(scheme: object) -> frozenset[Misdeed]:
    """What malicious clients of a scheme can do; if it does not say, only what they do to their data."""
    found: frozenset[Misdeed] = getattr(scheme, "misdeeds", frozenset({"data"}))
    return found


@runtime_checkable
class Described(Protocol):
    """A scheme of which a simulation can tell figures that no round changes."""

    def constants(self, task: Task, rounds: int, parallel: Map) -> Mapping[str, float | None]:
        """The figures of a run of so many rounds, by the names they have in ``result.json``; None for what this task has not."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A scheme that measures something in every round."""

    def figures(self, state: Any) -> Mapping[str, float]:
        """Figures of the round that led to this state, by the names they have in the metrics."""
        ...

    def summed_up(self, history: Sequence[Mapping[str, Any]]) -> Mapping[str, float | None]:
        """What they come to over all rounds, by the names it has in ``result.json``."""
        ...

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> list[str]:
        """What a reader of the result has to know of them."""
        ...


@runtime_checkable
class Addressed(Protocol):
    """A scheme of which participants are sent something else than the model's parameters in float32."""

    def payload_bytes(self, task: Task) -> int:
        """Bytes that one participant is sent at the beginning of a round."""
        ...


@runtime_checkable
class Narrowed(Protocol):
    """A scheme of which some participants are sent a part of the payload only."""

    def sent_to(self, task: Task, payload: Any, participant: int) -> Any:
        """What one participant is sent of it."""
        ...

    def placed(self, task: Task, payload: Any, participant: int) -> Any:
        """A payload of which the participant's part is what `sent_to` gave, and the rest is 0."""
        ...


@runtime_checkable
class Kept(Protocol):
    """A scheme of which a participant can tell its own model from what it is sent and what it has kept."""

    def own_model(self, task: Task, payload: Any, participant: int, kept: Tensor | None) -> Tensor | None:
        """The participant's model, shape (n,), or the part that it has of one; None where it has none.

        Args:
            task: the participant's.
            payload: what a round begins with, for this participant.
            participant: its number.
            kept: what it has kept.
        """
        ...
