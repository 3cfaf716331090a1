import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.wire import (
    INTRODUCTIONS,
    MOST_PARTS,
    MOST_ROUNDS,
    MOST_SITES,
    OVERHEAD,
    PART_OVERHEAD,
    SIGNATURE_BYTES,
    WELCOME,
    Envelope,
    Kind,
    Part,
    verify,
)

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([one]) * 32) for one in (1, 2))
PUBLIC = KEY.public_key().public_bytes_raw()

PARTS = st.builds(Part, st.integers(1, 255), st.binary(max_size=40))
ENVELOPES = st.builds(
    Envelope,
    kind=st.sampled_from(Kind),
    run=st.binary(min_size=16, max_size=16),
    session=st.integers(1, 2**32 - 1),
    sequence=st.integers(1, 2**63),
    round=st.integers(0, MOST_ROUNDS),
    attempt=st.integers(0, 2**16 - 1),
    site=st.integers(0, MOST_SITES - 1),
    parts=st.lists(PARTS, min_size=1, max_size=MOST_PARTS).map(tuple),
)


WORK = (Part(4, b"work"),)


def envelope(kind=Kind.REPLY, parts=WORK, **changes):
    fields = {"session": 1, "sequence": 7, "round": 3, "attempt": 0, "site": 2} | changes
    return Envelope(kind=kind, run=b"r" * 16, parts=tuple(parts), **fields)


def read(data, kind=Kind.REPLY, site=2, key=PUBLIC, **options):
    return Envelope.from_bytes(data, kind=kind, site=site, key=key, peer="peer", **options)


@given(ENVELOPES)
def test_a_message_comes_back_as_it_was(message):
    data = message.to_bytes(KEY.sign)
    assert read(data, message.kind, message.site) == message
    sizes = sum(PART_OVERHEAD + len(part.body) for part in message.parts)
    assert len(data) == OVERHEAD + sizes


@given(ENVELOPES, st.data())
def test_a_message_with_any_bit_changed_is_refused(message, data):
    sent = bytearray(message.to_bytes(KEY.sign))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        read(bytes(sent), message.kind, message.site)


@given(ENVELOPES, st.data())
def test_a_message_cut_off_or_with_something_added_is_refused(message, data):
    sent = message.to_bytes(KEY.sign)
    cut = data.draw(st.integers(0, len(sent) - 1))
    for wrong in (sent[:cut], sent + b"\0", sent[cut:]):
        if wrong != sent:
            with pytest.raises(RemoteProtocolError):
                read(wrong, message.kind, message.site)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(RemoteProtocolError):
        read(data)
    with pytest.raises(RemoteProtocolError):
        read(data, key=None)


@given(st.binary(min_size=2, max_size=200))
def test_a_signed_body_of_random_bytes_is_read_or_refused(body):
    header = bytearray(envelope().to_bytes(KEY.sign)[:54])
    header[-8:] = struct.pack("<Q", len(body))
    data = bytes(header) + body
    try:
        found = read(data + KEY.sign(data))
    except RemoteProtocolError as error:
        assert error.round == 3 and error.field.startswith(("parts", "length"))
    else:
        assert found.to_bytes(KEY.sign) == data + KEY.sign(data)  # one encoding of each message


@pytest.mark.parametrize(
    ("changes", "options", "field"),
    [
        ({}, {"key": OTHER.public_key().public_bytes_raw()}, "signature"),
        ({}, {"kind": Kind.REQUEST}, "kind"),
        ({}, {"site": 3}, "sender"),
        ({"kind": Kind.REQUEST}, {"kind": Kind.REQUEST, "site": 3}, "receiver"),
        ({}, {"largest": 100}, "length"),
        ({}, {"key": b"short"}, "signature"),
        ({}, {"key": None}, "parts"),
        ({"parts": [Part(WELCOME, b"too short")]}, {"key": None}, "parts"),
    ],
)
def test_what_is_wrong_is_named(changes, options, field):
    data = envelope(**changes).to_bytes(KEY.sign)
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        read(data, **options)
    assert caught.value.peer == "peer"


@pytest.mark.parametrize("kind", INTRODUCTIONS)
def test_an_introduction_is_signed_by_the_key_that_it_states(kind):
    parts = [Part(kind, PUBLIC + b"more"), Part(9, b"")]
    assert read(envelope(parts=parts).to_bytes(KEY.sign), key=None).parts == tuple(parts)
    with pytest.raises(RemoteProtocolError, match="signature"):
        read(envelope(parts=parts).to_bytes(OTHER.sign), key=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"session": 0},
        {"sequence": 0},
        {"site": MOST_SITES},
        {"round": MOST_ROUNDS + 1},
        {"attempt": 2**16},
        {"parts": []},
        {"parts": [Part(1, b"")] * (MOST_PARTS + 1)},
    ],
)
def test_a_message_that_is_out_of_range_cannot_be_made(changes):
    with pytest.raises(LocalProtocolError):
        envelope(**changes)


def test_no_part_may_be_longer_than_its_message():
    data = bytearray(envelope().to_bytes(KEY.sign))
    data[56:64] = struct.pack("<Q", 2**62)
    signed = bytes(data[:-SIGNATURE_BYTES])
    with pytest.raises(RemoteProtocolError, match="longer"):
        read(signed + KEY.sign(signed))


@given(st.binary(max_size=40), st.binary(max_size=10), st.binary(max_size=70))
def test_nothing_is_verified_by_chance(public, message, signature):
    assert not verify(public, message, signature)
