"""The partitions by name: `make` picks one from `PARTITIONS`, as an experiment's `data.partition` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Required, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from discreet.data.dealing import by_column, grid, iid, resampled
from discreet.data.partition import Partition
from discreet.data.skew import dirichlet, lognormal, shards
from discreet.errors import ConfigError
from discreet.names import did_you_mean

Given = TypeVar("Given")


class Settings(TypedDict, total=False):
    """What an experiment and its data say about a partition; None is as good as absent.

    Attributes:
        count: the number of examples.
        labels: one for each example; integers for "dirichlet" and "shards".
        features: values in an example, flattened; for "grid".
        columns: the table's columns that may name clients, by their names; for "column".
        clients: ``data.clients``, for all kinds but "column" and "grid".
        rows: row owners of a grid; ``data.rows``.
        column_owners: column owners of a grid; ``data.columns``.
        alpha: ``data.alpha``, for "dirichlet".
        labels_per_client: ``data.labels_per_client``, for "shards".
        sigma: ``data.sigma``, for "lognormal".
        column: the name of the column whose values are the clients; ``data.column``.
        size: examples a client draws; ``data.size``, for "resampled".
    """

    count: Required[int]
    labels: NDArray[Any] | None
    features: int | None
    columns: Mapping[str, NDArray[Any]] | None
    clients: int | None
    rows: int | None
    column_owners: int | None
    alpha: float | None
    labels_per_client: int | None
    sigma: float | None
    column: str | None
    size: int | None


def make(kind: str, *, rng: np.random.Generator, **settings: Unpack[Settings]) -> Partition:
    """The partition called `kind`; settings that this kind has no use for are ignored.

    Args:
        kind: one of `PARTITIONS`; ``data.partition``.
        rng: where the numbers come from.
        **settings: as in `Settings`.

    Raises:
        ConfigError: it names the key at fault, or missing, and says what would be right.
    """
    if kind not in PARTITIONS:
        known = f"one of {', '.join(PARTITIONS)}{did_you_mean(kind, PARTITIONS)}"
        raise ConfigError("data.partition", kind, known)
    return PARTITIONS[kind](settings, rng)


def _make_iid(given: Settings, rng: np.random.Generator) -> Partition:
    return iid(given["count"], _clients(given), rng)


def _make_dirichlet(given: Settings, rng: np.random.Generator) -> Partition:
    alpha = _need("data.alpha", given.get("alpha"), "a number above 0, such as 0.5")
    return dirichlet(_labels(given), _clients(given), alpha, rng)


def _make_shards(given: Settings, rng: np.random.Generator) -> Partition:
    most = _need("data.labels_per_client", given.get("labels_per_client"), "a number of labels, such as 2")
    return shards(_labels(given), _clients(given), most, rng)


def _make_lognormal(given: Settings, rng: np.random.Generator) -> Partition:
    sigma = _need("data.sigma", given.get("sigma"), "a number of at least 0, such as 1")
    return lognormal(given["count"], _clients(given), sigma, rng)


def _make_column(given: Settings, rng: np.random.Generator) -> Partition:
    columns = given.get("columns") or {}
    known = f"one of the columns {', '.join(columns)}" if columns else "a table, whose columns have names"
    column = _need("data.column", given.get("column"), known)
    if column not in columns:
        raise ConfigError("data.column", column, known)
    return by_column(_one_each(columns[column], given["count"]))[0]


def _make_grid(given: Settings, rng: np.random.Generator) -> Partition:
    rows = _need("data.rows", given.get("rows"), "a number of row owners")
    columns = _need("data.columns", given.get("column_owners"), "a number of column owners")
    features = _need("data.partition", given.get("features"), "data whose examples have features, for a grid")
    return grid(given["count"], features, rows, columns, rng)


def _make_resampled(given: Settings, rng: np.random.Generator) -> Partition:
    size = _need("data.size", given.get("size"), "a number of examples a client")
    return resampled(given["count"], _clients(given), size, rng)


PARTITIONS: dict[str, Callable[[Settings, np.random.Generator], Partition]] = {
    "iid": _make_iid,
    "dirichlet": _make_dirichlet,
    "shards": _make_shards,
    "lognormal": _make_lognormal,
    "column": _make_column,
    "grid": _make_grid,
    "resampled": _make_resampled,
}
"""The partitions by the names that `data.partition` takes."""


def _need(key: str, value: Given | None, expected: str) -> Given:
    if value is None:
        raise ConfigError(key, None, expected)
    return value


def _clients(given: Settings) -> int:
    return _need("data.clients", given.get("clients"), "a number of clients")


def _labels(given: Settings) -> NDArray[Any]:
    labels = _need("data.partition", given.get("labels"), "data with labels, for a partition by label")
    return _one_each(labels, given["count"])


def _one_each(values: NDArray[Any], count: int) -> NDArray[Any]:
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} examples")
    return values
