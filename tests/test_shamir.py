import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.secure.masking import shamir
from discreet.secure.masking.shamir import PRIME, recover, split

ELEMENTS = st.integers(0, PRIME - 1)


def passes_miller_rabin(number, bases):
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        value = pow(base, odd, number)
        if value not in (1, number - 1) and all(
            (value := pow(value, 2, number)) != number - 1 for _ in range(twos - 1)
        ):
            return False
    return True


def test_the_field_is_the_first_prime_above_all_secrets():
    # 40 bases: a composite passes with a chance below 4^-40
    assert passes_miller_rabin(PRIME, range(2, 42))
    assert not any(passes_miller_rabin(number, (2, 3)) for number in range(2**256, PRIME))
    assert PRIME < 2 ** (8 * shamir.SHARE_BYTES)


def test_shares_by_hand():
    # 5 + 3x + 2x^2 modulo 17 at 1, 2, 3, 4: 10, 19, 32, 49
    assert split(5, [1, 2, 3, 4], [3, 2], prime=17) == (10, 2, 15, 15)
    assert recover({1: 10, 3: 15, 4: 15}, 3, prime=17) == 5


@given(st.data())
def test_every_set_of_enough_shares_gives_the_secret(data):
    threshold = data.draw(st.integers(1, 12))
    points = data.draw(st.lists(st.integers(1, 2**32), min_size=threshold, max_size=20, unique=True))
    secret = data.draw(ELEMENTS)
    shares = split(
        secret, points, data.draw(st.lists(ELEMENTS, min_size=threshold - 1, max_size=threshold - 1))
    )
    chosen = data.draw(st.lists(st.sampled_from(points), min_size=threshold, unique=True))
    by_point = dict(zip(points, shares, strict=True))
    assert recover({point: by_point[point] for point in chosen}, threshold) == secret


@pytest.mark.parametrize("known", [0, 1, 2])
def test_fewer_shares_than_the_threshold_fit_every_secret_equally_often(known):
    prime, points = 7, [1, 2, 3, 5]
    true = split(4, points, [6, 2], prime=prime)[:known]
    fitting = Counter(
        secret
        for secret, *coefficients in itertools.product(range(prime), repeat=3)
        if split(secret, points, coefficients, prime=prime)[:known] == true
    )
    assert fitting == dict.fromkeys(range(prime), prime ** (2 - known))


def test_as_many_shares_as_the_threshold_fit_one_secret():
    prime, points = 7, [1, 2, 3, 5]
    true = split(4, points, [6, 2], prime=prime)[:3]
    fitting = {
        secret
        for secret, *coefficients in itertools.product(range(prime), repeat=3)
        if split(secret, points, coefficients, prime=prime)[:3] == true
    }
    assert fitting == {4}


@pytest.mark.parametrize("wrong", range(1, 8))
def test_a_wrong_share_shows_if_there_are_more_than_the_threshold(wrong):
    shares = dict(zip(range(1, 8), split(2**255, range(1, 8), [11, 22, 33]), strict=True))
    shares[wrong] = (shares[wrong] + 1) % PRIME
    with pytest.raises(ValueError, match="not of one secret"):
        recover(shares, 4)


def test_a_wrong_share_among_just_enough_gives_a_wrong_secret():
    one, two, three = split(2**255, [1, 2, 3], [11, 22])
    assert recover({1: one, 2: two, 3: three ^ 1}, 3) != 2**255


@pytest.mark.parametrize(
    ("secret", "points", "coefficients", "what"),
    [
        (1, [1, 2], [1, 2], "2 holders cannot reach a threshold of 3"),
        (PRIME, [1, 2], [1], "elements of the field"),
        (-1, [1, 2], [1], "elements of the field"),
        (1, [1, 2], [PRIME], "elements of the field"),
        (1, [1, 1], [1], "distinct"),
        (1, [0, 1], [1], "other than 0"),
    ],
)
def test_what_cannot_be_shared(secret, points, coefficients, what):
    with pytest.raises(ValueError, match=what):
        split(secret, points, coefficients)


@pytest.mark.parametrize(
    ("shares", "threshold", "what"),
    [
        ({1: 5}, 2, "1 shares, the threshold is 2"),
        ({1: PRIME, 2: 1}, 2, "element of the field"),
        ({0: 1, 2: 1}, 2, "other than 0"),
        ({}, 0, "threshold"),
    ],
)
def test_what_cannot_be_recovered(shares, threshold, what):
    with pytest.raises(ValueError, match=what):
        recover(shares, threshold)
