"""Local training of a cohort: many clients at once, each on its own data.

Clients are worked on in stacks of a fixed number of *lanes* (the last stack is padded), so that how a cohort is cut
into pieces changes nothing. What a client draws (its batches, its augmentation, its dropout) depends on
(seed, round, client) alone.

Stated rules:

* Each pass over a client's data is a fresh permutation cut into batches; the last batch of a pass may be smaller,
  and its loss is the mean over the examples it has. A batch size above a client's number of examples takes them all.
* Every client's optimizer starts afresh each round.
* A client with no examples takes no step and is not accepted; nor is one whose update is NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from discreet.augment import FlipCrop
from discreet.checked import plain
from discreet.cohort import Cohort, Examples
from discreet.errors import ConfigError
from discreet.gradients import LaneGradient, LayeredGradient, Path, lane_gradient
from discreet.losses import Loss
from discreet.network import Network
from discreet.randomness import Keyed, Seeded

OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}
"""The elementwise optimizers of torch: stacked parameters are then stepped as each lane alone would be."""

HYPERPARAMETERS = ConfigDict(extra="forbid", strict=True)


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


@plain("scheme.")
@checked_dataclass(frozen=True, kw_only=True, config=HYPERPARAMETERS)
class LocalTraining:
    """How each client trains in a round: a number of steps, or of epochs, of an optimizer.

    Attributes:
        steps: gradient steps a round (T_gd in arXiv 2010.07808), the same for every client.
        epochs: passes over a client's data, instead of `steps`. One of the two; 1 epoch if neither is given.
        batch_size: examples a step; 0 for all of a client's examples (memory then grows with the largest client's).
        optimizer: a name in `OPTIMIZERS`.
        learning_rate: the optimizer's, above 0.
        momentum: for ``sgd`` and ``rmsprop``, in [0, 1).
        weight_decay: L2 penalty, at least 0.
        optimizer_options: other keywords of the optimizer, as ``{"betas": [0.9, 0.99]}``.
    """

    steps: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=10, ge=0)
    optimizer: str = "sgd"
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    optimizer_options: dict[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError("scheme.epochs", self.epochs, "either steps or epochs, not both")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                "scheme.optimizer", self.optimizer, "an elementwise optimizer: " + ", ".join(OPTIMIZERS)
            )
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ConfigError("scheme.momentum", self.momentum, "0 unless the optimizer is sgd or rmsprop")
        if self.weight_decay and self.optimizer == "rprop":
            raise ConfigError("scheme.weight_decay", self.weight_decay, "0: rprop takes none")
        if not self.optimizer_options:
            return
        for name in ("lr", "momentum", "weight_decay"):
            if name in self.optimizer_options:
                key = "learning_rate" if name == "lr" else name
                raise ConfigError(
                    "scheme.optimizer_options", self.optimizer_options, f"no {name}: use scheme.{key}"
                )
        try:
            self.make_optimizer([torch.zeros(1)])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "scheme.optimizer_options", self.optimizer_options, f"keywords of {self.optimizer} ({error})"
            ) from None

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer of `parameters`."""
        options: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer in ("sgd", "rmsprop"):
            options["momentum"] = self.momentum
        if self.optimizer == "rprop":
            options.pop("weight_decay")
        return OPTIMIZERS[self.optimizer](parameters, **(options | self.optimizer_options))

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step is no more than ``w -= lr * (gradient + weight_decay * w)``."""
        return self.optimizer == "sgd" and not self.momentum and not self.optimizer_options

    def steps_for(self, size: int, batch_size: int) -> int:
        """How many steps a client with `size` examples takes."""
        if size == 0:
            return 0
        return self.steps or (self.epochs or 1) * -(-size // batch_size)


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
    found: list[Trained] = []
    for part in cohort.chunks(learner.lanes):
        taken = sum(len(one.losses) for one in found)
        own = start if start.dim() == 1 else start[taken : taken + len(part)]
        up = None if uphill is None else uphill[taken : taken + len(part)]
        found.append(_train_stack(learner, plan, gradient, own, part, randomness, up))
    return _joined(found)


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
    found: list[Trained] = []
    for part in cohort.chunks(learner.lanes):
        taken = sum(len(one.losses) for one in found)
        own = vector if vector.dim() == 1 else vector[taken : taken + len(part)]
        found.append(_mean_stack(learner, add, length, own, part, randomness, batch_size))
    return _joined(found)


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
