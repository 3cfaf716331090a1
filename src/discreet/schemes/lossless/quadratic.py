"""Which losses are quadratic in the outputs, and their curvature: what the exact recovery rests on."""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.losses import Loss, cross_entropy, mean_squared_error, quadratic_cross_entropy, squared_error

TRIED = 5
"""So many outputs, and targets or all classes, are tried: between all of them the slope of a quadratic loss is linear."""

FARTHEST = 6
"""Outputs are tried up to about 10 to this power."""


def curvature(loss: Loss, outputs: int) -> Tensor | None:
    """Second derivatives of one example's loss by the outputs, Q; None if they are not the same everywhere.

    ``loss(y, t) = y^T Q y / 2 + b(t)^T y + c(t)``. A loss of the user's own is tried at some outputs and targets.

    Args:
        loss: the loss.
        outputs: n_L, of the network.

    Returns:
        Float64, shape (outputs, outputs).
    """
    one = torch.eye(outputs, dtype=torch.float64)
    if loss is squared_error:
        return one
    if loss is mean_squared_error:
        return 2 * one / outputs
    if loss is quadratic_cross_entropy:
        return (one - 1 / outputs) / outputs
    if loss is cross_entropy:
        return None
    return _tried(loss, outputs)


def _tried(loss: Loss, outputs: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(0)
    # near 0 and far from it, where losses that are cut or absolute show themselves
    size = torch.logspace(-1, FARTHEST, TRIED, dtype=torch.float64)[:, None]
    points = torch.randn(TRIED, outputs, dtype=torch.float64, generator=generator) * size
    numbers = torch.arange(outputs)
    values = torch.randn(TRIED, outputs, dtype=torch.float64, generator=generator)
    for targets in (numbers, values):
        try:
            return _constant(loss, points, targets)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            continue  # it takes targets of the other kind
    return None


def _constant(loss: Loss, points: Tensor, targets: Tensor) -> Tensor | None:
    """The second derivatives at all points and for all targets, if the slopes are linear with these; else None.

    Raises:
        ValueError: what an example loses depends on the others of its batch, as it may with targets of the wrong kind.
    """

    def slope(point: Tensor, target: Tensor) -> Tensor:
        free = point.clone().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(loss(free[None], target[None]).sum(), free)
        return found

    # of a quadratic loss the slopes at the unit vectors, less the slope at 0, are the second derivatives
    origin = torch.zeros_like(points[0])
    units = torch.eye(len(origin), dtype=origin.dtype)
    found = torch.stack([slope(unit, targets[0]) for unit in units]) - slope(origin, targets[0])
    # not as many examples as outputs, or targets of the wrong kind might be taken for one number an output
    places = torch.arange(points.shape[1] + 1)
    some, them = points[places % len(points)], targets[places % len(targets)]
    together = loss(some, them)
    alone = torch.cat([loss(point[None], target[None]) for point, target in zip(some, them, strict=True)])
    if together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-9, atol=0):
        raise ValueError(
            "what an example loses depends on the others, or these are targets of the wrong kind"
        )
    for target in targets:
        slopes = torch.stack([slope(point, target) for point in points])
        wanted = (points - points[0]) @ found.T
        near = 1e-9 * (1 + float(slopes.abs().max()))
        if not torch.allclose(slopes - slopes[0], wanted, rtol=1e-9, atol=near):
            return None
    return found
