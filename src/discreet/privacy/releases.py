"""What ran, in facts: how clients were drawn, which noise the sum had, and how often.

A `Released` says what one round gave out; a `Ledger` counts releases, and survives a run that is killed as plain JSON.
What that costs is another question, which `discreet.privacy.accounting` answers.

Noise multipliers are always stated for one client added or removed (whose signs move the sum by at most sqrt(n) in L2,
whose update clipped to S by at most S), so that one number describes the noise whatever is asked of it later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from discreet.errors import ConfigError
from discreet.privacy import renyi


@dataclass(frozen=True)
class Poisson:
    """Each client takes part in a round with a probability, independently of all else.

    Attributes:
        probability: in (0, 1]; 1 means that everyone takes part.
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ConfigError("fraction", self.probability, "a probability above 0 and at most 1")

    @property
    def fraction(self) -> float:
        """The share of all clients that a round draws on average."""
        return self.probability


@dataclass(frozen=True)
class FixedSize:
    """A cohort of constant size is drawn without replacement.

    Attributes:
        cohort: how many take part, from 1 to `population`.
        population: how many clients there are.
    """

    cohort: int
    population: int

    def __post_init__(self) -> None:
        if not 1 <= self.cohort <= self.population:
            raise ConfigError("cohort", self.cohort, f"from 1 to the number of clients, {self.population}")

    @property
    def fraction(self) -> float:
        """The share of all clients that a round draws."""
        return self.cohort / self.population


Sampling: TypeAlias = Poisson | FixedSize


@dataclass(frozen=True)
class Gaussian:
    """Continuous Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise over the L2 norm of one client's contribution, above 0.
    """

    noise_multiplier: float
    mechanism = "gaussian"

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """A sum of discrete Gaussian shares, added to a sum of integers.

    Attributes:
        noise_multiplier: standard deviation of the counted shares' sum over `l2_sensitivity`, above 0.
        l2_sensitivity: largest L2 norm of one client's contribution, in steps of the integers: sqrt(n) for signs, the
            clip norm in steps for updates in fixed point.
        dimension: coordinates of the sum.
        shares: how many equal, independent shares are counted; further ones only hide more.
    """

    noise_multiplier: float
    l2_sensitivity: float
    dimension: int
    shares: int = 1
    mechanism = "discrete-gaussian-sum"

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_positive(l2_sensitivity=self.l2_sensitivity, dimension=self.dimension, shares=self.shares)

    @property
    def std(self) -> float:
        """Standard deviation of the sum's noise a coordinate, in steps of the integers."""
        return self.noise_multiplier * self.l2_sensitivity

    @property
    def correction(self) -> float:
        """Nats by which a release may differ from one with a single discrete Gaussian; see `renyi`."""
        return renyi.correction_of_sum(self.shares, self.std / math.sqrt(self.shares), self.dimension)


@dataclass(frozen=True)
class Skellam:
    """Skellam noise, added to a sum of integers; sums of shares are Skellam again.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise over `l2_sensitivity`, above 0.
        l1_sensitivity: largest L1 norm of one client's contribution, in steps of the integers (n for signs).
        l2_sensitivity: largest L2 norm, likewise (sqrt(n) for signs).
    """

    noise_multiplier: float
    l1_sensitivity: float
    l2_sensitivity: float
    mechanism = "skellam"

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_positive(l1_sensitivity=self.l1_sensitivity, l2_sensitivity=self.l2_sensitivity)


Noise: TypeAlias = Gaussian | DiscreteGaussianSum | Skellam

_NOISES: dict[str, type[Noise]] = {kind.mechanism: kind for kind in (Gaussian, DiscreteGaussianSum, Skellam)}


@dataclass(frozen=True)
class Released:
    """What one round gave out: one noisy sum. An empty Poisson cohort's sum is a release like any other.

    Attributes:
        sampling: how the clients in the sum were drawn.
        noise: what was added to it.
    """

    sampling: Sampling
    noise: Noise

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the sum's noise over the L2 norm of one client's contribution."""
        return self.noise.noise_multiplier

    def weakened(self, factor: float) -> Released:
        """The same release with noise of a standard deviation that is `factor` times as large, above 0."""
        if factor == 1:
            return self
        multiplier = self.noise.noise_multiplier * factor
        return replace(self, noise=replace(self.noise, noise_multiplier=multiplier))

    @property
    def mechanism(self) -> str:
        """``gaussian``, ``discrete-gaussian-sum`` or ``skellam``."""
        return self.noise.mechanism

    def to_facts(self) -> dict[str, Any]:
        """The release as plain JSON."""
        kind = "poisson" if isinstance(self.sampling, Poisson) else "fixed"
        return {
            "sampling": {"kind": kind, **asdict(self.sampling)},
            "noise": {"mechanism": self.mechanism, **asdict(self.noise)},
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Released:
        """The release that `to_facts` wrote down.

        Raises:
            ConfigError: `facts` are not those of a release.
        """
        try:
            sampling, noise = dict(facts["sampling"]), dict(facts["noise"])
            drawn = {"poisson": Poisson, "fixed": FixedSize}[sampling.pop("kind")](**sampling)
            return cls(drawn, _NOISES[noise.pop("mechanism")](**noise))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "ledger", dict(facts), "the facts of a release, as they were written"
            ) from error


@dataclass(frozen=True)
class Ledger:
    """Everything released so far.

    Attributes:
        entries: distinct releases, each with how often it happened; their order does not matter to the cost.
    """

    entries: tuple[tuple[Released, int], ...] = ()

    def add(self, released: Released, count: int = 1) -> Ledger:
        """The ledger after `count` more releases, each the same."""
        if count < 0:
            raise ConfigError("count", count, "a number of at least 0")
        counts = dict(self.entries)
        counts[released] = counts.get(released, 0) + count
        return Ledger(tuple((entry, times) for entry, times in counts.items() if times))

    @property
    def releases(self) -> int:
        """How many releases there were."""
        return sum(count for _, count in self.entries)

    def to_facts(self) -> list[dict[str, Any]]:
        """The ledger as plain JSON, for a checkpoint."""
        return [{"count": count, **released.to_facts()} for released, count in self.entries]

    @classmethod
    def from_facts(cls, facts: list[dict[str, Any]]) -> Ledger:
        """The ledger that `to_facts` wrote down.

        Raises:
            ConfigError: `facts` are not those of a ledger.
        """
        ledger = cls()
        for entry in facts:
            count = entry.get("count")
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ConfigError("ledger", entry, "a release with its count of at least 1")
            ledger = ledger.add(Released.from_facts(entry), count)
        return ledger


NOTHING = Ledger()
"""Nothing was released yet."""


def _check_noise(noise_multiplier: float) -> None:
    """Refuse a noise multiplier that is not a finite number above 0."""
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ConfigError("privacy.noise_multiplier", noise_multiplier, "a number above 0")


def _check_positive(**values: float) -> None:
    """Refuse, by name, what is not a finite number above 0."""
    for key, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(key, value, "a number above 0")
