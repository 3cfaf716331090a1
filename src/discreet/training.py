"""Local training of a cohort: many clients at once, each on its own data.

Clients are worked on in stacks of a fixed number of *lanes* (the last stack is padded), so that how a cohort is cut
into pieces changes nothing. What a client draws (its batches, its augmentation, its dropout) depends on
(seed, round, client) alone.

Stated rules:

* Each pass over a client's data is a fresh permutation, see `discreet.batches`.
* Every client's optimizer starts afresh each round.
* A client with no examples takes no step and is not accepted; nor is one whose update is NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.augment import FlipCrop
from discreet.batches import Batches, draw_batches
from discreet.cohort import Cohort, Examples
from discreet.gradients import LaneGradient, LayeredGradient, Path, lane_gradient
from discreet.losses import Loss
from discreet.network import Network
from discreet.optimizers import LocalTraining
from discreet.randomness import Keyed, Seeded


@dataclass(frozen=True, eq=False)
class Learner:
    """A model, its loss, and how a party computes with them.

    Attributes:
        network: the model.
        loss: one loss an example; see `discreet.losses.Loss`.
        path: how gradients are computed.
        lanes: clients stacked at once.
        device: where training runs.
        augment: drawn anew for each training batch; None for none.
        dimensions: of one input, without the batch's.
        shape: of one input; empty where a scheme that must know it is told nothing.
    """

    network: Network
    loss: Loss
    path: Path
    lanes: int
    device: torch.device
    augment: FlipCrop | None = None
    dimensions: int = 1
    shape: tuple[int, ...] = ()

    def gradient(self, dimensions: int) -> LaneGradient:
        """The gradient function, for the use of one thread."""
        return lane_gradient(self.path, self.network, self.loss, dimensions)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a cohort's training gave.

    Attributes:
        changes: shape (K, n): final minus starting parameters.
        losses: shape (K,): training loss, mean over the steps; NaN for a client with no examples.
        accepted: shape (K,): False for a client with no examples, or whose change is not finite, alone or times its
            number of examples.
    """

    changes: Tensor
    losses: Tensor
    accepted: Tensor


def train(
    learner: Learner,
    plan: LocalTraining,
    start: Tensor,
    cohort: Cohort,
    randomness: Seeded | Keyed,
    uphill: NDArray[np.bool_] | None = None,
) -> Trained:
    """Train every client of a cohort from `start`.

    Args:
        learner: model, loss and way of computing.
        plan: steps and optimizer.
        start: parameters, shape (n,), or (K, n) where each client starts from its own.
        cohort: K clients; memory grows with K * n, so callers pass a few stacks at a time. One that holds some of the
            features only sees the others as 0.
        randomness: streams of the run.
        uphill: shape (K,): who steps along its gradients instead of against them; None for nobody.
    """
    gradient = learner.gradient(cohort.examples.inputs.dim() - 1)
    return _joined(
        [
            _train_stack(
                learner, plan, gradient, own, part, randomness, None if uphill is None else uphill[place]
            )
            for part, own, place in _stacks(cohort, learner.lanes, start)
        ]
    )


def _train_stack(
    learner: Learner,
    plan: LocalTraining,
    gradient: LaneGradient,
    start: Tensor,
    cohort: Cohort,
    randomness: Seeded | Keyed,
    uphill: NDArray[np.bool_] | None,
) -> Trained:
    """Train at most `learner.lanes` clients side by side."""
    lanes, network = learner.lanes, learner.network
    batches = draw_batches(plan, cohort, lanes, randomness, learner.augment)
    signs = _signs(uphill, lanes)
    if signs is not None:
        batches = replace(batches, weights=batches.weights * signs[:, None, None])
    begin = _padded(start, lanes)
    stack = [
        begin[:, slot.offset : slot.offset + slot.size].reshape(lanes, *slot.shape).clone()
        for slot in network.layout
    ]
    uniform = len({count for count in batches.steps if count}) <= 1
    changes = torch.zeros(lanes, network.count, dtype=start.dtype, device=learner.device)
    losses = torch.zeros(lanes, dtype=start.dtype, device=learner.device)
    taken = torch.tensor(batches.steps, device=learner.device)
    advance = _stepper(plan, gradient, stack)
    visible = cohort.visible
    if visible is not None:
        padding = visible.new_zeros(lanes - len(cohort), *visible.shape[1:])
        visible = torch.cat([visible, padding]).unsqueeze(1).to(learner.device)
    with torch.no_grad():
        for step in range(batches.indices.shape[1]):
            inputs, targets, weights = _batch(learner, cohort.examples, batches, step, start.dtype)
            if visible is not None:
                inputs = inputs * visible
            step_losses = advance(inputs, targets, weights, (batches.keys + step).to(learner.device))
            losses += torch.where(taken > step, step_losses, 0)
            if not uniform:
                # a lane that is done goes on computing; what it had at its own last step is what counts
                for lane, last in enumerate(batches.steps):
                    if last == step + 1:
                        _write_changes(network, changes, stack, begin, slice(lane, lane + 1))
        if uniform:
            _write_changes(network, changes, stack, begin, slice(0, lanes))
    if signs is not None:
        losses = losses * signs.to(losses)
    return _trained(changes, losses / taken, taken, cohort)


def _signs(uphill: NDArray[np.bool_] | None, lanes: int) -> Tensor | None:
    """Shape (lanes,): -1 for who steps along its gradients, else 1; None where nobody does."""
    if uphill is None or not uphill.any():
        return None
    signs = torch.ones(lanes)
    signs[: len(uphill)][torch.from_numpy(uphill)] = -1
    return signs


def _stepper(
    plan: LocalTraining, gradient: LaneGradient, stack: list[Tensor]
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A function that takes one step of `stack` in place on (inputs, targets, weights, keys) and gives the losses."""
    if isinstance(gradient, LayeredGradient) and plan.is_plain_sgd:
        layered = gradient
        return lambda inputs, targets, weights, keys: layered.descend(
            stack, inputs, targets, weights, plan.learning_rate, plan.weight_decay
        )
    optimizer = plan.make_optimizer(stack)

    def step(inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        gradients, losses = gradient(stack, inputs, targets, weights, keys)
        for parameter, value in zip(stack, gradients, strict=True):
            parameter.grad = value
        optimizer.step()
        return losses

    return step


def mean_gradients(
    learner: Learner, vector: Tensor, cohort: Cohort, randomness: Seeded | Keyed, batch_size: int = 0
) -> Trained:
    """Each client's mean gradient at `vector`, over a batch or over all of its examples.

    Args:
        learner: model, loss and way of computing.
        vector: parameters, shape (n,), or (K, n) where each client has its own.
        cohort: K clients.
        randomness: streams of the run.
        batch_size: examples drawn by each client; 0 for all that it has, taken in pieces of bounded memory.

    Returns:
        Gradients in `changes`, and the losses at `vector`.
    """
    gradient = learner.gradient(cohort.examples.inputs.dim() - 1)

    def add(
        sums: Tensor, stack: list[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> Tensor:
        gradients, losses = gradient(stack, inputs, targets, weights, keys)
        for slot, value in zip(learner.network.layout, gradients, strict=True):
            sums[:, slot.offset : slot.offset + slot.size] += value.flatten(1)
        return losses

    return means(learner, add, learner.network.count, vector, cohort, randomness, batch_size)


class AddBatch(Protocol):
    """Works on a batch of each of L lanes, and adds what it gives to running sums, in place."""

    def __call__(
        self,
        sums: Tensor,
        stack: list[Tensor],
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        keys: Tensor,
        /,
    ) -> Tensor:
        """Returns the losses, shape (L,); `sums` has shape (L, length), the rest is as `LaneGradient` takes it."""
        ...


def means(
    learner: Learner,
    add: AddBatch,
    length: int,
    vector: Tensor,
    cohort: Cohort,
    randomness: Seeded | Keyed,
    batch_size: int = 0,
) -> Trained:
    """What `add` gives for each client, meant over a batch or over all of its examples.

    Args:
        learner: model, loss and way of computing.
        add: does the work; for the use of one thread.
        length: of what it adds to.
        vector: as for `mean_gradients`, like the rest.
        cohort: likewise.
        randomness: likewise.
        batch_size: likewise.

    Returns:
        The means in `changes`, shape (K, length).
    """
    return _joined(
        [
            _mean_stack(learner, add, length, own, part, randomness, batch_size)
            for part, own, _ in _stacks(cohort, learner.lanes, vector)
        ]
    )


PIECE = 128
"""Examples of a lane whose activations are held at once when a gradient over all examples is added up."""


def _mean_stack(
    learner: Learner,
    add: AddBatch,
    length: int,
    vector: Tensor,
    cohort: Cohort,
    randomness: Seeded | Keyed,
    batch_size: int,
) -> Trained:
    lanes, network = learner.lanes, learner.network
    plan = (
        LocalTraining(steps=1, batch_size=batch_size)
        if batch_size
        else LocalTraining(epochs=1, batch_size=PIECE)
    )
    batches = draw_batches(plan, cohort, lanes, randomness, learner.augment)
    real = batches.weights > 0
    counts = real.sum((1, 2), keepdim=True).clamp(min=1)
    batches = replace(batches, weights=real.to(vector.dtype) / counts)
    stack = list(network.unflatten(_padded(vector, lanes)).values())
    sums = torch.zeros(lanes, length, dtype=vector.dtype, device=learner.device)
    losses = torch.zeros(lanes, dtype=vector.dtype, device=learner.device)
    with torch.no_grad():
        for step in range(batches.indices.shape[1]):
            inputs, targets, weights = _batch(learner, cohort.examples, batches, step, vector.dtype)
            keys = (batches.keys + step).to(learner.device)
            losses += add(sums, stack, inputs, targets, weights, keys)
    taken = torch.tensor(batches.steps, device=learner.device)
    return _trained(sums, torch.where(taken > 0, losses, torch.nan), taken, cohort)


def _stacks(cohort: Cohort, lanes: int, start: Tensor) -> Iterator[tuple[Cohort, Tensor, slice]]:
    """A cohort's stacks, each with its starting parameters and its place in the cohort."""
    begin = 0
    for part in cohort.chunks(lanes):
        place = slice(begin, begin + len(part))
        yield part, start if start.dim() == 1 else start[place], place
        begin = place.stop


def _padded(start: Tensor, lanes: int) -> Tensor:
    """Starting parameters for every lane, shape (lanes, n)."""
    if start.dim() == 1:
        return start.expand(lanes, -1)
    return torch.cat([start, start[:1].expand(lanes - len(start), -1)])


def _batch(
    learner: Learner, examples: Examples, batches: Batches, step: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and weights of one step, shapes (L, B, ...); floating inputs and weights in `dtype`."""
    inputs, targets = examples.gather(batches.indices[:, step].to(learner.device))
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
    if learner.augment is not None and batches.flips is not None and batches.offsets is not None:
        images = inputs.flatten(0, 1)
        inputs = learner.augment.apply(
            images, batches.flips[:, step].reshape(-1), batches.offsets[:, step].reshape(-1, 2)
        ).view_as(inputs)
    return inputs, targets, batches.weights[:, step].to(learner.device, dtype)


def _write_changes(
    network: Network, changes: Tensor, stack: list[Tensor], begin: Tensor, lanes: slice
) -> None:
    """Write final minus starting parameters of some lanes into `changes`."""
    for slot, parameter in zip(network.layout, stack, strict=True):
        place = slice(slot.offset, slot.offset + slot.size)
        torch.sub(parameter[lanes].flatten(1), begin[lanes, place], out=changes[lanes, place])


def _trained(changes: Tensor, losses: Tensor, taken: Tensor, cohort: Cohort) -> Trained:
    count, sizes = len(cohort), torch.from_numpy(cohort.sizes).to(changes)
    # the extremes tell as much as isfinite().all(1), which takes twenty times as long
    largest = torch.maximum(changes.amax(1), -changes.amin(1))[:count]
    accepted = (taken[:count] > 0) & (largest * sizes).isfinite()
    return Trained(changes[:count], losses[:count], accepted)


def _joined(found: Sequence[Trained]) -> Trained:
    if len(found) == 1:
        return found[0]
    return Trained(
        torch.cat([one.changes for one in found]),
        torch.cat([one.losses for one in found]),
        torch.cat([one.accepted for one in found]),
    )
