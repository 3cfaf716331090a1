"""How much privacy a run can be shown to have lost: canary clients, guesses, and a lower bound on epsilon.

Some clients are canaries. For each a coin says whether it is in: then it sends, in every round in which it takes part,
an update of random signs, as large as any client's can be; otherwise it holds no data, and sends its share of noise.
Whoever knows the signs looks for them in what each round gives out, and guesses for some canaries how the coin fell.
Under (epsilon, delta)-differential privacy there is a limit to how many guesses are right.

From Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846),
corollary 5.4; updates as canaries as in Andrew et al. 2023 (arXiv 2302.03098).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtrc
from torch import Tensor

from discreet.adversaries.malice import Malice, Work, with_rows
from discreet.cohort import Cohort
from discreet.randomness import Keyed, Seeded
from discreet.training import Trained

CONFIDENCE = 0.95
"""How often a lower bound is one, at least."""

GUESSED = (0.25, 0.5, 1.0)
"""Shares of the canaries that are guessed; each has an equal part of what confidence leaves for error."""

LARGEST_EPSILON = 50.0


@dataclass(frozen=True, eq=False)
class Canaries(Malice):
    """What a run's clients send of which some are canaries. Malicious clients do what they do besides.

    Attributes:
        sending: the numbers of the canaries that are in.
        size: L2 norm of a canary's update before it is clipped.
    """

    sending: NDArray[np.int64]
    size: float

    def pretended(
        self, work: Work, start: Tensor, cohort: Cohort, randomness: Seeded | Keyed, memory: dict[str, Any]
    ) -> Trained:
        """See `discreet.adversaries.malice.Malice.pretended`."""
        found = super().pretended(work, start, cohort, randomness, memory)
        lanes = np.isin(cohort.ids, self.sending)
        if not lanes.any():
            return found
        rows = directions(randomness, cohort.round, cohort.ids[lanes], start.shape[-1])
        return with_rows(found, cohort, lanes, rows * self.size)


def directions(randomness: Seeded | Keyed, round: int, canaries: NDArray[np.int64], length: int) -> Tensor:
    """The updates of canaries in a round, of norm 1: float32, shape (canaries, length)."""
    signs = np.empty((len(canaries), length), dtype=np.float32)
    for row, canary in zip(signs, canaries.tolist(), strict=True):
        row[:] = randomness.stream(round, canary, "canary").integers(0, 2, length, dtype=np.int8)
    return torch.from_numpy((2 * signs - 1) / np.float32(math.sqrt(length)))


def scores(released: Tensor, canaries: Tensor) -> Tensor:
    """How much of each canary there is in what a round gave out.

    Args:
        released: shape (n,): a sum of updates, or how a model moved.
        canaries: their directions of the round, shape (m, n).

    Returns:
        Float64, shape (m,), in units of the root mean square of `released`; 0 where nothing was given out.
    """
    released = released.double()
    unit = float(released.square().mean().sqrt())
    if not unit:
        return torch.zeros(len(canaries), dtype=torch.float64)
    return canaries.double() @ (released / unit)


def among_groups(released: Tensor, canaries: Tensor, norm: float, chance: float) -> Tensor:
    """How much likelier several sums are with a canary in one of them, nobody knows in which, than without it.

    All that is in a sum besides is taken to be normal. Adding the sums up instead would add up the noise of all.

    Args:
        released: shape (g, n): the sums of a round's groups.
        canaries: their directions of the round, shape (m, n).
        norm: of what a canary that is in adds to the sum that it is in, in L2.
        chance: with which a client takes part in a round, in (0, 1].

    Returns:
        Float64, shape (m,): the logarithm of the ratio, the groups being alike before anything is seen.
    """
    released = released.double()
    units = released.square().mean(1).sqrt()
    seen = torch.where(units > 0, units, torch.inf)  # a sum of nothing says nothing
    signal = norm / seen
    ratios = (canaries.double() @ (released / seen[:, None]).T) * signal - signal.square() / 2
    inside = torch.logsumexp(ratios, 1) - math.log(len(released))
    part = torch.tensor(chance, dtype=torch.float64)
    return torch.logaddexp(inside + part.log(), (-part).log1p())


@dataclass(frozen=True)
class Bound:
    """What guesses show.

    Attributes:
        epsilon: with the stated confidence, epsilon is at least this.
        guesses: how many were made.
        right: how many of them were right.
    """

    epsilon: float
    guesses: int
    right: int


def bounded(found: Tensor, coins: NDArray[np.bool_], delta: float) -> Bound:
    """The best of the bounds from guesses on all canaries, and on the clearest of them.

    A guess is made of the highest scores (in) and as many of the lowest (out); of the rest none. How many is laid down
    beforehand, `GUESSED`, and each try has its part of what may go wrong.

    Args:
        found: the canaries' scores, shape (m,).
        coins: whether each was in, shape (m,).
        delta: of the promise.
    """
    order = np.argsort(found.numpy(), kind="stable")
    count, error = len(order), (1 - CONFIDENCE) / len(GUESSED)
    tried = [Bound(0.0, 0, 0)]
    for share in GUESSED:
        each = math.floor(share * count / 2)
        if each:
            right = int(coins[order[-each:]].sum() + (~coins[order[:each]]).sum())
            bound = least_epsilon(count, 2 * each, right, delta, 1 - error)
            tried.append(Bound(bound, 2 * each, right))
    return max(tried, key=lambda one: (one.epsilon, one.guesses))


def least_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """A lower bound on epsilon: for every smaller one, so many right guesses were too unlikely.

    Args:
        canaries: m, each in or out by a fair coin of its own.
        guesses: r, how many were guessed; from 0 to m.
        right: v, how many of the guesses were right.
        delta: of the promise, in [0, 1).
        confidence: of the bound, in (0, 1).

    Returns:
        0 where nothing is shown; at most `LARGEST_EPSILON`.
    """

    def unlikely(epsilon: float) -> bool:
        return chance_of(canaries, guesses, right, epsilon, delta) <= 1 - confidence

    return _largest(unlikely, LARGEST_EPSILON)


def chance_of(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most likely that so many right guesses, or more, are under (epsilon, delta)-differential privacy.

    ``f(v) + 2 m delta max_i (f(v - i) - f(v)) / i`` over i from 1 to m, where f(v) is the chance that a binomial number
    of r guesses, each right with probability e^epsilon / (1 + e^epsilon), is v or more.

    Args:
        canaries: m.
        guesses: r.
        right: v.
        epsilon: at least 0.
        delta: in [0, 1).

    Returns:
        In [0, 1].

    Raises:
        ValueError: not 0 <= right <= guesses <= canaries.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(
            f"{right} right of {guesses} guesses on {canaries} canaries: expected no more each time"
        )
    odds = 1 / (1 + math.exp(-epsilon))
    by_luck = float(bdtrc(right - 1, guesses, odds))
    if not delta or not right:
        return min(1.0, by_luck)
    # beyond i = right, f(v - i) is 1 and the quotient falls
    steps = np.arange(1, right + 1)
    more = (bdtrc(right - steps - 1, guesses, odds) - by_luck) / steps
    return float(min(1.0, by_luck + 2 * canaries * delta * more.max()))


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` for which something holds that holds up to it, to 2^-40 of `most`; or else 0."""
    if not holds(0.0):
        return 0.0
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
