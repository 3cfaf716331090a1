"""What an audit is, what it is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from discreet.cohort import Examples
from discreet.preparation import Federation
from discreet.privacy.accounting import Spent, spent
from discreet.randomness import SERVER
from discreet.simulation import Observed
from discreet.view import Role, View


@dataclass(frozen=True)
class Finding:
    """One figure that an attack gave.

    Attributes:
        attack: what was done.
        figure: what is measured.
        measured: how much of it.
        chance: the same for who has seen nothing; None where that has no meaning.
        unprotected: the same attack where nothing is hidden, as on the true model; None where that has no meaning.
        promise: what the scheme promises about it, in a few words.
    """

    attack: str
    figure: str
    measured: float
    chance: float | None
    unprotected: float | None
    promise: str


@dataclass(frozen=True, eq=False)
class Illustrated:
    """Figures that come with pictures.

    Attributes:
        findings: the figures.
        pictures: drawn, by short names; written beside ``audit.json`` as ``audit-AUDIT-NAME.png``.
        series: what is plotted, by names, for ``audit.json``: numbers, None where there is none, or lists of them.
    """

    findings: Sequence[Finding]
    pictures: Mapping[str, Figure] = field(default_factory=dict)
    series: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Case:
    """What an audit works on. Attacks may have `view` and `own`; the rest is what a simulation judges them by.

    Attributes:
        federation: of the run.
        observed: some rounds that follow on the run's last one.
        view: what the party received in them. The first payload is of the model that the run ended with.
        most: so many examples of a kind are asked about.
        quick: whether figures need say nothing, if only they come soon.
    """

    federation: Federation
    observed: Observed
    view: View
    most: int
    quick: bool = False

    @property
    def round(self) -> int:
        """The first round in which the party was sent something, or else the first one that was observed."""
        return min(self.view.payloads() or self.observed.states)

    @property
    def state(self) -> Any:
        """The server's at the beginning of that round."""
        return self.observed.states[self.round]

    def spent(self, round: int) -> Spent | None:
        """The differential privacy of all that was released before a round; None without.

        An attack on models of several rounds has them all, so `round` is that of the last model it looks at.
        """
        asked = self.federation.experiment.privacy
        return None if asked is None else spent(self.observed.ledgers[round], asked.delta, asked.accountant)

    @cached_property
    def truth(self) -> Tensor | None:
        """The true model of that round, shape (n,); None without a global model, or one of all data together."""
        if self.federation.scheme.pooled and 0 in self.observed.kept:
            count = self.federation.task.parameters
            return self.observed.kept[0].reshape(-1, count)[0]  # behind it may lie what an optimizer keeps
        found: Tensor | None = self.federation.scheme.vector(self.state)
        return found

    def predict(self, vector: Tensor) -> Callable[[Tensor], Tensor]:
        """A model's outputs, in evaluation."""
        network = self.federation.task.learner.network
        return lambda inputs: network.apply(vector, inputs)

    @cached_property
    def own(self) -> Examples:
        """What the party holds itself: of a participant its examples; nobody else has any."""
        return self._held([] if self.view.party.number is None else [self.view.party.number])

    @cached_property
    def others(self) -> Examples:
        """Training examples of all other participants, some of them."""
        rows = self.federation.partition.rows
        own = self.view.party.number
        mine = None if own is None else int(self.federation.partition.row_of(own))
        return self._held([row for row in range(rows) if row != mine], "members")

    @cached_property
    def unseen(self) -> Examples:
        """Test examples, some of them."""
        test = self.federation.test
        return _chosen(test, self._some(np.arange(len(test)), "others"))

    def _held(self, rows: Sequence[int], purpose: str | None = None) -> Examples:
        parts = [self.federation.partition.indices(row) for row in rows]
        places = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
        return _chosen(self.federation.train, places if purpose is None else self._some(places, purpose))

    def _some(self, places: NDArray[np.int64], purpose: str) -> NDArray[np.int64]:
        if len(places) <= self.most:
            return places
        stream = self.federation.task.randomness.stream(0, SERVER, f"audit {purpose}")
        return np.sort(stream.choice(places, self.most, replace=False))


@dataclass(frozen=True)
class Audit:
    """One kind of attack. A new one is a file with a function, and a row in `discreet.audits.table.AUDITS`.

    Attributes:
        summary: what it finds out, in a line.
        roles: whose view it can take; the first is taken where nobody is named.
        rounds: how many rounds of the view it needs.
        measure: does the attack, and judges it.
        fits: why it says nothing about a federation; None if it does say something.
    """

    summary: str
    roles: tuple[Role, ...]
    rounds: int
    measure: Callable[[Case], Sequence[Finding] | Illustrated]
    fits: Callable[[Federation], str | None]


def _chosen(examples: Examples, places: NDArray[np.int64]) -> Examples:
    where = torch.from_numpy(places.astype(np.int64)).to(examples.targets.device)
    inputs = examples.inputs.index_select(0, where)
    if examples.reconstructs:
        return Examples.reconstructing(inputs)
    return Examples(inputs, examples.targets.index_select(0, where))
