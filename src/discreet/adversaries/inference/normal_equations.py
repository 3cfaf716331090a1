"""What sums of gradients of a linear regression give away: X^T X and X^T y, for all data together or for one client.

The gradient of the mean squared error is linear in the model: ``G_k = A w_k - b`` with A proportional to X^T X and b to
X^T y, where X has a column of ones for the bias. Who sees G and w of several rounds solves for both. Differences of two
rounds have no b in them, and of `cgd` none of the unknown first models either: ``G_k - G_1 = A (D_k - D_1)``.

The observer of table 2 of arXiv 2104.13050; that it needs no more than *differences* of models is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.adversaries.inference.leaks import Leak

FLOOR = 1e-13
"""Squares of singular values, as a share of the largest one, that are taken for nothing but rounding."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known of a linear regression on d features and o outputs.

    Attributes:
        products: A: float64, shape (d + 1, d + 1), the last place being the bias's; without a bias, (d, d).
        answers: b: float64, shape (d + 1, o).
    """

    products: Tensor
    answers: Tensor


def recovered(leaks: Sequence[Leak], outputs: int, *, bias: bool) -> Moments:
    """Least squares over several rounds, for an A that is symmetric.

    In the eigenbasis of the models' differences, with singular values s and ``C = dW^T dG`` there, the solution is
    ``A_ij = (C_ij + C_ji) / (s_i^2 + s_j^2)``: what is known of one direction tells about its products with all others.

    Args:
        leaks: of the same examples, each at another point; at least one.
        outputs: of the linear layer (o).
        bias: whether it has one.
    """
    points = torch.stack([columns(leak.point, outputs, bias=bias) for leak in leaks])
    slopes = torch.stack([columns(leak.gradient, outputs, bias=bias) for leak in leaks])
    # all outputs share A: each is an observation of its own
    moved = (points - points.mean(0)).transpose(1, 2).flatten(0, 1)
    changed = (slopes - slopes.mean(0)).transpose(1, 2).flatten(0, 1)
    squares, basis = torch.linalg.eigh(moved.T @ moved)
    within = basis.T @ (moved.T @ changed) @ basis
    squares = squares.clamp(min=0.0)
    sizes = squares[:, None] + squares[None, :]
    known = sizes > FLOOR * squares.max()
    products = torch.where(known, (within + within.T) / torch.where(known, sizes, 1.0), 0.0)
    products = basis @ products @ basis.T
    # the last points lie nearest to where training goes, and rounding is smallest there
    return Moments(products, products @ points[-1] - slopes[-1])


def columns(vector: Tensor, outputs: int, *, bias: bool) -> Tensor:
    """Parameters of a linear layer as one column an output: shape (d + 1, o), or (d, o) without a bias."""
    if not bias:
        return vector.view(outputs, -1).T
    return torch.cat([vector[:-outputs].view(outputs, -1), vector[-outputs:, None]], dim=1).T


def parameters(columns: Tensor, *, bias: bool) -> Tensor:
    """The inverse of `columns`."""
    if not bias:
        return columns.T.flatten()
    return torch.cat([columns[:-1].T.flatten(), columns[-1]])
