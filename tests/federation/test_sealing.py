import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import LocalProtocolError
from discreet.federation.sealing import NONCE_BYTES, OVERHEAD, Topic
from discreet.secure.masking.keys import KeyPair

ONE, OTHER, THIRD = (KeyPair.of(number, bytes([number + 1]) * 32) for number in range(3))
TOPIC = Topic(b"share", b"r" * 16, 1, 2, 0, 0, b"a" * 32, 4)
NONCE = bytes(range(NONCE_BYTES))


@given(st.binary(max_size=100), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_what_is_sealed_is_read_by_its_receiver_and_by_nobody_else(body, nonce):
    sealed = TOPIC.seal(ONE, OTHER.client, OTHER.public, nonce, body)
    assert len(sealed) == len(body) + OVERHEAD
    assert TOPIC.open(OTHER, ONE.client, ONE.public, sealed) == body
    with pytest.raises(LocalProtocolError):
        TOPIC.open(THIRD, ONE.client, ONE.public, sealed)
    with pytest.raises(LocalProtocolError):
        TOPIC.open(OTHER, THIRD.client, THIRD.public, sealed)
    with pytest.raises(LocalProtocolError):
        TOPIC.open(OTHER, THIRD.client, ONE.public, sealed)


@pytest.mark.parametrize(
    "change",
    [
        {"purpose": b"row total"},
        {"run": b"s" * 16},
        {"session": 2},
        {"round": 3},
        {"attempt": 1},
        {"phase": 1},
        {"drawn": 3},
        {"agreed": b"b" * 32},
    ],
)
def test_it_opens_under_no_other_topic(change):
    sealed = TOPIC.seal(ONE, OTHER.client, OTHER.public, NONCE, b"secret")
    with pytest.raises(LocalProtocolError, match="site 0"):
        dataclasses.replace(TOPIC, **change).open(OTHER, ONE.client, ONE.public, sealed)


@given(st.data())
def test_it_opens_only_whole(data):
    sealed = bytearray(TOPIC.seal(ONE, OTHER.client, OTHER.public, NONCE, b"secret"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(sealed), bytes(sealed[:-1]), b"", b"x"):
        with pytest.raises(LocalProtocolError):
            TOPIC.open(OTHER, ONE.client, ONE.public, wrong)


def test_a_weak_key_is_refused():
    with pytest.raises(LocalProtocolError, match="weak"):
        TOPIC.seal(ONE, OTHER.client, bytes(32), NONCE, b"secret")
