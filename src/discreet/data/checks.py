"""What is asked of data sets and partitions that were made by hand; readers of files have their own checks."""

from __future__ import annotations

from torch import Tensor

from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.errors import ConfigError, DataError


def check_dataset(data: Dataset) -> None:
    """Refuse a data set, made by hand, that cannot be trained on; readers of files have their own checks.

    Raises:
        DataError: no training examples, labels outside the classes, tokens outside the vocabulary, or a value that
            is NaN or infinite; it names the example, counted from 0.
    """
    if not len(data.train):
        raise DataError(data.name, "has no training examples: expected at least one")
    for part, examples in (("train", data.train), ("test", data.test)):
        if data.classes is not None:
            _check_whole(data.name, f"{part} target", examples.targets, len(data.classes))
        else:
            _check_finite(data.name, f"{part} target", examples.targets)
        if data.vocabulary is not None:
            _check_whole(data.name, f"{part} input", examples.inputs, data.vocabulary)
        else:
            _check_finite(data.name, f"{part} input", examples.inputs)


def _check_whole(name: str, what: str, values: Tensor, count: int) -> None:
    wrong = (values < 0) | (values >= count)
    if values.is_floating_point():
        raise DataError(
            name, f"has {what}s of type {values.dtype}: expected whole numbers from 0 to {count - 1}"
        )
    if wrong.any():
        first = wrong.nonzero()[0]
        value = int(values[tuple(first)])
        raise DataError(
            name, f"{what} {int(first[0])} is {value}: expected a whole number from 0 to {count - 1}"
        )


def _check_finite(name: str, what: str, values: Tensor) -> None:
    wrong = ~values.isfinite()
    if wrong.any():
        first = wrong.nonzero()[0]
        value = float(values[tuple(first)])
        raise DataError(name, f"{what} {int(first[0])} holds {value}: expected finite numbers")


def check_partition(partition: Partition, count: int) -> None:
    """Refuse a partition that names examples which are not there.

    Raises:
        ConfigError: it names the index.
    """
    for index in (partition.order.min(initial=0), partition.order.max(initial=0)):
        if not 0 <= index < count:
            raise ConfigError("data.partition", f"example {index}", f"indices from 0 to {count - 1}")
