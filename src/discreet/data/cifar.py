"""CIFAR-10 and CIFAR-100 in the two forms in which their authors publish them.

The binary version is a sequence of records: the label bytes (one for CIFAR-10; coarse, then fine for CIFAR-100),
then 3 x 32 x 32 pixels, channel by channel. The Python version holds the same in pickles, which
`discreet.data.pickles` reads without calling anything that a file names.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discreet.data.archives import walk
from discreet.data.dataset import Arrays, Progress
from discreet.data.pickles import unpickle_arrays
from discreet.errors import DataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """How the files of one CIFAR set are named and what is in them.

    Attributes:
        train: the names of the train files, in order.
        test: the name of the test file.
        names_file: the file with the classes' names; may be missing.
        names_key: the key of the names in that file, for pickles.
        labels_key: the key of the class numbers, for pickles.
        label_bytes: label bytes of a binary record; the last is the class.
        classes: the names if `names_file` is missing.
    """

    train: tuple[str, ...]
    test: str
    names_file: str
    names_key: bytes
    labels_key: bytes
    label_bytes: int
    classes: tuple[str, ...]

    @property
    def binary(self) -> bool:
        """Whether this is the binary version."""
        return self.test.endswith(".bin")

    @property
    def files(self) -> tuple[str, ...]:
        """The names that must be there."""
        return (*self.train, self.test)


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NUMBERS = tuple(str(number) for number in range(100))
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

CIFAR10_PYTHON = Layout(_BATCHES, "test_batch", "batches.meta", b"label_names", b"labels", 1, CIFAR10_CLASSES)
CIFAR10_BINARY = Layout(
    tuple(f"{name}.bin" for name in _BATCHES),
    "test_batch.bin",
    "batches.meta.txt",
    b"",
    b"",
    1,
    CIFAR10_CLASSES,
)
CIFAR100_PYTHON = Layout(("train",), "test", "meta", b"fine_label_names", b"fine_labels", 0, _NUMBERS)
CIFAR100_BINARY = Layout(("train.bin",), "test.bin", "fine_label_names.txt", b"", b"", 2, _NUMBERS)


def read_cifar(path: Path, layout: Layout, progress: Progress) -> Arrays:
    """Reads a CIFAR set from a folder or an archive of it.

    Returns:
        Images uint8 (count, 3, 32, 32) and class numbers int64 (count,), in the order of the files.

    Raises:
        DataError: if a file is missing, damaged, asks the unpickler for more than it knows, or has labels outside
            the classes.
    """
    expected = {*layout.files, layout.names_file}
    files = {
        PurePosixPath(name).name: content
        for name, content in walk(
            path,
            lambda name: PurePosixPath(name).name in expected,
            what=f"reading {path.name}",
            progress=progress,
        )
    }
    for name in layout.files:
        if name not in files:
            raise DataError(path, f"has no {name}: expected {', '.join(layout.files)}")
    classes = _class_names(path, files.get(layout.names_file), layout)
    read = _binary if layout.binary else _python
    train = [read(path / name, files[name], layout, len(classes)) for name in layout.train]
    test = read(path / layout.test, files[layout.test], layout, len(classes))
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Arrays(images, labels, *test, classes)


def count_binary(paths: Sequence[Path], layout: Layout) -> int:
    """How many records these files of the binary version hold, by their size."""
    return sum(path.stat().st_size // (layout.label_bytes + PIXELS) for path in paths)


def _class_names(path: Path, content: bytes | None, layout: Layout) -> tuple[str, ...]:
    if content is None:
        return layout.classes
    try:
        if layout.binary:
            found = tuple(content.decode("ascii").split())
        else:
            meta = unpickle_arrays(path / layout.names_file, content)
            found = tuple(name.decode("ascii") for name in meta.get(layout.names_key, ()))
    except (UnicodeDecodeError, AttributeError, TypeError) as error:
        raise DataError(path / layout.names_file, f"does not hold the classes' names: {error}") from error
    if len(found) != len(layout.classes):
        raise DataError(
            path / layout.names_file, f"names {len(found)} classes: expected {len(layout.classes)}"
        )
    return found


def _binary(
    path: Path, content: bytes, layout: Layout, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    record = layout.label_bytes + PIXELS
    if not content or len(content) % record:
        raise DataError(path, f"{len(content)} bytes: expected a multiple of {record}; truncated?")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = rows[:, layout.label_bytes - 1].astype(np.int64)
    _check_labels(path, labels, classes)
    return rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32), labels


def _python(
    path: Path, content: bytes, layout: Layout, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = unpickle_arrays(path, content)
    data, labels = batch.get(b"data"), batch.get(layout.labels_key)
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.shape[1:] != (PIXELS,)
        or not len(data)
    ):
        raise DataError(path, f"its 'data' is not a uint8 array of shape (count, {PIXELS})")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(path, f"its {layout.labels_key.decode()!r} is not a list of integers")
    if len(labels) != len(data):
        raise DataError(path, f"{len(labels)} labels, but {len(data)} images")
    numbers = np.array(labels, dtype=np.int64)
    _check_labels(path, numbers, classes)
    return data.reshape(-1, 3, 32, 32), numbers


def _check_labels(path: Path, labels: NDArray[np.int64], classes: int) -> None:
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        row = int(outside[0])
        raise DataError(path, f"label {labels[row]} at item {row + 1}: expected 0 to {classes - 1}")
