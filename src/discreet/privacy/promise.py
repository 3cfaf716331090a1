"""The differential privacy that a run promises, and the noise that each participant adds for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from discreet.privacy.noise import DiscreteGaussian
from discreet.privacy.releases import Sampling


@dataclass(frozen=True)
class Promise:
    """What every round's sum must have had added before anyone sees it.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise over the L2 norm of one client's contribution.
        sampling: how a round's clients are drawn.
        expected_cohort: how many a round draws on average.
        largest_cohort: no round draws more, but with negligible probability; the modulus is chosen for it.
        dropout_tolerance: share of a round's clients that may drop out without the noise falling short.
        assumed_dishonest: clients in a round who are taken to add no noise.
    """

    noise_multiplier: float
    sampling: Sampling
    expected_cohort: float
    largest_cohort: int
    dropout_tolerance: float = 0.0
    assumed_dishonest: int = 0

    def needed(self, participants: int) -> int:
        """How many of a round's participants must be in its sum, or it is not released."""
        return max(
            1, math.ceil(participants * (1 - self.dropout_tolerance) - 1e-9), self.assumed_dishonest + 1
        )

    def shares(self, participants: int) -> int:
        """How many honest shares must together give the promised noise."""
        return self.needed(participants) - self.assumed_dishonest

    def share(self, deviation: float, participants: int) -> DiscreteGaussian:
        """The noise of one participant, of variance ``deviation**2 / shares``.

        Args:
            deviation: of the sum's noise, in steps of the integers.
            participants: of the round.
        """
        return _tabled(deviation / math.sqrt(self.shares(participants)))

    @property
    def most_noise(self) -> float:
        """Standard deviation of a sum's noise over the promised one, where it is largest: nobody drops out or cheats.

        A round of no more participants than `assumed_dishonest` counts for nothing, as its sum is never released.
        """
        return _most_noise(self)


@lru_cache(maxsize=64)
def _most_noise(promise: Promise) -> float:
    participants = range(promise.assumed_dishonest + 1, promise.largest_cohort + 1)
    return math.sqrt(max((count / promise.shares(count) for count in participants), default=1.0))


@lru_cache(maxsize=64)
def _tabled(deviation: float) -> DiscreteGaussian:
    """The distribution with its table, which takes longer to make than a round's noise to draw."""
    return DiscreteGaussian(deviation)
