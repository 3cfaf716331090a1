import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from discreet.secure.groups import Reals, Signs, accumulate, decode, encode, lifted, wire_bytes, zeros
from discreet.secure.ring import Ring
from federations import same_bits

SHAPES = st.tuples(st.integers(0, 4), st.integers(0, 40))
REALS = st.sampled_from([(Reals(), np.float32, 32), (Reals(torch.float64), np.float64, 64)])


@st.composite
def reals(draw):
    group, dtype, width = draw(REALS)
    values = draw(arrays.arrays(dtype, draw(SHAPES), elements=st.floats(width=width)))
    return group, torch.from_numpy(values)


@st.composite
def signs(draw, least=0):
    shape = (draw(st.integers(least, 5)), draw(st.integers(0, 40)))
    return torch.from_numpy(draw(arrays.arrays(np.int8, shape, elements=st.sampled_from([-1, 1]))))


@given(reals())
def test_reals_survive_the_wire_bit_for_bit(case):
    group, elements = case
    count, length = elements.shape
    body = encode(group, elements)
    assert body.dtype == np.uint8 and body.shape == (count, wire_bytes(group, length))
    assert wire_bytes(group, length) == length * (4 if group.dtype is torch.float32 else 8)
    assert same_bits(decode(group, body, length), elements)


@given(signs())
def test_signs_survive_the_wire(elements):
    count, length = elements.shape
    body = encode(Signs(), elements)
    assert body.dtype == np.uint8 and body.shape == (count, wire_bytes(Signs(), length))
    assert wire_bytes(Signs(), length) == -(-length // 8)
    decoded = decode(Signs(), body, length)
    assert decoded.dtype == torch.int8 and torch.equal(decoded, elements)


def test_what_lies_on_the_wire():
    votes = torch.tensor([[1, -1, -1, 1, -1, -1, -1, -1, 1]], dtype=torch.int8)
    assert encode(Signs(), votes).tolist() == [[0b1001, 1]]
    assert encode(Reals(), torch.tensor([[1.5, -2.0]])).tobytes() == struct.pack("<2f", 1.5, -2)
    assert encode(Reals(torch.float64), torch.tensor([[0.1]])).tobytes() == struct.pack("<d", np.float32(0.1))


@given(st.one_of(reals(), signs().map(lambda elements: (Signs(), elements))))
def test_bytes_as_they_come_from_a_message_are_decoded(case):
    group, elements = case
    body = encode(group, elements)
    received = np.frombuffer(body.tobytes(), np.uint8).reshape(body.shape)
    assert same_bits(decode(group, received, elements.shape[1]), elements)


@st.composite
def integers(draw):
    """Signed integers, most of them outside the ring's range."""
    shape, bits = draw(SHAPES), draw(st.integers(1, 64))
    values = draw(arrays.arrays(np.int64, shape, elements=st.integers(-(2**63), 2**63 - 1)))
    return Ring(bits), torch.from_numpy(values)


@given(integers(), st.data())
def test_integers_are_summed_modulo_the_ring_however_they_are_cut(case, data):
    ring, elements = case
    count, length = elements.shape
    body = encode(ring, elements)
    assert body.dtype == np.uint8 and body.shape == (count, wire_bytes(ring, length))
    assert wire_bytes(ring, length) == -(-length * ring.bits // 8)
    received = decode(ring, body, length)
    cut = data.draw(st.integers(0, count))
    total = zeros(ring, (length,))
    for part in (received[:cut], received[cut:]):
        accumulate(ring, total, part)
    modulus, half = 2**ring.bits, 2 ** (ring.bits - 1)
    plain = [sum(row[place] for row in elements.tolist()) for place in range(length)]  # of Python's integers
    assert lifted(ring, total).tolist() == [(value + half) % modulus - half for value in plain]
    assert lifted(ring, total).dtype == torch.int64


def test_only_totals_of_rings_are_lifted():
    for group in (Reals(), Signs()):
        total = zeros(group, (2,)) + 300
        assert same_bits(lifted(group, total), total)
    assert lifted(Ring(8), torch.tensor([300, 127, 128])).tolist() == [44, 127, -128]


@pytest.mark.parametrize("group", [Reals(), Reals(torch.float64), Signs(), Ring(5), Ring(33)])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 1), (2, 0)])
def test_a_body_of_the_wrong_shape_is_refused(group, shape):
    with pytest.raises(ValueError, match=f"rows of {wire_bytes(group, 20)} bytes"):
        decode(group, np.zeros(shape, np.uint8), 20)
    for wrong in (-1, 1):
        with pytest.raises(ValueError, match="bytes"):
            decode(group, np.zeros((2, wire_bytes(group, 20) + wrong), np.uint8), 20)


@given(signs(), st.data())
def test_votes_are_counted_exactly_however_they_are_cut(elements, data):
    cut = data.draw(st.integers(0, len(elements)))
    total = zeros(Signs(), (elements.shape[1],))
    for part in (elements[:cut], elements[cut:]):
        accumulate(Signs(), total, part)
    assert total.dtype == torch.int32
    assert total.tolist() == [sum(column) for column in zip(*elements.tolist(), strict=True)] or not len(
        elements
    )
    assert len(elements) or not total.any()


def test_many_votes_do_not_overflow():
    total = zeros(Signs(), (2,))
    votes = torch.ones(1000, 2, dtype=torch.int8)
    votes[:, 1] = -1
    for _ in range(3):
        accumulate(Signs(), total, votes)
    assert total.tolist() == [3000, -3000]


@given(
    REALS, st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), max_size=8), st.data()
)
def test_reals_are_added_in_order_however_they_are_cut(kind, rows, data):
    group, dtype, _ = kind
    elements = torch.from_numpy(np.array(rows, dtype=dtype).reshape(-1, 3))
    cut = data.draw(st.integers(0, len(rows)))
    total = zeros(group, (3,))
    for part in (elements[:cut], elements[cut:]):
        accumulate(group, total, part)
    plain = [0.0, 0.0, 0.0]
    for row in rows:  # Python's floats are float64 too
        plain = [sum_ + value for sum_, value in zip(plain, row, strict=True)]
    assert total.dtype == torch.float64 and total.tolist() == plain


@pytest.mark.parametrize(
    ("group", "dtype"), [(Reals(), torch.float64), (Signs(), torch.int32), (Ring(9), torch.int64)]
)
def test_the_neutral_total_is_zero_in_the_totals_type(group, dtype):
    total = zeros(group, (2, 3))
    assert total.shape == (2, 3) and total.dtype == dtype and not total.any()
