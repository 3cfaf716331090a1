"""How many bits a sum in Z_2^b needs so that it does not wrap.

Single shares may wrap, because addition works in the group; only the sum of all votes and all noise must stay within
-2^(b-1) .. 2^(b-1) - 1. Its noise has the same standard deviation however many clients share in it.
"""

from __future__ import annotations

import math

from discreet.errors import ConfigError

TAIL = 12.0
"""Standard deviations of noise that fit. A coordinate's noise is larger with probability below 2^-100."""


def bits_by_sum_rule(parameters: int, cohort: int, noise_multiplier: float, tail: float = TAIL) -> int:
    """Bits for a sum of votes of -1 and 1 with noise: ceil(log2(2 (tail sqrt(n) sigma + K) + 1)).

    Args:
        parameters: n, coordinates of a vote.
        cohort: K, the most clients whose votes are summed.
        noise_multiplier: sigma: the noise of the sum has a standard deviation of sqrt(n) sigma a coordinate. Where
            more clients may add noise than the shares are sized for, this is the larger one.
        tail: standard deviations of noise that must fit; `tail_for` gives it for a wanted failure probability.
    """
    _positive(parameters=parameters, cohort=cohort, noise_multiplier=noise_multiplier, tail=tail)
    return bits_for_sum(1.0, cohort, math.sqrt(parameters) * noise_multiplier, tail)


def bits_by_paper_rule(parameters: int, cohort: int, noise_multiplier: float) -> int:
    """Bits by the rule of DP-SignFed's paper: ceil(log2((12 sqrt(n) sigma + 1) K)).

    It lets every client's share be as large as all the noise, so it asks for about log2(K / 2) bits more than
    `bits_by_sum_rule`.

    Args:
        parameters: n, coordinates of a vote.
        cohort: K, clients whose votes are summed.
        noise_multiplier: sigma.

    Source: Kerkouche, Acs, Castelluccia, arXiv 2010.07808.
    """
    _positive(parameters=parameters, cohort=cohort, noise_multiplier=noise_multiplier)
    return _bits((12 * math.sqrt(parameters) * noise_multiplier + 1) * cohort)


def bits_for_sum(largest: float, cohort: int, noise_std: float, tail: float = TAIL) -> int:
    """Bits for any sum of bounded integers with noise.

    Args:
        largest: no client's coordinate exceeds it in absolute value; for updates clipped to an L2 norm S in fixed
            point, S in steps, rounded up.
        cohort: the most clients that are summed.
        noise_std: standard deviation of the sum's noise a coordinate, in the same steps; 0 for none.
        tail: standard deviations of noise that must fit.
    """
    _positive(largest=largest, cohort=cohort, tail=tail)
    if not (noise_std >= 0 and math.isfinite(noise_std)):
        raise ConfigError("noise_std", noise_std, "a number of at least 0")
    # whole numbers throughout: the sum takes -reach .. reach
    reach = math.ceil(tail * noise_std) + cohort * math.ceil(largest)
    return _bits(2 * reach + 1)


def wrap_probability(
    bits: int, largest: float, cohort: int, noise_std: float, *, parameters: int, rounds: int = 1
) -> float:
    """A bound on the probability that any coordinate of any round's sum wraps.

    Discrete Gaussians and their sums are subgaussian with their parameter (arXiv 2004.00010), so noise exceeds t with
    probability at most 2 exp(-t^2 / 2 std^2); a union bound over coordinates and rounds does the rest. Skellam noise
    has the heavier tail exp(-t asinh(t/v) + sqrt(v^2 + t^2) - v) with v = std^2, which is the same for t far below v.

    Args:
        bits: of the modulus.
        largest: as in `bits_for_sum`.
        cohort: likewise.
        noise_std: likewise.
        parameters: coordinates.
        rounds: how many sums.

    Returns:
        A number in [0, 1]; 1 where the clients' own numbers may wrap.
    """
    _positive(bits=bits, largest=largest, cohort=cohort, parameters=parameters, rounds=rounds)
    room = 2 ** (bits - 1) - cohort * largest
    if room <= 0:
        return 1.0
    if noise_std == 0:
        return 0.0
    # beyond 100 standard deviations the probability is below the smallest float
    deviations = room / noise_std if room < 100 * noise_std else 100.0
    log_tail = math.log(2) + math.log(parameters) + math.log(rounds) - deviations**2 / 2
    return min(1.0, math.exp(min(log_tail, 0.0)))


def tail_for(failure_probability: float, *, parameters: int, rounds: int = 1) -> float:
    """Standard deviations of noise that must fit so that nothing wraps but for a failure probability.

    Args:
        failure_probability: over all coordinates and rounds together, in (0, 1).
        parameters: coordinates.
        rounds: how many sums.
    """
    if not 0 < failure_probability < 1:
        raise ConfigError("failure_probability", failure_probability, "a number between 0 and 1")
    _positive(parameters=parameters, rounds=rounds)
    return math.sqrt(2 * (math.log(2 * parameters * rounds) - math.log(failure_probability)))


def _bits(values: float) -> int:
    """The smallest b with 2^b of at least `values`, without the rounding of a floating-point logarithm."""
    bits = (math.ceil(values) - 1).bit_length()
    if bits > 64:
        raise ConfigError("modulus", bits, "at most 64 bits: less noise, smaller cohorts, or coarser steps")
    return bits


def _positive(**values: float) -> None:
    for key, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(key, value, "a number above 0")
