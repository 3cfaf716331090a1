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

IN_CACHE = 1 << 17
"""Numbers that are worked on at once where each participant of a row has its own: more would go through memory."""

WORTH_PICKING = 0.75
"""Of more than this part of the examples, all are taken: picking them out costs as much as it saves."""


@dataclass(frozen=True, eq=False)
class Strip:
    """Some neighbouring columns of a piece of B examples, with the examples that have something there.

    Attributes:
        inputs: shape (C, width, N), 0 where a column has fewer than N such examples.
        picked: which examples, shape (C, N); None for all, in their order.
        places: the same as places among all columns' examples, column after column, shape (C * N,).
    """

    inputs: Tensor
    picked: Tensor | None
    places: Tensor | None


@dataclass(frozen=True, eq=False)
class Space:
    """Room for one worker's numbers, used again for stack after stack: memory that is fresh costs as much as the work.

    Columns come last but for the hidden activations: what is done to each column alike goes through neighbours.

    Attributes:
        weight: of the heads, shape (R, outputs, columns, hidden), for as many pieces as a stack has at most.
        outputs: shape (R, B, outputs, columns).
        turned: a piece's gradients by the outputs, shape (columns, B, outputs).
        below: gradients by the first layer's outputs, of as many numbers as any strip has.
        passed: likewise, 1 where these are passed on and 0 elsewhere, for strips with picked examples.
    """

    weight: Tensor
    outputs: Tensor
    turned: Tensor
    below: Tensor
    passed: Tensor

    @classmethod
    def of(
        cls, inputs: Tensor, outputs: int, hidden: int, strips: Sequence[Sequence[Strip]], pieces: int
    ) -> Space:
        """Room for stacks of some pieces.

        Args:
            inputs: of all, shape (P, B, columns, width).
            outputs: of a head.
            hidden: outputs of the first layer.
            strips: of the pieces in question; empty where there is one column.
            pieces: in a stack at most (R).
        """
        examples, columns = inputs.shape[1:3]
        every = [strip for piece in strips for strip in piece]
        sizes = [strip.inputs[:, 0].numel() for strip in every] or [pieces * examples]
        picked = [strip.picked.numel() for strip in every if strip.picked is not None]
        return cls(
            inputs.new_empty(pieces, outputs, columns, hidden),
            inputs.new_empty(pieces, examples, outputs, columns),
            inputs.new_empty(columns, examples, outputs),
            inputs.new_empty(max(sizes) * hidden),
            inputs.new_empty(max(picked, default=0) * hidden),
        )


@dataclass(frozen=True, eq=False)
class Heads:
    """What R pieces' participants, `columns` each, give by their outputs.

    Attributes:
        by_outputs: gradients, shape (R, B, outputs, columns).
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
            found.append(Strip(by_column[first:last].contiguous(), None, None))
        else:
            # those that have something come first; what follows them, where a column has fewer, is zeros
            order = present[first:last].to(torch.uint8).argsort(dim=1, descending=True, stable=True)
            picked = order[:, :most].contiguous()
            own = by_column[first:last].gather(2, picked.unsqueeze(1).expand(-1, width, -1))
            starts = torch.arange(first, last, device=inputs.device) * examples
            found.append(Strip(own, picked, (picked + starts.unsqueeze(1)).flatten()))
        first = last
    return found


def heads(
    loss: Loss,
    weight: Tensor,
    bias: Tensor | None,
    active: Tensor,
    targets: Tensor,
    weights: Tensor,
    space: Tensor,
) -> Heads:
    """Outputs of all participants' heads, and gradients by them.

    Args:
        loss: one loss an example.
        weight: shape (R, outputs, columns, hidden).
        bias: shape (R, outputs, columns), or None.
        active: common activations, shape (R, B, hidden).
        targets: shape (R, B, ...).
        weights: of the examples, shape (R, B).
        space: for the outputs, shape (R, B, outputs, columns).
    """
    rows, outputs, columns, _ = weight.shape
    examples = active.shape[1]
    turned, flat = weight.flatten(1, 2).transpose(1, 2), space.flatten(2)
    if bias is None:
        torch.bmm(active, turned, out=flat)
    else:
        torch.baddbmm(bias.flatten(1).unsqueeze(1), active, turned, out=flat)
    if loss is cross_entropy:
        delta, losses = _cross_entropy(space, targets, weights)
    else:
        spread = space.permute(0, 3, 1, 2).reshape(rows, columns * examples, outputs)
        repeated = targets.repeat(1, columns, *(1,) * (targets.dim() - 2))
        found, losses = loss_gradient(loss, spread, repeated, weights.repeat(1, columns))
        delta = space.copy_(found.view(rows, columns, examples, outputs).permute(0, 2, 3, 1))
    summed = delta.sum(3)
    by_weight = torch.bmm(summed.transpose(1, 2), active).sum(0)
    return Heads(delta, by_weight, summed.sum((0, 1)), losses / columns)


def _cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`loss_gradient` of cross-entropy for outputs of shape (R, B, outputs, columns), which are overwritten."""
    place = targets[:, :, None, None]
    right = outputs.gather(2, place.expand(-1, -1, 1, outputs.shape[3])).squeeze(2)
    largest = outputs.amax(2)
    # less the largest, so that the sum of the powers is 1 or more
    powers = outputs.sub_(largest.unsqueeze(2)).exp_()
    sums = powers.sum(2)
    losses = (largest.sub_(right).add_(sums.log()).sum(2) * weights).sum(1)
    truth = outputs.new_zeros(*outputs.shape[:3], 1)
    truth.scatter_(2, place, -weights[:, :, None, None])
    by_sums = torch.div(weights.unsqueeze(2), sums, out=sums)
    return torch.addcmul(truth, powers, by_sums.unsqueeze(2), out=powers), losses


def add_blocks(
    strips: Sequence[Strip],
    by_outputs: Tensor,
    weight: Tensor,
    passed: Tensor | None,
    space: Space,
    blocks_sum: Tensor,
) -> None:
    """Add a piece's gradients of the first layer.

    Args:
        strips: the piece's inputs.
        by_outputs: shape (B, outputs, columns).
        weight: shape (outputs, columns, hidden).
        passed: 1 where the first layer's outputs are passed on and 0 elsewhere, shape (B, hidden); None for everywhere.
        space: of the worker.
        blocks_sum: shape (columns, width, hidden).
    """
    outputs, every, hidden = weight.shape
    turned = space.turned
    turned.view(every, -1).copy_(by_outputs.flatten(0, 1).T)
    sizes = [len(strip.inputs) for strip in strips]
    split = (torch.split(turned, sizes), torch.split(weight, sizes, 1), torch.split(blocks_sum, sizes))
    for strip, above, own, added in zip(strips, *split, strict=True):
        columns, _, examples = strip.inputs.shape
        count = columns * examples * hidden
        below, mask, picked = space.below[:count].view(columns, examples, hidden), passed, strip.picked
        if strip.places is not None:
            above = turned.view(-1, outputs).index_select(0, strip.places).view(columns, examples, outputs)
        torch.bmm(above, own.transpose(0, 1), out=below)
        if mask is not None and picked is not None:
            mine = space.passed[:count].view(-1, hidden)
            mask = torch.index_select(mask, 0, picked.flatten(), out=mine).view_as(below)
        if mask is not None:
            below.mul_(mask)
        added.baddbmm_(strip.inputs, below)
