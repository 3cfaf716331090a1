"""CGD of a whole federation at about the price of one model: contributions added up without being written down.

For a linear first layer ``x (w_1 + D) = x w_1 + x D``: the first product never changes and is kept, the second is one
for all participants. The gradient of all blocks of a column is one product too. Only the upper layers, which are
small, differ from participant to participant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from discreet.cohort import Cohort, Grid
from discreet.evaluation import Map
from discreet.schemes.base import Task
from discreet.schemes.confined.heads import Space, Strip, add_blocks, busiest_first, heads, strips_of
from discreet.schemes.confined.kernel import AddBlocks, compiled
from discreet.schemes.confined.layout import Layout
from discreet.schemes.confined.participants import rows_of

EXAMPLES_AT_ONCE = 4096
"""Rows are worked on in stacks of about so many examples."""

ACTIVATIONS_AT_ONCE = 1 << 21
"""Fewer rows, where participants' own activations would be more numbers than this: they would leave the cache."""

STACKS_A_JOB = 8
"""Stacks that one worker adds up before it hands on their sum."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What does not change from round to round. P pieces of rows have B examples each.

    Where the heads of a row are alike, all its columns are one here, whose inputs are those of all side by side.

    Attributes:
        inputs: split by columns, shape (P, B, columns, width).
        targets: shape (P, B, ...).
        weights: shape (P, B).
        first: of the first models: pre-activations, shape (P, B, hidden), where a row adds them up; else their blocks,
            shape (rows, columns, hidden, width).
        upper: first models' upper layers, shape (rows, columns, upper_size).
        owner: shape (P,): the row of each piece.
        size: outputs of the first layer.
        order: which column comes at which place in all of the above, shape (columns,).
        compiled: how gradients of the first layer are added up, where participants' heads are a single layer on a row's
            common activations; None where by products of matrices.
        strips: of each piece, for these products; else empty.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    first: Tensor
    upper: Tensor
    owner: Tensor
    size: int
    order: Tensor
    compiled: AddBlocks | None
    strips: tuple[list[Strip], ...]

    def stacks(self) -> list[slice]:
        """Pieces to work on at once."""
        pieces, examples, columns = self.inputs.shape[:3]
        at_once = max(1, EXAMPLES_AT_ONCE // examples)
        if columns > 1:
            at_once = max(1, min(at_once, ACTIVATIONS_AT_ONCE // (examples * self.size * columns)))
        return [slice(first, min(first + at_once, pieces)) for first in range(0, pieces, at_once)]

    def jobs(self) -> list[list[slice]]:
        """Stacks to add up before their sum is handed on; the same whoever works on them."""
        stacks = self.stacks()
        return [stacks[first : first + STACKS_A_JOB] for first in range(0, len(stacks), STACKS_A_JOB)]


def prepare(
    task: Task,
    grid: Grid,
    layout: Layout,
    own_start: Callable[[int, int], Tensor],
    cohort: Cohort,
    joint: bool,
    alike: bool,
    parallel: Map,
) -> Kept:
    """Work out what does not change, for a cohort of all participants.

    Args:
        task: the task.
        grid: who holds how much of what.
        layout: who holds which part.
        own_start: gives the first confined model of a participant, of some length.
        cohort: all participants.
        joint: whether rows add up their pre-activations.
        alike: whether, if they do, all participants of a row also have the same head.
        parallel: maps over rows.
    """
    columns, cut = layout.columns, layout.cut
    rows, device = grid.rows, task.learner.device
    pieces, length = layout.pieces, layout.piece
    whole = rows_of(cohort.select(slice(0, None, columns)), layout.padded, grid.examples, 0, task.common)
    indices = whole.indices.view(rows * pieces, length)
    inputs = torch.empty(rows * pieces, length, columns, layout.width)
    shape = (rows * pieces, length, cut.hidden) if joint else (rows, columns, cut.hidden, layout.width)
    first = torch.empty(shape)
    upper = torch.empty(rows, columns, cut.upper_size)

    def fill(row: int) -> None:
        mine = slice(row * pieces, (row + 1) * pieces)
        values, _ = cohort.examples.gather(indices[mine].flatten().to(device))
        parted = layout.inputs(values.flatten(1).to(torch.float32))
        inputs[mine] = parted.cpu().view(pieces, length, columns, layout.width)
        together = torch.empty(columns, cut.hidden, layout.width)
        for column in range(columns):
            own = own_start(row * columns + column, layout.own_length(column))
            together[column], upper[row, column] = layout.parted(own, column)
        if not joint:
            first[row] = together
        else:
            weight = together.transpose(0, 1).flatten(1)
            first[mine] = (inputs[mine].flatten(2) @ weight.T).view(pieces, length, cut.hidden)

    for _ in parallel(fill, range(rows)):
        pass
    single = cut.layers is not None and len(cut.layers) == 1
    order, strips, loop = torch.arange(columns), [], None
    if joint and alike:
        inputs, upper = inputs.flatten(2).unsqueeze(2), upper[:, :1]
    elif joint and single and columns > 1:
        loop = compiled(inputs, cut.upper[0].shape[0], cut.hidden, device)
        if loop is None:
            order = busiest_first(inputs)
            inputs, upper = inputs[:, :, order], upper[:, order]
            strips = list(parallel(lambda piece: strips_of(piece.to(device), cut.hidden), inputs))
    inputs = inputs.to(device)
    if cohort.examples.reconstructs and columns == 1:
        targets = inputs[:, :, 0, : cut.features]  # the same numbers again: they are many
    else:
        _, targets = cohort.examples.gather(indices.to(device))
    return Kept(
        inputs=inputs,
        targets=targets,
        weights=whole.weights.view(rows * pieces, length).to(device),
        first=first.to(device),
        upper=upper.to(device),
        owner=torch.from_numpy(np.repeat(np.arange(rows), pieces)).to(device),
        size=cut.hidden,
        order=order.to(device),
        compiled=loop,
        strips=tuple(strips),
    )


def hidden_of_all(layout: Layout, kept: Kept, displacement: Tensor, parallel: Map) -> Tensor:
    """Every row's pre-activations, shape (P, B, hidden)."""
    by_block, _ = layout.displacements(displacement)
    weight = by_block[kept.order].transpose(0, 1).flatten(1).T.contiguous()
    found = torch.empty_like(kept.first)

    def work(stack: slice) -> None:
        inputs, constant = kept.inputs[stack].flatten(2).flatten(0, 1), kept.first[stack].flatten(0, 1)
        torch.addmm(constant, inputs, weight, out=found[stack].flatten(0, 1))

    for _ in parallel(work, kept.stacks()):
        pass
    return found


def total_gradient(
    task: Task, layout: Layout, kept: Kept, displacement: Tensor, hidden: Tensor | None, parallel: Map
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of all participants' gradients.

    Args:
        task: the task.
        layout: who holds which part.
        kept: from `prepare`.
        displacement: shape (layout.length,).
        hidden: every row's pre-activations, shape (P, B, hidden); None where participants use their own.
        parallel: maps over stacks.

    Returns:
        Of the blocks, shape (columns, block); of the upper layers, their mean over columns, shape (upper_size,); and
        the losses of the pieces, mean over columns, shape (P,).
    """
    by_block, by_upper = layout.displacements(displacement)
    by_block = by_block[kept.order]
    above = layout.cut.unflatten(by_upper)
    firsts = layout.cut.unflatten(kept.upper)
    shape, cut = (*kept.inputs.shape[2:], layout.cut.hidden), layout.cut
    single = hidden is not None and cut.layers is not None and len(cut.layers) == 1

    def work(job: list[slice]) -> tuple[Tensor, Tensor, list[Tensor]]:
        blocks_sum, upper_sum = displacement.new_zeros(shape), torch.zeros_like(by_upper)
        losses = []
        space = _space(layout, kept, job) if single else None
        for stack in job:
            # with one piece a row, a stack of pieces is one of rows, and nothing need be gathered
            owner = stack if layout.pieces == 1 else kept.owner[stack]
            pairs = [(first[owner], moved) for first, moved in zip(firsts, above, strict=True)]
            if hidden is not None and space is not None:
                found, by_slot = _common(task, layout, kept, stack, pairs, hidden[stack], space, blocks_sum)
            else:
                upper = [first + moved for first, moved in pairs]
                if hidden is not None:
                    own = hidden[stack]
                else:
                    blocks = kept.first[owner] + by_block
                    own = torch.matmul(kept.inputs[stack].transpose(1, 2), blocks.transpose(2, 3))
                found, by_slot = _apart(task, layout, kept, stack, upper, own, blocks_sum)
            for slot, part in zip(cut.upper, by_slot, strict=True):
                upper_sum[slot.offset : slot.offset + slot.size] += part.flatten() / kept.inputs.shape[2]
            losses.append(found)
        return blocks_sum, upper_sum, losses

    blocks_total = torch.zeros(shape, dtype=torch.float64, device=displacement.device)
    upper_total = torch.zeros(layout.cut.upper_size, dtype=torch.float64, device=displacement.device)
    losses: list[Tensor] = []
    for blocks_sum, upper_sum, some in parallel(work, kept.jobs()):
        blocks_total += blocks_sum
        upper_total += upper_sum
        losses += some
    blocks = blocks_total.new_empty(layout.columns, layout.width, layout.cut.hidden)
    blocks[kept.order] = blocks_total.view_as(blocks)
    return blocks.transpose(1, 2).flatten(1), upper_total, torch.cat(losses)


def _space(layout: Layout, kept: Kept, job: list[slice]) -> Space:
    """Room for the work on a job's stacks, where heads are a single layer."""
    pieces = slice(job[0].start, job[-1].stop)
    most = max(stack.stop - stack.start for stack in job)
    outputs = layout.cut.upper[0].shape[0]
    return Space.of(kept.inputs[pieces], outputs, layout.cut.hidden, kept.strips[pieces], most)


def _common(
    task: Task,
    layout: Layout,
    kept: Kept,
    stack: slice,
    upper: list[tuple[Tensor, Tensor]],
    hidden: Tensor,
    space: Space,
    blocks_sum: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of one stack, where heads are a single layer on common activations; the blocks' are added in place.

    Args:
        task: the task.
        layout: who holds which part.
        kept: from `prepare`.
        stack: R pieces.
        upper: each slot's first parameters, shape (R, columns, *shape), and how far they have moved.
        hidden: pre-activations, shape (R, B, hidden).
        space: of the worker.
        blocks_sum: shape (columns, width, hidden); products in this order are the faster ones.

    Returns:
        The pieces' losses, shape (R,), and gradients of each slot, summed up over pieces and columns.
    """
    inputs, cut = kept.inputs[stack], layout.cut
    rows, _, columns, _ = inputs.shape
    turned = [(first.transpose(1, 2), moved.unsqueeze(1)) for first, moved in upper]
    (layer,) = cut.layers or ()
    weight = torch.add(*turned[layer.weight], out=space.weight[:rows])
    bias = None if layer.bias is None else torch.add(*turned[layer.bias])
    active = hidden.relu() if cut.relu else hidden
    passed = active.sign() if cut.relu else None
    targets, weights = kept.targets[stack], kept.weights[stack]
    found = heads(task.learner.loss, weight, bias, active, targets, weights, space.outputs[:rows])
    if columns == 1:
        below = space.below[: active.numel()].view_as(active)
        torch.bmm(found.by_outputs[..., 0], weight[:, :, 0], out=below)
        if passed is not None:
            below.mul_(passed)
        blocks_sum[0].addmm_(inputs.flatten(0, 2).T, below.flatten(0, 1))
    else:
        for one in range(rows):
            piece = (found.by_outputs[one], weight[one], None if passed is None else passed[one])
            if kept.compiled is not None:
                kept.compiled(inputs[one], *piece, blocks_sum)
            else:
                add_blocks(kept.strips[stack.start + one], *piece, space, blocks_sum)
    by_upper = [found.by_weight] * len(upper)
    if layer.bias is not None:
        by_upper[layer.bias] = found.by_bias
    return found.losses, by_upper


def _apart(
    task: Task,
    layout: Layout,
    kept: Kept,
    stack: slice,
    upper: list[Tensor],
    hidden: Tensor,
    blocks_sum: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of one stack, participant by participant; the blocks' are added in place.

    Args:
        task: the task.
        layout: who holds which part.
        kept: from `prepare`.
        stack: R pieces.
        upper: each slot's parameters, shape (R, columns, *shape).
        hidden: pre-activations, shape (R, B, hidden), or (R, columns, B, hidden) where participants use their own.
        blocks_sum: shape (columns, width, hidden).

    Returns:
        As `_common`.
    """
    inputs, targets, weights = kept.inputs[stack], kept.targets[stack], kept.weights[stack]
    rows, examples, columns = inputs.shape[:3]
    lanes = hidden if hidden.dim() == 4 else hidden.unsqueeze(1).expand(-1, columns, -1, -1)
    every_targets = targets.unsqueeze(1).expand(-1, columns, *targets.shape[1:]).flatten(0, 1)
    every_weights = weights.unsqueeze(1).expand(-1, columns, -1).flatten(0, 1)
    gradients, by_hidden, lane_losses = layout.cut.gradients(
        task.learner.loss,
        lanes.flatten(0, 1),
        [part.flatten(0, 1) for part in upper],
        every_targets,
        every_weights,
    )
    losses = lane_losses.view(rows, columns).mean(1)
    for own, below in zip(inputs, by_hidden.view(rows, columns, examples, layout.cut.hidden), strict=True):
        blocks_sum.baddbmm_(own.permute(1, 2, 0).contiguous(), below)
    return losses, [one.sum(0) for one in gradients]
