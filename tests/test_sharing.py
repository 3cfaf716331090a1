"""Sharing: the shares add up, any s - 1 of them tell nothing, and seeds are expanded as the docstring says."""

import hashlib
import hmac
import itertools
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.randomness import Seeded, SystemRandom
from discreet.secure import expansion, sharing
from discreet.secure.expansion import Seed, accumulate, expand
from discreet.secure.ring import Ring
from discreet.secure.sharing import ExplicitShare, add, elements, from_bytes, reconstruct, split, to_bytes

FALSE_ALARM = 1e-6
"""How often each statistical test here would fail with other seeds though all is well."""


def secret_of(ring, length, seed=0):
    return ring.reduce(np.random.default_rng(seed).integers(0, 2**64, length, dtype=np.uint64))


def by_hand(ring, secret, context, length):
    """The expansion written out: RFC 5869 with HMAC, then single AES blocks of a counter."""
    info = b"discreet vector 1" + bytes([ring.bits]) + context
    pseudorandom = hmac.digest(bytes(32), secret, hashlib.sha256)
    key = hmac.digest(pseudorandom, info + b"\x01", hashlib.sha256)
    size = ring.word // 8
    blocks = -(-length * size // 16)
    counters = b"".join(index.to_bytes(16, "big") for index in range(blocks))
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = encryptor.update(counters) + encryptor.finalize()
    return [int.from_bytes(stream[size * i : size * (i + 1)], "little") % ring.modulus for i in range(length)]


@pytest.mark.parametrize("bits", [1, 8, 15, 32, 33, 64])
def test_expansion_is_hkdf_and_aes_in_counter_mode(bits):
    ring, secret = Ring(bits), bytes(range(32))
    assert expand(ring, Seed(secret, b"round 7"), 70).tolist() == by_hand(ring, secret, b"round 7", 70)
    assert ring.contains(expand(ring, Seed(secret), 1000))


@pytest.mark.parametrize("piece", [16, 1 << 10, expansion._PIECE])
@pytest.mark.parametrize("bits", [15, 32])
def test_pieces_of_an_expansion_join_without_a_seam(bits, piece, monkeypatch):
    monkeypatch.setattr(expansion, "_PIECE", piece)
    monkeypatch.setattr(expansion, "_ZEROS", memoryview(bytes(piece)))
    ring, seed = Ring(bits), Seed(bytes(range(32)))
    length = piece // (ring.word // 8) + 3
    assert expand(ring, seed, length).tolist() == by_hand(ring, seed.secret, b"", length)


def test_a_masked_vector_does_not_depend_on_the_piece(monkeypatch):
    ring, seeds, vectors = Ring(13), [Seed(bytes([i]) * 32, b"round 1") for i in range(5)], []
    for piece in (1 << 12, 1 << 16, 1 << 18):
        monkeypatch.setattr(expansion, "_PIECE", piece)
        monkeypatch.setattr(expansion, "_ZEROS", memoryview(bytes(piece)))
        vectors.append(secret_of(ring, 200_001))
        accumulate(ring, vectors[-1], seeds[:3], seeds[3:])
    assert (vectors[0] == vectors[1]).all() and (vectors[0] == vectors[2]).all()


def test_every_bit_of_the_seed_the_context_and_the_ring_matter():
    secret = bytes(range(32))
    variants = [Seed(secret), Seed(secret, b"a"), Seed(secret, b"b"), Seed(secret, b"ab")]
    for bit in range(256):
        flipped = bytearray(secret)
        flipped[bit // 8] ^= 1 << bit % 8
        variants.append(Seed(bytes(flipped)))
    vectors = {expand(Ring(32), seed, 8).tobytes() for seed in variants}
    assert len(vectors) == len(variants)
    assert (expand(Ring(31), Seed(secret), 8) != expand(Ring(32), Seed(secret), 8) % 2**31).all()


@given(st.integers(1, 64), st.integers(0, 300), st.integers(0, 3), st.integers(0, 3))
def test_accumulate_adds_and_subtracts_expansions(bits, length, plus, minus):
    ring = Ring(bits)
    total = secret_of(ring, length)
    expected = total.copy()
    added = [Seed(bytes([i]) * 32, b"+") for i in range(plus)]
    taken = [Seed(bytes([i]) * 32, b"-") for i in range(minus)]
    for seed in added:
        expected = ring.add(expected, expand(ring, seed, length))
    for seed in taken:
        expected = ring.subtract(expected, expand(ring, seed, length))
    accumulate(ring, total, added, taken)
    assert (total == expected).all()
    assert ring.contains(total)


def test_a_seed_of_another_length_is_refused_and_never_shown():
    with pytest.raises(ValueError, match="32 bytes, got 4"):
        Seed(b"1234")
    assert "secret" not in repr(Seed(b"\x5a" * 32)) and "ZZ" not in repr(Seed(b"\x5a" * 32))
    assert "123" not in repr(ExplicitShare(np.array([123], np.uint8)))


@given(st.integers(1, 64), st.integers(0, 50), st.integers(2, 6), st.integers(0, 9))
def test_all_shares_add_up_to_the_secret(bits, length, shares, seed):
    ring = Ring(bits)
    secret = secret_of(ring, length, seed)
    kept = secret.copy()
    parts = split(ring, secret, shares, Seeded(seed), round=1, client=2, context=b"run")
    assert len(parts) == shares
    assert all(isinstance(part, Seed) and part.context == b"run" for part in parts[:-1])
    assert isinstance(parts[-1], ExplicitShare)
    assert (reconstruct(ring, [elements(ring, part, length) for part in parts]) == secret).all()
    assert (secret == kept).all()


@given(st.integers(1, 64), st.integers(1, 4), st.integers(2, 5), st.integers(1, 30))
def test_local_sums_add_up_to_the_sum_of_the_secrets(bits, senders, parties, length):
    ring = Ring(bits)
    secrets = [secret_of(ring, length, sender) for sender in range(senders)]
    sent = [
        split(ring, secret, parties, Seeded(3), round=1, client=sender, context=bytes([sender]))
        for sender, secret in enumerate(secrets)
    ]
    held = [
        [shares[(party + sender) % parties] for sender, shares in enumerate(sent)] for party in range(parties)
    ]
    sums = [add(ring, mine, length) for mine in held]
    assert reconstruct(ring, sums).tolist() == [
        sum(column) % ring.modulus for column in zip(*(secret.tolist() for secret in secrets), strict=True)
    ]


def test_a_simulation_repeats_and_a_deployment_does_not():
    ring, secret = Ring(32), secret_of(Ring(32), 5)

    def seeds(randomness, round=1, client=2):
        return [part.secret for part in split(ring, secret, 3, randomness, round=round, client=client)[:-1]]

    assert seeds(Seeded(1)) == seeds(Seeded(1))
    drawn = [seeds(Seeded(1)), seeds(Seeded(2)), seeds(Seeded(1), round=2), seeds(Seeded(1), client=3)]
    drawn += [seeds(SystemRandom()), seeds(SystemRandom())]
    flat = list(itertools.chain(*drawn))
    assert len(set(flat)) == len(flat) == 12


@pytest.mark.parametrize("bits, shares", [(1, 2), (1, 4), (2, 3), (3, 2)])
def test_any_shares_but_one_are_exactly_uniform(bits, shares, monkeypatch):
    """By counting: over all values that the random vectors can take, each pattern of s - 1 shares occurs once."""
    ring = Ring(bits)
    values = range(ring.modulus)
    vector_of = {}

    def look_up(ring, seed, length):
        return np.array([vector_of[seed.secret]], ring.dtype)

    def look_up_and_subtract(ring, total, plus, minus=()):
        for seed in minus:
            ring.subtract(total, look_up(ring, seed, 1), out=total)

    monkeypatch.setattr(sharing, "accumulate", look_up_and_subtract)
    monkeypatch.setattr(sharing, "expand", look_up)
    for secret in values:
        counts = {subset: Counter() for subset in itertools.combinations(range(shares), shares - 1)}
        for masks in itertools.product(values, repeat=shares - 1):
            randomness = Seeded(0)
            material = randomness.words(1, 0, "additive shares", 4 * (shares - 1)).tobytes()
            vector_of = {material[32 * i : 32 * i + 32]: mask for i, mask in enumerate(masks)}
            parts = split(ring, np.array([secret], ring.dtype), shares, randomness, round=1, client=0)
            pattern = [int(elements(ring, part, 1)[0]) for part in parts]
            assert sum(pattern) % ring.modulus == secret
            for subset, count in counts.items():
                count[tuple(pattern[i] for i in subset)] += 1
        for count in counts.values():
            assert len(count) == ring.modulus ** (shares - 1)
            assert set(count.values()) == {1}


@pytest.mark.parametrize("value", [0, 11])
def test_any_two_of_three_shares_look_jointly_uniform(value):
    ring, length = Ring(4), 60_000
    secret = np.full(length, value, ring.dtype)
    parts = split(ring, secret, 3, Seeded(5), round=1, client=0)
    vectors = [elements(ring, part, length).astype(int) for part in parts]
    for first, second in itertools.combinations(vectors, 2):
        counts = np.bincount(16 * first + second, minlength=256)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
    # and the statistic does see what is not uniform: the sum of all three is constant
    assert stats.chisquare(np.bincount(sum(vectors) % 16, minlength=16)).pvalue < FALSE_ALARM


@pytest.mark.parametrize("bits", [1, 7, 12, 32])
def test_bytes_of_expansions_look_uniform(bits):
    ring = Ring(bits)
    vector = expand(ring, Seed(bytes(32), b"uniform"), 100_000)
    top = np.bincount((vector >> max(0, bits - 6)).astype(int), minlength=2 ** min(bits, 6))
    low = np.bincount((vector & 63).astype(int), minlength=2 ** min(bits, 6))
    assert stats.chisquare(top).pvalue > FALSE_ALARM
    assert stats.chisquare(low).pvalue > FALSE_ALARM


@given(st.integers(1, 64), st.integers(0, 40))
def test_shares_survive_the_wire(bits, length):
    ring = Ring(bits)
    parts = split(ring, secret_of(ring, length), 3, Seeded(0), round=1, client=0, context=b"here")
    bodies = [to_bytes(ring, part) for part in parts]
    assert [len(body) for body in bodies] == [33, 33, 1 + (length * bits + 7) // 8]
    received = [from_bytes(ring, body, length, b"here") for body in bodies]
    assert received[:2] == list(parts[:2])
    assert (received[2].elements == parts[2].elements).all()
    assert (add(ring, received, length) == secret_of(ring, length)).all()


@pytest.mark.parametrize(
    "body, complaint",
    [
        (b"", "0 or 1"),
        (b"\x02" + bytes(32), "0 or 1"),
        (b"\x00" + bytes(31), "32 bytes, got 31"),
        (b"\x01" + bytes(3), "take rows of 2 bytes"),
        (b"\x01\x00\x80", "spare bits"),
    ],
)
def test_what_is_no_share_is_refused(body, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_bytes(Ring(5), body, 3)


def test_what_does_not_fit_is_refused():
    ring = Ring(5)
    good = np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="at least 2 shares, got 1"):
        split(ring, good, 1, Seeded(0), round=1, client=0)
    for bad in (np.full(3, 32, np.uint8), np.zeros(3, np.uint16), np.zeros((1, 3), np.uint8)):
        with pytest.raises(ValueError, match="below 2\\^5"):
            split(ring, bad, 2, Seeded(0), round=1, client=0)
        with pytest.raises(ValueError, match="below 2\\^5"):
            add(ring, [ExplicitShare(bad)], 3)
    with pytest.raises(ValueError, match="expected 3 elements"):
        reconstruct(ring, [good, np.zeros(4, np.uint8)])
    with pytest.raises(ValueError, match="nothing to reconstruct"):
        reconstruct(ring, [])
    with pytest.raises(ValueError, match="expected 4 elements"):
        elements(ring, ExplicitShare(good), 4)
    assert expansion.SEED_BYTES == 32
