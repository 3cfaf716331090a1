"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped.

Layout: two zero bytes, a type code (8 for unsigned bytes), the number of dimensions, each dimension as a
big-endian 32-bit integer, then the values, row by row.

Source: http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from discreet.data.dataset import Arrays
from discreet.errors import DataError

LARGEST = 2**33
"""Bytes of one file, unpacked: a header that promises more is taken for damage."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Reads one file of unsigned bytes.

    Args:
        path: the file; gzipped or not is told by its first bytes.
        dimensions: how many it must have: 3 for images, 1 for labels.

    Raises:
        DataError: if the file cannot be read, has another type or number of dimensions, is truncated, has bytes
            after its last value, or fails the gzip checksum.
    """
    try:
        with _open(path) as file:
            shape = _header(path, file, dimensions)
            count = int(np.prod(shape, dtype=np.int64))
            data = file.read(count)
            trailing = file.read(1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"damaged gzip file: {error}") from error
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) < count:
        raise DataError(path, f"truncated: {len(data)} bytes of values, but its header promises {count}")
    if trailing:
        raise DataError(path, f"has bytes after the {count} that its header promises")
    return np.frombuffer(data, np.uint8).reshape(shape)


def count_idx(path: Path) -> int:
    """The number of items that the header promises, without reading further."""
    try:
        with _open(path) as file:
            return _header(path, file, None)[0]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(path, f"cannot be read: {error}") from error


def read_idx_set(paths: Sequence[Path], classes: tuple[str, ...]) -> Arrays:
    """Reads a set of train images, train labels, test images and test labels, in this order.

    Returns:
        Images uint8 (count, 1, height, width) and class numbers int64 (count,).

    Raises:
        DataError: as `read_idx`, or if counts, image sizes or labels do not fit one another.
    """
    train_images, train_labels, test_images, test_labels = paths
    train, test = _half(train_images, train_labels, classes), _half(test_images, test_labels, classes)
    if train[0].shape[1:] != test[0].shape[1:]:
        sizes = [f"{s.shape[2]}x{s.shape[3]}" for s in (train[0], test[0])]
        raise DataError(
            test_images, f"images of {sizes[1]} pixels, but those of {train_images} have {sizes[0]}"
        )
    return Arrays(*train, *test, classes)


def holds_labels_of(path: Path, sha256: str) -> bool:
    """Whether the values of a labels file have this SHA-256: tells sets apart whose files are named alike."""
    try:
        labels = read_idx(path, 1)
    except DataError:
        return False
    return hashlib.sha256(struct.pack(">II", 0x801, len(labels)) + labels.tobytes()).hexdigest() == sha256


def _half(
    images_path: Path, labels_path: Path, classes: tuple[str, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = read_idx(labels_path, 1)
    images = read_idx(images_path, 3)
    if not len(images):
        raise DataError(images_path, "holds no images")
    if len(images) != len(labels):
        raise DataError(labels_path, f"{len(labels)} labels, but {images_path} has {len(images)} images")
    if labels.max() >= len(classes):
        row = int(np.argmax(labels >= len(classes)))
        raise DataError(
            labels_path, f"label {labels[row]} at item {row + 1}: expected 0 to {len(classes) - 1}"
        )
    return images[:, None], labels.astype(np.int64)


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if gzipped else path.open("rb")


def _header(path: Path, file: IO[bytes], dimensions: int | None) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4:
        raise DataError(path, f"truncated: {len(magic)} bytes, not even a header")
    if magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise DataError(
            path, f"starts with {magic.hex()}: expected 00000801 (labels) or 00000803 (images), as IDX has"
        )
    if dimensions is not None and magic[3] != dimensions:
        raise DataError(path, f"has {magic[3]} dimensions: expected {dimensions}")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(path, "truncated within its header")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    if np.prod([float(size) for size in shape]) > LARGEST:
        raise DataError(path, f"its header promises {' x '.join(map(str, shape))} values: damaged")
    return shape
