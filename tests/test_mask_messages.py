import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.secure.masking import MaskingTerms, shamir
from discreet.secure.masking.keys import SEALED_BYTES, PublicKeys
from discreet.secure.masking.messages import (
    AdvertisedKeys,
    Consent,
    Consents,
    DeliveredShares,
    MaskedInput,
    PeerKeys,
    SharedKeys,
    UnmaskRequest,
    UnmaskShares,
)

TERMS = MaskingTerms(
    run=b"run", round=3, cohort=tuple(range(0, 20, 2)), bits=5, length=11, degree=4, threshold=3, nonce=b"n"
)
PACKED = 7  # 55 bits
HEADER = 32
SIZES = {
    AdvertisedKeys: HEADER + 64 + 65,
    PeerKeys: HEADER + 4 + 4 * (4 + 64 + 65),
    SharedKeys: HEADER + 4 + 4 * (4 + 82),
    DeliveredShares: HEADER + 4 + 4 * (4 + 82),
    MaskedInput: HEADER + PACKED,
    UnmaskRequest: HEADER + 4 + 2 * (4 + 5 * 4),
    UnmaskShares: HEADER + 2 * (4 + 5 * (4 + 33)),
    Consent: HEADER + 64,
    Consents: HEADER + 4 + 3 * (4 + 64),
}

CLIENTS = st.integers(0, 2**32 - 1)
KEYS = st.builds(
    PublicKeys,
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.none() | st.binary(min_size=64, max_size=64),
)


def listed(values, most):
    return st.dictionaries(CLIENTS, values, max_size=most).map(lambda entries: tuple(sorted(entries.items())))


PEERS = st.lists(CLIENTS, max_size=5, unique=True).map(lambda peers: tuple(sorted(peers)))
SEALED = listed(st.binary(min_size=SEALED_BYTES, max_size=SEALED_BYTES), 4)
SIGNATURES = st.binary(min_size=64, max_size=64)
SHARES = listed(st.integers(0, shamir.PRIME - 1), 5)
MESSAGES = {
    AdvertisedKeys: st.builds(AdvertisedKeys, CLIENTS, KEYS),
    PeerKeys: st.builds(PeerKeys, CLIENTS, listed(KEYS, 4)),
    SharedKeys: st.builds(SharedKeys, CLIENTS, SEALED),
    DeliveredShares: st.builds(DeliveredShares, CLIENTS, SEALED),
    MaskedInput: st.builds(
        MaskedInput, CLIENTS, st.binary(min_size=6, max_size=6).map(lambda body: body + b"\x7f")
    ),
    UnmaskRequest: st.builds(UnmaskRequest, CLIENTS, PEERS, PEERS, st.integers(0, 2**32 - 1)),
    UnmaskShares: st.builds(UnmaskShares, CLIENTS, SHARES, SHARES),
    Consent: st.builds(Consent, CLIENTS, SIGNATURES),
    Consents: st.builds(Consents, CLIENTS, listed(SIGNATURES, 3)),
}
EXAMPLES = [
    AdvertisedKeys(2, PublicKeys(b"c" * 32, b"m" * 32, b"s" * 64)),
    PeerKeys(2, ((4, PublicKeys(b"c" * 32, b"m" * 32)), (6, PublicKeys(b"d" * 32, b"n" * 32, b"s" * 64)))),
    SharedKeys(2, ((4, b"x" * SEALED_BYTES),)),
    DeliveredShares(2, ((4, b"x" * SEALED_BYTES), (8, b"y" * SEALED_BYTES))),
    MaskedInput(2, b"\xff" * 6 + b"\x7f"),
    UnmaskRequest(2, (0, 2, 4), (8,), 9),
    UnmaskShares(2, ((0, 5), (2, 6)), ((8, shamir.PRIME - 1),)),
    Consent(2, b"s" * 64),
    Consents(2, ((2, b"s" * 64), (8, b"t" * 64))),
]
kinds = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


def read(message, data, **changes):
    about = {"terms": TERMS, "peer": "someone", "client": message.client} | changes
    return type(message).from_bytes(data, **about)


def test_there_is_an_example_of_every_message():
    assert [type(message) for message in EXAMPLES] == list(MESSAGES) == list(SIZES)
    assert len({message.kind for message in EXAMPLES}) == len(EXAMPLES)


@given(st.one_of(*MESSAGES.values()))
def test_there_and_back_at_the_length_that_was_worked_out_by_hand(message):
    data = message.to_bytes(TERMS)
    assert len(data) == SIZES[type(message)]
    assert read(message, data) == message


@kinds
def test_a_message_of_another_length_is_refused(message):
    data = message.to_bytes(TERMS)
    for other in (b"", data[:10], data[:-1], data + b"\0", data + data):
        with pytest.raises(RemoteProtocolError, match="length") as caught:
            read(message, other)
        assert (caught.value.peer, caught.value.round) == ("someone", 3)


@kinds
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"round": 4}, "round"),
        ({"run": b"other"}, "terms"),
        ({"nonce": b"other"}, "terms"),
        ({"threshold": 4}, "terms"),
        ({"minimum_survivors": 3}, "terms"),
        ({"cohort": tuple(range(1, 20, 2))}, "terms"),
    ],
)
def test_a_message_of_another_sum_is_refused(message, change, field):
    if isinstance(message, Consents) and "threshold" in change:
        field = "length"  # so many consents there are
    with pytest.raises(RemoteProtocolError, match=field):
        read(message, message.to_bytes(replace(TERMS, **change)))


@kinds
def test_a_message_of_another_client_or_kind_is_refused(message):
    data = message.to_bytes(TERMS)
    with pytest.raises(RemoteProtocolError, match="client: it names client 2, expected 4"):
        read(message, data, client=4)
    for at, value, field in ((0, 0, "protocol"), (2, 2, "protocol"), (3, message.kind + 1, "kind")):
        with pytest.raises(RemoteProtocolError, match=field):
            read(message, data[:at] + bytes([value]) + data[at + 1 :])


def test_messages_that_differ_in_their_kind_alone_are_not_taken_for_each_other():
    data = SharedKeys(2, ()).to_bytes(TERMS)
    with pytest.raises(RemoteProtocolError, match="kind: expected DeliveredShares"):
        DeliveredShares.from_bytes(data, TERMS, peer="someone", client=2)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: PublicKeys(b"short", b"m" * 32), "channel key"),
        (lambda: PublicKeys(b"c" * 32, b"m" * 33), "mask key"),
        (lambda: PublicKeys(b"c" * 32, b"m" * 32, b""), "signature"),
        (lambda: SharedKeys(1, ((2, b"short"),)), "sealed"),
        (lambda: SharedKeys(1, ((2, b"x" * 82), (2, b"x" * 82))), "ascending"),
        (lambda: UnmaskRequest(1, (3, 2), (), 1), "survivors: expected clients in ascending"),
        (lambda: UnmaskRequest(1, (), (2, 2), 1), "dropouts: expected clients in ascending"),
        (lambda: UnmaskShares(1, ((2, shamir.PRIME),), ()), "seeds: a share"),
        (lambda: UnmaskShares(1, (), ((2, -1),)), "keys: a share"),
        (lambda: UnmaskRequest(1, tuple(range(6)), (), 1).to_bytes(TERMS), "bytes, expected"),
        (lambda: MaskedInput(1, b"x").to_bytes(TERMS), "bytes, expected"),
        (lambda: Consent(1, b"short"), "signature: expected 64 bytes"),
        (lambda: Consents(1, ((2, b"short"),)), "signature: expected 64 bytes"),
        (lambda: Consents(1, ((2, b"s" * 64), (2, b"s" * 64))), "consents: expected clients in ascending"),
        (lambda: Consents(1, tuple((n, b"s" * 64) for n in range(4))).to_bytes(TERMS), "bytes, expected"),
    ],
)
def test_an_impossible_message_cannot_be_built(build, what):
    with pytest.raises(LocalProtocolError, match=what):
        build()


@pytest.mark.parametrize(
    ("message", "at", "value", "field"),
    [
        (EXAMPLES[0], HEADER + 64, 2, "signature: neither"),
        (EXAMPLES[0], HEADER + 64, 0, "signature: neither"),
        (EXAMPLES[3], HEADER, 3, "ascending"),  # an entry of zeros: client 0 after client 8
        (EXAMPLES[3], HEADER, 5, "more than 4 entries"),
        (EXAMPLES[3], HEADER, 1, "something after the last"),
        (EXAMPLES[3], HEADER + 3, 255, "more than 4 entries"),
        (EXAMPLES[4], HEADER + 6, 0x80, "spare bits"),
        (EXAMPLES[6], SIZES[UnmaskShares] - 1, 1, "something after the last"),
        (EXAMPLES[6], SIZES[UnmaskShares] // 2 + HEADER // 2 + 4 + 4 + 32, 2, "keys: a share"),
    ],
)
def test_one_changed_byte_is_refused_and_named(message, at, value, field):
    data = bytearray(message.to_bytes(TERMS))
    assert data[at] != value
    data[at] = value
    with pytest.raises(RemoteProtocolError, match=field):
        read(message, bytes(data))


@kinds
def test_mutated_bytes_are_refused_or_are_the_one_encoding_of_something(message):
    """600 mutations of every message: nothing but RemoteProtocolError, and never two encodings of one message."""
    generator = random.Random(type(message).__name__)
    data, refused = message.to_bytes(TERMS), 0
    for _ in range(600):
        mutated = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            match generator.randrange(4):
                case 0 if mutated:
                    mutated[generator.randrange(len(mutated))] ^= 1 << generator.randrange(8)
                case 1:
                    del mutated[generator.randrange(len(mutated) + 1) :]
                case 2:
                    mutated += generator.randbytes(generator.randint(0, 40))
                case _:
                    start = generator.randrange(len(mutated) + 1)
                    patch = generator.randbytes(4)
                    mutated[start : start + 4] = patch[: len(mutated) - start]
        try:
            seen = read(message, bytes(mutated))
        except RemoteProtocolError:
            refused += 1
        else:
            assert seen.to_bytes(TERMS) == bytes(mutated)
    assert refused > 200


def test_what_is_secret_is_not_shown():
    assert "7f" not in repr(EXAMPLES[4]) and "\\xff" not in repr(EXAMPLES[4])
    assert str(shamir.PRIME - 1) not in repr(EXAMPLES[6])
