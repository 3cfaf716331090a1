from dataclasses import MISSING, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import LocalProtocolError
from discreet.federation import parts
from discreet.federation.fields import (
    Bytes,
    Exactly,
    Many,
    Number,
    Of,
    Text,
    Truth,
    Whole,
    is_written_whole,
)

KINDS = [*parts.ASKED.values(), *parts.ANSWERED.values()]


def values(field):
    """Values that a field takes."""
    match field:
        case Whole(size, most):
            return st.integers(0, 256**size - 1 if most is None else most)
        case Truth():
            return st.booleans()
        case Number():
            return st.none() | st.floats(allow_nan=False, allow_infinity=False)
        case Exactly(size):
            return st.binary(min_size=size, max_size=size)
        case Bytes():
            return st.binary(max_size=20)
        case Text(most):
            return st.text(max_size=min(20, most // 4))
        case Many(item, most):
            return st.lists(values(item), max_size=min(3, most)).map(tuple)
        case Of(kind):
            return records(kind)
    raise AssertionError(field)


def records(kind):
    return st.builds(kind, **{name: values(field) for name, field in kind.written.items()})


def test_there_are_parts_and_all_their_fields_are_written():
    assert len(KINDS) == 17 == len({kind.kind for kind in KINDS})
    for kind in (*KINDS, parts.Member, parts.Features):
        assert is_written_whole(kind), kind
        assert all(field.default is not MISSING or field.name in kind.written for field in fields(kind))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_part_comes_back_as_it_was_and_nothing_else_reads_like_it(kind, data):
    sent = data.draw(records(kind))
    read = parts.asked if issubclass(kind, parts.Asked) else parts.answered
    assert read(sent.part) == sent
    body = sent.to_bytes()
    for wrong in (body + b"\0", body[:-1]):
        if wrong != body:
            with pytest.raises(LocalProtocolError):
                kind.from_bytes(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(body=st.binary(max_size=200))
def test_random_bytes_are_refused_or_have_one_encoding(kind, body):
    try:
        found = kind.from_bytes(body)
    except LocalProtocolError:
        return
    assert found.to_bytes() == body


def test_what_leaves_a_site_is_said_of_every_answer():
    assert set(parts.LEAVES) == {kind.__name__ for kind in parts.ANSWERED.values()}
    assert all(len(text) > 15 for text in parts.LEAVES.values())


def test_a_list_longer_than_what_is_there_is_refused_at_once():
    with pytest.raises(LocalProtocolError, match="senders"):
        parts.Holding.from_bytes(b"\0" + b"\xff\xff\0\0" + b"\0" * 8)
