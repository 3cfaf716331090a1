"""Sums by additive sharing: exact, in groups, and uniform to everybody but the aggregator's total."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.randomness import Seeded, SystemRandom
from discreet.secure import sharing
from discreet.secure.ring import Ring
from discreet.secure.shared_sum import SharedSum

FALSE_ALARM = 1e-6
"""How often each statistical test here would fail with other seeds though all is well."""


def shared_sum(ring, vectors, groups, holders, common=0, count=1, randomness=None):
    made = SharedSum(
        ring, holders, count, vectors.shape[1], common, randomness or Seeded(3), round=2, context=b"a sum"
    )
    for participant, (group, vector) in enumerate(zip(groups, vectors, strict=True)):
        made.add(participant, group, vector)
    return made


@settings(max_examples=60, deadline=None)
@given(
    bits=st.integers(1, 64),
    holders=st.integers(2, 5),
    participants=st.integers(0, 7),
    length=st.integers(1, 40),
    count=st.integers(1, 3),
    data=st.data(),
)
def test_it_is_the_sum_of_each_group_and_of_all_for_the_common_part(
    bits, holders, participants, length, count, data
):
    ring = Ring(bits)
    common = data.draw(st.integers(0, length))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = ring.reduce(rng.integers(0, 2**64, (participants, length), dtype=np.uint64))
    groups = rng.integers(0, count, participants)
    found = shared_sum(ring, vectors, groups, holders, common, count, SystemRandom()).total()
    own = length - common
    for group in range(count):
        mine = [[int(number) for number in vector] for vector in vectors[groups == group]]
        wanted = [sum(column) % ring.modulus for column in zip(*mine, strict=True)] or [0] * length
        assert found[group, :own].tolist() == wanted[:own]
        everyone = [
            sum(int(vector[place]) for vector in vectors) % ring.modulus for place in range(own, length)
        ]
        assert found[group, own:].tolist() == everyone


def uniform(words):
    """The p-value of bytes being uniform."""
    return stats.chisquare(
        np.bincount(np.ascontiguousarray(words).view(np.uint8).reshape(-1), minlength=256)
    ).pvalue


@pytest.mark.parametrize("secret", [0, 1, 2**31])
def test_what_the_aggregator_and_the_share_holders_see_is_uniform(secret):
    """However special the vectors are: 6 participants who all bring the same number everywhere."""
    ring, length, holders = Ring(32), 20_000, 4
    vectors = np.full((6, length), secret, dtype=np.uint32)
    made = shared_sum(ring, vectors, [0] * 6, holders)
    partial = made.partial_sums()
    # the aggregator: any s - 1 of the partial sums are uniform and independent of one another
    for own in partial:
        assert uniform(own) > FALSE_ALARM
    for left in range(holders):
        for right in range(left):
            assert uniform(ring.subtract(partial[left], partial[right])) > FALSE_ALARM
    pair = np.stack([partial[0].reshape(-1) & 15, partial[1].reshape(-1) & 15])
    table = np.bincount(pair[0] * 16 + pair[1], minlength=256)
    assert stats.chisquare(table).pvalue > FALSE_ALARM
    # and all of them are exactly what they have to be
    assert (sum(own.astype(np.uint64) for own in partial) % 2**32 == 6 * secret % 2**32).all()
    # s - 1 share-holders who pool what one participant sent them: every choice of them, and their sums
    shares = sharing.split(ring, vectors[0], holders, Seeded(3), round=2, client=0, context=b"a sum")
    explicit = [sharing.elements(ring, share, length) for share in shares]
    for missing in range(holders):
        pooled = [one for place, one in enumerate(explicit) if place != missing]
        assert all(uniform(one) > FALSE_ALARM for one in pooled)
        assert uniform(ring.total(np.stack(pooled))) > FALSE_ALARM


def test_shares_differ_between_participants_rounds_and_phases():
    ring, vector = Ring(32), np.zeros(50, dtype=np.uint32)
    seen = set()
    for participant in (0, 1):
        for round in (1, 2):
            for context in (b"gradient", b"pre-activations"):
                made = SharedSum(ring, 2, 1, 50, 0, Seeded(1), round, context)
                made.add(participant, 0, vector)
                seen.add(made.partial_sums()[0].tobytes())
    assert len(seen) == 8


def test_bytes_are_those_of_the_shares():
    ring = Ring(32)
    made = shared_sum(ring, np.ones((5, 30), dtype=np.uint32), [0] * 5, 3)
    # two seeds of 32 bytes and one vector of 30 words, each with a byte that says which
    assert made.uplink == 5 * (2 * 33 + 1 + 120)
