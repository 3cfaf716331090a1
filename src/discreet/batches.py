"""The batches of a cohort: which examples each client takes at each of its steps, and how they are augmented.

Each pass over a client's data is a fresh permutation cut into batches; the last batch of a pass may be smaller, and its
loss is the mean over the examples it has. A batch size above a client's number of examples takes them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from discreet.augment import FlipCrop
from discreet.cohort import Cohort
from discreet.optimizers import LocalTraining
from discreet.randomness import Keyed, Seeded


@dataclass(frozen=True, eq=False)
class Batches:
    """What L lanes train on, step by step.

    Attributes:
        indices: shape (L, S, B), int64, into the shared examples.
        weights: shape (L, S, B); each row sums to 1, padding has 0.
        steps: for each lane, how many of the S steps are its own.
        keys: shape (L,), int64, each lane's dropout key.
        flips, offsets: shapes (L, S, B) and (L, S, B, 2), the augmentation, or None.
    """

    indices: Tensor
    weights: Tensor
    steps: tuple[int, ...]
    keys: Tensor
    flips: Tensor | None = None
    offsets: Tensor | None = None


def draw_batches(
    plan: LocalTraining,
    cohort: Cohort,
    lanes: int,
    randomness: Seeded | Keyed,
    augment: FlipCrop | None = None,
) -> Batches:
    """Draw the batches of a cohort of at most `lanes` clients, padded to `lanes`."""
    batch = min(plan.batch_size or cohort.capacity, cohort.capacity) or 1
    steps = [plan.steps_for(len(rows), batch) for rows in cohort.indices]
    longest = max(steps, default=0)
    indices = np.zeros((lanes, longest, batch), dtype=np.int64)
    weights = np.zeros((lanes, longest, batch), dtype=np.float32)
    keys = np.zeros(lanes, dtype=np.int64)
    drawn = (lanes, longest, batch) if augment is not None else (0, 0, 0)
    flips, offsets = np.zeros(drawn, dtype=bool), np.zeros((*drawn, 2), dtype=np.int64)
    for lane, rows in enumerate(cohort.indices):
        if not len(rows):
            continue
        client, taken = int(cohort.ids[lane]), steps[lane]
        stream = randomness.stream(cohort.round, client, "batches")
        keys[lane] = randomness.torch_seed(cohort.round, client, "dropout")
        a_pass = -(-len(rows) // batch)
        passes = -(-taken // a_pass)
        order = np.zeros((passes, a_pass * batch), dtype=np.int64)
        order[:, : len(rows)] = stream.permuted(np.tile(rows, (passes, 1)), axis=1)
        # a short last batch is filled up with its own examples at weight 0: no batch statistic sees others' data
        last = (a_pass - 1) * batch
        spare = np.arange(a_pass * batch - len(rows)) % (len(rows) - last)
        order[:, len(rows) :] = order[:, last + spare]
        real = np.arange(a_pass * batch) < len(rows)
        counts = real.reshape(a_pass, batch).sum(1, keepdims=True)
        share = (real.reshape(a_pass, batch) / counts).astype(np.float32)
        # nor do steps after the client's last: an example that is NaN shows through a weight of 0
        indices[lane] = rows[0]
        indices[lane, :taken] = order.reshape(-1, batch)[:taken]
        weights[lane, :taken] = np.tile(share, (passes, 1))[:taken]
        if augment is not None:
            draws = augment.draw(randomness.stream(cohort.round, client, "augmentation"), (taken, batch))
            flips[lane, :taken], offsets[lane, :taken] = draws.flips, draws.offsets
    return Batches(
        torch.from_numpy(indices),
        torch.from_numpy(weights),
        tuple(steps) + (0,) * (lanes - len(steps)),
        torch.from_numpy(keys),
        torch.from_numpy(flips) if augment else None,
        torch.from_numpy(offsets) if augment else None,
    )
