import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import ConfigError, LocalProtocolError, RemoteProtocolError, RoundAborted
from discreet.randomness import Seeded, SystemRandom
from discreet.secure.expansion import Seed, accumulate, expand
from discreet.secure.masking import (
    STAGES,
    MaskingClient,
    MaskingServer,
    Progress,
    Stage,
    keys,
    masked_sum,
    plan_graph,
    shamir,
)
from discreet.secure.masking.graph import arrange
from discreet.secure.masking.masks import add_masks
from discreet.secure.masking.messages import (
    AdvertisedKeys,
    DeliveredShares,
    PeerKeys,
    SharedKeys,
    UnmaskRequest,
    UnmaskShares,
)
from discreet.secure.masking.state import ClientState
from discreet.secure.packing import unpack
from discreet.secure.ring import Ring
from masked_round import MaskedRound, at, other_sum, plain_sum, terms, vectors

STATES = (Progress.STARTED, Progress.ADVERTISED, Progress.SHARED, Progress.MASKED)


# -- the sum


@st.composite
def sums(draw, answering):
    """A sum over the complete graph in which as many clients as `answering(threshold)` says answer to the end."""
    clients = draw(st.integers(3, 40))
    threshold = draw(st.integers(2, clients))
    left = draw(answering(threshold, clients))
    order = draw(st.permutations(range(clients)))
    dropouts = {stage: set() for stage in STAGES}
    for client in order[left:]:
        dropouts[draw(st.sampled_from(STAGES))].add(client)
    bits, length = draw(st.integers(1, 64)), draw(st.integers(1, 5000))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    vectors = Ring(bits).reduce(generator.integers(0, 2**64, (clients, length), dtype=np.uint64))
    return vectors, bits, threshold, dropouts


@given(sums(lambda threshold, clients: st.integers(threshold, clients)))
def test_masked_sum_is_the_plain_sum_for_every_tolerated_pattern_of_dropouts(case):
    vectors, bits, threshold, dropouts = case
    total = masked_sum(vectors, bits, threshold=threshold, dropouts=dropouts, randomness=Seeded(5))
    lost = dropouts[Stage.ADVERTISE] | dropouts[Stage.SHARE] | dropouts[Stage.MASK]
    survivors = sorted(set(range(len(vectors))) - lost)
    assert total.survivors == tuple(survivors)
    assert total.values.dtype == Ring(bits).dtype
    expected = [sum(column) % 2**bits for column in zip(*vectors[survivors].tolist(), strict=True)]
    assert total.values.tolist() == expected


@settings(max_examples=10)
@given(sums(lambda threshold, clients: st.just(threshold - 1)))
def test_one_dropout_more_fails_loudly(case):
    vectors, bits, threshold, dropouts = case
    with pytest.raises(RoundAborted) as caught:
        masked_sum(vectors[:, :50], bits, threshold=threshold, dropouts=dropouts, randomness=Seeded(5))
    assert len(caught.value.survivors) < caught.value.threshold == threshold


def tolerates(about, gone):
    """Whether a pattern of dropouts leaves enough holders of every secret at every stage, by the definition."""
    present = set(about.cohort)
    there = {stage: (present := present - set(gone.get(stage, ()))) for stage in STAGES}
    shared, masked = there[Stage.SHARE], there[Stage.MASK]
    needed = masked | {each for each in shared - masked if masked & set(about.neighbours[each])}

    def held(clients, among):
        return all(len(about.holders(each) & among) >= about.threshold for each in clients)

    return bool(there[Stage.ADVERTISE] and shared and len(masked) >= about.minimum_survivors) and all(
        held(clients, among)
        for clients, among in (
            (there[Stage.ADVERTISE], there[Stage.ADVERTISE]),
            (shared, shared),
            (needed, masked),
            (needed, there[Stage.UNMASK]),
        )
    )


def test_a_sparse_graph_sums_or_aborts_as_its_definition_says():
    generator, outcomes = random.Random(8), Counter()
    for trial in range(40):
        clients = generator.randint(8, 12)
        about = terms(clients, degree=6, threshold=generator.randint(2, 5), nonce=bytes([trial + 1]), bits=33)
        gone = {stage: set(generator.sample(about.cohort, generator.randint(0, 2))) for stage in STAGES}
        play, gone_so_far = MaskedRound(about), set()
        try:
            for stage in STAGES:
                gone_so_far |= gone[stage]
                play.silent |= gone[stage]
                play.send()
                play.deliver()
            total = play.server.total()
        except RoundAborted:
            assert not tolerates(about, gone)
            outcomes["aborted"] += 1
        else:
            assert tolerates(about, gone)
            assert total.values.tolist() == plain_sum(about, play.inputs, total.survivors)
            outcomes["summed"] += 1
    assert min(outcomes["aborted"], outcomes["summed"]) >= 10


def test_a_dropout_without_surviving_neighbours_need_not_be_recovered():
    # on the circle 7 in a row are lost; the one in the middle sent keys and has nobody left who masked with it
    about = terms(16, degree=6, threshold=2)
    row = arrange(about.cohort, about.nonce)[:7]
    play = MaskedRound(about)
    play.play(until=Stage.SHARE, silent=[row[2], row[4]])
    play.play(until=Stage.MASK)
    play.silent |= set(row)
    total = play.play()
    assert not set(about.neighbours[row[3]]) & set(total.survivors)
    assert total.survivors == tuple(sorted(set(about.cohort) - set(row)))
    assert total.values.tolist() == plain_sum(about, play.inputs, total.survivors)


def test_nobody_there_at_all():
    with pytest.raises(RoundAborted) as caught:
        masked_sum(
            np.zeros((3, 1), np.uint8),
            8,
            threshold=2,
            dropouts={Stage.ADVERTISE: [0, 1, 2]},
            randomness=Seeded(1),
        )
    assert caught.value.survivors == ()


def test_a_planned_graph_for_a_hundred():
    plan = plan_graph(100, dropout=0.1, corrupt=0.1)
    assert not plan.complete
    cohort = range(1000, 1100)
    about = terms(100, cohort=tuple(cohort), degree=plan.degree, threshold=plan.threshold, bits=16)
    rows = np.stack(list(vectors(about).values()))
    gone = {
        Stage.ADVERTISE: [1003],
        Stage.SHARE: [1010, 1011],
        Stage.MASK: [1020, 1050],
        Stage.UNMASK: [1099],
    }
    total = masked_sum(
        rows,
        16,
        degree=plan.degree,
        threshold=plan.threshold,
        cohort=cohort,
        dropouts=gone,
        randomness=SystemRandom(),
    )
    assert total.survivors == tuple(sorted(set(cohort) - {1003, 1010, 1011, 1020, 1050}))
    assert total.values.tolist() == plain_sum(about, dict(zip(cohort, rows, strict=True)), total.survivors)


def test_bytes_are_counted_as_they_were_sent():
    play = MaskedRound(terms())
    play.play(until=Stage.MASK)
    total = play.play(silent=[11])
    assert total.survivors == (10, 12, 13, 14)
    for stage in STAGES:
        assert total.bytes_up[stage] == sum(map(len, play.sent[stage].values())) > 0
        assert total.bytes_down[stage] == sum(map(len, play.received[stage].values()))
    assert total.bytes_up[Stage.MASK] == 4 * (32 + 4)


def test_messages_have_the_same_length_whoever_drops_out():
    full = MaskedRound(terms(8))
    full.play()
    some = MaskedRound(terms(8))
    some.play(until=Stage.SHARE)
    some.play(until=Stage.MASK, silent=[10])
    some.play(silent=[11, 12])
    for stage in STAGES:
        lengths = {len(data) for play in (full, some) for data in play.sent[stage].values()}
        answers = {len(data) for play in (full, some) for data in play.received[stage].values()}
        assert len(lengths) == 1
        assert len(answers) == (stage != Stage.UNMASK)


def test_seeded_sums_repeat_and_system_ones_do_not():
    first, again = (MaskedRound(terms()).play(until=Stage.UNMASK).sent for _ in range(2))
    assert first == again
    fresh = [MaskingClient.start(terms(), 10, SystemRandom()).advertise() for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_the_sum_of_too_few_is_not_released():
    rows = np.zeros((6, 3), np.uint8)
    gone = {Stage.MASK: [0, 1]}
    wanted = {"threshold": 3, "randomness": Seeded(1), "dropouts": gone}
    assert masked_sum(rows, 8, minimum_survivors=4, **wanted).survivors == (2, 3, 4, 5)
    with pytest.raises(RoundAborted) as caught:
        masked_sum(rows, 8, minimum_survivors=5, **wanted)
    assert (caught.value.survivors, caught.value.threshold) == ((2, 3, 4, 5), 5)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"vectors": np.zeros(4, np.uint8)}, "vectors"),
        ({"cohort": [1, 2]}, "cohort"),
        ({"cohort": [3, 2, 1]}, "cohort"),
        ({"cohort": [1, 2, 2**32 - 1]}, "cohort"),
        ({"threshold": 1}, "threshold"),
        ({"threshold": 4}, "threshold"),
        ({"degree": 1}, "degree"),
        ({"bits": 65}, "modulus_bits"),
        ({"minimum_survivors": 1}, "minimum_survivors"),
        ({"minimum_survivors": 4}, "minimum_survivors"),
        ({"run": b""}, "run"),
        ({"round": -1}, "round"),
        ({"dropouts": {Stage.MASK: [7]}}, "dropouts"),
        ({"dropouts": {"lunch": [1]}}, "dropouts"),
        ({"vectors": np.zeros((2, 4), np.uint8)}, "cohort"),
        ({"vectors": np.zeros((3, 0), np.uint8)}, "length"),
    ],
)
def test_settings_that_cannot_be(change, key):
    wish = {
        "vectors": np.zeros((3, 4), np.uint8),
        "bits": 8,
        "threshold": 2,
        "randomness": Seeded(1),
    } | change
    with pytest.raises(ConfigError) as caught:
        masked_sum(wish.pop("vectors"), wish.pop("bits"), **wish)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "vector",
    [np.zeros(3, np.uint8), np.zeros((4, 1), np.uint8), np.zeros(4, np.uint16), np.full(4, 32, np.uint8)],
)
def test_a_vector_that_does_not_fit_is_refused_and_the_client_can_go_on(vector):
    play = at(Stage.MASK, bits=5)
    with pytest.raises(LocalProtocolError, match="expected a vector of 4"):
        play.clients[10].mask(play.inbox[10], vector)
    assert play.play().survivors == tuple(play.about.cohort)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_nothing(threads):
    ring, generator = Ring(7), random.Random(1)
    seeds = [Seed(generator.randbytes(32)) for _ in range(13)]
    # as much key stream as makes it worth 3 threads
    expected = ring.zeros(1_000_000) + np.uint8(5)
    total = expected.copy()
    accumulate(ring, expected, seeds[:5], seeds[5:])
    add_masks(ring, total, seeds[:5], seeds[5:], threads)
    assert (total == expected).all()


def test_there_is_no_work_without_a_thread():
    with pytest.raises(ConfigError, match="threads"):
        add_masks(Ring(8), Ring(8).zeros(4), [], [], 0)


# -- what the server can know


def fits(about, view, seed, inputs_of=11):
    """The input of a client that goes with a self-mask seed, by recomputing its masks; all else is as it was."""
    own = keys.self_seed(about, seed, inputs_of)
    return (view - expand(about.ring, own, about.length)) & about.ring.dtype.type(about.ring.modulus - 1)


def failed_round(answering):
    """Three clients, one element of 2 bits, threshold 2; all send masked inputs and `answering` the last message."""
    play = MaskedRound(terms(3, bits=2, length=1, threshold=2)).play(until=Stage.UNMASK)
    play.silent = set(play.about.cohort) - set(answering)
    play.send()
    about = play.about
    # give the server even client 11's pairwise masks, so that its own mask alone hides its input
    public = {client: keys.public_key(secrets_of(play, client).mask) for client in about.cohort}
    own = keys.KeyPair.of(11, secrets_of(play, 11).mask)
    view = unpack(about.ring, np.frombuffer(play.sent[Stage.MASK][11][32:], np.uint8), 1)
    for peer, sign in ((10, 1), (12, -1)):
        mask = expand(about.ring, keys.mask_seed(about, own, peer, public[peer]), 1)
        view = about.ring.add(view, mask) if sign > 0 else about.ring.subtract(view, mask)
    shares = {}
    for client, data in play.sent[Stage.UNMASK].items():
        answer = UnmaskShares.from_bytes(data, about, peer=client, client=client)
        assert answer.keys == ()
        shares[about.points[client]] = dict(answer.seeds)[11]
    return play, view, shares


def secrets_of(play, client):
    return keys.draw(Seeded(play.seed), play.about, client)


def test_after_a_failed_round_every_input_is_consistent_with_what_the_server_saw():
    play, view, shares = failed_round(answering=[10])
    about = play.about
    with pytest.raises(RoundAborted):
        play.deliver()
    assert fits(about, view, secrets_of(play, 11).seed) == play.inputs[11]
    ((point, share),) = shares.items()
    generator, counts = random.Random(3), Counter()
    for _ in range(4000):
        seed = generator.randbytes(32)
        # the one polynomial of degree 1 through this seed and the server's share: such a client is as likely
        secret = int.from_bytes(seed, "little")
        slope = (share - secret) * pow(point, -1, shamir.PRIME) % shamir.PRIME
        assert shamir.split(secret, [point, 9], [slope])[0] == share
        counts[int(fits(about, view, seed)[0])] += 1
    # all four inputs, equally often: chi-square with 3 degrees of freedom, false alarm 1e-6
    assert counts.keys() == {0, 1, 2, 3}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < stats.chi2.isf(1e-6, 3)


def test_with_as_many_shares_as_the_threshold_one_input_is_left():
    """The test above can fail: one more answer, and the pairwise masks given away, leave a single input."""
    play, view, shares = failed_round(answering=[10, 12])
    seed = shamir.recover(shares, 2).to_bytes(32, "little")
    assert seed == secrets_of(play, 11).seed
    assert fits(play.about, view, seed) == play.inputs[11]
    play.deliver()
    assert play.server.total().values.tolist() == plain_sum(play.about, play.inputs, [10, 11, 12])


def test_an_aborted_round_gives_no_total():
    play, _, _ = failed_round(answering=[10])
    with pytest.raises(RoundAborted):
        play.deliver()
    assert play.server.stage is None
    assert play.server.expected == ()
    for refused in (play.server.total, play.server.close_stage, lambda: play.server.collect(12, b"")):
        with pytest.raises(LocalProtocolError):
            refused()
    early = at(Stage.MASK)
    with pytest.raises(LocalProtocolError):
        early.server.total()


@pytest.mark.parametrize("bits", [1, 4, 13])
def test_masked_vectors_are_uniform(bits):
    # the same constant vector from everybody; chi-square over 16 (or all) values of the low bits, false alarm 1e-6
    about = terms(3, bits=bits, length=5000, threshold=2)
    play = MaskedRound(about)
    play.inputs = {client: about.ring.zeros(5000) + about.ring.dtype.type(1) for client in about.cohort}
    play.play(until=Stage.UNMASK)
    values = min(16, 2**bits)
    seen = {}
    for client, data in play.sent[Stage.MASK].items():
        seen[client] = unpack(about.ring, np.frombuffer(data[32:], np.uint8), 5000)
    # each alone, and the difference of two, in which a mask in common must not cancel
    for one in (*seen.values(), about.ring.subtract(seen[10], seen[11]), about.ring.add(seen[10], seen[12])):
        for low in (one, one >> (bits - values.bit_length() + 1)):
            counts = np.bincount(low % values, minlength=values)
            assert ((counts - 5000 / values) ** 2).sum() / (5000 / values) < stats.chi2.isf(1e-6, values - 1)


def test_every_bit_of_a_seed_matters():
    about = terms(length=64)
    seed = bytes(range(32))
    changed = {
        expand(
            about.ring,
            keys.self_seed(about, bytes([*seed[:at], seed[at] ^ 1 << bit, *seed[at + 1 :]]), 10),
            64,
        ).tobytes()
        for at in range(32)
        for bit in range(8)
    }
    assert len(changed) == 256
    assert expand(about.ring, keys.self_seed(about, seed, 10), 64).tobytes() not in changed


def test_keys_are_bound_to_sum_pair_direction_and_purpose():
    about = terms()
    one, two = (keys.KeyPair.of(client, bytes([client]) * 32) for client in (10, 11))
    assert keys.mask_seed(about, one, 11, two.public) == keys.mask_seed(about, two, 10, one.public)
    there = keys.channel(about, one, 11, two.public, outgoing=True)
    assert there == keys.channel(about, two, 10, one.public, outgoing=False)
    others = [
        keys.channel(about, one, 11, two.public, outgoing=False).key,
        keys.channel(about, replace(one, client=12), 11, two.public, outgoing=True).key,
        keys.channel(other_sum(about, round=4), one, 11, two.public, outgoing=True).key,
        keys.channel(other_sum(about, run=b"x"), one, 11, two.public, outgoing=True).key,
        keys.mask_seed(about, one, 11, two.public).secret,
        keys.mask_seed(other_sum(about, round=4), one, 11, two.public).secret,
        keys.mask_seed(about, one, 12, two.public).secret,
    ]
    assert len({there.key, *others}) == len(others) + 1


def low_order(public):
    """The verdict of the cryptographic library itself."""
    own = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    try:
        own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return True
    return False


def test_points_of_low_order_are_known():
    field = 2**255 - 19
    # each also in its other encodings below 2^256: plus the field's size, and with the unused top bit
    points = {
        (point + again * field + top * 2**255).to_bytes(32, "little")
        for point in keys._LOW_ORDER
        for again in (0, 1)
        for top in (0, 1)
        if point + again * field < 2**255
    }
    assert len(points) == 14
    assert all(low_order(point) and not keys.usable(point) for point in points)
    for number in (*range(2, 30), field - 2, field + 2):
        public = number.to_bytes(32, "little")
        assert keys.usable(public) and not low_order(public)


def test_every_secret_is_shared_by_a_polynomial_of_its_own():
    # had two secrets the same polynomial but for the value at 0, the difference of their shares would be constant
    play = at(Stage.UNMASK)
    states = [
        ClientState.from_bytes(party.state_bytes(), play.about, None) for party in play.clients.values()
    ]
    held = [dict(state.held) for state in states]
    polynomials = [
        [getattr(each[owner], kind) for each in held]
        for owner in play.about.cohort
        for kind in ("seed", "key")
    ]
    for one, other in itertools.combinations(polynomials, 2):
        differences = {(a - b) % shamir.PRIME for a, b in zip(one, other, strict=True)}
        assert len(differences) == len(one)
    secrets = secrets_of(play, 11)
    assert secrets.coefficients(play.about, 11, b"seed") != secrets.coefficients(terms(round=4), 11, b"seed")
    # what was shared is what the masks were made from
    shares = dict(zip(range(1, 6), polynomials[3], strict=True))
    assert shamir.recover(shares, 3).to_bytes(32, "little") == secrets.mask


# -- what clients refuse


def refused_by_client(client, play, stage, data, field, peer="server"):
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        play.answer(client, stage, data)
    assert (caught.value.peer, caught.value.round) == (peer, 3)
    # a client that refused something answers nothing more and has forgotten its secrets
    party = play.clients[client]
    assert party.progress == Progress.FAILED
    assert ClientState.from_bytes(party.state_bytes(), play.about, play.roster) == ClientState(
        client, Progress.FAILED
    )
    with pytest.raises(RemoteProtocolError, match="stage: this client is FAILED"):
        play.answer(client, stage, play.inbox[client])


def request(play, client, **changes):
    """The request that the server has for a client, changed."""
    sent = UnmaskRequest.from_bytes(play.inbox[client], play.about, peer="server", client=client)
    return replace(sent, **changes).to_bytes(play.about)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"survivors": (10, 11, 12, 13), "dropouts": (13, 14)}, "both shares of one client"),
        ({"survivors": (10, 11, 12, 13, 14), "dropouts": (14,)}, "both shares of one client"),
        ({"survivors": (10, 11, 12, 99), "dropouts": (13, 14)}, "shared no keys"),
        ({"dropouts": (7, 14)}, "shared no keys"),
        ({"survivors": (10, 11, 12)}, "a client is missing"),
        ({"dropouts": ()}, "a client is missing"),
        ({"survivors": (11, 12, 13), "dropouts": (10, 14)}, "this client sent its masked input"),
        ({"survivor_count": 3}, "survivor_count"),
        ({"survivor_count": 5}, "survivor_count"),
    ],
)
def test_a_request_to_unmask_that_is_refused(changes, field):
    play = at(Stage.MASK)
    play.play(until=Stage.UNMASK, silent=[14])
    refused_by_client(10, play, Stage.UNMASK, request(play, 10, **changes), field)


def test_a_request_to_unmask_below_the_threshold_is_refused():
    play = at(Stage.UNMASK)
    with pytest.raises(RoundAborted) as caught:
        play.clients[10].unmask(
            request(play, 10, survivors=(10, 11), dropouts=(12, 13, 14), survivor_count=2)
        )
    assert (caught.value.survivors, caught.value.threshold) == ((10, 11), 3)
    assert play.clients[10].progress == Progress.FAILED


def test_a_request_to_unmask_the_sum_of_too_few_is_refused():
    # neighbours enough, but few in the whole cohort
    play = at(Stage.UNMASK, clients=8, degree=4, threshold=2, minimum_survivors=6)
    with pytest.raises(RoundAborted) as caught:
        play.clients[10].unmask(request(play, 10, survivor_count=5))
    assert caught.value.threshold == 6


def test_a_second_request_to_unmask_is_refused_even_if_it_is_the_same():
    play = at(Stage.UNMASK)
    play.clients[10].unmask(play.inbox[10])
    assert play.clients[10].progress == Progress.FINISHED
    refused_by_client(10, play, Stage.UNMASK, play.inbox[10], "stage: this client is FINISHED")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_replayed_message_is_refused(stage):
    play = at(stage)
    message = play.inbox[11]
    play.answer(11, stage, message)
    refused_by_client(11, play, stage, message, "stage: this client is")
    if stage != Stage.UNMASK:
        later = at(STAGES[STAGES.index(stage) + 1])
        refused_by_client(11, later, later.server.stage, message, "kind|length")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_message_of_another_round_is_refused(stage):
    play, other = at(stage), at(stage, round=4)
    refused_by_client(11, play, stage, other.inbox[11], "round: it is for round 4")
    play, other = at(stage), at(stage, run=b"other")
    refused_by_client(11, play, stage, other.inbox[11], "terms")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_message_for_another_client_is_refused(stage):
    play = at(stage)
    refused_by_client(11, play, stage, play.inbox[12], "client: it names client 12, expected 11")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_truncated_message_is_refused(stage):
    play = at(stage)
    refused_by_client(11, play, stage, play.inbox[11][:-1], "length")


def with_sealed(play, client, change):
    message = DeliveredShares.from_bytes(play.inbox[client], play.about, peer="server", client=client)
    return replace(message, sealed=tuple(sorted(change(dict(message.sealed)).items()))).to_bytes(play.about)


@pytest.mark.parametrize("place", [0, 40, 65, 66, 81])
def test_a_flipped_bit_in_a_ciphertext_is_refused_and_its_sender_named(place):
    play = at(Stage.MASK)

    def flip(sealed):
        return sealed | {13: bytes(byte ^ (at_byte == place) for at_byte, byte in enumerate(sealed[13]))}

    refused_by_client(11, play, Stage.MASK, with_sealed(play, 11, flip), "not authentic", peer=13)


def test_swapped_senders_of_ciphertexts_are_refused():
    play = at(Stage.MASK)
    swapped = with_sealed(play, 11, lambda sealed: sealed | {12: sealed[13], 13: sealed[12]})
    refused_by_client(11, play, Stage.MASK, swapped, "not authentic", peer=12)


def test_a_ciphertext_for_somebody_else_or_sent_back_is_refused():
    play = at(Stage.MASK)
    to_12 = dict(DeliveredShares.from_bytes(play.inbox[12], play.about, peer="server", client=12).sealed)
    refused_by_client(
        11,
        play,
        Stage.MASK,
        with_sealed(play, 11, lambda sealed: sealed | {13: to_12[13]}),
        "not authentic",
        peer=13,
    )
    play = at(Stage.MASK)
    own = dict(SharedKeys.from_bytes(play.sent[Stage.SHARE][11], play.about, peer=11, client=11).sealed)
    reflected = with_sealed(play, 11, lambda sealed: sealed | {13: own[13]})
    refused_by_client(11, play, Stage.MASK, reflected, "not authentic", peer=13)


def test_an_authentic_ciphertext_without_shares_is_refused():
    play = at(Stage.MASK)
    sender = keys.KeyPair.of(13, secrets_of(play, 13).channel)
    receiver = keys.public_key(secrets_of(play, 11).channel)
    wrong = keys.channel(play.about, sender, 11, receiver, outgoing=True).seal(shamir.PRIME, 1)
    refused_by_client(
        11,
        play,
        Stage.MASK,
        with_sealed(play, 11, lambda sealed: sealed | {13: wrong}),
        "not two shares",
        peer=13,
    )


def test_a_ciphertext_from_a_client_that_sent_no_keys_is_refused():
    play = MaskedRound(terms()).play(until=Stage.MASK, silent=[14])
    extra = with_sealed(play, 11, lambda sealed: sealed | {14: sealed[13]})
    refused_by_client(11, play, Stage.MASK, extra, "from a client that sent no keys")


def with_peers(play, client, change):
    message = PeerKeys.from_bytes(play.inbox[client], play.about, peer="server", client=client)
    return replace(message, peers=tuple(sorted(change(dict(message.peers)).items()))).to_bytes(play.about)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda peers: {99: peers.pop(14)} | peers, "no neighbour"),
        (lambda peers: {11: peers.pop(14)} | peers, "no neighbour"),
        (lambda peers: peers | {13: peers[12]}, "client 13 has another client's key"),
        (lambda peers: peers | {13: replace(peers[13], mask=peers[12].channel)}, "client 13 has another"),
        (lambda peers: peers | {13: replace(peers[13], mask=peers[13].channel)}, "one key for two purposes"),
        (lambda peers: peers | {13: replace(peers[13], mask=bytes(32))}, "weak key"),
        (lambda peers: peers | {13: replace(peers[13], channel=b"\1" + bytes(31))}, "weak key"),
    ],
)
def test_keys_that_a_client_refuses(change, field):
    play = at(Stage.SHARE)
    refused_by_client(11, play, Stage.SHARE, with_peers(play, 11, change), field)


def test_a_client_refuses_its_own_key_from_somebody_else():
    play = at(Stage.SHARE)
    own = AdvertisedKeys.from_bytes(play.sent[Stage.ADVERTISE][11], play.about, peer=11, client=11).keys
    refused_by_client(
        11, play, Stage.SHARE, with_peers(play, 11, lambda peers: peers | {13: own}), "another client's key"
    )


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK])
def test_a_client_with_too_few_holders_shares_nothing(stage):
    play = at(stage)
    few = {Stage.SHARE: with_peers, Stage.MASK: with_sealed}[stage](
        play, 11, lambda entries: {13: entries[13]}
    )
    with pytest.raises(RoundAborted) as caught:
        play.answer(11, stage, few)
    assert (caught.value.survivors, caught.value.threshold) == ((11, 13), 3)
    assert play.clients[11].progress == Progress.FAILED


def test_a_client_starts_once_and_in_its_cohort():
    client = MaskingClient.start(terms(), 10, Seeded(1))
    client.advertise()
    with pytest.raises(LocalProtocolError, match="cannot advertise"):
        client.advertise()
    with pytest.raises(LocalProtocolError, match="not of the cohort"):
        MaskingClient.start(terms(), 99, Seeded(1))


# -- what the server refuses


def refused_by_server(play, client, data, field):
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        play.server.collect(client, data)
    assert (caught.value.peer, caught.value.round) == (client, 3)
    with pytest.raises(RemoteProtocolError):
        play.server.collect(client, data)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "fault", ["truncated", "swapped sender", "another round", "another sum", "earlier stage"]
)
def test_a_bad_message_drops_its_sender_by_name_and_the_sum_of_the_others_stays_right(stage, fault):
    play = at(stage, clients=6)
    play.send()
    good = play.sent[stage].pop(12)
    other = at(stage, clients=6, **({"round": 4} if fault == "another round" else {"run": b"other"}))
    other.send()
    bad, field = {
        "truncated": (good[:-1], "length"),
        "swapped sender": (play.sent[stage][13], "client: it names client 13"),
        "another round": (other.sent[stage][12], "round"),
        "another sum": (other.sent[stage][12], "terms"),
        "earlier stage": (
            play.sent[STAGES[STAGES.index(stage) - 1]].get(12, b"") if stage != STAGES[0] else b"",
            "kind|length",
        ),
    }[fault]
    refused_by_server(play, 12, bad, field)
    refused_by_server(play, 12, good, "refused before")
    assert 12 not in play.server.expected
    play.deliver()
    total = play.play()
    lost = () if stage == Stage.UNMASK else (12,)
    assert total.survivors == tuple(sorted(set(play.about.cohort) - set(lost)))
    assert total.values.tolist() == plain_sum(play.about, play.inputs, total.survivors)
    assert total.dropped.keys() == {12}


@pytest.mark.parametrize("stage", STAGES)
def test_a_second_message_is_refused_and_what_was_accepted_stands(stage):
    play = at(stage, clients=6)
    play.send()
    for client, data in play.sent[stage].items():
        play.server.collect(client, data)
    assert play.server.expected == ()
    with pytest.raises(RemoteProtocolError, match="not expected in stage"):
        play.server.collect(12, play.sent[stage][12])
    play.close()
    assert 12 not in play.inbox
    total = play.play()
    assert (12 in total.survivors) == (stage in (Stage.MASK, Stage.UNMASK))
    assert total.values.tolist() == plain_sum(play.about, play.inputs, total.survivors)


def test_a_stranger_is_refused():
    play = at(Stage.ADVERTISE)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="not expected"):
            play.server.collect(99, b"")
    assert play.play().dropped == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda own, other: replace(own, mask=other.mask), "another client's"),
        (lambda own, other: replace(own, mask=own.channel), "one for two purposes"),
        (lambda own, other: replace(own, mask=bytes(32)), "low order"),
        (lambda own, other: replace(own, channel=b"\1" + bytes(31)), "low order"),
    ],
)
def test_keys_that_the_server_refuses(change, field):
    play = MaskedRound(terms())
    play.send()
    first, second = (
        AdvertisedKeys.from_bytes(
            play.sent[Stage.ADVERTISE][client], play.about, peer=client, client=client
        ).keys
        for client in (10, 11)
    )
    play.server.collect(10, play.sent[Stage.ADVERTISE][10])
    refused_by_server(play, 11, AdvertisedKeys(11, change(second, first)).to_bytes(play.about), field)


@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: (*s[:-1], (99, s[-1][1])), lambda s: ()])
def test_shares_for_other_than_the_neighbours_are_refused(change):
    play = at(Stage.SHARE)
    play.send()
    message = SharedKeys.from_bytes(play.sent[Stage.SHARE][11], play.about, peer=11, client=11)
    refused_by_server(
        play, 11, replace(message, sealed=change(message.sealed)).to_bytes(play.about), "sealed: not for"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda answer: replace(answer, seeds=answer.seeds[:-1]), "seeds: not of the survivors"),
        (lambda answer: replace(answer, seeds=answer.seeds + answer.keys), "seeds: not of the survivors"),
        (lambda answer: replace(answer, keys=()), "keys: not of the dropouts"),
        (lambda answer: replace(answer, keys=answer.seeds[:1]), "keys: not of the dropouts"),
    ],
)
def test_answers_about_other_than_those_asked_for_are_refused(change, field):
    play = at(Stage.MASK)
    play.play(until=Stage.UNMASK, silent=[14])
    play.send()
    answer = UnmaskShares.from_bytes(play.sent[Stage.UNMASK][11], play.about, peer=11, client=11)
    refused_by_server(play, 11, change(answer).to_bytes(play.about), field)


@pytest.mark.parametrize("of_dropout", [False, True])
def test_a_wrong_share_is_noticed_and_never_gives_a_wrong_sum(of_dropout):
    play = at(Stage.MASK, clients=6)
    play.play(until=Stage.UNMASK, silent=[14])
    play.send()
    answer = UnmaskShares.from_bytes(play.sent[Stage.UNMASK][11], play.about, peer=11, client=11)
    whose = "keys" if of_dropout else "seeds"
    (peer, share), *rest = getattr(answer, whose)
    wrong = replace(answer, **{whose: ((peer, share ^ 1), *rest)})
    play.sent[Stage.UNMASK][11] = wrong.to_bytes(play.about)
    play.deliver()
    with pytest.raises(RoundAborted, match=f"wrong shares of client {peer}'s"):
        play.server.total()


def test_a_wrong_mask_key_is_noticed_even_with_just_enough_answers():
    play = at(Stage.MASK, clients=4)
    play.play(until=Stage.UNMASK, silent=[13])
    play.send()
    answer = UnmaskShares.from_bytes(play.sent[Stage.UNMASK][11], play.about, peer=11, client=11)
    ((peer, share),) = answer.keys
    play.sent[Stage.UNMASK][11] = replace(answer, keys=((peer, share ^ 2),)).to_bytes(play.about)
    play.deliver()
    with pytest.raises(RoundAborted, match="wrong shares of client 13's"):
        play.server.total()


# -- identities


def with_identities(**changes):
    about = terms(**changes)
    identities = {
        client: Ed25519PrivateKey.from_private_bytes(client.to_bytes(32, "big")) for client in about.cohort
    }
    roster = {client: identity.public_key().public_bytes_raw() for client, identity in identities.items()}
    return about, identities, roster


def test_with_a_roster_the_server_is_not_trusted_for_keys():
    about, identities, roster = with_identities()
    play = MaskedRound(about, roster=roster, identities=identities)
    total = play.play()
    assert not total.server_trusted_for_keys
    assert total.values.tolist() == plain_sum(about, play.inputs, about.cohort)
    assert MaskedRound(terms()).play().server_trusted_for_keys


@pytest.mark.parametrize("fault", ["unsigned", "another's identity", "not in the roster", "other terms"])
def test_keys_without_the_right_signature_are_refused_on_both_sides(fault):
    about, identities, roster = with_identities()
    identity = {"unsigned": None, "another's identity": identities[11]}.get(fault, identities[12])
    if fault == "not in the roster":
        del roster[12]
    play = MaskedRound(about, roster=roster, identities=identities | {12: identity})
    if fault == "other terms":
        elsewhere = MaskingClient.start(
            other_sum(about, round=4), 12, Seeded(1), identity=identity
        ).advertise()
        signature = AdvertisedKeys.from_bytes(
            elsewhere, other_sum(about, round=4), peer=12, client=12
        ).keys.signature
        secrets = keys.draw(Seeded(1), about, 12)
        public = replace(secrets.public(about, 12, None), signature=signature)
        bad = AdvertisedKeys(12, public).to_bytes(about)
    else:
        bad = play.clients[12].advertise()
    refused_by_server(play, 12, bad, "signature: not by the client's identity")
    # and a server that lets them pass does not get past the clients
    careless = MaskedRound(about, roster=roster, identities=identities | {12: identity})
    careless.server = MaskingServer(about)
    careless.send()
    careless.sent[Stage.ADVERTISE][12] = bad
    careless.deliver()
    refused_by_client(11, careless, Stage.SHARE, careless.inbox[11], "client 12's identity did not sign")


def test_a_server_that_swaps_keys_is_caught_with_a_roster():
    about, identities, roster = with_identities()
    play = MaskedRound(about, roster=roster, identities=identities).play(until=Stage.SHARE)
    own = keys.Secrets(*(bytes([n]) * 32 for n in (1, 2, 3, 4))).public(about, 13, None)
    swapped = with_peers(play, 11, lambda peers: peers | {13: replace(own, signature=peers[13].signature)})
    refused_by_client(11, play, Stage.SHARE, swapped, "client 13's identity did not sign")


# -- sleeping between messages


@pytest.mark.parametrize("with_roster", [False, True])
def test_a_client_that_is_stored_before_and_after_every_message_sends_the_same(with_roster):
    about, identities, roster = with_identities()
    settings = {"roster": roster, "identities": identities} if with_roster else {}
    awake, asleep = (MaskedRound(about, **settings) for _ in range(2))
    for play in (awake, asleep):
        play.play(until=Stage.MASK)
        play.silent = {14}
    awake_total = awake.play()
    asleep = MaskedRound(about, **settings)
    while (stage := asleep.server.stage) is not None:
        asleep.silent = set() if stage in (Stage.ADVERTISE, Stage.SHARE) else {14}
        for client, party in asleep.clients.items():
            asleep.clients[client] = MaskingClient.restore(party.state_bytes(), about, roster=asleep.roster)
        asleep.send()
        asleep.deliver()
    assert asleep.sent == awake.sent and bool(awake.sent[Stage.CONSENT]) == with_roster
    assert asleep.server.total().values.tolist() == awake_total.values.tolist()


def test_a_restored_client_does_not_go_back():
    play = MaskedRound(terms())
    for before, stage in zip(STATES, STAGES, strict=True):
        assert play.clients[11].progress == before
        play.send()
        restored = MaskingClient.restore(play.clients[11].state_bytes(), play.about)
        assert restored.progress == play.clients[11].progress > before
        with pytest.raises((RemoteProtocolError, LocalProtocolError)):
            play.answer(11, stage, play.inbox[11], using=restored)
        play.deliver()


def test_the_state_keeps_only_what_is_still_needed():
    play = MaskedRound(terms())
    secrets = secrets_of(play, 11)
    mine = (secrets.channel, secrets.mask, secrets.seed, secrets.dealer)
    held = [all(secret in play.clients[11].state_bytes() for secret in mine)]
    for _ in STAGES:
        play.send()
        held.append(any(secret in play.clients[11].state_bytes() for secret in mine))
        play.deliver()
    assert held == [True, True, True, False, False]
    assert ClientState.from_bytes(play.clients[11].state_bytes(), play.about, None) == ClientState(
        11, Progress.FINISHED
    )


def test_a_state_is_for_its_own_terms_and_roster_and_whole():
    about, _, roster = with_identities()
    data = MaskingClient.start(about, 11, Seeded(1), roster=roster).state_bytes()
    for other in (other_sum(about, round=4), other_sum(about, threshold=4), other_sum(about, length=5)):
        with pytest.raises(LocalProtocolError, match="another masked sum"):
            MaskingClient.restore(data, other, roster=roster)
    for wrong in (None, roster | {12: bytes(32)}):
        with pytest.raises(LocalProtocolError, match="another roster"):
            MaskingClient.restore(data, about, roster=wrong)
    for damaged in (b"", data[:-1], data + b"\0", data[:90] + bytes([data[90] ^ 1]) + data[91:]):
        with pytest.raises(LocalProtocolError, match="damaged"):
            MaskingClient.restore(damaged, about, roster=roster)


def test_no_secret_is_shown():
    play = MaskedRound(terms()).play(until=Stage.UNMASK)
    secrets = secrets_of(play, 11)
    pair = keys.KeyPair.of(11, secrets.mask)
    route = keys.channel(play.about, pair, 10, pair.public, outgoing=True)
    state = ClientState.from_bytes(play.clients[11].state_bytes(), play.about, None)
    assert state.held
    hidden = [secrets.channel, secrets.mask, secrets.seed, secrets.dealer, route.key]
    numbers = [share for _, shares in state.held for share in (shares.seed, shares.key)]
    for shown in map(repr, (secrets, pair, route, state, play.clients[11], play.server, state.held[0][1])):
        assert not any(repr(secret)[2:20] in shown or secret.hex() in shown for secret in hidden)
        assert not any(str(number) in shown for number in numbers)


# -- noise on the line


@pytest.mark.parametrize("stage", STAGES)
def test_a_changed_message_is_refused_or_changes_nothing_that_matters(stage):
    """500 changed messages each way: RemoteProtocolError or accepted, never another exception."""
    generator = random.Random(stage.value)
    play = at(stage, clients=5)
    states = {client: party.state_bytes() for client, party in play.clients.items()}
    play.send()
    outcomes = Counter()
    for _ in range(500):
        client = generator.choice(play.about.cohort)
        up = generator.random() < 0.5 or stage == Stage.ADVERTISE
        data = bytearray(play.sent[stage][client] if up else play.inbox[client])
        for _ in range(generator.randint(1, 2)):
            # mostly in the header, the counts and the padding, where the decoder makes its decisions
            place = generator.randrange(min(len(data), 120) if generator.random() < 0.6 else len(data))
            data[place] ^= 1 << generator.randrange(8)
        if generator.random() < 0.1:
            del data[generator.randrange(len(data)) :]
        if up:
            server = fresh_server(play, stage)
            receive = lambda: server.collect(client, bytes(data))  # noqa: B023, E731
        else:
            party = MaskingClient.restore(states[client], play.about)
            receive = lambda: play.answer(client, stage, bytes(data), using=party)  # noqa: B023, E731
        try:
            receive()
        except RemoteProtocolError:
            outcomes["refused"] += 1
        else:
            outcomes["accepted"] += 1
    assert outcomes["refused"] > 200


def fresh_server(play, stage):
    """A server to which everything before the stage has been sent."""
    server = MaskingServer(play.about)
    for earlier in itertools.takewhile(lambda each: each != stage, STAGES):
        for client, data in play.sent[earlier].items():
            server.collect(client, data)
        server.close_stage()
    return server
