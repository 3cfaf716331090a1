"""Clients that are unlike one another on purpose: in their labels, or in how many examples they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.data.dealing import check_between, deal_sizes, even_sizes
from discreet.data.partition import Partition, by_owner
from discreet.errors import ConfigError


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
    check_between(
        "data.clients", clients, count // least, f"so that {count} examples give {least} to each client"
    )
    if not 1e-6 <= alpha <= 1e6:
        raise ConfigError(
            "data.alpha", alpha, "a number above 0, from 1e-6 (one label a client) to 1e6 (IID)"
        )
    sizes = even_sizes(count, clients)
    shape = alpha * len(class_sizes) * class_sizes / count
    left = class_sizes.copy()
    taken = np.zeros((clients, len(class_sizes)), dtype=np.int64)
    for client in rng.permutation(clients):
        # The logarithm of a Gamma(shape) variable, which itself would underflow to 0 when the shape is small.
        log_weights = np.log(rng.standard_gamma(shape + 1)) - rng.standard_exponential(len(shape)) / shape
        taken[client] = _take(log_weights, left, int(sizes[client]), rng)
        left -= taken[client]
    owners = np.repeat(np.tile(np.arange(clients), len(class_sizes)), taken.T.ravel())
    return by_owner(_scatter(owners, codes, rng), clients)


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
    check_between("data.clients", clients, count, "the number of examples")
    check_between("data.labels_per_client", labels_per_client, classes, "the number of classes")
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
    return by_owner(_scatter(hands[first + within], codes, rng), clients)


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
    check_between("data.clients", clients, count, "the number of examples")
    if not 0 <= sigma <= 100:
        raise ConfigError(
            "data.sigma", sigma, "a number from 0 (equal sizes) to 100; 1 is already very uneven"
        )
    logs = sigma * rng.standard_normal(clients)
    heights = np.cumsum(np.exp(logs - logs.max()))
    # Rounding the running total, and not each share, keeps the sum exact and no share off by one or more.
    edges = np.floor(heights / heights[-1] * (count - clients)).astype(np.int64)
    return deal_sizes(1 + np.diff(edges, prepend=0), rng)


def _classes(kind: str, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each example's class as a number from 0 without gaps, and how many examples each class has."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        expected = (
            f"one that needs no classes, such as iid: the targets are {labels.dtype} of shape {labels.shape}, "
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
