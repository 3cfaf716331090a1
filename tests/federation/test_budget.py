"""A site's budget: what it counts is at least what was given out, and it stops before its owner's epsilon."""

import pytest

from discreet.federation.budget import EVERYONE, charge, cost, would_exceed
from discreet.federation.limits import Limits
from discreet.federation.refusal import Refusal
from discreet.federation.spending import MemorySpending, SpendingFile
from discreet.privacy.accounting import spent
from discreet.privacy.releases import NOTHING, FixedSize, Gaussian, Ledger, Poisson, Released

RUN, NEXT = bytes(16), bytes(15) + b"\x01"
NOISE = Gaussian(4.0)
SAMPLED = Released(Poisson(0.25), NOISE)
FIXED = Released(FixedSize(2, 8), NOISE)
ALL = Released(EVERYONE, NOISE)
LIMITED = Limits(epsilon=2.0, delta=1e-5)
TRUSTING = Limits(epsilon=2.0, delta=1e-5, trust_sampling=True)


def contribute(spending, limits, round, released=SAMPLED, run=RUN, attempt=1, rounds=20):
    return charge(
        spending, limits, run=run, session=1, round=round, attempt=attempt, released=released, rounds=rounds
    )


def allowed(limits, released=SAMPLED, **fields):
    """How many rounds a site takes part in before its budget is spent."""
    one = MemorySpending()
    for round in range(1, 1000):
        try:
            contribute(one, limits, round, released, **fields)
        except Refusal as refusal:
            assert refusal.cause == "budget"
            assert len(one.entries()) == round - 1
            return round - 1, one.ledger()
    raise AssertionError("it never stops")


@pytest.mark.parametrize("released", [SAMPLED, FIXED, ALL])
def test_a_site_that_cannot_check_the_draw_counts_everyone(released):
    count, ledger = allowed(LIMITED, released)
    assert ledger == Ledger().add(ALL, count)
    assert spent(ledger, 1e-5).epsilon <= 2.0 < spent(ledger.add(ALL), 1e-5).epsilon


def test_a_run_may_not_end_where_another_began():
    one = MemorySpending()
    count, _ = allowed(LIMITED)
    for round in range(1, count):
        contribute(one, LIMITED, round)
    contribute(one, LIMITED, 1, run=NEXT)
    with pytest.raises(Refusal, match="epsilon would pass 2"):
        contribute(one, LIMITED, 2, run=NEXT)


def test_a_repeated_attempt_counts_again():
    one = MemorySpending()
    for attempt in (1, 2, 3):
        contribute(one, LIMITED, 1, attempt=attempt)
    assert one.ledger() == Ledger().add(ALL, 3)


def test_without_a_limit_everything_is_written_down_and_nothing_refused():
    one = MemorySpending()
    for round in range(1, 40):
        contribute(one, Limits(), round, Released(Poisson(1.0), Gaussian(0.1)))
    contribute(one, Limits(), 40, None)
    assert (one.ledger().releases, len(one.entries())) == (39, 40)


def test_with_a_limit_nothing_without_a_promise_leaves():
    one = MemorySpending()
    with pytest.raises(Refusal) as caught:
        contribute(one, LIMITED, 1, None)
    assert caught.value.cause == "budget"
    assert one.entries() == ()


def test_who_trusts_the_draw_pays_for_all_rounds_at_once_and_no_more():
    one = MemorySpending()
    for round in (3, 4, 9, 20):
        contribute(one, TRUSTING, round)
    assert one.ledger() == Ledger().add(SAMPLED, 20)
    contribute(one, TRUSTING, 20, attempt=2)
    assert one.ledger() == Ledger().add(SAMPLED, 21)
    contribute(one, TRUSTING, 21, rounds=30)  # resumed, with more rounds than before
    contribute(one, TRUSTING, 25, rounds=30)
    assert one.ledger() == Ledger().add(SAMPLED, 31)
    contribute(one, TRUSTING, 1, run=NEXT, rounds=5)
    assert one.ledger() == Ledger().add(SAMPLED, 36)


def test_a_round_beyond_the_plan_is_counted_too():
    one = MemorySpending()
    contribute(one, TRUSTING, 8, rounds=5)
    assert one.ledger() == Ledger().add(SAMPLED, 8)


def test_sampling_of_everyone_counts_the_rounds_that_a_site_took_part_in():
    one = MemorySpending()
    for round in (3, 9):
        contribute(one, TRUSTING, round, Released(FixedSize(8, 8), NOISE))
    assert one.ledger() == Ledger().add(ALL, 2)


def test_trusting_buys_more_rounds():
    once = cost(Ledger().add(SAMPLED, 20), 1e-5).epsilon
    assert once < cost(Ledger().add(ALL, 20), 1e-5).epsilon
    limits = Limits(epsilon=once, delta=1e-5, trust_sampling=True)
    contribute(MemorySpending(), limits, 1)
    with pytest.raises(Refusal):
        contribute(MemorySpending(), limits, 1, rounds=21)


@pytest.mark.parametrize("first", [SAMPLED, FIXED])
def test_a_ledger_of_both_kinds_of_sampling_costs_at_least_as_much_as_each_alone(first):
    both = Ledger().add(SAMPLED, 5).add(FIXED, 7)
    # with Poisson sampling taken for none, both are about replaced data
    expected = spent(Ledger().add(ALL, 5).add(FIXED, 7), 1e-5, adjacency="replace-one")
    assert cost(both, 1e-5) == expected
    alone = Ledger().add(first, dict(both.entries)[first])
    assert cost(both, 1e-5).epsilon >= cost(alone, 1e-5).epsilon


def test_the_order_of_the_entries_does_not_matter():
    one, other = Ledger().add(SAMPLED, 5).add(FIXED, 7), Ledger().add(FIXED, 7).add(SAMPLED, 5)
    assert cost(one, 1e-5).epsilon == pytest.approx(cost(other, 1e-5).epsilon, rel=1e-12)


def test_no_limit_is_never_passed():
    assert not would_exceed(Limits(), NOTHING, Released(Poisson(1.0), Gaussian(0.01)), 10**6)


def test_a_refused_contribution_leaves_the_file_as_it_was(tmp_path):
    one = SpendingFile(tmp_path / "ledger.jsonl")
    limits = Limits(epsilon=0.01, delta=1e-5)
    with pytest.raises(Refusal):
        contribute(one, limits, 1)
    contribute(one, LIMITED, 1)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(Refusal):
        contribute(one, limits, 2)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
