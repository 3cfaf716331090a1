"""How large a client's update may be: clipping to a norm, and finding a good norm from noisy sums.

All of it is in *steps*: an update is rounded to whole numbers of steps of a grid on which the clip norm is `norm`
steps, so that what leaves a client is integers of at most a known L2 norm, whatever the clip norm is worth.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST, LARGEST = 1e-30, 1e30
"""Clip norms lie between these, so that nothing computed with one is 0 or infinite."""

BINS = 24
"""Ranges of norms that are told apart, each twice the one before: guess * 2^-12 to guess * 2^12."""


def clipped(changes: Tensor, clip_norm: float, norm: float) -> Tensor:
    """Clip updates in L2, each as a whole, and round them to the grid.

    Args:
        changes: shape (K, n), float64, finite.
        clip_norm: S, the norm they are clipped to.
        norm: the same in steps of the grid, above sqrt(n) / 2.

    Returns:
        Shape (K, n), int64.

    **Guarantees:** every row has an L2 norm of at most `norm`. Rounding moves a vector by at most half a step a
    coordinate, sqrt(n) / 2 in L2, so updates are clipped that much lower.
    """
    room = norm - math.sqrt(changes.shape[1]) / 2
    # of two factors the smaller, never one after the other: a huge update must not become infinite on the way
    factors = (room / changes.norm(dim=1)).clamp(max=norm / clip_norm)
    steps: Tensor = (changes * factors[:, None]).round()
    return steps.to(torch.int64)


def within(changes: Tensor, clip_norm: float, half: int) -> Tensor:
    """Say of each update whether it is within the clip norm: `half` if it is, `-half` if not.

    Args:
        changes: shape (K, n), float64, finite.
        clip_norm: S.
        half: an integer above 0.

    Returns:
        Shape (K, 1), int64.
    """
    inside = changes.norm(dim=1, keepdim=True) <= clip_norm
    return torch.where(inside, half, -half)


def adapted(clip_norm: float, share_within: float, quantile: float, learning_rate: float) -> float:
    """The next clip norm: smaller where too many updates are within it, larger where too few.

    Args:
        clip_norm: S, of the round that was played.
        share_within: noisy share of its clients whose updates were within it; taken as 0 or 1 where it is beyond.
        quantile: the share that should be.
        learning_rate: of the clip norm's logarithm.

    Returns:
        ``S * exp(-learning_rate * (share_within - quantile))``, from `SMALLEST` to `LARGEST`.

    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv 1905.03871, the geometric update.
    """
    share = min(max(share_within, 0.0), 1.0)
    return min(max(clip_norm * math.exp(-learning_rate * (share - quantile)), SMALLEST), LARGEST)


def histogram(changes: Tensor, guess: float, worth: int) -> Tensor:
    """Say of each update in which of `BINS` ranges its norm lies.

    Bin k holds the norms above ``guess * 2^(k - 12)`` and up to ``guess * 2^(k - 11)``; the first takes all smaller
    ones too, the last all larger ones.

    Args:
        changes: shape (K, n), float64, finite, n at least `BINS`.
        guess: a norm, the middle of the ranges.
        worth: what the bin is given, an integer above 0.

    Returns:
        Shape (K, n), int64: each row is `worth` at its bin, and else 0.
    """
    doublings = (changes.norm(dim=1) / guess).log2().ceil()
    bins = (doublings + (BINS // 2 - 1)).clamp(0, BINS - 1).to(torch.int64)
    rows = torch.zeros(changes.shape, dtype=torch.int64)
    return rows.scatter_(1, bins[:, None].cpu(), worth)


def median_norm(counts: Tensor, guess: float) -> float:
    """The median of the norms behind a noisy histogram.

    The counts' running sums are put into order, as they would be without noise, and the median is where they reach
    half of their end: not half of the expected cohort, since who has nothing to send is in no bin. Within a bin it is
    interpolated geometrically. Noise with a standard deviation of z clients a bin moves that comparison by
    sqrt(BINS) / 2 = 2.4 z clients.

    Args:
        counts: shape (BINS,), float64, the sum of `histogram`'s rows, in any unit; noise makes some negative.
        guess: as in `histogram`.

    Returns:
        A norm from ``guess * 2^-12`` to ``guess * 2^12``; the guess itself where no clients are seen for noise.

    Source: of the ordering, Chernozhukov, Fernandez-Val, Galichon 2009 (rearrangement).
    """
    sums = counts.cumsum(0)
    half = float(sums[-1]) / 2
    if half <= 0:
        return guess
    ordered = [0.0, *sums.sort().values.tolist()]
    last = next((k for k in range(1, BINS) if ordered[k] >= half), BINS)
    low, high = ordered[last - 1], ordered[last]
    part = (half - low) / (high - low) if high > low else 1.0
    return guess * math.exp2(last - 1 + part - BINS // 2)
