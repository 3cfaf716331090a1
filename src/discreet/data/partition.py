"""How examples are dealt to clients: index arrays over one shared array, never copies of the data.

Every constructor is a pure function of its arguments and of the generator it is given. All of them but
`resampled` are exact (each example belongs to exactly one client) and leave no client empty; a client's indices
come in ascending order. `make` picks one by name from `PARTITIONS`, as an experiment's `data.partition` does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Required, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from discreet.errors import ConfigError

Indices = NDArray[np.int32] | NDArray[np.int64]
Client = TypeVar("Client", int, NDArray[np.int64])
Given = TypeVar("Given")


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


def iid(count: int, clients: int, rng: np.random.Generator) -> Partition:
    """Deal all examples at random, the same number to each client, or one more.

    Args:
        count: examples.
        clients: from 1 to `count`.
        rng: where the numbers come from.

    Raises:
        ConfigError: ``data.clients`` is out of range.
    """
    _between("data.clients", clients, count, "the number of examples")
    return _dealt(_even_sizes(count, clients), rng)


def dirichlet(
    labels: NDArray[Any], clients: int, alpha: float, rng: np.random.Generator, min_examples: int = 1
) -> Partition:
    """Clients of equal size (or one more) whose mixtures of labels are drawn from a Dirichlet distribution.

    One after another, in random order, each client draws a mixture q ~ Dirichlet(alpha * C * p), with C the
    number of classes and p their frequencies, and takes its examples from the classes by q; once a class has run
    out, it takes them from the others, in the proportions q gives those. With balanced classes that is
    Dirichlet(alpha, ..., alpha). Small alpha gives clients of one or two labels, large alpha tends to `iid`.

    What this is not. Drawing each class's proportions over clients instead (Yurochkin et al. 2019,
    arXiv 1905.12022) makes sizes uneven too and leaves clients empty when alpha is small; here sizes are equal
    and no client is empty, at any alpha and without a redraw. The price: the total of each class is fixed, so
    the last clients to draw choose among the classes that are left, and the very last takes what there is. With
    ten balanced classes and alpha = 0.1, some class is gone for the last tenth of 1,000 clients, or the last
    fifth of 100; fewer at larger alpha. Which clients these are is random and not told by their number.

    Source: Hsu et al. 2019, arXiv 1909.06335; its concentration parameter is alpha * C here.

    Args:
        labels: integer class numbers, shape (count,).
        clients: from 1 to count // min_examples.
        alpha: from 1e-6 (nearly always one label a client) to 1e6 (IID but for the last clients).
        rng: where the numbers come from.
        min_examples: each client holds at least so many.

    Raises:
        ConfigError: ``data.clients``, ``data.alpha`` or, for labels that are no classes, ``data.partition``.
    """
    codes, class_sizes = _classes("dirichlet", labels)
    count = len(codes)
    least = max(min_examples, 1)
    _between("data.clients", clients, count // least, f"so that {count} examples give {least} to each client")
    if not 1e-6 <= alpha <= 1e6:
        raise ConfigError(
            "data.alpha", alpha, "a number above 0, from 1e-6 (one label a client) to 1e6 (IID)"
        )
    sizes = _even_sizes(count, clients)
    shape = alpha * len(class_sizes) * class_sizes / count
    left = class_sizes.copy()
    taken = np.zeros((clients, len(class_sizes)), dtype=np.int64)
    for client in rng.permutation(clients):
        # The logarithm of a Gamma(shape) variable, which itself would underflow to 0 when the shape is small.
        log_weights = np.log(rng.standard_gamma(shape + 1)) - rng.standard_exponential(len(shape)) / shape
        taken[client] = _take(log_weights, left, int(sizes[client]), rng)
        left -= taken[client]
    owners = np.repeat(np.tile(np.arange(clients), len(class_sizes)), taken.T.ravel())
    return _by_owner(_scatter(owners, codes, rng), clients)


def shards(labels: NDArray[Any], clients: int, labels_per_client: int, rng: np.random.Generator) -> Partition:
    """Clients that see at most `labels_per_client` labels each: the pathological split.

    Each class is cut at random into shards, clients * labels_per_client of them in all, and each client is dealt
    labels_per_client shards at random. The shards are shared out over the classes so that the largest is as
    small as can be; within a class they differ by at most one example.

    A client never sees more than labels_per_client labels, and may see fewer, when it is dealt two shards of a
    class. In the source, shards are cut from the list sorted by label without regard to where a class ends, so
    that a shard may hold two labels; here a shard holds one, and sizes differ a little where classes do.

    Source: McMahan et al. 2017, arXiv 1602.05629, section 3 (200 shards, two to each of 100 clients).

    Args:
        labels: integer class numbers, shape (count,).
        clients: with labels_per_client, gives at least as many shards as classes and at most as many as examples.
        labels_per_client: from 1 to the number of classes.
        rng: where the numbers come from.

    Raises:
        ConfigError: ``data.clients``, ``data.labels_per_client`` or, for labels that are no classes,
            ``data.partition``.
    """
    codes, class_sizes = _classes("shards", labels)
    count, classes = len(codes), len(class_sizes)
    _between("data.clients", clients, count, "the number of examples")
    _between("data.labels_per_client", labels_per_client, classes, "the number of classes")
    total = clients * labels_per_client
    if total > count:
        expected = f"at most {count // labels_per_client}: {count} examples give no more shards of one each"
        raise ConfigError("data.clients", clients, expected)
    if total < classes:
        expected = (
            f"at least {-(-classes // clients)}, so that {clients} clients can hold all {classes} classes"
        )
        raise ConfigError("data.labels_per_client", labels_per_client, expected)
    cuts = _share_out(class_sizes, total)
    ranks = _ranks(class_sizes)
    within = ranks * np.repeat(cuts, class_sizes) // np.repeat(class_sizes, class_sizes)
    first = np.repeat(np.cumsum(cuts) - cuts, class_sizes)
    hands = rng.permutation(total) // labels_per_client
    return _by_owner(_scatter(hands[first + within], codes, rng), clients)


def lognormal(count: int, clients: int, sigma: float, rng: np.random.Generator) -> Partition:
    """Uneven sizes, IID content: one example each, and the rest shared in proportion to exp(sigma * N(0, 1)).

    Args:
        count: examples; sizes sum to it exactly.
        clients: from 1 to `count`.
        sigma: standard deviation of the logarithm of the weights, from 0 (equal sizes, or one more) to 100.
        rng: where the numbers come from.

    Raises:
        ConfigError: ``data.clients`` or ``data.sigma`` is out of range.
    """
    _between("data.clients", clients, count, "the number of examples")
    if not 0 <= sigma <= 100:
        raise ConfigError(
            "data.sigma", sigma, "a number from 0 (equal sizes) to 100; 1 is already very uneven"
        )
    logs = sigma * rng.standard_normal(clients)
    heights = np.cumsum(np.exp(logs - logs.max()))
    # Rounding the running total, and not each share, keeps the sum exact and no share off by one or more.
    edges = np.floor(heights / heights[-1] * (count - clients)).astype(np.int64)
    return _dealt(1 + np.diff(edges, prepend=0), rng)


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
    return _by_owner(owners, len(names)), tuple(str(name) for name in names.tolist())


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
    _between("data.rows", rows, count, "the number of examples")
    _between("data.columns", columns, features, "the number of features")
    examples = iid(count, rows, rng)
    dealt = rng.permutation(features) if shuffle_features else np.arange(features)
    edges = np.cumsum(_even_sizes(features, columns))[:-1]
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
        near = difflib.get_close_matches(kind, PARTITIONS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError("data.partition", kind, f"one of {', '.join(PARTITIONS)}{hint}")
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


def _between(key: str, value: int, upper: int, why: str) -> None:
    if not 1 <= value <= upper:
        raise ConfigError(key, value, f"a whole number from 1 to {upper}, {why}")


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _check_once(key: str, noun: str, held: NDArray[Any], count: int) -> None:
    """Refuse unless `held` is a permutation of 0 .. count - 1."""
    outside = held[(held < 0) | (held >= count)]
    if len(outside):
        raise ConfigError(key, f"{noun} {outside[0]}", f"indices from 0 to {count - 1}")
    wrong = np.flatnonzero(np.bincount(held, minlength=count) != 1)
    if len(wrong):
        times = int(np.count_nonzero(held == wrong[0]))
        raise ConfigError(key, f"{noun} {wrong[0]} dealt {times} times", f"each {noun} dealt exactly once")


def _even_sizes(count: int, parts: int) -> NDArray[np.int64]:
    """Sizes that sum to `count` and differ by at most one, the larger first."""
    return count // parts + (np.arange(parts) < count % parts)


def _dealt(sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Deal all examples at random, to each client as many as `sizes` says."""
    return _by_owner(rng.permutation(np.repeat(np.arange(len(sizes)), sizes)), len(sizes))


def _by_owner(owners: NDArray[np.int64], clients: int) -> Partition:
    """The partition in which example i belongs to ``owners[i]``."""
    sizes = np.bincount(owners, minlength=clients)
    order = np.argsort(owners, kind="stable")
    narrow = order.astype(np.int32) if len(order) <= 2**31 else order
    partition = Partition(narrow, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
    check_exact(partition, len(owners))
    return partition


def _classes(kind: str, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each example's class as a number from 0 without gaps, and how many examples each class has."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        expected = (
            f"one that needs no classes, such as iid: the targets are {_describe(labels)}, "
            "where this one needs one whole number an example"
        )
        raise ConfigError("data.partition", kind, expected)
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return codes, sizes


def _scatter(
    owners: NDArray[np.int64], codes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Give the owners listed class after class to the examples of each class, at random."""
    shuffled = rng.permutation(len(codes))
    scattered = np.empty_like(owners)
    scattered[shuffled[np.argsort(codes[shuffled], kind="stable")]] = owners
    return scattered


def _take(
    log_weights: NDArray[np.float64], left: NDArray[np.int64], size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many examples of each class a client takes: drawn one by one by weight from the classes not used up.

    Drawing several at once and drawing again those that found their class used up has the same law.
    """
    taken = np.zeros_like(left)
    while size:
        logs = np.where(taken < left, log_weights, -np.inf)
        weights = np.exp(logs - logs.max())
        found = np.minimum(rng.multinomial(size, weights / weights.sum()), left - taken)
        taken += found
        size -= int(found.sum())
    return taken


def _ranks(class_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, .. within each class, class after class."""
    return np.arange(class_sizes.sum()) - np.repeat(np.cumsum(class_sizes) - class_sizes, class_sizes)


def _share_out(class_sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Shards of each class: at least one, at most its size, `total` in all, the largest shard as small as can be.

    Each class has one to begin with; one after another, the rest go to the class whose shards are then largest.
    """
    sizes = np.repeat(class_sizes, class_sizes)
    # Below 1 example a shard nothing is cut: the priorities above 1 are as many as `total` can ask for.
    priority = sizes / (_ranks(class_sizes) + 1)
    chosen = np.argsort(-priority, kind="stable")[: total - len(class_sizes)]
    owner = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return 1 + np.bincount(owner[chosen], minlength=len(class_sizes))
