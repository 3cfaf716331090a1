"""What a data set is once it is in memory, and how one without a test split is divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from discreet.cohort import Examples
from discreet.data.scaling import Scaling
from discreet.errors import DataError
from discreet.randomness import SERVER, Seeded

Kind = Literal["image", "table", "text"]

Progress = Callable[[int, int, str], None]
"""``on_progress(done, total, what)``: both counts in the same unit (bytes or files), total 0 when unknown."""


def no_progress(done: int, total: int, what: str) -> None:
    """Shows nothing."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory.

    Attributes:
        name: the name it was loaded by.
        kind: what the inputs are, which says which built-in models fit.
        train: images uint8 (count, channels, height, width), or float32 of that shape for digits; tables float32
            (count, features); texts int32 token ids (count, length), padded with 0 at the end.
        test: the same for the test split.
        classes: the classes' names in the order of their numbers; None for a regression.
        columns: values of the train rows by which a partition may group them, by column name; shape (count,).
        vocabulary: for texts the number of token ids, 0 (padding) included; else None.
        target_scaling: how the targets of a regression were scaled; None where they are in their own unit.
    """

    name: str
    kind: Kind
    train: Examples
    test: Examples
    classes: tuple[str, ...] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    vocabulary: int | None = None
    target_scaling: Scaling | None = None

    @property
    def outputs(self) -> int:
        """The number of classes, or of regression targets: what a model has to put out for each example."""
        return int(self.train.targets.shape[1]) if self.classes is None else len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])


@dataclass(frozen=True, eq=False)
class Arrays:
    """What a reader returns: a data set as NumPy arrays, in the layout that `Dataset` describes."""

    train_inputs: NDArray[Any]
    train_targets: NDArray[Any]
    test_inputs: NDArray[Any]
    test_targets: NDArray[Any]
    classes: tuple[str, ...] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    target_scaling: Scaling | None = None


@dataclass(frozen=True)
class Reading:
    """How to read a set, where there is a choice; `discreet.data.sources.load` describes each."""

    test_fraction: float = 0.2
    seed: int = 0
    max_tokens: int = 256
    vocabulary: int = 10_000
    image_size: tuple[int, int] | None = None
    min_faces: int = 20
    progress: Progress = no_progress


def as_dataset(name: str, kind: Kind, arrays: Arrays, vocabulary: int | None = None) -> Dataset:
    """Turns a reader's arrays into a `Dataset`."""
    return Dataset(
        name=name,
        kind=kind,
        train=Examples(_tensor(arrays.train_inputs), _tensor(arrays.train_targets)),
        test=Examples(_tensor(arrays.test_inputs), _tensor(arrays.test_targets)),
        classes=arrays.classes,
        columns=arrays.columns,
        vocabulary=vocabulary,
        target_scaling=arrays.target_scaling,
    )


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    # torch shares the memory, and objects to memory that cannot be written.
    contiguous = np.ascontiguousarray(array)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())


def split(
    path: Path | str, targets: NDArray[Any], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divides examples into a train and a test split; a pure function of its arguments.

    ceil(fraction * count) examples go to the test split. With class numbers (integers) it is stratified: each
    class gives its share by largest remainders, and always keeps one example for training. Otherwise the test
    examples are drawn uniformly.

    Args:
        path: named in the error.
        targets: shape (count,) class numbers, or (count, outputs) values.
        fraction: the test split's share, in (0, 1).
        seed: of the draw.

    Returns:
        Indices of the train and of the test examples, each in increasing order.

    Raises:
        DataError: if one of the splits would be empty.
    """
    count = len(targets)
    stream = Seeded(seed).stream(0, SERVER, "test split")
    if np.issubdtype(targets.dtype, np.integer):
        groups = [np.flatnonzero(targets == c) for c in np.unique(targets)]
    else:
        groups = [np.arange(count)]
    sizes = np.array([len(group) for group in groups], dtype=np.int64)
    taken = _quotas(sizes, math.ceil(fraction * count - 1e-9))
    test = [stream.permutation(group)[:take] for group, take in zip(groups, taken, strict=True)]
    chosen = np.sort(np.concatenate([*test, np.empty(0, np.int64)])).astype(np.int64)
    if not len(chosen):
        raise DataError(path, f"no class of its {count} examples has two: too few for a test split")
    return np.setdiff1d(np.arange(count), chosen), chosen


def _quotas(sizes: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """How many each group gives, so that `wanted` are given in all and each group keeps at least one."""
    if not len(sizes):
        return sizes
    room = np.maximum(sizes - 1, 0)
    share = sizes * (wanted / sizes.sum())
    quotas: NDArray[np.int64] = np.minimum(np.floor(share + 1e-9).astype(np.int64), room)
    while quotas.sum() < min(wanted, room.sum()):
        lacking = np.where(quotas < room, share - quotas, -np.inf)
        quotas[np.argmax(lacking)] += 1
    return quotas
