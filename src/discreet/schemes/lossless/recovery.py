"""The server's part: the exact gradient of the true model, from the mean of what participants contributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.schemes.lossless.layout import Layout
from discreet.schemes.lossless.noise import Secret, last_layer, pull_shifts_back

RUN, APART = 1 << 10, 1 << 15
"""Of long gradients, runs of so many numbers, so far apart, are what kappa is measured on: a pass over all terms would
cost the server as much as the recovery itself."""


@dataclass(frozen=True, eq=False, repr=False)
class Removal:
    """What takes a round's noise off again; as secret as the noise.

    Attributes:
        layout: of the contributions.
        secret: the round's.
        factors: R, by what gradients are multiplied, shape (n,).
        curved: Q r, shape (n_L,); empty without additive noise.
        coefficients: of the terms: 1, -gamma and ``upsilon = r^T Q r``; likewise.
        sampled: of the hidden layers' factors those that kappa is measured with, shape (runs, numbers of a run).
    """

    layout: Layout
    secret: Secret
    factors: Tensor
    curved: Tensor
    coefficients: Tensor
    sampled: Tensor

    def __repr__(self) -> str:
        return "Removal(hidden)"

    @classmethod
    def of(cls, layout: Layout, secret: Secret, ratios: Tensor, groups: Tensor, curvature: Tensor) -> Removal:
        """That of a round's noise.

        Args:
            layout: of the contributions.
            secret: the round's.
            ratios: r^a, as in `discreet.schemes.lossless.noise.Perturbed`.
            groups: likewise.
            curvature: Q, of the loss.
        """
        factors = secret.factors(layout.structure).to(ratios.device)
        if not layout.m:
            return cls(layout, secret, factors, *[factors[:0]] * 3)
        moved = secret.outputs(ratios, groups)
        curved = curvature.cpu() @ moved
        one = torch.ones(1, dtype=torch.float64)
        coefficients = torch.cat([one, -secret.gamma, (moved @ curved).reshape(1)])
        sampled = _sample(factors[None, : layout.structure.hidden])[0].contiguous()
        return cls(layout, secret, factors, curved.to(factors), coefficients.to(factors), sampled)


@dataclass(frozen=True, eq=False)
class Recovered:
    """What the server gets back.

    Attributes:
        gradient: of the true model's mean loss, float64, shape (n,).
        kappa: how much larger the hidden layers' terms are than what is left of all, by their L2 norms (without hidden
            layers, the last layer's); 1 where nothing is taken off. The relative error of the gradient is about half of the floating-point type's epsilon times this.
    """

    gradient: Tensor
    kappa: float


def recover(removal: Removal, total: Tensor) -> Recovered:
    """Take the round's noise off.

    Hidden layers: ``R o (g^ - sum_s gamma_s sigma_s + upsilon beta)``. Last layer: ``R o (g^ - Q r v^T)`` and, for its
    bias, ``g^ - Q r mean(alpha)``.

    Args:
        removal: of the round's noise.
        total: of the weighted contributions, and of their weights, which comes last: float64, shape (layout.length,).
    """
    layout, factors = removal.layout, removal.factors
    structure, hidden = layout.structure, layout.structure.hidden
    values, weight = total[:-1], float(total[-1])
    if not layout.m:
        gradient = values * factors
        gradient /= weight
        pull_shifts_back(structure, removal.secret, gradient)
        return Recovered(gradient, 1.0)
    end = layout.terms * hidden
    stacked, rest = values[:end].view(layout.terms, hidden), values[end:] / weight
    coefficients = removal.coefficients / weight
    gradient = torch.empty_like(factors)
    torch.mv(stacked.T, coefficients, out=gradient[:hidden])
    gradient[hidden:] = rest[: layout.gradient]
    rows, biases = last_layer(structure, gradient)
    rows.addr_(removal.curved, rest[layout.gradient : -1], alpha=-1)
    if biases is not None:
        biases.addcmul_(removal.curved, rest[-1], value=-1)
    gradient *= factors
    if hidden:
        # there noise enters by its square, in the last layer only as it is; the share of a sample is that of all
        terms = (_sample(stacked) * removal.sampled).flatten(1)
        sizes = torch.linalg.vector_norm(terms, dim=1) @ coefficients.abs()
        share = math.sqrt(hidden / removal.sampled.numel())
        left = math.hypot(share * float((coefficients @ terms).norm()), float(gradient[hidden:].norm()))
    else:
        sizes, share, left = rest.norm() * (1 + removal.curved.norm()), 1.0, float(gradient.norm())
    size = share * float(sizes)
    pull_shifts_back(structure, removal.secret, gradient)
    kappa = size / left if left else math.inf if size else 1.0
    return Recovered(gradient, max(1.0, kappa))


def rounded(removal: Removal, errors: Tensor, weight: float) -> float:
    """The L2 norm of what errors in a total do to the gradient that is recovered from it, in the root mean square.

    Args:
        removal: of the round's noise.
        errors: root mean squares of independent errors, shape (layout.length,).
        weight: the total's last number.
    """
    layout, squares = removal.layout, (errors[:-1] / weight).square()
    hidden, factors = layout.structure.hidden, removal.factors.square()
    if not layout.m:
        return math.sqrt(float(squares @ factors))
    end = layout.terms * hidden
    below = squares[:end].view(layout.terms, hidden).T @ removal.coefficients.square()
    rest = squares[end:]
    found = float(below @ factors[:hidden]) + float(rest[: layout.gradient] @ factors[hidden:])
    # each output's row of the last layer gets its part of the error of v, and its bias that of mean(alpha)
    by_rows = factors[hidden : hidden + removal.curved.numel() * layout.structure.width]
    rows = by_rows.view(removal.curved.numel(), layout.structure.width)
    found += float(removal.curved.square() @ (rows @ rest[layout.gradient : -1]))
    if layout.structure.bias:
        found += float(removal.curved.square().sum() * rest[-1])
    return math.sqrt(found)


def _sample(rows: Tensor) -> Tensor:
    """Some places of rows, shape (T, H), as a view of shape (T, runs, numbers of a run); of short ones all, in one run."""
    count = rows.shape[1] // APART
    if not count:
        return rows.unsqueeze(1)
    return rows[:, : count * APART].view(len(rows), count, APART)[:, :, :RUN]
