"""A participant's part: the perturbed gradient, and the noise terms from which the server gets the true one.

One forward pass; the last layer in closed form; then m + 2 cotangents through the layers below it. With the slope e of
the loss by the perturbed outputs, r_s = r^a within group s and 0 elsewhere, and the loss's curvature Q, they are

    W_L^T e      |  (r_s^T e) 1 + alpha W_L^T Q r_s  for each s  |  alpha 1

where alpha is the sum of the last layer's inputs (and 1 for its bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.gradients import loss_gradient
from discreet.losses import Loss
from discreet.schemes.lossless.bodies import Body, Pull
from discreet.schemes.lossless.noise import Perturbed


@dataclass(frozen=True, eq=False)
class Terms:
    """What a batch of each of L lanes gives, means over the batch.

    Attributes:
        hidden: for each parameter below the last layer T = m + 2 gradients, shape (L, T, *shape): of the perturbed
            loss, of the m noise terms, of alpha^2 / 2.
        weight, bias: of the perturbed loss by the last layer, shapes (L, n_L, d) and (L, n_L).
        mixed: mean of alpha times the last layer's inputs, shape (L, d).
        alpha: mean of alpha, shape (L,).
        losses: of the perturbed model, shape (L,).
    """

    hidden: list[Tensor]
    weight: Tensor
    bias: Tensor
    mixed: Tensor
    alpha: Tensor
    losses: Tensor


@dataclass(frozen=True, eq=False)
class Directions:
    """What a payload says about the additive noise, in the form that the work on a batch needs.

    Attributes:
        groups: r_s as columns, shape (n_L, m).
        curved: Q r_s as columns, shape (n_L, m).
    """

    groups: Tensor
    curved: Tensor

    @classmethod
    def of(cls, payload: Perturbed, curvature: Tensor, outputs: int) -> Directions:
        """Those of a payload, in its vector's type; none without additive noise."""
        if not payload.m:
            none = payload.vector.new_empty(outputs, 0)
            return cls(none, none)
        chosen = torch.nn.functional.one_hot(payload.groups, payload.m).to(payload.vector)
        groups = chosen * payload.ratios.to(payload.vector)[:, None]
        return cls(groups, curvature.to(payload.vector) @ groups)


def terms(
    body: Body,
    loss: Loss,
    directions: Directions,
    bias: bool,
    parameters: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    keys: Tensor,
) -> Terms:
    """Perturbed gradients and noise terms of L lanes.

    Args:
        body: of the network.
        loss: quadratic.
        directions: of the round.
        bias: whether the last layer has one.
        parameters: the perturbed model's, one tensor of shape (L, *shape) for each slot.
        inputs: as `discreet.gradients.LaneGradient` takes them, like the rest.
        targets: likewise.
        weights: likewise.
        keys: likewise.
    """
    below = len(parameters) - 1 - bias
    hidden, pull = body(parameters[:below], inputs, keys)
    weight = parameters[below]
    if bias:
        outputs = torch.baddbmm(parameters[-1].unsqueeze(1), hidden, weight.transpose(1, 2))
    else:
        outputs = torch.bmm(hidden, weight.transpose(1, 2))
    slope, losses = loss_gradient(loss, outputs, targets, weights)
    return pulled(pull, directions, bias, hidden, weight, slope, weights, losses)


def pulled(
    pull: Pull,
    directions: Directions,
    bias: bool,
    hidden: Tensor,
    weight: Tensor,
    slope: Tensor,
    weights: Tensor,
    losses: Tensor,
) -> Terms:
    """The terms, once the weighted slopes of the loss by the outputs are there, shape (L, B, n_L)."""
    lanes, batch, width = hidden.shape
    groups = directions.groups.shape[1]
    alpha = hidden.sum(2)
    if bias:
        alpha += 1
    alpha.mul_(weights)
    cotangents = hidden.new_empty(lanes, groups + 2, width, batch)
    torch.bmm(weight.transpose(1, 2), slope.transpose(1, 2), out=cotangents[:, 0])
    moved = torch.matmul(directions.curved.T, weight)  # (L, m, d)
    along = torch.matmul(directions.groups.T, slope.transpose(1, 2))  # (L, m, B)
    torch.addcmul(along.unsqueeze(2), moved.unsqueeze(3), alpha[:, None, None], out=cotangents[:, 1:-1])
    cotangents[:, -1] = alpha.unsqueeze(1)
    return Terms(
        pull(cotangents),
        torch.bmm(slope.transpose(1, 2), hidden),
        slope.sum(1),
        torch.bmm(alpha.unsqueeze(1), hidden).squeeze(1),
        alpha.sum(1),
        losses,
    )
