"""Which examples, and on a grid which features, each client holds.

Index arrays over one shared array, never copies of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from discreet.errors import ConfigError

Indices = NDArray[np.int32] | NDArray[np.int64]
Client = TypeVar("Client", int, NDArray[np.int64])


@dataclass(frozen=True, eq=False)
class Partition:
    """Which examples, and on a grid which features, each client holds.

    Clients form a grid: client = row * column_count + column. A row owner's examples are the same for all the
    clients of its row; without `columns`, a client is a row owner.

    Attributes:
        order: int32 or int64, example indices, row owner after row owner.
        offsets: int64, shape (rows + 1,): row owner r holds ``order[offsets[r]:offsets[r + 1]]``, which may be
            empty in a partition made by hand.
        columns: int64 feature indices of each column owner; None where every client has all features.
    """

    order: Indices
    offsets: NDArray[np.int64]
    columns: tuple[NDArray[np.int64], ...] | None = None

    def __post_init__(self) -> None:
        if self.order.ndim != 1 or self.order.dtype not in (np.int32, np.int64):
            raise ValueError(f"order must be one row of int32 or int64, got {_describe(self.order)}")
        if self.offsets.ndim != 1 or self.offsets.dtype != np.int64 or len(self.offsets) < 2:
            raise ValueError(f"offsets must be int64 of shape (rows + 1,), got {_describe(self.offsets)}")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.order) or np.any(np.diff(self.offsets) < 0):
            raise ValueError(f"offsets must rise from 0 to {len(self.order)}, the length of order")
        if self.columns is not None and not self.columns:
            raise ValueError("columns must name at least one column owner, or be None")

    @property
    def rows(self) -> int:
        """Number of row owners."""
        return len(self.offsets) - 1

    @property
    def column_count(self) -> int:
        """Number of column owners in each row; 1 where every client has all features."""
        return 1 if self.columns is None else len(self.columns)

    @property
    def clients(self) -> int:
        """Number of clients: rows * column_count."""
        return self.rows * self.column_count

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each row owner, shape (rows,)."""
        return np.diff(self.offsets)

    def indices(self, row: int) -> Indices:
        """The examples of a row owner, as a view of `order`.

        Raises:
            IndexError: there is no such row owner.
        """
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of a partition with rows 0 to {self.rows - 1}")
        return self.order[self.offsets[row] : self.offsets[row + 1]]

    def row_of(self, client: Client) -> Client:
        """The row owner whose examples a client (or each of an array of clients) holds."""
        return client // self.column_count

    def column_of(self, client: Client) -> Client:
        """The column owner whose features a client (or each of an array of clients) holds."""
        return client % self.column_count

    def pooled(self) -> Partition:
        """The same examples with one client that holds them all, with all their features."""
        return Partition(self.order, np.array([0, len(self.order)], dtype=np.int64))


def check_exact(partition: Partition, count: int, features: int | None = None) -> None:
    """Check that every example, and every feature, is in exactly one place and that no client is empty.

    Args:
        partition: what to check; one that repeats examples, as `resampled` does, is refused.
        count: the number of examples.
        features: the number of features; None takes as many as the columns hold.

    Raises:
        ConfigError: it names the first example, client or feature at fault.
    """
    _check_once("data.partition", "example", partition.order, count)
    empty = np.flatnonzero(partition.sizes == 0)
    if len(empty):
        raise ConfigError("data.partition", f"client {empty[0]}", "every client to hold an example")
    if partition.columns is not None:
        held = np.concatenate(partition.columns)
        _check_once("data.columns", "feature", held, len(held) if features is None else features)
        bare = [column for column, block in enumerate(partition.columns) if not len(block)]
        if bare:
            raise ConfigError("data.columns", f"column owner {bare[0]}", "every one to hold a feature")


def by_owner(owners: NDArray[np.int64], clients: int) -> Partition:
    """The partition in which example i belongs to ``owners[i]``, a number from 0 to clients - 1.

    Raises:
        ConfigError: a client holds no example.
    """
    sizes = np.bincount(owners, minlength=clients)
    order = np.argsort(owners, kind="stable")
    narrow = order.astype(np.int32) if len(order) <= 2**31 else order
    partition = Partition(narrow, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
    check_exact(partition, len(owners))
    return partition


def _check_once(key: str, noun: str, held: NDArray[Any], count: int) -> None:
    """Refuse unless `held` is a permutation of 0 .. count - 1."""
    outside = held[(held < 0) | (held >= count)]
    if len(outside):
        raise ConfigError(key, f"{noun} {outside[0]}", f"indices from 0 to {count - 1}")
    wrong = np.flatnonzero(np.bincount(held, minlength=count) != 1)
    if len(wrong):
        times = int(np.count_nonzero(held == wrong[0]))
        raise ConfigError(key, f"{noun} {wrong[0]} dealt {times} times", f"each {noun} dealt exactly once")


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
