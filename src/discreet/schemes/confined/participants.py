"""What participants of CGD compute, each from its own confined model and data: explicit, one by one.

This is what a deployed site runs. `fused` adds the same up for a whole federation without ever writing single
contributions down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.cohort import Cohort
from discreet.randomness import Seeded
from discreet.schemes.base import Task
from discreet.schemes.confined.layout import Layout


@dataclass(frozen=True, eq=False)
class Rows:
    """The examples that participants work on in a round, padded to one length B.

    Attributes:
        indices: shape (K, B), int64, into the shared examples.
        weights: shape (K, B), float32: an example's share of the global mean; 0 for padding.
    """

    indices: Tensor
    weights: Tensor


def rows_of(cohort: Cohort, padded: int, examples: int, batch_size: int, randomness: Seeded) -> Rows:
    """All examples of each participant's row, or a batch that the participants of a row draw together.

    Args:
        cohort: K participants.
        padded: B for all examples; a batch has at most `batch_size`.
        examples: how many all participants hold together.
        batch_size: 0 for all.
        randomness: public streams.
    """
    length = min(batch_size, padded) if batch_size else padded
    indices = np.zeros((len(cohort), length), dtype=np.int64)
    weights = np.zeros((len(cohort), length), dtype=np.float32)
    for lane, (row, held) in enumerate(zip(cohort.row.tolist(), cohort.indices, strict=True)):
        if not len(held):
            continue
        chosen: NDArray[np.int64] = np.asarray(held, dtype=np.int64)
        if batch_size and len(held) > batch_size:
            stream = randomness.stream(cohort.round, row, "batches")
            chosen = np.sort(stream.choice(chosen, batch_size, replace=False))
        indices[lane] = chosen[0]  # padding shows no one else's data
        indices[lane, : len(chosen)] = chosen
        weights[lane, : len(chosen)] = len(held) / len(chosen) / examples
    return Rows(torch.from_numpy(indices), torch.from_numpy(weights))


@dataclass(frozen=True, eq=False)
class Held:
    """What K participants hold in a round, side by side.

    Attributes:
        blocks: of the first layer, shape (K, hidden, width).
        upper: parameters above it, shape (K, upper_size).
        inputs: each one's own features, shape (K, B, width).
        targets: shape (K, B, ...).
        weights: shape (K, B).
    """

    blocks: Tensor
    upper: Tensor
    inputs: Tensor
    targets: Tensor
    weights: Tensor


def held(
    task: Task,
    layout: Layout,
    own_start: Callable[[int, int], Tensor],
    displacement: Tensor,
    cohort: Cohort,
    rows: Rows,
) -> Held:
    """Gather what the participants of a cohort hold.

    Args:
        task: the task.
        layout: who holds which part.
        own_start: gives the first confined model of a participant, of some length.
        displacement: shape (layout.length,), or (K, layout.length) where participants are at different iterations.
        cohort: K participants.
        rows: their examples.
    """
    device = task.learner.device
    own = []
    for lane, (participant, column) in enumerate(
        zip(cohort.ids.tolist(), cohort.column.tolist(), strict=True)
    ):
        first = own_start(participant, layout.own_length(column))
        moved = displacement if displacement.dim() == 1 else displacement[lane]
        block, upper = layout.parted(first, column)
        by_block, by_upper = layout.displacements(moved)
        own.append((block + by_block[column], upper + by_upper))
    values, targets = cohort.examples.gather(rows.indices.to(device))
    flat = values.flatten(2).to(torch.float32)
    parted = layout.inputs(flat.flatten(0, 1)).view(*flat.shape[:2], layout.columns, layout.width)
    lanes = torch.arange(len(cohort))
    return Held(
        torch.stack([block for block, _ in own]),
        torch.stack([upper for _, upper in own]),
        parted[lanes, :, torch.from_numpy(cohort.column)],
        targets,
        rows.weights.to(device),
    )


def shares_of_hidden(mine: Held) -> Tensor:
    """Each participant's share of its row's pre-activations, shape (K, B, hidden)."""
    return torch.bmm(mine.inputs, mine.blocks.transpose(1, 2))


def gradients(task: Task, layout: Layout, mine: Held, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of participants' shares of the global loss.

    Args:
        task: the task.
        layout: who holds which part.
        mine: what they hold.
        hidden: pre-activations of the first layer, shape (K, B, hidden).

    Returns:
        Of the block, shape (K, block); of the upper layers, shape (K, upper_size); and the losses, shape (K,).
    """
    cut = layout.cut
    upper = cut.unflatten(mine.upper)
    by_upper, by_hidden, losses = cut.gradients(task.learner.loss, hidden, upper, mine.targets, mine.weights)
    by_block = torch.bmm(by_hidden.transpose(1, 2), mine.inputs).flatten(1)
    flat = [one.flatten(1) for one in by_upper]
    return by_block, torch.cat(flat, dim=1) if flat else by_block.new_empty(len(by_block), 0), losses
