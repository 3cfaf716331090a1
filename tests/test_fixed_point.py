"""Fixed point: what goes in comes out within the stated error, sums never wrap, and what is cut is counted."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from discreet.errors import ConfigError
from discreet.secure.fixed_point import FixedPoint, max_parties
from discreet.secure.ring import Ring

SETTINGS = st.tuples(
    st.floats(1e-3, 1e4),  # limit
    st.floats(1e-6, 0.5),  # error
    st.integers(1, 5000),  # parties
)


@given(SETTINGS)
def test_scale_and_ring_are_the_smallest_that_keep_the_promise(setting):
    limit, error, parties = setting
    form = FixedPoint.for_range(limit, error, parties)
    assert form.error <= error < 2 * form.error
    assert np.frexp(form.scale)[0] == 0.5  # a power of two
    assert form.limit >= limit
    largest = max(1, -int(-Fraction(limit) * Fraction(form.scale) // 1))
    half = 2 ** (form.bits - 1)
    assert parties * largest <= half - 1
    assert parties * largest > half // 2 - 1, "a ring of one bit less would have done"


@given(SETTINGS, st.data())
def test_a_sum_is_right_to_the_parties_rounding(setting, data):
    limit, error, parties = setting
    parties = min(parties, 30)
    form = FixedPoint.for_range(limit, error, parties)
    values = data.draw(
        arrays.arrays(np.float64, (parties, 4), elements=st.floats(-limit, limit), fill=st.just(limit))
    )
    encoded = form.encode(values)
    assert encoded.saturated.tolist() == [0] * parties
    assert form.ring.contains(encoded.elements)
    decoded = form.decode(form.ring.total(encoded.elements))
    for column, found in zip(values.T.tolist(), decoded.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert abs(Fraction(found) - exact) <= parties * Fraction(form.error)


def test_the_extreme_sum_does_not_wrap():
    form = FixedPoint.for_range(1.0, 2**-9, parties=127, bits=16)  # scale 256: 127 * 256 = 32512 <= 32767
    assert form.scale == 256
    everyone = np.ones((127, 1), np.float32)
    for sign in (1, -1):
        assert form.decode(form.ring.total(form.encode(sign * everyone).elements)).tolist() == [127.0 * sign]


def test_one_party_too_many_is_refused_with_the_number_that_fits():
    assert max_parties(1.0, 2**-9, 16) == 127  # 32767 // 256
    assert FixedPoint.for_range(1.0, 2**-9, 127, bits=16).parties == 127
    with pytest.raises(ConfigError, match=r"parties = 128: expected at most 127 .* in 16 bits"):
        FixedPoint.for_range(1.0, 2**-9, 128, bits=16)
    with pytest.raises(ConfigError, match=r"at most 0 .* in 64 bits"):
        FixedPoint.for_range(1e12, 1e-9, 1)
    with pytest.raises(ConfigError, match="parties = 128: expected at most 127"):
        FixedPoint(1.0, 8, 128)


@given(SETTINGS, st.integers(2, 64), st.integers(0, 2**20))
def test_max_parties_is_the_largest_number_accepted(setting, bits, reserve):
    limit, error, _ = setting
    most = max_parties(limit, error, bits, reserve)
    assume(most < 2**40)
    scale = FixedPoint.for_range(limit, error, 1).scale
    if most:
        assert FixedPoint.for_range(limit, error, most, bits, reserve / scale).largest >= limit * scale
    with pytest.raises(ConfigError, match=f"at most {most} "):
        FixedPoint.for_range(limit, error, most + 1, bits, reserve / scale)


def test_a_reserve_keeps_room_for_noise():
    form = FixedPoint.for_range(1.0, 0.5, parties=10, reserve=100.0)
    assert (form.scale, form.reserve) == (1.0, 100)
    assert form.bits == 8  # 10 * 1 + 100 <= 127
    assert form.largest == 2  # (127 - 100) // 10


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.integers(2, 64),
    st.integers(1, 3),
    st.integers(-3, 12),
)
def test_saturation_is_counted_never_wrapped(values, bits, parties, power):
    assume(2 ** (bits - 1) - 1 >= parties)
    form = FixedPoint(2.0**power, bits, parties)
    elements, saturated = form.encode(np.array(values))
    rounded = [round(Fraction(value) * Fraction(form.scale)) for value in values]
    assert int(saturated) == sum(abs(integer) > form.largest for integer in rounded)
    cut = [max(-form.largest, min(form.largest, integer)) for integer in rounded]
    assert form.ring.lift(elements).tolist() == cut


@pytest.mark.parametrize("bits", [54, 63, 64])
def test_bounds_beyond_the_precision_of_floats_are_exact(bits):
    form = FixedPoint(1.0, bits, 1)
    elements, saturated = form.encode(np.array([1e300, -1e300, 2.0**53, float(2 ** (bits - 1))]))
    assert form.ring.lift(elements).tolist() == [
        form.largest,
        -form.largest,
        min(2**53, form.largest),
        form.largest,
    ]
    assert int(saturated) == (4 if bits == 54 else 3)


def test_overflow_of_the_scaling_itself_is_counted():
    form = FixedPoint(2.0**60, 64, 1)
    elements, saturated = form.encode(np.array([[1e308, 1.0], [0.0, -1.0]]))
    assert saturated.tolist() == [1, 0]
    assert form.ring.lift(elements).tolist() == [[2**63 - 1, 2**60], [0, -(2**60)]]


def test_rounding_to_nearest_takes_halves_to_even():
    form = FixedPoint(1.0, 8, 1)
    values = np.array([0.5, 1.5, -0.5, -1.5, 0.49, -0.51], np.float32)
    assert form.ring.lift(form.encode(values).elements).tolist() == [0, 2, 0, -2, 0, -1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_by_place(bad):
    values = np.zeros((2, 3))
    values[1, 2] = bad
    with pytest.raises(ValueError, match=r"\(1, 2\) is -?(nan|inf)"):
        FixedPoint(1.0, 8, 1).encode(values)


@given(arrays.arrays(np.float64, 10, elements=st.floats(-50, 50)), arrays.arrays(np.uint64, 10))
def test_unbiased_rounding_goes_to_a_neighbour_and_keeps_integers(values, words):
    form = FixedPoint(2.0, 16, 1)
    integers = form.ring.lift(form.encode_unbiased(values, words).elements)
    assert (np.abs(integers - values * 2.0) <= 1).all()
    whole = values * 2.0 == np.rint(values * 2.0)
    assert (integers[whole] == values[whole] * 2.0).all()


def test_unbiased_rounding_goes_up_as_often_as_the_fraction_says():
    form = FixedPoint(4.0, 16, 1)
    # of 2^10 evenly spaced words exactly the fraction's share must go up
    words = np.arange(2**10, dtype=np.uint64) << np.uint64(54)
    for value in (0.1875, -0.1875, 0.0625, -2.3125):
        scaled = value * 4
        up = Fraction(scaled) - Fraction(int(np.floor(scaled)))
        integers = form.ring.lift(form.encode_unbiased(np.full(2**10, value), words).elements)
        assert set(integers.tolist()) == {int(np.floor(scaled)), int(np.floor(scaled)) + 1}
        assert Fraction(int((integers > scaled).sum()), 2**10) == up


def test_unbiased_rounding_needs_a_word_a_value():
    with pytest.raises(ValueError, match="as many words"):
        FixedPoint(1.0, 8, 1).encode_unbiased(np.zeros(3), np.zeros(2, np.uint64))


@pytest.mark.parametrize(
    "arguments, key",
    [
        ((0.0, 8, 1), "scale"),
        ((float("nan"), 8, 1), "scale"),
        ((1.0, 1, 1), "modulus_bits"),
        ((1.0, 65, 1), "modulus_bits"),
        ((1.0, 8, 0), "parties"),
        ((1.0, 8, 1, -1), "reserve"),
    ],
)
def test_impossible_settings_are_refused(arguments, key):
    with pytest.raises(ConfigError, match=key):
        FixedPoint(*arguments)


@pytest.mark.parametrize(
    "limit, error, key",
    [
        (0.0, 0.1, "limit"),
        (1.0, 0.0, "error"),
        (np.inf, 0.1, "limit"),
        (1.0, 5e-324, "error"),
        (1e308, 1e-300, "parties"),
    ],
)
def test_impossible_ranges_are_refused(limit, error, key):
    with pytest.raises(ConfigError, match=key):
        FixedPoint.for_range(limit, error, 1)


def test_the_ring_is_that_of_the_bits():
    assert FixedPoint(1.0, 17, 3).ring == Ring(17)
