import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import ConfigError
from discreet.privacy.modulus import (
    bits_by_paper_rule,
    bits_by_sum_rule,
    bits_for_sum,
    tail_for,
    wrap_probability,
)

# noise multipliers for epsilon 0.5, 1, 2, 4, 8 at sampling 0.1, 200 rounds, delta 1e-5
SIGMAS = (10.99, 5.889, 3.237, 1.881, 1.196)


def test_the_table_of_the_paper_s_rule():
    assert [bits_by_paper_rule(159_010, 100, sigma) for sigma in SIGMAS] == [23, 22, 21, 20, 20]


def test_the_table_of_the_sum_rule():
    assert [bits_by_sum_rule(159_010, 100, sigma) for sigma in SIGMAS] == [17, 16, 15, 15, 14]


@pytest.mark.parametrize(
    ("largest", "cohort", "bits"),
    # without noise, -K..K takes 2K + 1 values: 3 votes take 7, 4 votes take 9
    [(1, 1, 2), (1, 3, 3), (1, 4, 4), (127, 1, 8), (128, 1, 9), (2**52, 1, 54)],
)
def test_exact_at_powers_of_two(largest, cohort, bits):
    assert bits_for_sum(largest, cohort, 0.0) == bits


def test_votes_are_a_case_of_the_general_rule():
    assert bits_by_sum_rule(10_000, 7, 2.0, tail=5.0) == bits_for_sum(1, 7, 200.0, 5.0)


@given(
    largest=st.integers(1, 10**6),
    cohort=st.integers(1, 1000),
    noise_std=st.floats(0, 1e9),
    parameters=st.integers(1, 10**8),
    rounds=st.integers(1, 10**4),
)
def test_a_modulus_for_a_failure_probability_keeps_it(largest, cohort, noise_std, parameters, rounds):
    tail = tail_for(1e-9, parameters=parameters, rounds=rounds)
    bits = bits_for_sum(largest, cohort, noise_std, tail)
    assert 2**bits >= 2 * cohort * largest + 1
    assert wrap_probability(bits, largest, cohort, noise_std, parameters=parameters, rounds=rounds) <= 1.01e-9


def test_twelve_deviations_are_below_two_to_the_minus_eighty():
    # room for exactly 12 standard deviations: 2 exp(-72)
    found = wrap_probability(10, 1, 500, 1.0, parameters=1)
    assert found == pytest.approx(2 * math.exp(-72), rel=1e-9)
    assert found < 2**-80


def test_the_union_bound_counts_coordinates_and_rounds():
    one = wrap_probability(10, 1, 500, 1.0, parameters=1)
    assert wrap_probability(10, 1, 500, 1.0, parameters=50, rounds=3) == pytest.approx(150 * one)


def test_votes_that_fill_the_group_may_wrap():
    assert wrap_probability(3, 1, 4, 0.0, parameters=1) == 1.0
    assert wrap_probability(3, 1, 3, 0.0, parameters=1) == 0.0


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("noise_multiplier", lambda: bits_by_sum_rule(10, 10, 0.0)),
        ("cohort", lambda: bits_by_paper_rule(10, 0, 1.0)),
        ("parameters", lambda: bits_by_sum_rule(0, 10, 1.0)),
        ("noise_std", lambda: bits_for_sum(1, 10, -1.0)),
        ("noise_std", lambda: bits_for_sum(1, 10, math.inf)),
        ("modulus", lambda: bits_for_sum(2**60, 100, 0.0)),
        ("failure_probability", lambda: tail_for(0.0, parameters=1)),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(key, call):
    with pytest.raises(ConfigError) as refusal:
        call()
    assert refusal.value.key == key
