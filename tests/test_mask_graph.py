import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import ConfigError
from discreet.secure.masking import dropouts_at_most, failures, plan_graph
from discreet.secure.masking.graph import arrange, hypergeometric_tail, neighbours


def connected(graph, clients):
    """Whether the graph on these clients alone is in one piece."""
    left = set(clients)
    reached = [left.pop()] if left else []
    while reached:
        step = left & set(graph[reached.pop()])
        left -= step
        reached += step
    return not left


@given(st.integers(3, 60), st.integers(1, 30))
def test_neighbours_are_mutual_and_as_many_as_asked(clients, half):
    degree = min(2 * half, clients - 1)
    graph = neighbours(arrange(range(clients), b"nonce"), degree)
    assert graph.keys() == set(range(clients))
    for client, others in graph.items():
        assert len(others) == degree
        assert list(others) == sorted(set(others) - {client})
        assert all(client in graph[other] for other in others)


@pytest.mark.parametrize(("clients", "degree"), [(5, 3), (6, 0), (6, 6), (7, 1), (4, 5)])
def test_there_is_no_such_graph(clients, degree):
    with pytest.raises(ConfigError, match="degree"):
        neighbours(range(clients), degree)


def test_it_takes_as_many_dropouts_as_the_degree_to_cut_the_graph():
    graph = neighbours(arrange(range(9), b"nonce"), 4)
    for count in range(5):
        cut = [
            gone
            for gone in itertools.combinations(range(9), count)
            if not connected(graph, set(range(9)) - set(gone))
        ]
        assert bool(cut) == (count == 4)


def test_every_arrangement_is_equally_likely():
    # who stands beside client 0 among 6: one of 10 pairs; chi-square with 9 degrees of freedom, false alarm 1e-6
    draws = 3000
    pairs = Counter(neighbours(arrange(range(6), bytes([n % 256, n // 256])), 2)[0] for n in range(draws))
    assert len(pairs) == 10
    assert sum((count - draws / 10) ** 2 for count in pairs.values()) / (draws / 10) < stats.chi2.isf(1e-6, 9)


def test_the_nonce_and_nothing_else_decides():
    assert arrange(range(20), b"a") == arrange(range(19, -1, -1), b"a") != arrange(range(20), b"b")


@given(st.integers(1, 400), st.data())
def test_tail_equals_scipys(population, data):
    marked, drawn = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    at_least = data.draw(st.integers(-1, drawn + 2))
    expected = stats.hypergeom.sf(at_least - 1, population, marked, drawn)
    assert hypergeometric_tail(population, marked, drawn, at_least) == pytest.approx(
        expected, rel=1e-8, abs=1e-300
    )


def everyone(clients, dropped, corrupt):
    """All choices of who drops out and who is corrupt, disjoint."""
    for gone in itertools.combinations(range(clients), dropped):
        for bad in itertools.combinations(sorted(set(range(clients)) - set(gone)), corrupt):
            yield set(gone), set(bad)


@pytest.mark.parametrize(("degree", "threshold"), [(4, 3), (6, 4), (6, 5), (8, 7), (4, 5)])
def test_bounds_hold_by_counting_all_cases(degree, threshold):
    clients, dropped, corrupt = 10, 3, 2
    graph = neighbours(range(clients), degree)
    cases = exposed = lost = cut = 0
    for gone, bad in everyone(clients, dropped, corrupt):
        cases += 1
        exposed += sum(len(bad & set(graph[each])) >= threshold for each in set(range(clients)) - bad)
        # the holders that are left of each client's secrets: those who did not drop out, itself among them
        left = [len(({each} | set(graph[each])) - gone) for each in range(clients)]
        lost += sum(count < threshold for count in left)
        cut += not connected(graph, set(range(clients)) - gone - bad)
    found = failures(clients, degree, threshold, dropped=dropped, corrupt=corrupt)
    # the bounds by union are the expected number of clients that fail, which counting gives exactly
    assert found.corruption == pytest.approx(min(1, exposed / cases))
    assert found.reconstruction == pytest.approx(min(1, lost / cases))
    assert found.separation >= cut / cases
    assert found.security <= 1


def test_the_bound_on_separation_is_exact_where_only_one_pair_of_gaps_is_possible():
    # 8 clients, degree 6, 6 removed: two gaps of 3 with one client between them on either side: 4 of 28 choices
    graph = neighbours(range(8), 6)
    cut = sum(not connected(graph, set(range(8)) - set(gone)) for gone in itertools.combinations(range(8), 6))
    assert cut == 4
    assert failures(8, 6, 4, dropped=3, corrupt=3).separation == 28 / 28


@pytest.mark.parametrize(
    ("threshold", "dropped", "corrupt", "secure", "correct"),
    [(4, 3, 3, True, True), (4, 6, 3, True, True), (4, 7, 3, True, False), (4, 3, 4, False, True)],
)
def test_nothing_is_left_to_chance_in_the_complete_graph(threshold, dropped, corrupt, secure, correct):
    found = failures(10, 9, threshold, dropped=dropped, corrupt=corrupt)
    assert found.security == (not secure)
    assert found.reconstruction == (not correct)


@pytest.mark.parametrize(
    ("clients", "dropout", "corrupt"),
    [
        (3, 0, 0),
        (10, 0.2, 0.1),
        (10, 0.4, 0.4),
        (100, 0.1, 0.1),
        (1000, 0.3, 0.05),
        (1000, 0.05, 0.3),
        (1000, 0, 0.1),
        (20_000, 0.1, 0.1),
        (60, 0.4, 0.4),
    ],
)
def test_a_plan_meets_what_is_wanted_with_the_fewest_neighbours(clients, dropout, corrupt):
    plan = plan_graph(clients, dropout=dropout, corrupt=corrupt)
    assert plan.dropped >= dropout * clients - 1e-6
    assert plan.corrupt >= corrupt * clients - 1e-6

    def meets(degree, threshold):
        found = failures(clients, degree, threshold, dropped=plan.dropped, corrupt=plan.corrupt)
        return found.security <= 2**-40 and found.reconstruction <= 2**-20

    assert meets(plan.degree, plan.threshold)
    assert plan.threshold == plan.degree + 1 or not meets(plan.degree, plan.threshold + 1)
    fewer = clients - 2 - clients % 2 if plan.complete else plan.degree - 2
    assert fewer < 2 or not any(meets(fewer, threshold) for threshold in range(2, fewer + 2))


def test_wanting_more_takes_more_neighbours():
    degrees = [
        plan_graph(1000, dropout=0.1, corrupt=0.1, security=2.0**-bits).degree for bits in (20, 40, 80, 128)
    ]
    assert degrees == sorted(set(degrees))
    # the number of neighbours grows with the logarithm of the cohort
    small, large = (plan_graph(clients, dropout=0.1, corrupt=0.1) for clients in (1000, 100_000))
    assert large.degree < 2 * small.degree


@pytest.mark.parametrize(
    "wish",
    [
        {"clients": 2, "dropout": 0, "corrupt": 0},
        {"clients": 10, "dropout": 0.5, "corrupt": 0.5},
        {"clients": 10, "dropout": 1, "corrupt": 0},
        {"clients": 10, "dropout": 0, "corrupt": -0.1},
        {"clients": 10, "dropout": 0, "corrupt": 0, "security": 0},
        {"clients": 10, "dropout": 0, "corrupt": 0, "correctness": 1},
    ],
)
def test_a_plan_that_cannot_be(wish):
    with pytest.raises(ConfigError):
        plan_graph(wish.pop("clients"), **wish)


@pytest.mark.parametrize(
    ("clients", "rate"), [(10, 0.1), (10, 0.01), (100, 0.05), (100, 0.9), (5000, 0.3), (50, 0), (50, 1)]
)
@pytest.mark.parametrize("probability", [0.5, 1e-3, 1e-9])
def test_random_dropouts_stay_below_the_bound(clients, rate, probability):
    bound = dropouts_at_most(clients, rate, probability)
    assert stats.binom.sf(bound, clients, rate) <= probability
    assert bound == 0 or stats.binom.sf(bound - 1, clients, rate) > probability


def test_a_rate_out_of_range():
    with pytest.raises(ConfigError):
        dropouts_at_most(10, 1.1, 0.1)
