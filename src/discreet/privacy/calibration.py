"""How much noise a budget needs, and how many releases it allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from discreet.errors import ConfigError
from discreet.privacy import renyi
from discreet.privacy.accounting import (
    Accountant,
    Adjacency,
    adjacency_of,
    curve_of,
    pld_covers,
    spent,
)
from discreet.privacy.releases import NOTHING, Gaussian, Ledger, Noise, Released, Sampling

TOLERANCE = 1e-4
"""How far above the smallest sufficient noise multiplier `calibrate` may end, relative to it."""

LARGEST_NOISE, SMALLEST_NOISE = 1e4, 1e-2
"""Between these `calibrate` looks for a noise multiplier."""


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
        accountant: as in `discreet.privacy.accounting.spent`.
        adjacency: as in `discreet.privacy.accounting.spent`.
        limit: the answer is at most this.
    """
    _check_epsilon(epsilon)
    relation = adjacency_of(before.add(released)) if adjacency is None else adjacency
    spent(before.add(released), delta, accountant, relation)  # refuses what no theory covers
    so_far, one_more = (curve_of(ledger, relation) for ledger in (before, NOTHING.add(released)))

    def by_rdp(count: int) -> bool:
        return renyi.epsilon_of(so_far + count * one_more, delta) <= epsilon

    def by_pld(count: int) -> bool:
        return spent(before.add(released, count), delta, "pld", relation).epsilon <= epsilon

    fewest = _largest(by_rdp, 0, limit)
    if accountant == "rdp" or not pld_covers(before.add(released)):
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
        accountant: as in `discreet.privacy.accounting.spent`.
        adjacency: as in `discreet.privacy.accounting.spent`.
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
        accountant == "best" and not pld_covers(before.add(Released(sampling, noise(found))))
    ):
        return found
    # privacy loss distributions cost much to look at, and need but a little less noise
    return search(accountant, *bracket(accountant, found, 1.05))


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
