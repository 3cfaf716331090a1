import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.randomness import SERVER, Keyed, Seeded, SystemRandom

INT64 = st.integers(-(2**63), 2**63 - 1)
PLACES = st.tuples(INT64, INT64, INT64, st.text(max_size=8))


@given(PLACES, PLACES)
def test_streams_differ_where_any_of_seed_round_client_purpose_does(one, other):
    (seed, *place), (other_seed, *other_place) = one, other
    draws = Seeded(seed).words(*place, 4), Seeded(other_seed).words(*other_place, 4)
    assert np.array_equal(*draws) == (one == other)


@pytest.mark.parametrize("changed", range(4))
def test_a_step_of_one_argument_gives_another_stream(changed):
    place = [3, 5, 7, "batches"]
    other = [
        value + ("x" if isinstance(value, str) else 1) if at == changed else value
        for at, value in enumerate(place)
    ]
    one, two = (Seeded(p[0]).stream(*p[1:]).integers(0, 2**62, 8) for p in (place, other))
    assert not set(one.tolist()) & set(two.tolist())


def test_the_same_arguments_give_the_same_stream_whatever_was_drawn_before():
    source = Seeded(11)
    first = source.stream(2, 4, "coins").random(5)
    source.stream(2, 5, "coins").random(100)
    assert np.array_equal(first, source.stream(2, 4, "coins").random(5))
    assert np.array_equal(source.words(2, 4, "coins", 3), source.words(2, 4, "coins", 9)[:3])


def test_seeds_share_no_keys():
    keys = {
        Seeded(seed).key(round, client, purpose)
        for seed in (0, 1)
        for round in (1, 2)
        for client in range(SERVER, 1249)
        for purpose in ("batches", "dropout")
    }
    assert len(keys) == 2 * 2 * 1250 * 2 == 10_000
    assert all(0 <= key < 2**128 for key in keys)


def test_torch_seeds_fit_in_63_bits_and_are_distinct():
    seeds = [Seeded(0).torch_seed(1, client, "dropout") for client in range(2000)]
    assert len(set(seeds)) == 2000
    assert min(seeds) >= 0 and 2**62 < max(seeds) < 2**63


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("byte", range(8))
def test_words_are_uniform(byte):
    # one false alarm in 10^6 for each byte, were the seed not fixed
    words = Seeded(5).words(1, 0, "test", 1 << 16)
    values = (words >> np.uint64(8 * byte)).astype(np.uint8)
    assert chi_square(np.bincount(values, minlength=256)) < stats.chi2.isf(1e-6, 255)


def test_first_words_of_neighbouring_clients_are_uniform_together():
    # a weak mixing of client numbers would show here; one false alarm in 10^6, were the seed not fixed
    firsts = np.array(
        [Seeded(0).words(1, client, "batches", 1)[0] >> np.uint64(58) for client in range(6400)]
    )
    assert chi_square(np.bincount(firsts.astype(int), minlength=64)) < stats.chi2.isf(1e-6, 63)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_that_does_not_fit_is_refused(seed):
    with pytest.raises(ValueError, match="64 bits"):
        Seeded(seed)


def test_system_words_are_fresh():
    source = SystemRandom()
    one, other = source.words(1, 1, "masks", 100), source.words(1, 1, "masks", 100)
    assert one.shape == (100,) and one.dtype == np.uint64
    assert not set(one.tolist()) & set(other.tolist())
    assert not hasattr(source, "stream")


def test_keyed_streams_repeat_under_their_key_and_differ_under_any_other():
    one, other = Keyed(bytes(32)), Keyed(bytes(31) + b"\1")
    assert np.array_equal(one.words(2, 4, "coins", 8), Keyed(bytes(32)).words(2, 4, "coins", 8))
    keys = {
        source.key(*place) for source in (one, other) for place in [(1, 2, "a"), (2, 1, "a"), (1, 2, "b")]
    }
    assert len(keys) == 6
    assert Seeded(0).key(1, 2, "a") not in keys


def test_a_key_is_32_bytes_and_is_not_printed():
    with pytest.raises(ValueError, match="32 bytes"):
        Keyed(bytes(31))
    assert "171" not in repr(Keyed(b"\xab" * 32)) and "ab" not in repr(Keyed(b"\xab" * 32)).lower()
