"""A small, fixed part of what ``benchmarks/fuzz_wire.py`` tries: whatever arrives, only RemoteProtocolError comes out."""

import pytest

from discreet.errors import RemoteProtocolError
from scripts import loaded


@pytest.fixture(scope="module")
def fuzz():
    with loaded("benchmarks", "fuzz_wire.py") as module:
        yield module


def test_envelopes_and_parts(fuzz):
    for target in fuzz.envelopes():
        outcomes = fuzz.tried(target, 5_000, seed=1)
        # the mutations get everywhere: past the signature too
        assert {"length", "protocol", "sender", "signature", "parts", "taken"} <= outcomes.keys()
        assert outcomes.total() == 5_000


@pytest.mark.parametrize("name", ["clear", "masked", "masked, one gone", "additive"])
def test_both_ends_of_a_run(fuzz, name):
    for target, count in ((fuzz.sites(name), 250), (fuzz.server(name), 80)):
        for message in target.valid:
            target.choose(message)
            target.read(message)  # what was not changed is taken
        outcomes = fuzz.tried(target, count, seed=2)
        assert {"length", "parts", "signature", "taken"} <= outcomes.keys()


def sign(message):
    return b"signature"


def test_whatever_else_comes_out_is_found(fuzz):
    def read(data):
        if len(data) > 5:
            raise IndexError("careless")
        raise RemoteProtocolError("peer", 0, "short")

    target = fuzz.Target("careless", [b"12345"], read, sign, 1)
    with pytest.raises(fuzz.Found, match="careless: IndexError: careless from the message ") as caught:
        fuzz.tried(target, 1_000, seed=0)
    assert len(bytes.fromhex(caught.value.message)) > 5


def test_the_same_seed_tries_the_same_messages(fuzz):
    seen = {0: [], 1: [], 2: []}
    for seed, which in ((3, 0), (3, 1), (4, 2)):
        target = fuzz.Target("seen", [b"some message"], seen[which].append, sign, 1)
        fuzz.tried(target, 200, seed)
    assert seen[0] == seen[1] != seen[2]
