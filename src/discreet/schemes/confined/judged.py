"""How good confined models are: the mean over participants, and the worst."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from discreet.cohort import Examples, Grid
from discreet.evaluation import PIECE, Evaluation, Map, combined
from discreet.evaluation import evaluate as evaluate_model
from discreet.schemes.base import Task
from discreet.schemes.confined.layout import Layout
from discreet.schemes.confined.steps import Displacement


def evaluate(
    task: Task,
    grid: Grid,
    layout: Layout | None,
    own_start: Callable[[int, int], Tensor],
    state: Displacement,
    examples: Examples,
    evaluated: int,
    joint: bool,
    alike: bool,
    parallel: Map,
) -> Evaluation:
    """Evaluate confined models.

    Args:
        task: the task.
        grid: who holds how much of what.
        layout: who holds which part; None where everybody holds a whole network.
        own_start: gives the first confined model of a participant, of some length.
        state: how far they have moved.
        examples: to judge them on.
        evaluated: how many participants, evenly spread; 0 for all.
        joint: whether a row predicts from common pre-activations.
        alike: whether, if it does, all its participants also have the same head, and so predict the same.
        parallel: maps over rows.
    """
    count = min(evaluated, grid.participants) if evaluated else grid.participants
    chosen = np.unique(np.linspace(0, grid.participants - 1, count).round().astype(np.int64)).tolist()
    extras = {"total_norm": float(state.total_norm)}
    if layout is None:
        device = state.displacement.device

        def judge_whole(one: int) -> Evaluation:
            own = own_start(one, task.parameters).to(device)
            return evaluate_model(task.learner, own + state.displacement, examples)

        found = combined(list(parallel(judge_whole, chosen)))
        return replace(found, extras=extras)
    if not len(examples):
        return Evaluation(None, None, extras=extras)
    columns = layout.columns
    rows = [
        (row, [one % columns for one in group]) for row, group in groupby(chosen, lambda one: one // columns)
    ]

    def judge(job: tuple[int, list[int]]) -> tuple[list[int], Tensor]:
        row, wanted = job
        needed = range(columns) if joint else wanted
        by_block, by_upper = layout.displacements(state.displacement)
        blocks = by_block.clone()
        upper = by_upper.expand(columns, -1).clone()
        for column in needed:
            own = own_start(row * columns + column, layout.own_length(column))
            block, above = layout.parted(own.to(blocks.device), column)
            blocks[column] += block
            upper[column] += above
        places = torch.tensor(wanted[:1] if joint and alike else wanted, device=blocks.device)
        right, losses = [0] * len(places), torch.zeros(len(places), dtype=torch.float64)
        for first in range(0, len(examples), PIECE):
            piece = torch.arange(first, min(first + PIECE, len(examples)), device=blocks.device)
            values, targets = examples.gather(piece)
            flat = values.flatten(1).to(torch.float32)
            some, loss = _right_and_losses(task, layout, blocks, upper, places, flat, targets, joint)
            right = [one + other for one, other in zip(right, some, strict=True)]
            losses += loss.cpu()
        if len(places) < len(wanted):
            return right * len(wanted), losses.expand(len(wanted))
        return right, losses

    with torch.no_grad():
        found_rows = list(parallel(judge, rows))
    right = np.array([one for some, _ in found_rows for one in some]) / len(examples)
    losses = torch.cat([one for _, one in found_rows]) / len(examples)
    classes = examples.targets.dim() == 1
    return Evaluation(
        float(right.mean()) if classes else None,
        float(losses.mean()),
        float(right.min()) if classes else None,
        float(losses.max()),
        extras,
    )


def _right_and_losses(
    task: Task,
    layout: Layout,
    blocks: Tensor,
    upper: Tensor,
    wanted: Tensor,
    values: Tensor,
    targets: Tensor,
    joint: bool,
) -> tuple[list[int], Tensor]:
    """How many examples participants of a row get right, and their sums of losses.

    Args:
        task: the task.
        layout: who holds which part.
        blocks: the row's, shape (columns, hidden, width).
        upper: shape (columns, upper_size).
        wanted: columns of the participants in question, shape (W,).
        values: flat inputs, shape (B, features).
        targets: shape (B, ...).
        joint: whether the row predicts from common pre-activations.

    Returns:
        Counts, and losses of shape (W,).
    """
    cut, loss = layout.cut, task.learner.loss
    inputs = layout.inputs(values)
    if joint:
        hidden = inputs.flatten(1) @ blocks.transpose(0, 1).flatten(1).T
        outputs = cut.outputs(hidden, cut.unflatten(upper[wanted])).expand(len(wanted), -1, -1)
    else:
        hidden = torch.matmul(inputs.transpose(0, 1)[wanted], blocks[wanted].transpose(1, 2))
        outputs = torch.cat(
            [
                cut.outputs(one, cut.unflatten(own))
                for one, own in zip(hidden, upper[wanted].unsqueeze(1), strict=True)
            ]
        )
    every = targets.unsqueeze(0).expand(len(outputs), *targets.shape)
    found = loss(outputs.flatten(0, 1), every.flatten(0, 1)).view(len(outputs), -1)
    classes = targets.dim() == 1
    right = (outputs.argmax(-1) == every).sum(1).tolist() if classes else [0] * len(outputs)
    return right, found.sum(1, dtype=torch.float64)
