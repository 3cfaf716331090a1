"""Rényi divergences of one release: the curves that `discreet.privacy.accounting` adds up.

A curve is an array over `ORDERS`: at each order alpha an upper bound, in nats, on the Rényi divergence in both
directions between what is released with and without one client. The curves of Gaussian noise are dp-accounting's;
ours is what it lacks: sums of discrete Gaussians, Skellam noise, and sampling in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

_WHOLE = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)
_BETWEEN = (*(whole + part / 5 for whole in range(2, 6) for part in range(1, 5)), 6.5, 7.5, 8.5, 9.5)

ORDERS: tuple[float, ...] = tuple(sorted((*map(float, _WHOLE), *_BETWEEN)))
"""Orders above 1 at which curves are kept. None lies below 2: there dp-accounting's series for fractional orders
does not converge (and says so in many warnings), and such orders decide only about epsilon above 15 or so."""

_ORDERS = np.array(ORDERS)
# for curves whose cost grows with the square of the order
_FEWER = np.array([*range(2, 33), *range(34, 65, 2), 80, 96, 128, 256, 512, 1024], dtype=np.float64)
_IS_WHOLE = np.array([order.is_integer() for order in ORDERS])


def gaussian(noise_multiplier: float) -> Curve:
    """Curve of a Gaussian release in which everyone takes part.

    Args:
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, above 0.
    """
    return _ORDERS / (2 * noise_multiplier**2)


@lru_cache(maxsize=64)  # a run asks for the same curve after every round
def poisson_gaussian(probability: float, noise_multiplier: float) -> Curve:
    """Curve of a Gaussian release in front of which each client is drawn with a probability.

    Args:
        probability: in (0, 1).
        noise_multiplier: standard deviation of the noise over the L2 sensitivity for one client added or removed.

    Source: Mironov, Talwar, Zhang 2019, arXiv 1908.10530, by dp-accounting.
    """
    import dp_accounting as dp  # late: it brings all of scipy.stats, which takes longer than a small run

    event = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(noise_multiplier))

    def at(orders: Curve) -> Curve:
        return _curve_of(event, dp.NeighboringRelation.ADD_OR_REMOVE_ONE, orders)

    curve = _interpolated(at(_ORDERS[_IS_WHOLE]))
    if _series_converges(probability, noise_multiplier):
        # both are upper bounds: near a probability of 1/2 the series, summed without its signs, is the looser
        curve[~_IS_WHOLE] = np.minimum(curve[~_IS_WHOLE], at(_ORDERS[~_IS_WHOLE]))
    curve.setflags(write=False)
    return curve


@lru_cache(maxsize=64)
def fixed_size_gaussian(cohort: int, population: int, noise_multiplier: float) -> Curve:
    """Curve of a Gaussian release in front of which a cohort of constant size is drawn.

    Args:
        cohort: how many are drawn without replacement, below `population`.
        population: of how many.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity for one client *replaced*.

    Source: Wang, Balle, Kasiviswanathan 2019, arXiv 1808.00087, theorem 27, by dp-accounting.
    """
    import dp_accounting as dp

    event = dp.SampledWithoutReplacementDpEvent(population, cohort, dp.GaussianDpEvent(noise_multiplier))
    curve = _interpolated(_curve_of(event, dp.NeighboringRelation.REPLACE_ONE, _FEWER), _FEWER)
    curve.setflags(write=False)
    return curve


def epsilon_of(curve: Curve, delta: float) -> float:
    """The smallest epsilon that a curve gives at `delta`: dp-accounting's conversion, at the best order.

    Source: Canonne, Kamath, Steinke 2020, arXiv 2004.00010, proposition 12.
    """
    if not np.isfinite(curve).any():
        return math.inf
    from dp_accounting.rdp import rdp_privacy_accountant

    finite = np.isfinite(curve)
    # rounding can leave a divergence a few ulp below 0, which dp-accounting would warn of
    positive = np.maximum(curve[finite], 0.0)
    return float(rdp_privacy_accountant.compute_epsilon(_ORDERS[finite], positive, delta)[0])


def skellam(l1_sensitivity: float, l2_sensitivity: float, variance: float) -> Curve:
    """Curve of a Skellam release of integers in which everyone takes part.

    At whole orders the bound is alpha l2^2 / (2 mu) + min(((2 alpha - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu)).

    Args:
        l1_sensitivity: of the integer-valued sum.
        l2_sensitivity: of the same.
        variance: of the noise of each coordinate of the sum, mu.

    Source: Agarwal, Kairouz, Liu 2021, arXiv 2110.04995, the theorem on many dimensions.
    """
    return _interpolated(_skellam_at(_ORDERS[_IS_WHOLE], l1_sensitivity, l2_sensitivity, variance))


def sampled_skellam(
    fraction: float, replace_one: bool, l1_sensitivity: float, l2_sensitivity: float, variance: float
) -> Curve:
    """Curve of a Skellam release in front of which clients are drawn.

    Args:
        fraction: drawn with this probability each or, with `replace_one`, this share of all without replacement.
        replace_one: adjacency and sampling: one client replaced and cohorts of constant size, instead of one client
            added or removed and independent draws.
        l1_sensitivity: as in `skellam`, for that adjacency.
        l2_sensitivity: likewise.
        variance: as in `skellam`.
    """
    amplify = _amplified_by_fixed_size if replace_one else _amplified_by_poisson

    def plain(orders: Curve) -> Curve:
        return _skellam_at(orders, l1_sensitivity, l2_sensitivity, variance)

    return _interpolated(np.array([amplify(order, fraction, plain) for order in _WHOLE]))


def with_correction(curve: Curve, correction: float) -> Curve:
    """Curve of releases whose probabilities lie within a factor exp(+-correction / 2) of those of `curve`.

    With p' <= exp(c/2) p and q' >= exp(-c/2) q, the sum over p' (p'/q')^(alpha-1) is at most
    exp(c/2 + c (alpha-1)) times that of p and q, so the divergence grows by at most c (alpha - 1/2) / (alpha - 1).
    The same holds behind sampling, because mixtures of such probabilities obey the same factors.

    Args:
        curve: over `ORDERS`.
        correction: c, at least 0; infinity makes the curve infinite.
    """
    return curve if correction == 0 else curve + correction * (_ORDERS - 0.5) / (_ORDERS - 1)


def correction_of_sum(shares: int, share_std: float, dimension: int) -> float:
    """How far a sum of discrete Gaussians may be from one discrete Gaussian of the summed variance.

    With tau = 10 sum_{k=1}^{shares-1} exp(-2 pi^2 share_std^2 k / (k+1)), each coordinate's probabilities lie within a
    factor exp(+-tau/2) of the discrete Gaussian's; the result is tau times the dimension, for `with_correction`. The
    factor follows share by share: given that X + Y = z, the sum over x of exp(-(x-c)^2 / 2 r^2), with
    1/r^2 = 1/var X + 1/var Y, depends on c (hence on z) by no more than a factor (1+e)/(1-e) with
    e = 2 exp(-2 pi^2 r^2) and smaller terms (Poisson's summation formula), which is below exp(5 exp(-2 pi^2 r^2))
    where both standard deviations are at least 1/2. Proposition 14 of the source adds tau d to the curve of a release
    without sampling; ours, by `with_correction`, is up to half as much again, and holds behind sampling as well.

    Args:
        shares: how many independent shares are counted.
        share_std: parameter of each share, in steps of the integers.
        dimension: coordinates of the sum.

    Returns:
        The correction in nats; 0 for one share; infinity below a standard deviation of 1/2, where the bound is not
        proven.

    Source: Kairouz, Liu, Steinke 2021, arXiv 2102.06387, section on sums and proposition 14.
    """
    if shares == 1:
        return 0.0
    if share_std < 0.5:
        return math.inf
    k = np.arange(1, shares)
    return float(10 * np.exp(-2 * (math.pi * share_std) ** 2 * k / (k + 1)).sum()) * dimension


def from_integers(std: float, dimension: int) -> tuple[float, float]:
    """What it costs to count discrete Gaussian noise as continuous Gaussian noise.

    Take continuous noise of variance std^2 - r^2 and round each coordinate y to the integer z with probability
    proportional to exp(-(z-y)^2 / 2 r^2). That rounding needs no knowledge of the data, and commutes with shifts by
    integers; its result is the discrete Gaussian of variance std^2 up to a factor (1+e)/(1-e) a coordinate with
    e = 2x/(1-x), x = exp(-2 pi^2 r^2) (Poisson's summation formula, once for the rounding's normaliser and once for
    the discrete Gaussian's). So a release with discrete noise is no more than post-processing of one with continuous
    noise of the smaller variance, for every sampling, order, and accountant. Here r is the smallest for which the
    factor over all coordinates stays below 2^-60, and at most std / 2.

    Args:
        std: parameter of the discrete Gaussian, in steps of the integers.
        dimension: coordinates.

    Returns:
        The share of the variance that counts, in [3/4, 1), and the correction in nats for `with_correction`.
    """
    enough = (math.log(8 * dimension) + 60 * math.log(2)) / (2 * math.pi**2)
    spent = min(enough, std**2 / 4)
    x = math.exp(-2 * math.pi**2 * spent)
    e = 2 * x / (1 - x)
    correction = 2 * dimension * (math.log1p(e) - math.log1p(-e)) if e < 1 else math.inf
    return 1 - spent / std**2, correction


def _curve_of(event: Any, relation: Any, orders: Curve) -> Curve:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(list(orders), relation)
    accountant.compose(event)
    return np.array(accountant.rdp, dtype=np.float64)


def _series_converges(probability: float, noise_multiplier: float) -> bool:
    # the 1,000 terms of dp-accounting must reach past z0, which grows with the variance
    z0 = noise_multiplier**2 * abs(math.log(1 / probability - 1))
    return noise_multiplier <= 8 and z0 <= 500


def _interpolated(values: Curve, at: Curve = _ORDERS[_IS_WHOLE]) -> Curve:
    """The curve at all orders from its values at some: an upper bound, as (alpha - 1) times it is convex in alpha.

    Source: arXiv 1808.00087, corollary 10.
    """
    return np.asarray(np.interp(_ORDERS, at, values * (at - 1)) / (_ORDERS - 1), dtype=np.float64)


def _skellam_at(orders: Curve, l1: float, l2: float, variance: float) -> Curve:
    excess = ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return orders * l2**2 / (2 * variance) + np.minimum(excess, 3 * l1 / (2 * variance))


def _amplified_by_poisson(order: int, probability: float, plain: Callable[[Curve], Curve]) -> float:
    """At a whole order, the release behind independent draws.

    The sum over q ((1-p) + p P/Q)^order expands into the plain release's moments. The other direction is no larger,
    because symmetric noise lets a reflection swap P and Q (theorem 5 of arXiv 1908.10530).

    Source: Zhu and Wang 2019; Steinke 2022, arXiv 2210.00597.
    """
    from scipy.special import logsumexp

    k = np.arange(2, order + 1, dtype=np.float64)
    log_p, log_rest = math.log(probability), math.log1p(-probability)
    terms = _log_binomial(order, k) + (order - k) * log_rest + k * log_p + (k - 1) * plain(k)
    first = (order - 1) * log_rest + math.log1p((order - 1) * probability)
    amplified = float(logsumexp(np.append(terms, first))) / (order - 1)
    return min(amplified, float(plain(np.array([float(order)]))[0]))


def _amplified_by_fixed_size(order: int, fraction: float, plain: Callable[[Curve], Curve]) -> float:
    """At a whole order, the release behind a draw without replacement, for one client replaced.

    Source: Wang, Balle, Kasiviswanathan 2019, arXiv 1808.00087, theorem 9.
    """
    from scipy.special import logsumexp

    k = np.arange(2, order + 1, dtype=np.float64)
    plain_at = plain(k)
    terms = _log_binomial(order, k) + k * math.log(fraction) + (k - 1) * plain_at + math.log(2)
    second = float(plain_at[0])
    smaller = min(math.log(4) + math.log(-math.expm1(-second)), math.log(2))
    terms[0] += smaller - math.log(2)
    amplified = float(logsumexp(np.append(terms, 0.0))) / (order - 1)
    return min(amplified, float(plain_at[-1]))


def _log_binomial(n: int, k: Curve) -> Curve:
    from scipy.special import gammaln

    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), dtype=np.float64)
