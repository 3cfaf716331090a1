"""Laws of Z_2^b against Python's own integers, and of the wire against a stream of bits written out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from discreet.errors import ConfigError
from discreet.secure.packing import pack, packed_bytes, unpack
from discreet.secure.ring import Ring

BITS = st.integers(1, 64)
ALL_BITS = pytest.mark.parametrize("bits", range(1, 65))


def vectors(bits, shape):
    return arrays.arrays(
        Ring(bits).dtype, shape, elements=st.integers(0, 2**bits - 1), fill=st.integers(0, 2**bits - 1)
    )


@st.composite
def two_vectors(draw):
    bits, length = draw(BITS), draw(st.integers(0, 40))
    return Ring(bits), draw(vectors(bits, length)), draw(vectors(bits, length))


@pytest.mark.parametrize(
    "bits, word", [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64)]
)
def test_the_word_is_the_smallest(bits, word):
    ring = Ring(bits)
    assert ring.word == word
    assert ring.dtype.itemsize * 8 == word and ring.dtype.kind == "u"
    assert ring.zeros((2, 3)).shape == (2, 3)


@pytest.mark.parametrize("bits", [0, -3, 65])
def test_other_sizes_are_refused(bits):
    with pytest.raises(ConfigError, match=f"modulus_bits = {bits}: expected .* 1 to 64"):
        Ring(bits)


@given(two_vectors())
def test_arithmetic_is_that_of_integers_modulo_2_to_the_b(sample):
    ring, left, right = sample
    before = left.copy(), right.copy()
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    assert ring.add(left, right).tolist() == [(a + b) % ring.modulus for a, b in pairs]
    assert ring.subtract(left, right).tolist() == [(a - b) % ring.modulus for a, b in pairs]
    assert (left == before[0]).all() and (right == before[1]).all()  # nothing is changed unless asked for


@given(two_vectors())
def test_in_place_gives_the_same(sample):
    ring, left, right = sample
    for operation in (ring.add, ring.subtract):
        expected = operation(left, right)
        target = left.copy()
        assert operation(target, right, out=target) is target
        assert (target == expected).all()


@given(st.data(), BITS, st.integers(0, 6), st.integers(0, 5))
def test_total_is_the_sum_of_all(data, bits, count, length):
    ring = Ring(bits)
    many = data.draw(vectors(bits, (count, length)))
    expected = [sum(column) % ring.modulus for column in zip(*many.tolist(), strict=True)] or [0] * length
    assert ring.total(many).tolist() == expected
    assert ring.total(many).dtype == ring.dtype


def test_a_total_of_many_wraps_exactly():
    # 1000 times 2^7 - 1 modulo 2^7 is -1000 modulo 128 = 24, though a byte wraps many times on the way
    assert Ring(7).total(np.full((1000, 2), 127, np.uint8)).tolist() == [24, 24]


@given(st.data(), BITS)
def test_lift_is_centred_and_reduce_its_inverse(data, bits):
    ring = Ring(bits)
    elements = data.draw(vectors(bits, 20))
    lifted = ring.lift(elements)
    assert lifted.dtype == np.int64
    half = ring.modulus // 2
    assert lifted.tolist() == [a - ring.modulus if a >= half else a for a in elements.tolist()]
    assert (ring.reduce(lifted) == elements).all()


@given(
    BITS,
    st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint64]).flatmap(
        lambda kind: arrays.arrays(kind, st.integers(0, 30))
    ),
)
def test_reduce_takes_integers_of_any_type(bits, integers):
    ring = Ring(bits)
    reduced = ring.reduce(integers)
    assert reduced.tolist() == [a % ring.modulus for a in integers.tolist()]
    assert ring.contains(reduced)
    assert not np.shares_memory(reduced, integers)


def test_what_is_not_an_element_is_refused():
    ring = Ring(5)
    with pytest.raises(TypeError, match="float64"):
        ring.reduce(np.zeros(3))
    with pytest.raises(TypeError, match="uint8, got uint16"):
        ring.add(np.zeros(3, np.uint8), np.zeros(3, np.uint16))
    assert ring.contains(np.array([0, 31], np.uint8))
    assert ring.contains(np.zeros(0, np.uint8))
    assert not ring.contains(np.array([0, 32], np.uint8))
    assert not ring.contains(np.array([0, 31], np.int8))
    assert Ring(8).contains(np.array([255], np.uint8))


def bits_by_hand(elements, bits):
    """The stream as one big integer: element k shifted by k * bits."""
    stream = sum(element << (index * bits) for index, element in enumerate(elements))
    return stream.to_bytes((len(elements) * bits + 7) // 8, "little")


@ALL_BITS
def test_the_wire_is_a_little_endian_stream_of_bits(bits):
    generator = np.random.default_rng(bits)
    for length in (0, 1, 2, 7, 8, 9, 63, 64, 65, 200):
        elements = Ring(bits).reduce(generator.integers(0, 2**64, length, dtype=np.uint64))
        body = pack(Ring(bits), elements)
        assert body.tobytes() == bits_by_hand(elements.tolist(), bits)
        assert len(body) == packed_bytes(length, bits)
        assert (unpack(Ring(bits), body, length) == elements).all()


@ALL_BITS
def test_long_vectors_cross_pieces_unharmed(bits):
    length = 2 * 65_536 + 77
    elements = Ring(bits).reduce(np.random.default_rng(bits).integers(0, 2**64, length, dtype=np.uint64))
    kept = elements.copy()
    body = pack(Ring(bits), elements)
    assert (elements == kept).all()
    assert (unpack(Ring(bits), body, length) == elements).all()
    # around the seams, and at the end, against the hand-written stream
    for start in (65_536 - 64, 131_072 - 64, length - 77):
        part = elements[start : start + 77].tolist()
        first = start * bits // 8  # `start` is a multiple of 64, so it begins a byte
        whole = 77 * bits // 8
        assert body[first : first + whole].tobytes() == bits_by_hand(part, bits)[:whole]


@given(st.data(), BITS, st.integers(0, 5), st.integers(0, 140))
def test_rows_are_packed_each_for_itself(data, bits, count, length):
    ring = Ring(bits)
    seed = data.draw(st.integers(0, 2**32))
    many = ring.reduce(np.random.default_rng(seed).integers(0, 2**64, (count, length), dtype=np.uint64))
    body = pack(ring, many)
    assert body.shape == (count, packed_bytes(length, bits)) and body.dtype == np.uint8
    for row, packed in zip(many, body, strict=True):
        assert (pack(ring, row) == packed).all()
    assert (unpack(ring, body, length) == many).all()
    backwards = many[:, ::-1]  # memory in another order
    assert (unpack(ring, pack(ring, backwards), length) == backwards).all()


def test_many_short_rows_cross_pieces_unharmed():
    ring = Ring(11)
    many = ring.reduce(np.random.default_rng(0).integers(0, 2**11, (1500, 100)))
    assert (unpack(ring, pack(ring, many), 100) == many).all()


def test_what_does_not_fit_is_refused():
    ring = Ring(5)
    with pytest.raises(TypeError, match="uint8, got uint16"):
        pack(ring, np.zeros(3, np.uint16))
    with pytest.raises(ValueError, match=r"\(1, 1, 3\)"):
        pack(ring, np.zeros((1, 1, 3), np.uint8))
    with pytest.raises(ValueError, match="3 elements of 5 bits take rows of 2 bytes"):
        unpack(ring, np.zeros(3, np.uint8), 3)
    with pytest.raises(ValueError, match="take rows of 2 bytes"):
        unpack(ring, np.zeros(2, np.int8), 3)
    with pytest.raises(ValueError, match="the 1 spare bits"):
        unpack(ring, np.array([0, 128], np.uint8), 3)
    assert unpack(ring, np.array([255, 127], np.uint8), 3).tolist() == [31, 31, 31]
