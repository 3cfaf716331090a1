"""From an experiment to what a driver needs: data, who holds it, the model, and how it is computed.

What is left open by ``auto`` is resolved on the way, from the model and the size of the cohort alone, and written into the
experiment, so that the run folder holds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet import losses, models
from discreet.augment import AUGMENTATIONS
from discreet.budget import promised
from discreet.cohort import Cohort, Examples, Grid
from discreet.config import Experiment
from discreet.data import sources
from discreet.data.checks import check_dataset, check_partition
from discreet.data.dataset import Dataset, Progress, no_progress
from discreet.data.partition import Partition
from discreet.data.scaling import Scaling
from discreet.data.scattering import scattered
from discreet.dealing import deal, hold_out, load_data, reconstructing
from discreet.engine import device_of, path_of, resolve
from discreet.errors import ConfigError
from discreet.gradients import can_stack
from discreet.infiltration import Infiltration, infiltrated
from discreet.losses import Loss
from discreet.randomness import Seeded
from discreet.schemes.base import Task
from discreet.schemes.traits import RecordLevel
from discreet.training import Learner

PUBLIC = 256
"""So many examples of the test set are known to all parties, at most: a scheme may try the model out on them."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything a driver needs.

    Attributes:
        experiment: with every ``auto`` resolved.
        task: the model, loss and streams.
        train, test: examples; `holdout`: kept from all clients, or None.
        partition: who holds which of `train`.
        dataset_name: for the result.
        releases: how many releases the privacy budget allows; None for any number.
        fingerprint: tells other training data, or another partition of it, from this.
        infiltration: who is malicious; None for nobody.
        target_scaling: how the targets of a regression were scaled; None where they are in their own unit.
    """

    experiment: Experiment
    task: Task
    train: Examples
    test: Examples
    holdout: Examples | None
    partition: Partition
    dataset_name: str
    fingerprint: str
    releases: int | None = None
    target_scaling: Scaling | None = None
    infiltration: Infiltration | None = None

    @property
    def scheme(self) -> Any:
        """The experiment's scheme."""
        return self.experiment.scheme

    @cached_property
    def capacity(self) -> int:
        """The most examples that any client holds."""
        return int(self.partition.sizes.max())

    def cohort(
        self, ids: NDArray[np.int64], round: int, kept: dict[int, Tensor], participants: int | None = None
    ) -> Cohort:
        """The participants `ids`, as they stand in `round`, in which `participants` take part."""
        everyone = len(ids) == self.partition.clients and np.array_equal(ids, self._everyone.ids)
        place = self._everyone if everyone else self._placed(ids)
        own = tuple(kept.get(int(client)) for client in ids) if kept else (None,) * len(ids)
        return dataclasses.replace(place, round=round, kept=own, participants=participants)

    def accomplices(self, ids: NDArray[np.int64], round: int, participants: int) -> Cohort | None:
        """The malicious ones of some participants, where they agree on one update."""
        malice = self.task.adversary
        if malice is None or not malice.adversary.common:
            return None
        return self.cohort(np.intersect1d(ids, malice.clients), round, {}, participants)

    @cached_property
    def _everyone(self) -> Cohort:
        return self._placed(np.arange(self.partition.clients))

    def _placed(self, ids: NDArray[np.int64]) -> Cohort:
        """The participants `ids`, before any round."""
        parts = self.partition
        row, column = parts.row_of(ids), parts.column_of(ids)
        columns = parts.columns
        return Cohort(
            ids=ids,
            examples=self.train,
            indices=tuple(parts.indices(int(owner)) for owner in row),
            round=0,
            capacity=self.capacity,
            row=row,
            column=column,
            kept=(None,) * len(ids),
            features=None if columns is None else tuple(columns[int(owner)] for owner in column),
        )


def prepare(
    experiment: Experiment,
    data: Dataset | None = None,
    partition: Partition | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    loss: Loss | None = None,
    data_dir: Path | None = None,
    on_data: Progress = no_progress,
    keep: bool = True,
) -> Federation:
    """Load, deal out, build and check everything, before anything is trained.

    Args:
        experiment: what was asked.
        data: instead of the data set that the experiment names.
        partition: instead of the one that the experiment names.
        model: a module, or a factory, instead of the one that the experiment names.
        loss: instead of the one that the experiment names.
        data_dir: where data sets are looked for first.
        on_data: called while data that takes long to read is read.
        keep: whether what is made of the data may be kept in the user's cache.

    Raises:
        UserError: something cannot be done.
    """
    device = device_of(experiment)
    streams = Seeded(experiment.seed)
    data_given, partition_given = data is not None, partition is not None
    if data is None:
        data = load_data(experiment, data_dir, on_data)
    else:
        check_dataset(data)
        if experiment.data.features == "scattering":
            data = scattered(data, on_data, keep)
    holdout, own = hold_out(experiment, data, streams)
    if partition is None:
        partition = deal(experiment, data, own, streams)
    elif holdout is not None:
        raise ConfigError(
            "data.holdout", experiment.data.holdout, "0 where a partition is given: leave rows out of it"
        )
    else:
        check_partition(partition, len(data.train))
    if experiment.data.task == "reconstruct":
        data, holdout = reconstructing(data, holdout, partition)
    data, partition, infiltration = infiltrated(experiment, data, partition, streams)
    if partition.column_count > 1 and not experiment.scheme.splits_columns:
        raise ConfigError(
            "data.columns",
            partition.column_count,
            f"1: {experiment.scheme_name} needs whole rows at each client",
        )
    if isinstance(experiment.scheme, RecordLevel) and len(np.unique(partition.order)) < len(partition.order):
        raise ConfigError(
            "data.partition",
            experiment.data.partition,
            f"one that holds every example once: {experiment.scheme_name} promises something for one record",
        )
    if experiment.scheme.pooled:
        partition = partition.pooled()
    experiment = _named(experiment, data, model, loss, data_given, partition_given)
    classes = data.classes is not None
    loss = losses.find(experiment.model.loss if loss is None else loss, classes=classes)
    inputs, targets = data.train.gather(torch.arange(2) % len(data.train))
    network = models.build(
        experiment.model.name if model is None else model,
        shape=data.shape,
        outputs=data.outputs,
        vocabulary=data.vocabulary,
        options=experiment.model.options,
        randomness=streams,
        probe=inputs,
        classes=classes,
    )
    augment = AUGMENTATIONS[experiment.data.augment]
    if augment is not None:
        augment.check(data.shape)
    start = network.initial(streams)
    with torch.no_grad():
        losses.check(loss, network.apply(start, inputs), targets)
    experiment = resolve(
        experiment,
        network,
        len(data.shape),
        partition.clients,
        lambda: can_stack(network, loss, start, inputs, targets),
    )
    learner = Learner(
        network.to(device),
        loss,
        path_of(experiment),
        int(experiment.engine.lanes),
        device,
        augment,
        len(data.shape),
        data.shape,
    )
    task = Task(
        learner,
        streams,
        grid=Grid(partition.sizes, partition.columns),
        modular=experiment.secure not in ("auto", "none"),
        adversary=None if infiltration is None else infiltration.malice,
        public=data.test.gather(torch.arange(min(PUBLIC, len(data.test))))[0],
    )
    experiment, task, releases = promised(experiment, task, partition.clients)
    _check_sums(experiment, partition)
    experiment.scheme.phases(task)  # what cannot be laid out is refused now
    return Federation(
        experiment,
        task,
        data.train.to(device),
        data.test.to(device),
        None if holdout is None else holdout.to(device),
        partition,
        data.name,
        _fingerprint(data.train, data.test, partition),
        releases,
        data.target_scaling,
        None if infiltration is None else infiltration.to(device),
    )


def _check_sums(experiment: Experiment, partition: Partition) -> None:
    """Refuse ways of summing that do not fit how the data is split."""
    if experiment.secure == "additive" and experiment.share_holders > partition.clients:
        raise ConfigError(
            "share_holders",
            experiment.share_holders,
            f"at most {partition.clients}, the number of participants",
        )
    rounds = experiment.rounds
    if (delay := getattr(experiment.scheme, "max_delay", 0)) >= rounds:
        raise ConfigError("scheme.max_delay", delay, f"below rounds ({rounds}): nobody can be further behind")
    if partition.column_count == 1:
        return
    if experiment.secure == "masked":
        raise ConfigError(
            "secure", "masked", "additive for data that is split by columns: its sums are in groups"
        )
    if experiment.dropouts.lost and getattr(experiment.scheme, "forward", None) == "joint":
        raise ConfigError(
            "dropouts",
            f"{experiment.dropouts.lost:.2%} of a round",
            "none for data that is split by columns: a row without one of its participants predicts nothing",
        )


def _named(
    experiment: Experiment,
    data: Dataset,
    model: nn.Module | Callable[..., nn.Module] | None,
    loss: Loss | None,
    data_given: bool,
    partition_given: bool,
) -> Experiment:
    """The experiment with the names of what was given in place of what it had named, and what was given."""
    given = {
        "data": data_given,
        "partition": partition_given,
        "model": model is not None,
        "loss": loss is not None,
    }
    experiment = dataclasses.replace(experiment, given=[name for name, there in given.items() if there])
    chosen = experiment.model
    if model is not None:
        chosen = dataclasses.replace(chosen, name=_name_of(model))
    if loss is not None:
        chosen = dataclasses.replace(chosen, loss=_name_of(loss))
    # absolute, so that the run folder's settings can be run from any other folder
    paths = {name: getattr(experiment.data, name) for name in ("path", "test_path")}
    absolute = {name: os.path.abspath(path) for name, path in paths.items() if path is not None}
    wanted = dataclasses.replace(experiment.data, **absolute)
    if data.name in sources.SOURCES:
        wanted = dataclasses.replace(wanted, name=data.name)
    return dataclasses.replace(experiment, model=chosen, data=wanted)


def _name_of(given: object) -> str:
    """``package.module:name`` of a class or function, or of the class of anything else."""
    named: Any = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}:{named.__qualname__}"


def _fingerprint(train: Examples, test: Examples, partition: Partition) -> str:
    """A hash of the labels and of who holds what.

    Of other values only the shape has a part in it: their last bits may differ from machine to machine.
    """
    targets = train.targets.numpy()
    shapes = [train.inputs.shape, train.inputs.dtype, targets.shape, targets.dtype]
    digest = hashlib.sha256(" ".join(map(str, shapes)).encode())
    if targets.dtype.kind != "f":
        digest.update(np.ascontiguousarray(targets).data)
    if test.targets.dtype != torch.float32:
        digest.update(test.targets.numpy().data)
    for array in (partition.order, partition.offsets, *(partition.columns or ())):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
