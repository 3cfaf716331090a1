"""The clip norm of DP-FedAvg: fixed, adaptive, or the median of a first round; each against numpy, and at its worst."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import ConfigError, DPFedAvg, Privacy, simulate
from discreet.config import from_table, to_table
from discreet.privacy.accounting import spent
from discreet.privacy.modulus import wrap_probability
from discreet.privacy.releases import DiscreteGaussianSum, FixedSize, Ledger, Released
from discreet.privacy.words import SeededWords
from discreet.sampling import sample
from discreet.schemes import clipping
from discreet.schemes.base import Total
from discreet.schemes.dp_fedavg import ClippedModel
from discreet.training import Trained
from federations import SIZES, assert_same_run, dataset, deal, experiment, federation, play, same_bits, scheme
from test_schemes_private import changes

DATA = dataset()
CLIENTS = list(range(len(SIZES)))
WITH_DATA = [client for client in CLIENTS if SIZES[client]]
KINDS = ["fixed", "median", "adaptive"]
QUIET = Privacy(noise_multiplier=0.002)
"""The least noise with which a share can be drawn here: the total's is about one step of the grid."""

every_kind = pytest.mark.parametrize("kind", KINDS)


def run(kind, *, sizes=SIZES, out=None, resume=False, settings=(), **changes):
    chosen = scheme("dp-fedavg", clip=kind, **dict(settings))
    return simulate(experiment(chosen, **changes), data=DATA, partition=deal(sizes), out=out, resume=resume)


def claimed(fed):
    """Norm and length of a contribution, and what a client within the clip norm adds, by hand.

    64 sqrt(n) steps for the update; the answer squared is a tenth of the whole squared, so a ninth of the update's.
    """
    n = fed.task.parameters
    root = 64 * math.sqrt(n)
    if fed.scheme.clip != "adaptive":
        return root, n, 0
    answer = math.floor(root / 3)
    return math.sqrt(root**2 + answer**2), n + 1, answer


def noise_of(fed, client, participants, round=1):
    """A client's share, drawn again from its seed."""
    norm, length, _ = claimed(fed)
    share = fed.task.promise.share(norm * fed.task.promise.noise_multiplier, participants)
    return torch.from_numpy(share.sample(SeededWords(fed.task.randomness, round, client), length))


def given_changes(fed, rows, state, round=1):
    """Contributions, and their noise, of clients whose training came to `rows`, shape (K, n)."""
    ids = np.arange(len(rows))
    cohort = fed.cohort(ids, round, {}, len(ids))
    trained = Trained(rows, torch.zeros(len(ids)), torch.isfinite(rows).all(1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("discreet.schemes.base.train", lambda *_: trained)
        (phase,) = fed.scheme.phases(fed.task)
        elements = fed.scheme.contribute(fed.task, phase, state, (), cohort).elements
    noise = torch.stack([noise_of(fed, int(client), len(ids), round) for client in ids])
    return elements, noise


def local_changes(fed):
    """What each client's own training comes to, from rounds of FedAvg with nobody else; shape (K, n), float64."""
    plain = federation(scheme("fedavg"), DATA)
    start = fed.task.initial()
    rows = np.zeros((len(CLIENTS), fed.task.parameters))
    for client in WITH_DATA:
        rows[client] = (play(plain, [[client]]).state.vector - start).double().numpy()
    return rows


def clip_norm_of(result):
    return float(result.checkpoint.tensors["state.clip_norm"])


def population(clients, kind, noise_multiplier, **settings):
    """A federation of clients without data, whose changes a test makes up."""
    chosen = scheme("dp-fedavg", clip=kind, **settings)
    privacy = Privacy(noise_multiplier=noise_multiplier)
    return federation(chosen, DATA, partition=deal([0] * clients), privacy=privacy)


def of_norms(fed, norms, seed=0):
    """Changes in random directions with these L2 norms, float64."""
    rows = np.random.default_rng(seed).normal(size=(len(norms), fed.task.parameters))
    rows *= (np.asarray(norms) / np.linalg.norm(rows, axis=1))[:, None]
    return torch.from_numpy(rows)


# ---- one round against numpy, with almost no noise


def test_an_adaptive_round_is_the_paper_s():
    probe = federation("dp-fedavg", DATA)
    rows = local_changes(probe)
    norms = np.linalg.norm(rows[WITH_DATA], axis=1)
    clip = float(np.sqrt(np.sort(norms)[4] * np.sort(norms)[5]))  # 5 of 7 updates are within
    settings = {"clip": "adaptive", "clip_norm": clip, "clip_quantile": 0.3, "clip_learning_rate": 0.7}
    fed = federation(scheme("dp-fedavg", **settings), DATA, privacy=QUIET)
    played = play(fed, [CLIENTS])
    shrunk = [row * min(1, clip / np.linalg.norm(row)) for row in rows[WITH_DATA]]
    moved = played.state.vector.double().numpy() - fed.task.initial().double().numpy()
    # clipping leaves 1 part in 128 for rounding, a step is clip / 466, and noise of the mean is 1/8 of a step
    largest = max(np.abs(row).max() for row in shrunk)
    np.testing.assert_allclose(moved, np.sum(shrunk, 0) / 8, rtol=0, atol=largest * 7 / 8 / 128 + clip / 466)
    # 5 say yes, 2 say no, and one has no update to judge and counts half
    wanted = clip * math.exp(-0.7 * ((5 + 1 / 2) / 8 - 0.3))
    assert float(played.state.clip_norm) == pytest.approx(wanted, rel=0.7 * 0.005)
    assert abs(float(played.state.clip_norm) / clip - 1) > 0.1


@pytest.mark.parametrize("guess", [1.0, 1.73, 0.01])
def test_a_median_round_finds_the_median_and_leaves_the_model(guess):
    fed = federation(scheme("dp-fedavg", clip="median", clip_norm=guess), DATA, privacy=QUIET)
    before = fed.scheme.init(fed.task)
    assert float(before.clip_norm) == 0
    played = play(fed, [CLIENTS])
    assert same_bits(played.state.vector, before.vector)
    norms = np.linalg.norm(local_changes(fed)[WITH_DATA], axis=1)
    edges = guess * 2.0 ** np.arange(-12, 13)
    counts, _ = np.histogram(norms, edges)
    assert counts.sum() == 7
    below = np.concatenate([[0], np.cumsum(counts)])
    place = np.flatnonzero(below >= 3.5)[0]
    part = (3.5 - below[place - 1]) / counts[place - 1]
    wanted = edges[place - 1] ** (1 - part) * edges[place] ** part
    # noise of one step in 466 on each of 24 counts
    assert float(played.state.clip_norm) == pytest.approx(wanted, rel=0.03)
    assert 1 / 2 < float(played.state.clip_norm) / np.median(norms) < 2
    after = play(fed, [CLIENTS], round=2, state=played.state)
    assert same_bits(after.state.clip_norm, played.state.clip_norm)
    # from then on it is the fixed one
    fixed = federation(scheme("dp-fedavg", clip_norm=float(played.state.clip_norm)), DATA, privacy=QUIET)
    same = play(fixed, [CLIENTS], round=2, state=fixed.scheme.init(fixed.task))
    assert same_bits(after.state.vector, same.state.vector)
    assert not same_bits(after.state.vector, before.vector)


def test_a_fixed_clip_norm_never_moves():
    assert clip_norm_of(run("fixed", settings={"clip_norm": 1.73})) == 1.73


# ---- the norm that is stated, whatever a client's update is

FEDERATIONS = {kind: federation(scheme("dp-fedavg", clip=kind), DATA) for kind in KINDS}
PLACES = st.floats(-20, 20).map(lambda power: 10.0**power)


@every_kind
@settings(max_examples=15)
@given(rows=changes(), clip=PLACES, double=st.booleans())
def test_no_contribution_is_larger_than_what_is_stated(kind, rows, clip, double):
    fed = FEDERATIONS[kind]
    norm, length, _ = claimed(fed)
    if double:
        rows = rows.double() * 1e250  # whose squares are infinite
    state = fed.scheme.init(fed.task)
    for one in (0.0, clip) if kind == "median" else (clip,):
        given = dataclasses.replace(state, clip_norm=torch.tensor(one, dtype=torch.float64))
        elements, noise = given_changes(fed, rows, given)
        integers = elements - noise
        assert integers.shape == (len(rows), length)
        assert (integers.double().norm(dim=1) <= norm * (1 + 1e-12)).all()
        assert not integers[~torch.isfinite(rows).all(1)].any()
        # taking a client away takes its row away
        fewer, rest = given_changes(fed, rows[:-1], given)
        assert torch.equal(integers.sum(0) - (fewer - rest).sum(0), integers[-1])
    stated = fed.scheme.release(fed.task).noise
    assert (stated.l2_sensitivity, stated.dimension) == (pytest.approx(norm, rel=1e-12), length)


@every_kind
def test_the_stated_norm_is_reached_or_nearly_so(kind):
    fed = FEDERATIONS[kind]
    for size in (1e-8, 1e8):
        rows = torch.full((2, fed.task.parameters), size, dtype=torch.float64)
        elements, noise = given_changes(fed, rows, fed.scheme.init(fed.task))
        reached = (elements - noise).double().norm(dim=1) / claimed(fed)[0]
        # a small update is all answer: sqrt(1/10) of the norm; with a fixed norm it is nothing
        least = {"fixed": 0.98, "median": 0.99, "adaptive": 0.98}[kind]
        if size < 1:
            least = {"fixed": 0.0, "median": 0.99, "adaptive": 0.31}[kind]
        assert (reached >= least).all()


@given(st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=6), PLACES)
def test_clipping_alone_keeps_its_norm_and_the_direction(scales, clip):
    rows = np.random.default_rng(1).uniform(-1, 1, size=(len(scales), 30)) * np.array(scales)[:, None]
    norm = 64 * math.sqrt(30)
    steps = clipping.clipped(torch.from_numpy(rows), clip, norm).numpy()
    assert steps.dtype == np.int64 and (np.linalg.norm(steps, axis=1) <= norm).all()
    for row, found in zip(rows, steps, strict=True):
        length = float(np.linalg.norm(row / max(np.abs(row).max(), 1e-320))) * float(np.abs(row).max())
        if 0 < length < 1e150:  # beyond, the norm itself is infinite, and nothing is sent
            wanted = row / length * min(norm - math.sqrt(30) / 2, length / clip * norm)
            assert np.abs(found - wanted).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("guess", [1.0, 3.7, 1e-30, 1e30])
def test_every_norm_has_one_bin_with_the_ends_for_the_rest(guess):
    relative = np.array([0.0, 1e-30, 2.0**-12, 2.0**-11, 0.6, 0.9, 1.1, 1.9, 2.1, 2.0**11 * 1.01, 1e30])
    wanted = [0, 0, 0, 0, 11, 11, 12, 12, 13, 23, 23]
    rows = np.zeros((len(relative), 40))
    rows[:, 7] = relative * guess
    if guess != 1.0:  # powers of two times the guess may be rounded to either side of an edge
        rows, wanted = rows[[0, 1, 4, 5, 6, 7, 8, 9, 10]], [0, 0, 11, 11, 12, 12, 13, 23, 23]
    found = clipping.histogram(torch.from_numpy(rows), guess, 9).numpy()
    assert found.argmax(1).tolist() == wanted and (found.sum(1) == 9).all() and (found.max(1) == 9).all()


# ---- the estimates, under noise


def test_adaptive_clipping_ends_at_the_quantile():
    """60 rounds, 60 clients, from 20 times too low; noise of 1 adds 0.03 to each share, a step is 0.2 of that."""
    quantile = 0.7
    norms = np.random.default_rng(2).lognormal(3.0, 0.5, 60)
    fed = population(60, "adaptive", 1.0, clip_quantile=quantile)
    rows, state = of_norms(fed, norms), fed.scheme.init(fed.task)
    shares = []
    for round in range(1, 61):
        elements, _ = given_changes(fed, rows, state, round)
        state = fed.scheme.update(fed.task, state, (Total(elements.sum(0), 60),), round)
        shares.append(float((norms <= float(state.clip_norm)).mean()))
    assert shares[0] == 0
    assert all(abs(share - quantile) < 0.1 for share in shares[-15:])


@pytest.mark.parametrize("middle", [1e-3, 0.07, 1.0, 300.0])
def test_the_median_is_found_within_a_factor_of_two_under_noise(middle):
    """100 clients, a noise multiplier of 1: the counts on either side of an edge differ by 5 from noise (1 sigma)."""
    fed = population(100, "median", 1.0)
    for seed in range(5):
        norms = np.random.default_rng(seed).lognormal(math.log(middle), 1.0, 100)
        state = fed.scheme.init(fed.task)
        elements, _ = given_changes(fed, of_norms(fed, norms), state, round=seed + 1)
        after = fed.scheme.update(fed.task, state, (Total(elements.sum(0), 100),), seed + 1)
        assert 1 / 2 < float(after.clip_norm) / np.median(norms) < 2


def test_clients_who_have_nothing_to_send_do_not_move_the_median():
    fed = population(100, "median", 0.05)
    norms = np.random.default_rng(0).lognormal(0.0, 0.3, 100)
    rows = of_norms(fed, norms)
    rows[::2] = float("nan")
    state = fed.scheme.init(fed.task)
    elements, _ = given_changes(fed, rows, state)
    after = fed.scheme.update(fed.task, state, (Total(elements.sum(0), 100),), 1)
    assert float(after.clip_norm) == pytest.approx(float(np.median(norms[1::2])), rel=0.25)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ({12: 10}, 2.0**0.5),  # all in 1 .. 2: halfway, geometrically
        ({0: 4}, 2.0**-11.5),
        ({23: 4}, 2.0**11.5),
        ({5: 3, 20: 1}, 2.0 ** (-7 + 2 / 3)),
        ({5: 2, 20: 2}, 2.0**-6),  # the end of the lower half
        ({3: -1, 12: 10, 20: 1}, 2.0 ** (5 / 9)),  # sums 0, -1, 9, 10, in order -1, 0, 9, 10: half is 5, of 9
        ({12: 10, 15: -2, 18: 2}, 2.0**0.625),  # sums 10, 8, 10, put in order 8, 10: half is 5, of 8
        ({}, 1.0),
        ({4: -3}, 1.0),
    ],
)
def test_the_median_of_a_histogram_by_hand(counts, wanted):
    values = torch.zeros(24, dtype=torch.float64)
    for place, count in counts.items():
        values[place] = count
    assert clipping.median_norm(values, 1.0) == pytest.approx(wanted, rel=1e-12)
    assert clipping.median_norm(values, 8.0) == pytest.approx(8 * wanted, rel=1e-12)


@given(st.lists(st.floats(-1e6, 1e6), min_size=24, max_size=24), PLACES)
def test_whatever_the_noise_the_median_is_in_its_range(counts, guess):
    found = clipping.median_norm(torch.tensor(counts, dtype=torch.float64), guess)
    assert guess * 2.0**-12 <= found <= guess * 2.0**12


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 1.0), (1.0, math.exp(-0.1)), (9.0, math.exp(-0.1)), (-3.0, math.exp(0.1))]
)
def test_a_step_of_the_clip_norm_is_bounded(share, wanted):
    assert clipping.adapted(7.0, share, 0.5, 0.2) == pytest.approx(7 * wanted, rel=1e-12)
    for start in (1e-30, 1e30):
        assert 1e-30 <= clipping.adapted(start, share, 0.5, 1e3) <= 1e30


# ---- what a round costs


@every_kind
@pytest.mark.parametrize("rounds", [1, 3])
def test_every_round_is_one_release_the_median_s_as_well(kind, rounds):
    privacy = Privacy(noise_multiplier=2.0, delta=1e-3)
    result = run(kind, rounds=rounds, privacy=privacy)
    norm, length, _ = claimed(federation(scheme("dp-fedavg", clip=kind), DATA, privacy=privacy))
    # by hand, and to the last bit nearly: steps of 64 sqrt(n), 8 clients of 8
    released = Released(FixedSize(8, 8), DiscreteGaussianSum(2.0, norm, length, 8))
    wanted = spent(Ledger().add(released, rounds), 1e-3)
    assert result.result["privacy"]["releases"] == rounds
    assert result.result["privacy"]["epsilon"] == pytest.approx(wanted.epsilon, rel=1e-9)
    assert result.result["privacy"]["noise_multiplier"] == 2.0


def test_the_round_for_the_median_comes_out_of_the_budget():
    privacy = Privacy(noise_multiplier=2.0, delta=1e-3)
    three = run("fixed", rounds=3, privacy=privacy).result["privacy"]["epsilon"]
    bounded = dataclasses.replace(privacy, epsilon=three * 1.0001)
    result = run("median", rounds=9, privacy=bounded)
    assert len(result.metrics) == 3 and result.result["privacy"]["epsilon"] == pytest.approx(three)


def test_a_first_round_that_is_not_released_is_played_again():
    """Poisson cohorts that are sometimes no larger than the number of dishonest clients, whose sum nobody sees."""
    privacy = Privacy(noise_multiplier=2.0, assumed_dishonest=3)
    setting = {"sampling": "poisson", "fraction": 0.5, "privacy": privacy}

    def drawn(seed):
        chosen = experiment("dp-fedavg", seed=seed, **setting)
        return [len(sample(chosen, len(SIZES), round)) for round in (1, 2)]

    seed = next(seed for seed in range(100) if drawn(seed)[0] <= 3 < drawn(seed)[1])
    fed = federation("dp-fedavg", DATA, seed=seed, **setting)
    one, two = (run("median", rounds=rounds, seed=seed, **setting) for rounds in (1, 2))
    assert clip_norm_of(one) == 0 and clip_norm_of(two) > 0
    assert [line["released"] for line in two.metrics] == [False, True]
    assert two.result["privacy"]["releases"] == 1
    assert same_bits(two.vector, fed.task.initial())


@pytest.mark.parametrize("multiplier", [0.5, 5.0, 40.0])
@every_kind
def test_the_modulus_holds_the_whole_vector(kind, multiplier):
    privacy = Privacy(noise_multiplier=multiplier, dropout_tolerance=0.5)
    fed = federation(scheme("dp-fedavg", clip=kind), DATA, privacy=privacy)
    (phase,) = fed.scheme.phases(fed.task)
    norm, length, answer = claimed(fed)
    largest = max(64 * math.sqrt(fed.task.parameters), answer)
    assert phase.length == length
    louder = norm * multiplier * math.sqrt(8 / 4)  # shares are for 4 of 8, and all 8 may come
    assert wrap_probability(phase.group.bits, largest, 8, louder, parameters=length, rounds=1000) < 1e-24


# ---- whole runs


@every_kind
def test_a_run_that_is_resumed_ends_as_if_it_had_not_stopped(kind, tmp_path):
    whole = run(kind, rounds=4)
    run(kind, rounds=2, out=tmp_path / "run")
    resumed = run(kind, rounds=4, out=tmp_path / "run", resume=True)
    assert_same_run(whole, resumed)
    state = whole.checkpoint.tensors["state.clip_norm"]
    assert state.shape == () and state.dtype == torch.float64
    one = run(kind, rounds=1)
    assert (clip_norm_of(one) != clip_norm_of(whole)) == (kind == "adaptive")


@pytest.mark.parametrize("kind", ["median", "adaptive"])
def test_neither_stacks_nor_masks_change_a_run(kind):
    clear = run(kind, rounds=3)
    assert_same_run(clear, run(kind, rounds=3, lanes=8))
    masked = run(kind, rounds=3, secure="masked")
    for name, tensor in clear.checkpoint.tensors.items():
        assert same_bits(tensor, masked.checkpoint.tensors[name])


@pytest.mark.parametrize("kind", ["median", "adaptive"])
def test_training_goes_on_where_nobody_has_data(kind):
    result = run(kind, sizes=[0] * 8, rounds=4)
    assert math.isfinite(result.loss[-1]) and clip_norm_of(result) > 0


@every_kind
def test_its_settings_go_to_toml_and_back(kind):
    chosen = experiment(scheme("dp-fedavg", clip=kind, clip_norm=1.73))
    assert to_table(chosen)["scheme"]["clip"] == kind
    assert from_table(to_table(chosen)) == chosen


def test_the_plain_setting_is_a_fixed_norm_of_one():
    assert DPFedAvg() == DPFedAvg(clip="fixed", clip_norm=1.0)
    assert isinstance(DPFedAvg().init(federation("dp-fedavg", DATA).task), ClippedModel)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"clip": "mean"}, "scheme.clip"),
        ({"clip_norm": -1.0}, "scheme.clip_norm"),
        ({"clip_norm": 1e-40}, "scheme.clip_norm"),
        ({"clip": "adaptive", "clip_quantile": 0.0}, "scheme.clip_quantile"),
        ({"clip": "adaptive", "clip_quantile": 1.0}, "scheme.clip_quantile"),
        ({"clip": "adaptive", "clip_learning_rate": 0.0}, "scheme.clip_learning_rate"),
        ({"clip": "adaptive", "clip_learning_rate": math.inf}, "scheme.clip_learning_rate"),
        ({"clip": "fixed", "clip_quantile": 0.9}, "scheme.clip_quantile"),
        ({"clip": "median", "clip_learning_rate": 0.3}, "scheme.clip_learning_rate"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, key):
    with pytest.raises(ConfigError) as caught:
        DPFedAvg(**settings)
    assert str(caught.value).startswith(f"{key} ") and "\n" not in str(caught.value)


def test_a_model_too_small_for_the_histogram_is_refused_before_anything_is_written(tmp_path):
    small = torch.nn.Linear(6, 3)
    chosen = experiment(scheme("dp-fedavg", clip="median"), widths=None)
    with pytest.raises(ConfigError, match=r"^scheme\.clip .*21 parameters.*24"):
        simulate(chosen, data=DATA, partition=deal(), model=small, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@settings(max_examples=10)
@given(cut=st.permutations(CLIENTS), kind=st.sampled_from(["median", "adaptive"]))
def test_the_order_of_clients_changes_no_state(cut, kind):
    fed = FEDERATIONS[kind]
    straight, mixed = play(fed, [CLIENTS]), play(fed, [list(cut[:3]), list(cut[3:])])
    assert same_bits(straight.state.vector, mixed.state.vector)
    assert same_bits(straight.state.clip_norm, mixed.state.clip_norm)
