"""What a ledger of releases costs, and how much noise a budget needs.

`spent` answers for an accountant and an adjacency; what no theory covers is refused.

**Adjacency.** ``add-remove``: the data of one client is there or not. The sum of signs moves by at most sqrt(n) in L2,
of updates clipped to S by S. ``replace-one``: the data of one client is replaced by any other; both move by twice as
much, so the accountants halve the noise multiplier, which is always stated for add-remove.

**What is not promised.** Shares of noise come with the clients who take part. How many took part is taken as public,
and as independent of anyone's data. Amplification by sampling holds against those who do not learn *who* took part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from discreet.errors import ConfigError
from discreet.privacy import renyi
from discreet.privacy.releases import (
    NOTHING,
    DiscreteGaussianSum,
    FixedSize,
    Gaussian,
    Ledger,
    Noise,
    Poisson,
    Released,
    Sampling,
    Skellam,
    check_noise,
    check_positive,
)

__all__ = [
    "NOTHING",
    "Accountant",
    "Adjacency",
    "DiscreteGaussianSum",
    "FixedSize",
    "Gaussian",
    "Ledger",
    "Noise",
    "Poisson",
    "Released",
    "Sampling",
    "Skellam",
    "Spent",
    "adjacency_among",
    "adjacency_of",
    "calibrate",
    "effective_noise_multiplier",
    "rounds_within",
    "spent",
]

Adjacency: TypeAlias = Literal["add-remove", "replace-one"]
Accountant: TypeAlias = Literal["rdp", "pld", "best"]

TOLERANCE = 1e-4
"""How far above the smallest sufficient noise multiplier `calibrate` may end, relative to it."""

LARGEST_NOISE, SMALLEST_NOISE = 1e4, 1e-2
"""Between these `calibrate` looks for a noise multiplier."""


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
    rdp = by("rdp", renyi.epsilon_of(_ledger_curve(ledger, relation), delta))
    if accountant == "rdp" or not _pld_covers(ledger):
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


def rounds_within(
    epsilon: float,
    delta: float,
    released: Released,
    *,
    before: Ledger = NOTHING,
    accountant: Accountant = "rdp",
    adjacency: Adjacency | None = None,
    limit: int = 1_000_000,
) -> int:
    """How many more releases like `released` keep the total within `epsilon`: a run stops after so many.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1).
        released: what each further round gives out.
        before: what was released already.
        accountant: as in `spent`.
        adjacency: as in `spent`.
        limit: the answer is at most this.
    """
    _check_epsilon(epsilon)
    relation = adjacency_of(before.add(released)) if adjacency is None else adjacency
    spent(before.add(released), delta, accountant, relation)  # refuses what no theory covers
    so_far, one_more = _ledger_curve(before, relation), _curve(released, relation)

    def by_rdp(count: int) -> bool:
        return renyi.epsilon_of(so_far + count * one_more, delta) <= epsilon

    def by_pld(count: int) -> bool:
        return spent(before.add(released, count), delta, "pld", relation).epsilon <= epsilon

    fewest = _largest(by_rdp, 0, limit)
    if accountant == "rdp" or not _pld_covers(before.add(released)):
        return fewest
    return _largest(by_pld, fewest if accountant == "best" else 0, limit)


def calibrate(
    epsilon: float,
    delta: float,
    rounds: int,
    sampling: Sampling,
    *,
    noise: Callable[[float], Noise] = Gaussian,
    before: Ledger = NOTHING,
    accountant: Accountant = "rdp",
    adjacency: Adjacency | None = None,
    tolerance: float = TOLERANCE,
) -> float:
    """The smallest noise multiplier with which `rounds` releases cost at most `epsilon`.

    Deterministic. The result keeps the promise, and exceeds the smallest multiplier that does by at most `tolerance`
    of it.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1).
        rounds: how many releases, at least 1.
        sampling: of each.
        noise: which noise, given its multiplier: the class `Gaussian`, or a function that fills in the rest.
        before: what was, or will be, released besides.
        accountant: as in `spent`.
        adjacency: as in `spent`.
        tolerance: above 0.

    Raises:
        ConfigError: no noise multiplier up to `LARGEST_NOISE` is enough.
    """
    _check_epsilon(epsilon)
    if rounds < 1:
        raise ConfigError("rounds", rounds, "at least 1")

    def cost(multiplier: float, by: Accountant) -> float:
        ledger = before.add(Released(sampling, noise(multiplier)), rounds)
        return spent(ledger, delta, by, adjacency).epsilon

    def bracket(by: Accountant, start: float, factor: float) -> tuple[_Look, _Look]:
        low = high = _Look(start, cost(start, by))
        while high.epsilon > epsilon:
            low, high = high, _Look(high.at * factor, cost(high.at * factor, by))
            if high.at > LARGEST_NOISE:
                raise ConfigError(
                    "privacy.epsilon", epsilon, "a budget that noise can reach: fewer rounds or clients"
                )
        while low.epsilon <= epsilon and low.at >= SMALLEST_NOISE:
            low, high = _Look(low.at / factor, cost(low.at / factor, by)), low
        return low, high

    def search(by: Accountant, low: _Look, high: _Look) -> float:
        step = 0
        while high.at > low.at * (1 + tolerance) and high.at > SMALLEST_NOISE:
            step += 1
            # nearly a power law: interpolate; every third step halves, so that it ends soon in any case
            middle = math.sqrt(low.at * high.at) if step % 3 == 0 else _between(low, high, epsilon, tolerance)
            look = _Look(middle, cost(middle, by))
            low, high = (low, look) if look.epsilon <= epsilon else (look, high)
        return high.at

    found = search("rdp", *bracket("rdp", 1.0, 2.0))
    if accountant == "rdp" or (
        accountant == "best" and not _pld_covers(before.add(Released(sampling, noise(found))))
    ):
        return found
    # privacy loss distributions cost much to look at, and need but a little less noise
    return search(accountant, *bracket(accountant, found, 1.05))


def effective_noise_multiplier(
    noise_multiplier: float, shares_for: int, survivors: int, assumed_dishonest: int = 0
) -> float | None:
    """The noise multiplier that a round's sum really has.

    Every client adds a share of variance (noise_multiplier * sensitivity)^2 / `shares_for`, so that `shares_for` honest
    survivors together give the promised noise. Counted are the survivors less those assumed to add nothing.

    Args:
        noise_multiplier: promised, for `shares_for` shares.
        shares_for: honest survivors that the shares are sized for, at least 1.
        survivors: clients whose contributions are in the sum.
        assumed_dishonest: how many of them are taken to add no noise, or to tell it to the server.

    Returns:
        noise_multiplier * sqrt(counted / shares_for), or None where fewer than `shares_for` count: such a round falls
        short of the promise and must not be released.
    """
    check_noise(noise_multiplier)
    check_positive(shares_for=shares_for)
    if min(survivors, assumed_dishonest) < 0:
        raise ConfigError("survivors", (survivors, assumed_dishonest), "numbers of clients, at least 0")
    counted = survivors - assumed_dishonest
    return None if counted < shares_for else noise_multiplier * math.sqrt(counted / shares_for)


class _Look(NamedTuple):
    """A noise multiplier that was looked at, and what it costs."""

    at: float
    epsilon: float


def _between(low: _Look, high: _Look, epsilon: float, tolerance: float) -> float:
    """A noise multiplier inside a bracket, a little above where a power law through its ends costs `epsilon`."""
    if not math.isfinite(low.epsilon) or high.epsilon <= 0:
        return math.sqrt(low.at * high.at)
    part = math.log(low.epsilon / epsilon) / math.log(low.epsilon / high.epsilon)
    guess = low.at * math.exp(part * math.log(high.at / low.at)) * (1 + tolerance / 4)
    return min(max(guess, low.at * (1 + tolerance / 2)), high.at / (1 + tolerance / 2))


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


def _ledger_curve(ledger: Ledger, adjacency: Adjacency) -> renyi.Curve:
    total = np.zeros(len(renyi.ORDERS))
    for released, count in ledger.entries:
        total = total + count * _curve(released, adjacency)
    return total


def _pld_epsilon(ledger: Ledger, delta: float, adjacency: Adjacency) -> float:
    """Epsilon by privacy loss distributions.

    A correction of c nats in total stretches the loss by c and the probabilities by exp(c/2), so that
    epsilon(delta) = c + epsilon'(delta exp(-c/2)) with epsilon' of the continuous noise.
    """
    if not _pld_covers(ledger):
        raise ConfigError(
            "privacy.accountant", "pld", "'rdp': there are no loss distributions for what was released"
        )
    rough = renyi.epsilon_of(_ledger_curve(ledger, adjacency), delta)
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


def _pld_covers(ledger: Ledger) -> bool:
    return all(
        not isinstance(released.noise, Skellam)
        and (isinstance(released.sampling, Poisson) or _everyone(released.sampling))
        for released, _ in ledger.entries
    )


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


def _largest(fits: Callable[[int], bool], known: int, limit: int) -> int:
    """The largest count in known .. limit that fits, given that fewer always fit where more do."""
    if not fits(known + 1):
        return known
    enough, step = known + 1, max(1, known // 8)
    while enough + step <= limit and fits(enough + step):
        enough, step = enough + step, 2 * step
    too_many = min(enough + step, limit + 1)
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        enough, too_many = (middle, too_many) if fits(middle) else (enough, middle)
    return enough


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("privacy.epsilon", epsilon, "a number above 0")
