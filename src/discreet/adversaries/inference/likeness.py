"""How like two images are: PSNR and SSIM."""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW = 7
"""Pixels along a side of the windows that SSIM compares, in images that have so many."""

EXACT = 100.0
"""PSNR in dB that stands for any higher one, infinity too: errors of a 100,000th of the range."""


def psnr(found: Tensor, wanted: Tensor, span: float) -> Tensor:
    """Peak signal-to-noise ratio, ``10 log10(span^2 / mean squared error)``, in dB, at most `EXACT`.

    Args:
        found: images of any shape (..., *shape), `shape` being that of the last three dimensions.
        wanted: images that can be broadcast with them.
        span: what lies between black and white, above 0.

    Returns:
        Shape (...).
    """
    errors = (found.double() - wanted.double()).square().flatten(-3).mean(-1)
    decibels: Tensor = 10 * torch.log10(span**2 / errors.clamp(min=span**2 * 10 ** (-EXACT / 10)))
    return decibels


def ssim(found: Tensor, wanted: Tensor, span: float) -> Tensor:
    """Structural similarity, averaged over all windows and channels: 1 for equal images, about 0 for unlike ones.

    Of Wang et al. 2004, "Image quality assessment: from error visibility to structural similarity", with square windows
    in which all pixels count alike, unbiased variances, and the constants 0.01 and 0.03.

    Args:
        found: shape (B, channels, height, width).
        wanted: the same shape.
        span: what lies between black and white, above 0.

    Returns:
        Shape (B,).
    """
    side = min(WINDOW, *found.shape[-2:])
    one, other = _windows(found.double(), side), _windows(wanted.double(), side)
    count = side * side
    mean_one, mean_other = one.mean(-1), other.mean(-1)
    unbiased = count / max(1, count - 1)
    from_one, from_other = one - mean_one[..., None], other - mean_other[..., None]
    spread_one = from_one.square().mean(-1) * unbiased
    spread_other = from_other.square().mean(-1) * unbiased
    together = (from_one * from_other).mean(-1) * unbiased
    level, contrast = (0.01 * span) ** 2, (0.03 * span) ** 2
    likeness: Tensor = (2 * mean_one * mean_other + level) * (2 * together + contrast)
    likeness /= (mean_one.square() + mean_other.square() + level) * (spread_one + spread_other + contrast)
    return likeness.flatten(1).mean(1)


def _windows(images: Tensor, side: int) -> Tensor:
    """Every window's pixels, shape (B, channels, rows, columns, side * side)."""
    return images.unfold(2, side, 1).unfold(3, side, 1).flatten(-2)
