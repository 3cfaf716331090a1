"""Many participants' heads on common activations: the case of one linear layer above the first, made fast.

The participants of a row apply their own heads to the same hidden activations, so outputs are one product a row. The
gradient of a column's block of the first layer needs only those examples that have something in that column: of
images, which are mostly black, well under half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.gradients import loss_gradient
from discreet.losses import Loss, cross_entropy

IN_CACHE = 1 << 18
"""Numbers that are worked on at once where each participant of a row has its own: more would go through memory."""

WORTH_PICKING = 0.75
"""Of more than this part of the examples, all are taken: picking them out costs as much as it saves."""


@dataclass(frozen=True, eq=False)
class Strip:
    """Some neighbouring columns of a piece of B examples, with the examples that have something there.

    Attributes:
        inputs: shape (C, width, N), 0 where a column has fewer than N such examples.
        picked: which examples, shape (C, N); None for all, in their order.
    """

    inputs: Tensor
    picked: Tensor | None


@dataclass(frozen=True, eq=False)
class Heads:
    """What R pieces' participants, `columns` each, give by their outputs.

    Attributes:
        by_outputs: gradients, shape (R, columns, outputs, B).
        by_weight: their sum over everybody by the layer's weight, shape (outputs, hidden).
        by_bias: the same by its bias, shape (outputs,).
        losses: the sums of the weighted losses, mean over columns, shape (R,).
    """

    by_outputs: Tensor
    by_weight: Tensor
    by_bias: Tensor
    losses: Tensor


def busiest_first(inputs: Tensor) -> Tensor:
    """Columns in the order of how many examples have something in them, the most first; shape (columns,).

    Args:
        inputs: shape (P, B, columns, width).
    """
    present = sum((piece != 0).any(-1).sum(0) for piece in inputs)
    return torch.as_tensor(present).argsort(descending=True, stable=True)


def strips_of(inputs: Tensor, hidden: int) -> list[Strip]:
    """A piece cut into strips of columns, each small enough to be worked on within the cache.

    Args:
        inputs: shape (B, columns, width).
        hidden: outputs of the first layer.
    """
    examples, columns, width = inputs.shape
    present = (inputs != 0).any(-1).T
    counts = present.sum(1).tolist()
    by_column = inputs.permute(1, 2, 0)
    found, first = [], 0
    while first < columns:
        # the busiest column of a strip comes first, or nearly so
        last = min(columns, first + max(1, IN_CACHE // (max(1, counts[first]) * hidden)))
        most = max(counts[first:last])
        if most > WORTH_PICKING * examples:
            found.append(Strip(by_column[first:last].contiguous(), None))
        else:
            # those that have something come first; what follows them, where a column has fewer, is zeros
            order = present[first:last].to(torch.uint8).argsort(dim=1, descending=True, stable=True)
            picked = order[:, :most].contiguous()
            own = by_column[first:last].gather(2, picked.unsqueeze(1).expand(-1, width, -1))
            found.append(Strip(own, picked))
        first = last
    return found


def heads(
    loss: Loss, weight: Tensor, bias: Tensor | None, active: Tensor, targets: Tensor, weights: Tensor
) -> Heads:
    """Outputs of all participants' heads, and gradients by them.

    Args:
        loss: one loss an example.
        weight: shape (R, columns, outputs, hidden).
        bias: shape (R, columns, outputs), or None.
        active: common activations, shape (R, B, hidden).
        targets: shape (R, B, ...).
        weights: of the examples, shape (R, B).
    """
    rows, columns, outputs, _ = weight.shape
    examples = active.shape[1]
    together, turned = weight.flatten(1, 2), active.transpose(1, 2)
    if bias is None:
        found = torch.bmm(together, turned)
    else:
        found = torch.baddbmm(bias.flatten(1).unsqueeze(2), together, turned)
    found = found.view(rows, columns, outputs, examples)
    if loss is cross_entropy:
        delta, losses = _cross_entropy(found, targets, weights)
    else:
        spread = found.transpose(2, 3).reshape(rows, columns * examples, outputs)
        repeated = targets.repeat(1, columns, *(1,) * (targets.dim() - 2))
        delta, losses = loss_gradient(loss, spread, repeated, weights.repeat(1, columns))
        delta = delta.view(rows, columns, examples, outputs).transpose(2, 3)
    summed = delta.sum(1)
    by_weight = torch.bmm(summed, active).sum(0)
    return Heads(delta, by_weight, summed.sum((0, 2)), losses / columns)


def _cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`loss_gradient` of cross-entropy for outputs of shape (R, columns, outputs, B)."""
    place = targets[:, None, None].expand(-1, outputs.shape[1], -1, -1)
    delta = outputs.softmax(2)
    # the largest probability cannot underflow, as that of the target can
    above = outputs.amax(2) - outputs.gather(2, place).squeeze(2) - delta.amax(2).log_()
    losses = (above.sum(1) * weights).sum(1)
    delta.scatter_add_(2, place, delta.new_full((1, 1, 1, 1), -1.0).expand_as(place))
    return delta.mul_(weights[:, None, None]), losses


def add_blocks(
    strips: Sequence[Strip], by_outputs: Tensor, weight: Tensor, mask: Tensor | None, blocks_sum: Tensor
) -> None:
    """Add a piece's gradients of the first layer.

    Args:
        strips: the piece's inputs.
        by_outputs: shape (columns, outputs, B).
        weight: shape (columns, outputs, hidden).
        mask: 1 where the first layer's outputs are passed on and 0 elsewhere, shape (B, hidden); None for everywhere.
        blocks_sum: shape (columns, width, hidden).
    """
    outputs, hidden = weight.shape[1:]
    sizes = [len(strip.inputs) for strip in strips]
    space = weight.new_empty(max(strip.inputs[:, 0].numel() for strip in strips) * hidden)
    parts = zip(strips, *(torch.split(one, sizes) for one in (by_outputs, weight, blocks_sum)), strict=True)
    for strip, above, own, added in parts:
        columns, _, examples = strip.inputs.shape
        below = space[: columns * examples * hidden].view(columns, examples, hidden)
        picked = strip.picked
        if picked is not None:
            above = above.gather(2, picked.unsqueeze(1).expand(-1, outputs, -1))
        torch.bmm(above.transpose(1, 2), own, out=below)
        if mask is not None:
            below.mul_(mask if picked is None else mask.index_select(0, picked.flatten()).view_as(below))
        added.baddbmm_(strip.inputs, below)
