"""The data of an experiment: loaded, held out in part, and dealt to clients."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from discreet.cohort import Examples
from discreet.config import Experiment
from discreet.data import partitions, sources
from discreet.data.dataset import Dataset, Progress, no_progress
from discreet.data.partition import Partition
from discreet.errors import ConfigError
from discreet.randomness import SERVER, Seeded


def load_data(
    experiment: Experiment, data_dir: Path | None = None, on_data: Progress = no_progress
) -> Dataset:
    """The data set that an experiment names."""
    chosen = experiment.data
    return sources.load(
        chosen.name,
        data_dir=data_dir,
        path=chosen.path,
        test_path=chosen.test_path,
        target=chosen.target,
        client_column=chosen.client_column,
        ignore=chosen.ignore,
        test_fraction=chosen.test_fraction,
        standardise=chosen.standardise,
        image_size=chosen.image_size or None,
        min_faces=chosen.min_faces,
        max_tokens=chosen.max_tokens,
        vocabulary=chosen.vocabulary,
        features=chosen.features,
        on_progress=on_data,
    )


def hold_out(
    experiment: Experiment, data: Dataset, streams: Seeded
) -> tuple[Examples | None, NDArray[np.int64] | None]:
    """Held-out examples, and which examples remain; (None, None) where nothing is held out.

    Raises:
        ConfigError: none would be held out, or all.
    """
    share = experiment.data.holdout
    if not share:
        return None, None
    count = math.floor(share * len(data.train) + 0.5)
    if not 0 < count < len(data.train):
        raise ConfigError(
            "data.holdout", share, f"a share that leaves some of the {len(data.train)} examples on each side"
        )
    order = streams.stream(0, SERVER, "holdout").permutation(len(data.train))
    held = torch.from_numpy(np.sort(order[:count]))
    kept_back = Examples(data.train.inputs.index_select(0, held), data.train.targets.index_select(0, held))
    return kept_back, np.sort(order[count:])


def deal(experiment: Experiment, data: Dataset, own: NDArray[np.int64] | None, streams: Seeded) -> Partition:
    """Deal the training examples (or only those in `own`) to clients, as the experiment says."""
    chosen = experiment.data
    labels = data.train.targets.numpy()
    columns = data.columns
    if own is not None:
        labels, columns = labels[own], {name: values[own] for name, values in columns.items()}
    dealt = partitions.make(
        chosen.partition,
        rng=streams.stream(0, SERVER, "partition"),
        count=len(labels),
        labels=labels,
        features=math.prod(data.shape),
        columns=columns,
        clients=chosen.clients,
        rows=chosen.rows,
        column_owners=chosen.columns,
        alpha=chosen.alpha,
        labels_per_client=chosen.labels_per_client,
        sigma=chosen.sigma,
        column=chosen.client_column,
        size=chosen.examples_per_client,
    )
    return dealt if own is None else Partition(own[dealt.order], dealt.offsets, dealt.columns)


def reconstructing(
    data: Dataset, holdout: Examples | None, partition: Partition
) -> tuple[Dataset, Examples | None]:
    """The data set, dealt already, and held-out examples, with inputs for targets.

    Raises:
        ConfigError: inputs are token numbers, or parts of them are not to be known to all participants of a row.
    """
    if data.vocabulary is not None:
        raise ConfigError("data.task", "reconstruct", "auto for texts: token numbers are no values")
    if partition.column_count > 1:
        raise ConfigError(
            "data.columns",
            partition.column_count,
            "1 with data.task = 'reconstruct': the targets are all columns, which every participant would have to know",
        )
    train, test = (Examples.reconstructing(one.inputs) for one in (data.train, data.test))
    kept_back = None if holdout is None else Examples.reconstructing(holdout.inputs)
    return dataclasses.replace(data, train=train, test=test, classes=None, target_scaling=None), kept_back
