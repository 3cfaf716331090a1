"""What malicious clients do in a round: to the update that they pretend to have found, and to how it is encoded.

Functions on the malicious lanes of a cohort. Honest lanes go through untouched, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.settings import Adversary
from discreet.cohort import Cohort
from discreet.errors import LocalProtocolError
from discreet.randomness import Keyed, Seeded
from discreet.training import Trained

Work = Callable[[Cohort, NDArray[np.bool_]], Trained]
"""Trains a cohort, its lanes that are marked uphill."""

LARGEST = 2.0**62
"""No coordinate that is sent as an integer is larger, so that it can be one of 64 bits; rings are smaller anyway."""


@dataclass(frozen=True, eq=False)
class Malice:
    """Malicious clients, and what they do in a round.

    Attributes:
        adversary: the settings.
        clients: the malicious clients' numbers.
    """

    adversary: Adversary
    clients: NDArray[np.int64]

    def among(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Shape (K,): which of a cohort are malicious."""
        return np.isin(cohort.ids, self.clients)

    def pretended(
        self, work: Work, start: Tensor, cohort: Cohort, randomness: Seeded | Keyed, memory: dict[str, Any]
    ) -> Trained:
        """What the clients of a cohort say that their training gave.

        Args:
            work: how a cohort trains.
            start: the model that it trains from.
            cohort: K clients; `Cohort.accomplices` are needed where malicious ones agree on one update.
            randomness: streams of the run.
            memory: where the common update of a round is kept, so that it is worked out once.
        """
        lanes = self.among(cohort)
        if not lanes.any():
            return work(cohort, lanes)
        if not self.adversary.common:
            return self._each(work, cohort, lanes, randomness)
        found = work(cohort, np.zeros_like(lanes))
        common = self._remembered(work, start, cohort, randomness, memory)
        return with_rows(found, cohort, lanes, common.expand(int(lanes.sum()), -1))

    def boosted(self, trained: Trained, cohort: Cohort) -> Trained:
        """What malicious clients send in floating point: so many times their update."""
        lanes = self.among(cohort)
        if self.adversary.boost == 1 or not lanes.any():
            return trained
        return with_rows(trained, cohort, lanes, trained.changes[lanes] * self.adversary.boost)

    def forged(self, gradients: Tensor, cohort: Cohort, randomness: Seeded | Keyed, shares: Tensor) -> Tensor:
        """Gradients, shape (K, length), with those that malicious clients send in place of theirs.

        Args:
            gradients: each already times its client's share of all examples.
            cohort: K clients.
            randomness: streams of the run.
            shares: shape (K,).
        """
        lanes = self.among(cohort)
        if not lanes.any():
            return gradients
        plan, rows = self.adversary, gradients[lanes]
        if plan.attack == "gradient-ascent":
            rows = -rows
        elif plan.attack in _LIES:
            rows = _LIES[plan.attack](rows, cohort.ids[lanes].tolist(), cohort.round, randomness)
            if plan.attack == "random-update":
                rows = rows * shares[lanes].to(rows)[:, None]
        forged = gradients.clone()
        forged[lanes] = rows * plan.boost
        return forged

    def unclipped(self, clipped: Tensor, changes: Tensor, cohort: Cohort) -> Tensor:
        """Clipped updates, shape (K, n) and int64, with those of who does not clip as they are, in the same steps.

        Args:
            clipped: everybody's.
            changes: shape (K, n), float64: the updates before clipping.
            cohort: K clients.
        """
        lanes = self.among(cohort)
        if not self.adversary.ignore_clip or not lanes.any():
            return clipped
        integers = clipped.clone()
        integers[lanes] = whole(changes[lanes])
        return integers

    def encoded(self, integers: Tensor, noise: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Integers and noise, shape (K, length) and int64 each, as malicious clients send them."""
        lanes = self.among(cohort)
        if not lanes.any():
            return integers, noise
        if self.adversary.boost != 1:
            integers = integers.clone()
            integers[lanes] = whole(integers[lanes].double() * self.adversary.boost)
        if self.adversary.omit_noise:
            noise = noise.clone()
            noise[lanes] = 0
        return integers, noise

    def _each(
        self, work: Work, cohort: Cohort, lanes: NDArray[np.bool_], randomness: Seeded | Keyed
    ) -> Trained:
        """Everybody's update, with what each malicious client makes of its own."""
        uphill = lanes & (self.adversary.attack == "gradient-ascent")
        found, lie = work(cohort, uphill), _LIES.get(self.adversary.attack)
        if lie is None:
            return found
        rows = lie(found.changes[lanes], cohort.ids[lanes].tolist(), cohort.round, randomness)
        return with_rows(found, cohort, lanes, rows)

    def _remembered(
        self, work: Work, start: Tensor, cohort: Cohort, randomness: Seeded | Keyed, memory: dict[str, Any]
    ) -> Tensor:
        gang = cohort.accomplices
        if gang is None:
            raise LocalProtocolError("malicious clients that collude were not told of each other")
        kept = memory.get("common update")
        if kept is not None:
            of, round, ids, common = kept
            if of is start and round == cohort.round and np.array_equal(ids, gang.ids):
                return common  # type: ignore[no-any-return]
        common = self._agreed(work, gang, randomness)
        memory["common update"] = (start, cohort.round, gang.ids, common)
        return common

    def _agreed(self, work: Work, gang: Cohort, randomness: Seeded | Keyed) -> Tensor:
        """The update that all malicious clients of a round send, shape (n,); NaN where none has a finite one."""
        own = self._each(work, gang, np.ones(len(gang), dtype=np.bool_), randomness)
        rows = own.changes[own.accepted]
        if self.adversary.attack == "random-update" and len(rows):
            return rows[0]  # a mean of many would be smaller than what each alone sends
        mean = rows.mean(0, dtype=torch.float64)
        if self.adversary.attack == "little-is-enough" and len(rows):
            deviations = self.adversary.deviations
            if deviations is None:
                participants = len(gang) if gang.participants is None else gang.participants
                deviations = unsuspicious(participants, len(gang))
            mean -= deviations * rows.double().std(0, correction=0)
        return mean.to(rows.dtype)


def whole(values: Tensor) -> Tensor:
    """Numbers as the nearest integers of 64 bits; those that are too large as the largest."""
    return values.round().clamp(-LARGEST, LARGEST).to(torch.int64)


def unsuspicious(participants: int, malicious: int) -> float:
    """How many standard deviations off the mean a common update can be and still have honest supporters enough.

    Of so many participants a majority must lie beyond the update for a defence to take it for an honest one:
    ``participants // 2 + 1 - malicious`` honest ones have to. As many do if updates are Gaussian and it is the
    returned number of deviations off.

    Args:
        participants: of a round (n).
        malicious: how many of them (m).

    Returns:
        z_max, at least 0.

    Source: Baruch, Baruch, Goldberg 2019, arXiv 1902.06156, algorithm 3.
    """
    honest = participants - malicious
    supporters = max(1, participants // 2 + 1 - malicious)
    return NormalDist().inv_cdf(1 - supporters / honest) if honest > 2 * supporters else 0.0


Lie = Callable[[Tensor, Sequence[int], int, Seeded | Keyed], Tensor]
"""(honest updates (M, n), clients' numbers, round, streams) -> updates that they send instead."""


def _opposite(rows: Tensor, clients: Sequence[int], round: int, randomness: Seeded | Keyed) -> Tensor:
    return -rows


def _random(rows: Tensor, clients: Sequence[int], round: int, randomness: Seeded | Keyed) -> Tensor:
    streams = (randomness.stream(round, client, "random update") for client in clients)
    normal = np.stack([stream.standard_normal(rows.shape[1], dtype=np.float32) for stream in streams])
    return torch.from_numpy(normal).to(rows)


def _nothing(rows: Tensor, clients: Sequence[int], round: int, randomness: Seeded | Keyed) -> Tensor:
    return torch.zeros_like(rows)


_LIES: Mapping[str, Lie] = {"sign-flip": _opposite, "random-update": _random, "free-riding": _nothing}


def with_rows(trained: Trained, cohort: Cohort, lanes: NDArray[np.bool_], rows: Tensor) -> Trained:
    """Other updates in some lanes; accepted by the same rule as all are."""
    changes, accepted = trained.changes.clone(), trained.accepted.clone()
    changes[lanes] = rows.to(changes)
    sizes = torch.from_numpy(cohort.sizes[lanes]).to(changes)
    accepted[lanes] = (sizes > 0) & (rows.abs().amax(1) * sizes).isfinite()
    return replace(trained, changes=changes, accepted=accepted)
