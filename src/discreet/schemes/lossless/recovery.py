"""The server's part: the exact gradient of the true model, from the mean of what participants contributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.schemes.lossless.layout import Layout
from discreet.schemes.lossless.noise import Secret, last_layer, pulled_back

RUN, APART = 1 << 12, 1 << 15
"""Of long gradients, runs of so many numbers, so far apart, are what kappa is measured on: a pass over all terms would
cost the server as much as the recovery itself."""


@dataclass(frozen=True, eq=False)
class Recovered:
    """What the server gets back.

    Attributes:
        gradient: of the true model's mean loss, float64, shape (n,).
        kappa: how much larger the terms are than what is left of them; the relative error of the gradient is about
            half of the floating-point type's epsilon times this.
    """

    gradient: Tensor
    kappa: float


def recover(
    layout: Layout,
    secret: Secret,
    factors: Tensor,
    ratios: Tensor,
    groups: Tensor,
    curvature: Tensor,
    total: Tensor,
) -> Recovered:
    """Take the round's noise off.

    Hidden layers: ``R o (g^ - sum_s gamma_s sigma_s + upsilon beta)``, with ``upsilon = r^T Q r``. Last layer:
    ``R o (g^ - Q r v^T)`` and, for its bias, ``g^ - Q r mean(alpha)``.

    Args:
        layout: of the contributions.
        secret: the round's.
        factors: R, what `Secret.factors` gives for it.
        ratios: r^a, as in `discreet.schemes.lossless.noise.Perturbed`.
        groups: likewise.
        curvature: Q, of the loss.
        total: of the weighted contributions, and of their weights, which comes last: float64, shape (layout.length,).
    """
    structure = layout.structure
    values, weight = total[:-1], float(total[-1])
    if not layout.m:
        return Recovered(pulled_back(structure, secret, factors, values / weight), 1.0)
    hidden, place = structure.hidden, layout.terms * structure.hidden
    moved = secret.outputs(ratios, groups).to(total.device)
    curved = curvature.to(total) @ moved
    coefficients = torch.empty(layout.terms, dtype=torch.float64, device=total.device)
    coefficients[0], coefficients[-1] = 1.0, moved @ curved
    coefficients[1:-1] = -secret.gamma
    coefficients /= weight
    stacked = values[:place].view(layout.terms, hidden)
    gradient = torch.empty(structure.count, dtype=torch.float64, device=total.device)
    torch.mv(stacked.T, coefficients, out=gradient[:hidden])
    last, mixed = (
        values[place : place + layout.gradient] / weight,
        values[place + layout.gradient : -1] / weight,
    )
    gradient[hidden:] = last
    rows, biases = last_layer(structure, gradient)
    rows -= torch.outer(curved, mixed)
    if biases is not None:
        biases -= curved * values[-1] / weight
    sizes = (_norms(stacked) * coefficients.abs()).sum() + last.norm() + curved.norm() * mixed.norm()
    kappa = _kappa(
        float(sizes), math.hypot(float(_norms(gradient[None, :hidden])), float(gradient[hidden:].norm()))
    )
    return Recovered(pulled_back(structure, secret, factors, gradient), kappa)


def _norms(rows: Tensor) -> Tensor:
    """L2 norms of rows, shape (T, H), or estimates of them from a sample of their places."""
    count, share = rows.shape[1] // APART, 1.0
    if count:
        share = count * RUN / rows.shape[1]
        rows = rows[:, : count * APART].view(len(rows), count, APART)[:, :, :RUN].flatten(1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms / math.sqrt(share)


def _kappa(sizes: float, size: float) -> float:
    if size:
        return sizes / size
    return math.inf if sizes else 1.0
