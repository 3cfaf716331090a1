"""The differential privacy that a run promises, and the noise that each participant adds for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from discreet.errors import ConfigError
from discreet.privacy.modulus import TAIL
from discreet.privacy.noise import DiscreteGaussian, Skellam
from discreet.privacy.releases import Sampling

NoiseName: TypeAlias = Literal["discrete-gaussian", "skellam"]
"""The integer noise that participants can add."""


@dataclass(frozen=True)
class Promise:
    """What every round's sum must have had added before anyone sees it.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise over the L2 norm of one client's contribution.
        sampling: how a round's clients are drawn.
        expected_cohort: how many a sum is drawn for on average.
        largest_cohort: none is drawn for more, but with negligible probability; the modulus is chosen for it.
        dropout_tolerance: share of a sum's clients that may drop out without the noise falling short.
        assumed_dishonest: clients in a round who are taken to add no noise. All of them may be in one sum.
        noise: which noise. Shares of discrete Gaussian noise add up to nearly a discrete Gaussian, which the
            accounting corrects for; shares of Skellam noise add up to Skellam noise exactly.
        groups: into which a round's clients are dealt, each with a sum of its own and all of the noise in it. A client is
            in one of them: that the others' sums are seen as well costs it nothing.

    Raises:
        ConfigError: there is no noise of that name.
    """

    noise_multiplier: float
    sampling: Sampling
    expected_cohort: float
    largest_cohort: int
    dropout_tolerance: float = 0.0
    assumed_dishonest: int = 0
    noise: NoiseName = "discrete-gaussian"
    groups: int = 1

    def __post_init__(self) -> None:
        if self.noise not in get_args(NoiseName):
            raise ConfigError("privacy.noise", self.noise, "'discrete-gaussian' or 'skellam'")

    def needed(self, participants: int) -> int:
        """How many of a round's participants must be in its sum, or it is not released."""
        return max(
            1, math.ceil(participants * (1 - self.dropout_tolerance) - 1e-9), self.assumed_dishonest + 1
        )

    def shares(self, participants: int) -> int:
        """How many honest shares must together give the promised noise."""
        return self.needed(participants) - self.assumed_dishonest

    def kept_by(self, honest: int, participants: int) -> float:
        """Standard deviation of the noise in a sum over the promised one, at most 1.

        Args:
            honest: participants that added their share; none count as one, beside whom nobody's data is in the sum.
            participants: of the round, by whom the shares were sized.
        """
        return min(1.0, math.sqrt(max(1, honest) / self.shares(participants)))

    def share(self, deviation: float, participants: int) -> DiscreteGaussian | Skellam:
        """The noise of one participant, of variance ``deviation**2 / shares``.

        Args:
            deviation: of the sum's noise, in steps of the integers.
            participants: of the round.
        """
        return _tabled(self.noise, deviation / math.sqrt(self.shares(participants)))

    def tail(self, deviation: float) -> float:
        """How many standard deviations of a sum's noise its modulus must have room for.

        As many as are exceeded with no larger a probability than `modulus.TAIL` of Gaussian noise: t with
        ``t^2 = 2 L (v + t / 3)`` for Skellam noise of variance v, where L is half the square of `modulus.TAIL`. That
        is Bernstein's inequality for a difference of two Poisson variables; it is the same once v is large.

        Args:
            deviation: of the sum's noise, in steps of the integers.
        """
        if self.noise == "discrete-gaussian":
            return TAIL
        logarithm = TAIL**2 / 2
        third = logarithm / 3
        return (third + math.sqrt(third**2 + 2 * logarithm * deviation**2)) / deviation

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
def _tabled(noise: NoiseName, deviation: float) -> DiscreteGaussian | Skellam:
    """The distribution with its table, which takes longer to make than a round's noise to draw."""
    return Skellam(deviation) if noise == "skellam" else DiscreteGaussian(deviation)
