import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.data.dealing import by_column, grid, iid, resampled
from discreet.data.partition import Partition, check_exact
from discreet.data.partitions import PARTITIONS, make
from discreet.data.skew import dirichlet, lognormal, shards
from discreet.errors import ConfigError

SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(-3, 6), min_size=1, max_size=80).map(np.array)
BALANCED = np.tile(np.arange(10, dtype=np.uint8), 600)


def generator(seed=0):
    return np.random.default_rng(seed)


def members(partition):
    return [partition.indices(row).tolist() for row in range(partition.rows)]


def assert_exact(partition, count):
    """Like check_exact, written another way."""
    held = members(partition)
    assert sorted(itertools.chain(*held)) == list(range(count))
    assert all(held)
    assert [len(block) for block in held] == partition.sizes.tolist()
    assert all(block == sorted(block) for block in held)
    assert partition.order.dtype == np.int32
    check_exact(partition, count)


def label_agreement(partition, labels):
    """Chance that two different examples of a client have the same label, averaged over clients."""
    chances = []
    for row in range(partition.rows):
        counts = np.bincount(labels[partition.indices(row)])
        size = counts.sum()
        chances.append((counts * (counts - 1)).sum() / (size * (size - 1)))
    return np.mean(chances)


# ---- the partition itself


def small():
    columns = (np.array([0, 1]), np.array([2]), np.array([3]))
    return Partition(np.array([3, 4, 0, 1, 2]), np.array([0, 2, 2, 5]), columns)


def test_a_partition_counts_its_rows_columns_and_clients():
    partition = small()
    assert (partition.rows, partition.column_count, partition.clients) == (3, 3, 9)
    assert partition.sizes.tolist() == [2, 0, 3]
    assert members(partition) == [[3, 4], [], [0, 1, 2]]


def test_clients_are_numbered_row_after_row():
    partition = small()
    pairs = [(partition.row_of(client), partition.column_of(client)) for client in range(9)]
    assert pairs == [(row, column) for row in range(3) for column in range(3)]
    assert partition.row_of(np.array([0, 4, 8])).tolist() == [0, 1, 2]
    assert partition.column_of(np.array([0, 4, 7])).tolist() == [0, 1, 1]


def test_without_columns_a_client_is_a_row():
    partition = iid(10, 5, generator())
    assert (partition.clients, partition.column_count) == (5, 1)
    assert (partition.row_of(3), partition.column_of(3)) == (3, 0)


def test_indices_are_views():
    partition = iid(10, 3, generator())
    assert all(np.shares_memory(partition.indices(row), partition.order) for row in range(3))
    assert np.shares_memory(partition.pooled().indices(0), partition.order)


def test_pooled_has_one_client_with_everything():
    pooled = grid(7, 4, 3, 2, generator()).pooled()
    assert (pooled.clients, pooled.columns) == (1, None)
    assert sorted(pooled.indices(0).tolist()) == list(range(7))


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_is_an_index_error(row):
    with pytest.raises(IndexError, match="rows 0 to 2"):
        small().indices(row)


@pytest.mark.parametrize(
    ("order", "offsets", "columns", "message"),
    [
        (np.zeros((2, 2), np.int64), np.array([0, 4]), None, "order"),
        (np.zeros(2), np.array([0, 2]), None, "order"),
        (np.arange(2), np.array([0, 2], np.int32), None, "offsets"),
        (np.arange(2), np.array([0]), None, "offsets"),
        (np.arange(2), np.array([[0, 2]]), None, "offsets"),
        (np.arange(2), np.array([1, 2]), None, "rise from 0 to 2"),
        (np.arange(2), np.array([0, 1]), None, "rise from 0 to 2"),
        (np.arange(2), np.array([0, 2, 1, 2]), None, "rise from 0 to 2"),
        (np.arange(2), np.array([0, 2]), (), "columns"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(order, offsets, columns, message):
    with pytest.raises(ValueError, match=message):
        Partition(order, offsets, columns)


@pytest.mark.parametrize(
    ("order", "offsets", "columns", "message"),
    [
        ([0, 1, 1], [0, 1, 3], None, "example 1 dealt 2 times"),
        ([0, 2, 2], [0, 1, 3], None, "example 1 dealt 0 times"),
        ([0, 1], [0, 1, 2], None, "example 2 dealt 0 times"),
        ([0, 3, 1, 2], [0, 1, 4], None, "example 3': expected indices from 0 to 2"),
        ([0, -1, 1, 2], [0, 1, 4], None, "example -1"),
        ([0, 1, 2], [0, 3, 3], None, "client 1': expected every client to hold an example"),
        ([0, 1, 2], [0, 3], ([0], [0]), "feature 0 dealt 2 times"),
        ([0, 1, 2], [0, 3], ([0], []), "feature 1 dealt 0 times"),
        ([0, 1, 2], [0, 3], ([0, 1], []), "column owner 1"),
    ],
)
def test_check_exact_names_what_is_wrong(order, offsets, columns, message):
    blocks = columns and tuple(np.array(block, np.int64) for block in columns)
    partition = Partition(np.array(order), np.array(offsets), blocks)
    with pytest.raises(ConfigError, match=message):
        check_exact(partition, 3, 2)


# ---- exactness, sizes and repetition, for every constructor


@given(SEEDS, st.integers(1, 60), st.data())
def test_iid_is_exact_and_even(seed, count, data):
    clients = data.draw(st.integers(1, count))
    partition = iid(count, clients, generator(seed))
    assert_exact(partition, count)
    assert partition.rows == clients
    assert np.ptp(partition.sizes) <= 1


@given(SEEDS, LABELS, st.floats(1e-6, 1e6), st.integers(1, 4), st.data())
def test_dirichlet_is_exact_even_and_has_no_empty_client(seed, labels, alpha, least, data):
    clients = data.draw(st.integers(1, max(1, len(labels) // least)))
    least = min(least, len(labels))
    partition = dirichlet(labels, clients, alpha, generator(seed), min_examples=least)
    assert_exact(partition, len(labels))
    assert partition.rows == clients
    assert np.ptp(partition.sizes) <= 1
    assert partition.sizes.min() >= least


@given(SEEDS, LABELS, st.data())
def test_shards_are_exact_and_show_each_client_few_labels(seed, labels, data):
    classes = len(set(labels.tolist()))
    each = data.draw(st.integers(1, classes))
    lowest, highest = -(-classes // each), len(labels) // each
    if lowest > highest:
        return
    clients = data.draw(st.integers(lowest, highest))
    partition = shards(labels, clients, each, generator(seed))
    assert_exact(partition, len(labels))
    assert partition.rows == clients
    assert max(len(set(labels[block].tolist())) for block in members(partition)) <= each
    assert partition.sizes.min() >= each


@given(SEEDS, st.integers(1, 200), st.floats(0, 100), st.data())
def test_lognormal_is_exact(seed, count, sigma, data):
    clients = data.draw(st.integers(1, count))
    partition = lognormal(count, clients, sigma, generator(seed))
    assert_exact(partition, count)
    assert partition.rows == clients


@given(SEEDS, st.integers(1, 40), st.integers(1, 40), st.booleans(), st.data())
def test_a_grid_covers_each_example_and_feature_once(seed, count, features, shuffle, data):
    rows, columns = data.draw(st.integers(1, count)), data.draw(st.integers(1, features))
    partition = grid(count, features, rows, columns, generator(seed), shuffle_features=shuffle)
    check_exact(partition, count, features)
    assert (partition.rows, partition.column_count, partition.clients) == (rows, columns, rows * columns)
    covered = np.zeros((count, features), int)
    for client in range(partition.clients):
        block = partition.columns[partition.column_of(client)]
        assert len(block)
        covered[np.ix_(partition.indices(partition.row_of(client)), block)] += 1
    assert (covered == 1).all()
    assert np.ptp([len(block) for block in partition.columns]) <= 1
    if not shuffle:
        assert np.concatenate(partition.columns).tolist() == list(range(features))


def test_a_grid_may_deal_its_features_at_random():
    partition = grid(4, 100, 2, 2, generator(), shuffle_features=True)
    # A random half of 100 features is the first half with probability 1e-29.
    assert partition.columns[0].tolist() != list(range(50))
    assert all(block.tolist() == sorted(block.tolist()) for block in partition.columns)


@given(st.lists(st.sampled_from(["", "a", "b", "ward 3", "é"]), min_size=1, max_size=40))
def test_natural_clients_are_the_values_of_a_column(values):
    partition, names = by_column(np.array(values, dtype=object))
    assert_exact(partition, len(values))
    assert names == tuple(sorted(set(values)))
    for name, block in zip(names, members(partition), strict=True):
        assert block == [index for index, value in enumerate(values) if value == name]


def test_natural_clients_may_be_numbers():
    partition, names = by_column(np.array([30, 4, 30]))
    assert names == ("4", "30")
    assert members(partition) == [[1], [0, 2]]


KINDS = {
    "iid": {"clients": 7},
    "dirichlet": {"clients": 7, "alpha": 0.3},
    "shards": {"clients": 7, "labels_per_client": 2},
    "lognormal": {"clients": 7, "sigma": 1.0},
    "column": {"column": "site"},
    "grid": {"rows": 7, "column_owners": 3},
    "resampled": {"clients": 7, "size": 9},
}


def of_kind(kind, seed=0, **changes):
    labels = np.arange(60) % 5
    columns = {"site": np.arange(60) // 9, "sex": np.arange(60) % 2}
    common = {"count": 60, "labels": labels, "features": 8, "columns": columns}
    return make(kind, rng=generator(seed), **(common | KINDS[kind] | changes))


def test_every_kind_is_tried_here():
    assert KINDS.keys() == PARTITIONS.keys()


@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_same_seed_gives_the_same_partition_and_another_seed_another(kind):
    first, again, other = of_kind(kind), of_kind(kind), of_kind(kind, seed=1)
    assert first.rows == 7
    assert first.order.tolist() == again.order.tolist()
    assert first.offsets.tolist() == again.offsets.tolist()
    # Nothing is random in a column; elsewhere two seeds agree with probability below 1e-20.
    assert (first.order.tolist() == other.order.tolist()) == (kind == "column")


@pytest.mark.parametrize("kind", set(PARTITIONS) - {"resampled"})
def test_every_kind_made_by_name_is_exact(kind):
    check_exact(of_kind(kind), 60, 8)


def test_labels_are_not_changed():
    labels = BALANCED.copy()
    dirichlet(labels, 20, 0.5, generator())
    shards(labels, 20, 2, generator())
    assert (labels == BALANCED).all()


# ---- what is random, and how


def test_iid_deals_every_example_to_every_client_alike():
    # 12 examples, 3 clients of 4, 3,000 deals: a count has mean 1,000 and deviation sqrt(3000 * 2/9) = 25.8.
    # 36 counts within 5.5 deviations: false alarm below 36 * 4e-8 = 2e-6.
    counts = np.zeros((12, 3))
    for seed in range(3000):
        partition = iid(12, 3, generator(seed))
        for row in range(3):
            counts[partition.indices(row), row] += 1
    assert np.abs(counts - 1000).max() < 5.5 * 25.8


@pytest.mark.parametrize(("alpha", "deviation"), [(0.1, 0.21), (1.0, 0.045), (10.0, 0.005)])
def test_dirichlet_mixes_labels_as_its_moments_say(alpha, deviation):
    # For q ~ Dirichlet(alpha, ..., alpha) over 10 classes, E[sum of q squared] = (1 + alpha) / (1 + 10 alpha);
    # `deviation` is that of the sum itself. A mean of 600 clients leaves 5 of its deviations once in 2e6; 0.02
    # more is for the last clients to draw, which have fewer classes to choose from.
    labels = np.tile(np.arange(10), 6000)
    found = label_agreement(dirichlet(labels, 600, alpha, generator(5)), labels)
    assert abs(found - (1 + alpha) / (1 + 10 * alpha)) < 5 * deviation / 600**0.5 + 0.02


def test_dirichlet_skew_grows_as_alpha_falls():
    # By the formula above 0.10, 0.18, 0.36, 0.55 and 0.92, steps of at least 0.08. Means of 200 clients deviate
    # by 0.00, 0.003, 0.010, 0.014 and 0.011: each step is 10 deviations of a difference, or more.
    alphas = [1000.0, 1.0, 0.25, 0.1, 0.01]
    skews = [label_agreement(dirichlet(BALANCED, 200, alpha, generator(3)), BALANCED) for alpha in alphas]
    assert skews == sorted(skews)


def test_dirichlet_at_the_smallest_alpha_gives_one_label_to_nearly_every_client():
    # A client has two labels only if a class runs out while it draws: at most once a class.
    partition = dirichlet(BALANCED, 100, 1e-6, generator())
    labels_seen = [len(set(BALANCED[block].tolist())) for block in members(partition)]
    assert sum(seen > 1 for seen in labels_seen) <= 10


def test_no_client_is_told_by_its_number_to_draw_last():
    # Clients of 3 with one label each, from 16 and 14: just one has both, where a class runs out, and it is the
    # fifth to draw or a later one. Were turns not random, none of the first four clients would ever be it; with
    # random turns that is so in all 40 with probability 0.6^40 = 1e-9.
    labels = np.array([0] * 16 + [1] * 14)
    mixed = []
    for seed in range(40):
        held = [
            set(labels[block].tolist()) for block in members(dirichlet(labels, 10, 1e-6, generator(seed)))
        ]
        mixed += [client for client, seen in enumerate(held) if len(seen) == 2]
    assert len(mixed) == 40
    assert min(mixed) < 4


def test_dirichlet_spreads_a_rare_class_over_the_clients():
    # 1 % of the labels is rare. At alpha = 1e6 each of 200 clients takes Binomial(100, 0.01) of them, so that 73
    # have none, with a deviation of 6.8; and demand for the rare deviates from 200 by 14, so that as many of the
    # last clients may find none left. Five of both deviations make 177: fails once in 3e6 at most. Mixtures that
    # ignored the frequencies would give all of them to the first few clients, and none to 190 or more.
    labels = np.array([1] * 200 + [0] * 19800)
    partition = dirichlet(labels, 200, 1e6, generator())
    assert sum(labels[block].sum() == 0 for block in members(partition)) < 177


@pytest.mark.parametrize("clients", [100, 1000])
def test_dirichlet_works_where_a_redraw_would_not(clients):
    labels = np.tile(np.arange(10), 6000)
    partition = dirichlet(labels, clients, 0.1, generator())
    assert (partition.sizes == 60000 // clients).all()


def test_shards_as_in_the_source():
    # 60,000 examples, 100 clients, 2 shards each: 200 shards of 300, and most clients have two labels.
    labels = np.tile(np.arange(10), 6000)
    partition = shards(labels, 100, 2, generator())
    assert (partition.sizes == 600).all()
    seen = [np.unique(labels[partition.indices(row)], return_counts=True)[1].tolist() for row in range(100)]
    assert all(counts in ([300, 300], [600]) for counts in seen)
    # A client's second shard has the label of the first with probability 19/199: 9.5 of 100 clients expected.
    assert seen.count([300, 300]) >= 70


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.data())
@settings(max_examples=60)
def test_the_largest_shard_is_as_small_as_can_be(class_sizes, data):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    total = data.draw(st.integers(len(class_sizes), len(labels)))
    partition = shards(labels, total, 1, generator())
    ways = itertools.product(*(range(1, size + 1) for size in class_sizes))
    best = min(
        max(-(-size // cuts) for size, cuts in zip(class_sizes, way, strict=True))
        for way in ways
        if sum(way) == total
    )
    assert partition.sizes.max() == best


def test_lognormal_sizes_have_the_deviation_asked_for():
    # log(size - 1) is sigma * N(0, 1) + a constant, up to rounding at sizes near 600; the deviation of 1,000
    # normals has itself a deviation of 1 / sqrt(2000) = 0.0224: 5 of them fail once in 2e6.
    partition = lognormal(1_000_000, 1000, 1.0, generator(1))
    assert abs(np.log(partition.sizes - 1).std() - 1.0) < 5 * 0.0224


def test_lognormal_without_spread_is_even():
    assert np.ptp(lognormal(1003, 10, 0.0, generator()).sizes) <= 1


def test_resampled_draws_uniformly_with_repetition():
    # 200,000 draws of 20 values: chi-square with 19 degrees of freedom exceeds 71.0 once in 1.5e7.
    partition = resampled(20, 1000, 200, generator())
    assert (partition.sizes == 200).all()
    counts = np.bincount(partition.order, minlength=20)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 71.0
    with pytest.raises(ConfigError, match="dealt exactly once"):
        check_exact(partition, 20)


def test_resampled_takes_four_bytes_an_example():
    # The same bytes a client as 1,000,000 clients take: those then need 248 MB.
    tracemalloc.start()
    try:
        partition = resampled(60_000, 50_000, 60, generator())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert partition.clients == 50_000
    assert peak < 50_000 * 60 * 4 + 50_000 * 8 * 3


# ---- refusals


@pytest.mark.parametrize(
    ("kind", "changes", "key", "expected"),
    [
        ("iid", {"clients": 61}, "data.clients", "from 1 to 60"),
        ("iid", {"clients": 0}, "data.clients", "from 1 to 60"),
        ("iid", {"clients": None}, "data.clients", "number of clients"),
        ("dirichlet", {"clients": 61}, "data.clients", "from 1 to 60"),
        ("dirichlet", {"clients": 0}, "data.clients", "from 1 to 60"),
        ("dirichlet", {"alpha": 0.0}, "data.alpha", "above 0"),
        ("dirichlet", {"alpha": -1.0}, "data.alpha", "above 0"),
        ("dirichlet", {"alpha": float("nan")}, "data.alpha", "above 0"),
        ("dirichlet", {"alpha": float("inf")}, "data.alpha", "1e6"),
        ("dirichlet", {"alpha": None}, "data.alpha", "above 0"),
        ("dirichlet", {"labels": None}, "data.partition", "labels"),
        ("dirichlet", {"labels": np.linspace(0, 1, 60)}, "data.partition", "float64"),
        ("shards", {"labels": np.linspace(0, 1, 60, dtype=np.float32)}, "data.partition", "float32"),
        ("shards", {"labels": np.zeros((60, 2), int)}, "data.partition", r"shape \(60, 2\)"),
        ("shards", {"clients": 61}, "data.clients", "from 1 to 60"),
        ("shards", {"clients": 31}, "data.clients", "at most 30"),
        ("shards", {"clients": -1}, "data.clients", "from 1 to 60"),
        ("shards", {"labels_per_client": 0}, "data.labels_per_client", "from 1 to 5"),
        ("shards", {"labels_per_client": 6}, "data.labels_per_client", "from 1 to 5"),
        ("shards", {"labels_per_client": None}, "data.labels_per_client", "such as 2"),
        ("shards", {"clients": 2}, "data.labels_per_client", "at least 3"),
        ("lognormal", {"clients": 61}, "data.clients", "from 1 to 60"),
        ("lognormal", {"sigma": -0.1}, "data.sigma", "from 0"),
        ("lognormal", {"sigma": float("nan")}, "data.sigma", "from 0"),
        ("lognormal", {"sigma": None}, "data.sigma", "at least 0"),
        ("column", {"column": "size"}, "data.column", "site, sex"),
        ("column", {"column": None}, "data.column", "site, sex"),
        ("column", {"columns": None}, "data.column", "a table"),
        ("grid", {"rows": 61}, "data.rows", "from 1 to 60"),
        ("grid", {"rows": 0}, "data.rows", "from 1 to 60"),
        ("grid", {"rows": None}, "data.rows", "row owners"),
        ("grid", {"column_owners": 9}, "data.columns", "from 1 to 8"),
        ("grid", {"column_owners": 0}, "data.columns", "from 1 to 8"),
        ("grid", {"column_owners": None}, "data.columns", "column owners"),
        ("grid", {"features": None}, "data.partition", "features"),
        ("resampled", {"clients": 0}, "data.clients", "at least 1"),
        ("resampled", {"size": 0}, "data.size", "at least 1"),
        ("resampled", {"size": None}, "data.size", "examples a client"),
        ("resampled", {"count": 0}, "data.partition", "examples to draw from"),
    ],
)
def test_what_cannot_be_is_refused_by_key_in_one_line(kind, changes, key, expected):
    with pytest.raises(ConfigError, match=expected) as refused:
        of_kind(kind, **changes)
    assert refused.value.key == key
    assert "\n" not in str(refused.value)


def test_an_unknown_kind_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"one of iid, dirichlet, .*did you mean 'dirichlet'\?") as refused:
        make("dirichlett", rng=generator(), count=10)
    assert refused.value.key == "data.partition"
    with pytest.raises(ConfigError, match=r"resampled$"):
        make("xyz", rng=generator(), count=10)


def test_dirichlet_refuses_more_clients_than_its_least_size_allows():
    assert dirichlet(BALANCED, 600, 0.1, generator(), min_examples=10).sizes.min() == 10
    with pytest.raises(ConfigError, match="from 1 to 600, so that 6000 examples give 10") as refused:
        dirichlet(BALANCED, 601, 0.1, generator(), min_examples=10)
    assert refused.value.key == "data.clients"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([1.0, np.nan, np.nan]), "row 1': expected .*missing in 2 of 3"),
        (np.array(["a", "b", None], dtype=object), "row 2': expected .*missing in 1 of 3"),
        (np.array(["a", 1], dtype=object), "one kind"),
        (np.zeros((2, 2)), "one value for each example"),
        (np.array([]), "one value for each example"),
    ],
)
def test_a_column_that_names_no_clients_is_refused(values, expected):
    with pytest.raises(ConfigError, match=expected) as refused:
        by_column(values)
    assert refused.value.key == "data.column"


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "column"])
def test_labels_and_columns_must_be_as_many_as_the_examples(kind):
    with pytest.raises(ValueError, match="60 values for 59 examples"):
        of_kind(kind, count=59)
