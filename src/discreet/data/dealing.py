"""Examples dealt to clients: evenly at random, by a column's values, over a grid, or with repetition.

Every constructor of a partition, here and in `discreet.data.skew`, is a pure function of its arguments and of the
generator it is given. All of them but `resampled` are exact (each example belongs to exactly one client) and leave no
client empty; a client's indices come in ascending order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.data.partition import Partition, by_owner
from discreet.errors import ConfigError


def iid(count: int, clients: int, rng: np.random.Generator) -> Partition:
    """Deal all examples at random, the same number to each client, or one more.

    Args:
        count: examples.
        clients: from 1 to `count`.
        rng: where the numbers come from.

    Raises:
        ConfigError: ``data.clients`` is out of range.
    """
    check_between("data.clients", clients, count, "the number of examples")
    return deal_sizes(even_sizes(count, clients), rng)


def by_column(values: NDArray[Any]) -> tuple[Partition, tuple[str, ...]]:
    """Natural clients: one for each distinct value, in sorted order, with the examples that have it.

    Args:
        values: one value an example, shape (count,): numbers or text, none missing.

    Returns:
        The partition, and the client's names: its values as text.

    Raises:
        ConfigError: ``data.column``: a value is missing, or values of several kinds are mixed.
    """
    if values.ndim != 1 or not len(values):
        raise ConfigError("data.column", f"shape {values.shape}", "one value for each example, at least one")
    # None and NaN are the two ways in which a table says "missing"; only NaN differs from itself.
    missing = np.array([value is None or value != value for value in values.tolist()])
    if missing.any():
        expected = f"a client's name for every example; it is missing in {missing.sum()} of {len(values)}"
        raise ConfigError("data.column", f"row {int(missing.argmax())}", expected)
    try:
        names, owners = np.unique(values, return_inverse=True)
    except TypeError:
        raise ConfigError(
            "data.column", "mixed values", "values of one kind, all text or all numbers"
        ) from None
    return by_owner(owners, len(names)), tuple(str(name) for name in names.tolist())


def grid(
    count: int,
    features: int,
    rows: int,
    columns: int,
    rng: np.random.Generator,
    *,
    shuffle_features: bool = False,
) -> Partition:
    """Data split both ways: row owners share the examples, column owners the features.

    Each pair (example, feature) is in exactly one of the rows * columns blocks. Examples are dealt as by `iid`,
    features as contiguous blocks; either way blocks have the same size, or one more.

    Args:
        count: examples.
        features: values in an example, flattened.
        rows: row owners, from 1 to `count`.
        columns: column owners, from 1 to `features`.
        rng: where the numbers come from.
        shuffle_features: deal the features at random instead of in contiguous blocks.

    Raises:
        ConfigError: ``data.rows`` or ``data.columns`` is out of range.
    """
    check_between("data.rows", rows, count, "the number of examples")
    check_between("data.columns", columns, features, "the number of features")
    examples = iid(count, rows, rng)
    dealt = rng.permutation(features) if shuffle_features else np.arange(features)
    edges = np.cumsum(even_sizes(features, columns))[:-1]
    blocks = tuple(np.sort(block).astype(np.int64) for block in np.split(dealt, edges))
    return Partition(examples.order, examples.offsets, blocks)


def resampled(count: int, clients: int, size: int, rng: np.random.Generator) -> Partition:
    """Each client draws `size` examples with repetition; **not exact**: for studies of scale alone.

    Takes 4 bytes an example drawn and 8 bytes a client: 248 MB for 1,000,000 clients of 60.

    Args:
        count: examples to draw from, from 1 to 2**31.
        clients: at least 1, and as many as memory holds; it may exceed `count`.
        size: examples a client draws, at least 1.
        rng: where the numbers come from.

    Raises:
        ConfigError: ``data.clients`` or ``data.size`` is below 1, or there is nothing to draw from.
    """
    if not 1 <= count <= 2**31:
        raise ConfigError(
            "data.partition", "resampled", f"from 1 to 2**31 examples to draw from, not {count}"
        )
    if clients < 1:
        raise ConfigError("data.clients", clients, "at least 1")
    if size < 1:
        raise ConfigError("data.size", size, "at least 1 example a client")
    # Drawn as int32 at once: an int64 intermediate would take twice the memory of the result.
    order = rng.integers(0, count, clients * size, dtype=np.int32)
    return Partition(order, np.arange(clients + 1, dtype=np.int64) * size)


def check_between(key: str, value: int, upper: int, why: str) -> None:
    """Refuse a number that is not from 1 to `upper`, which is as large as it can be for the reason `why`.

    Raises:
        ConfigError: it names the key.
    """
    if not 1 <= value <= upper:
        raise ConfigError(key, value, f"a whole number from 1 to {upper}, {why}")


def even_sizes(count: int, parts: int) -> NDArray[np.int64]:
    """Sizes that sum to `count` and differ by at most one, the larger first."""
    return count // parts + (np.arange(parts) < count % parts)


def deal_sizes(sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Deal all examples at random, to each client as many as `sizes` says."""
    return by_owner(rng.permutation(np.repeat(np.arange(len(sizes)), sizes)), len(sizes))
