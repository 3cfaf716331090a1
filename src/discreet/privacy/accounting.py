"""What a ledger of releases costs.

`spent` answers for an accountant and an adjacency; what no theory covers is refused.

**Adjacency.** ``add-remove``: the data of one client is there or not. The sum of signs moves by at most sqrt(n) in L2,
of updates clipped to S by S. ``replace-one``: the data of one client is replaced by any other; both move by twice as
much, so the accountants halve the noise multiplier, which is always stated for add-remove.

**What is not promised.** Shares of noise come with the clients who take part. How many took part is taken as public,
and as independent of anyone's data. Amplification by sampling holds against those who do not learn *who* took part.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from discreet.errors import ConfigError
from discreet.privacy import renyi
from discreet.privacy.releases import (
    DiscreteGaussianSum,
    FixedSize,
    Gaussian,
    Ledger,
    Poisson,
    Released,
    Sampling,
    Skellam,
)

Adjacency: TypeAlias = Literal["add-remove", "replace-one"]
Accountant: TypeAlias = Literal["rdp", "pld", "best"]


@dataclass(frozen=True)
class Spent:
    """What a ledger costs.

    Attributes:
        epsilon: at `delta`; infinity where nothing is promised.
        delta: the chance left out of the promise.
        adjacency: what the promise is about.
        accountant: ``rdp`` or ``pld``: the one whose number this is.
        noise_multiplier: the smallest of any release, or None where there was none.
        releases: how many were counted.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: Literal["rdp", "pld"]
    noise_multiplier: float | None
    releases: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; an infinite epsilon is None, since JSON has no infinity."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


def spent(
    ledger: Ledger, delta: float, accountant: Accountant = "rdp", adjacency: Adjacency | None = None
) -> Spent:
    """What a ledger costs.

    Args:
        ledger: what was released.
        delta: in (0, 1).
        accountant: ``rdp`` (Rényi divergences), ``pld`` (privacy loss distributions: tighter, slower, and not for
            everything), or ``best``: the smaller of those that cover the ledger.
        adjacency: None for the one that the ledger's sampling has a theory for: add-remove for Poisson sampling,
            replace-one for cohorts of constant size.

    Raises:
        ConfigError: no theory covers the combination, or `delta` is out of range.
    """
    if not 0 < delta < 1:
        raise ConfigError("privacy.delta", delta, "a number above 0 and below 1")
    if accountant not in get_args(Accountant):
        raise ConfigError("privacy.accountant", accountant, "'rdp', 'pld' or 'best'")
    relation = adjacency_of(ledger) if adjacency is None else adjacency
    noise = min((released.noise_multiplier for released, _ in ledger.entries), default=None)

    def by(name: Literal["rdp", "pld"], epsilon: float) -> Spent:
        return Spent(epsilon, delta, relation, name, noise, ledger.releases)

    if accountant == "pld":
        return by("pld", _pld_epsilon(ledger, delta, relation))
    rdp = by("rdp", renyi.epsilon_of(curve_of(ledger, relation), delta))
    if accountant == "rdp" or not pld_covers(ledger):
        return rdp
    pld = by("pld", _pld_epsilon(ledger, delta, relation))
    return pld if pld.epsilon < rdp.epsilon else rdp


def adjacency_among(groups: int, adjacency: Adjacency) -> str:
    """What a promise is about where clients are dealt into groups, each with a sum of its own.

    One client more would be dealt with all others anew, and move every sum. So the promise is for one of a known number
    of clients, whose data is replaced by nothing: ``zero-out``. It costs what ``add-remove`` does.
    """
    return "zero-out" if groups > 1 and adjacency == "add-remove" else adjacency


def adjacency_of(ledger: Ledger) -> Adjacency:
    """The adjacency that the sampling in a ledger has a theory for; add-remove where nothing is sampled."""
    sampled = (released.sampling for released, _ in ledger.entries if not _everyone(released.sampling))
    return "replace-one" if any(isinstance(drawn, FixedSize) for drawn in sampled) else "add-remove"


def curve_of(ledger: Ledger, adjacency: Adjacency) -> renyi.Curve:
    """The Rényi curve of all that was released."""
    total = np.zeros(len(renyi.ORDERS))
    for released, count in ledger.entries:
        total = total + count * _curve(released, adjacency)
    return total


def pld_covers(ledger: Ledger) -> bool:
    """Whether there are privacy loss distributions for all that was released."""
    return all(
        not isinstance(released.noise, Skellam)
        and (isinstance(released.sampling, Poisson) or _everyone(released.sampling))
        for released, _ in ledger.entries
    )


def _curve(released: Released, adjacency: Adjacency) -> renyi.Curve:
    """The Rényi curve of one release."""
    factor = _sensitivity_factor(released, adjacency)
    noise, drawn = released.noise, released.sampling
    if isinstance(noise, Skellam):
        l1, l2 = factor * noise.l1_sensitivity, factor * noise.l2_sensitivity
        variance = (noise.noise_multiplier * noise.l2_sensitivity) ** 2
        if _everyone(drawn):
            return renyi.skellam(l1, l2, variance)
        return renyi.sampled_skellam(drawn.fraction, isinstance(drawn, FixedSize), l1, l2, variance)
    multiplier, correction = _as_gaussian(noise)
    return renyi.with_correction(_gaussian_curve(drawn, multiplier / factor), correction)


def _gaussian_curve(drawn: Sampling, multiplier: float) -> renyi.Curve:
    if _everyone(drawn):
        return renyi.gaussian(multiplier)
    if isinstance(drawn, Poisson):
        return renyi.poisson_gaussian(drawn.probability, multiplier)
    return renyi.fixed_size_gaussian(drawn.cohort, drawn.population, multiplier)


def _pld_epsilon(ledger: Ledger, delta: float, adjacency: Adjacency) -> float:
    """Epsilon by privacy loss distributions.

    A correction of c nats in total stretches the loss by c and the probabilities by exp(c/2), so that
    epsilon(delta) = c + epsilon'(delta exp(-c/2)) with epsilon' of the continuous noise.
    """
    if not pld_covers(ledger):
        raise ConfigError(
            "privacy.accountant", "pld", "'rdp': there are no loss distributions for what was released"
        )
    rough = renyi.epsilon_of(curve_of(ledger, adjacency), delta)
    if not math.isfinite(rough) or not ledger.entries:
        return rough
    import dp_accounting as dp
    from dp_accounting import pld

    # finer than a promise of this size needs would only cost time and memory; the result is an upper bound at any
    accountant = pld.PLDAccountant(value_discretization_interval=max(1e-4, rough * 2e-5))
    total = 0.0
    for released, count in ledger.entries:
        if isinstance(released.noise, Skellam):
            raise ConfigError("privacy.accountant", "pld", "'rdp' for Skellam noise")
        multiplier, correction = _as_gaussian(released.noise)
        total += count * correction
        event: Any = dp.GaussianDpEvent(multiplier / _sensitivity_factor(released, adjacency))
        if not _everyone(released.sampling):
            event = dp.PoissonSampledDpEvent(released.sampling.fraction, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta * math.exp(-total / 2))) + total


def _as_gaussian(noise: Gaussian | DiscreteGaussianSum) -> tuple[float, float]:
    """The noise multiplier of continuous noise that hides no more, and the correction that this takes."""
    if isinstance(noise, Gaussian):
        return noise.noise_multiplier, 0.0
    counts, correction = renyi.from_integers(noise.std, noise.dimension)
    return noise.noise_multiplier * math.sqrt(counts), correction + noise.correction


def _sensitivity_factor(released: Released, adjacency: Adjacency) -> int:
    """By how much one client moves the sum, in units of its largest contribution: 1 or 2."""
    if adjacency not in get_args(Adjacency):
        raise ConfigError("privacy.adjacency", adjacency, "'add-remove' or 'replace-one'")
    if not _everyone(released.sampling):
        natural = "add-remove" if isinstance(released.sampling, Poisson) else "replace-one"
        if adjacency != natural:
            drawn = "Poisson sampling" if natural == "add-remove" else "cohorts of constant size"
            raise ConfigError(
                "privacy.adjacency", adjacency, f"{natural!r}: no other bound is known here for {drawn}"
            )
    return 1 if adjacency == "add-remove" else 2


def _everyone(drawn: Sampling) -> bool:
    return drawn.fraction == 1
