"""DP-SignFed and DP-FedAvg: exact sums under the noise, sensitivity, the ledger, the budget, and what is refused."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet import ConfigError, DPFedAvg, DPSignFed, Experiment, FedAvg, Privacy, SignFed, simulate
from discreet.config import Data, Engine, Model, from_table
from discreet.data.partition import Partition
from discreet.errors import LocalProtocolError
from discreet.privacy.accounting import spent
from discreet.privacy.calibration import calibrate
from discreet.privacy.modulus import bits_by_paper_rule, bits_for_sum, wrap_probability
from discreet.privacy.promise import Promise
from discreet.privacy.releases import DiscreteGaussianSum, FixedSize, Ledger, Poisson, Released
from discreet.privacy.words import SeededWords
from discreet.sampling import sample
from discreet.schemes import SCHEMES
from discreet.secure.groups import wire_bytes
from discreet.training import Trained
from federations import SIZES, assert_same_run, dataset, deal, experiment, federation, play, same_bits, scheme
from test_schemes import poisoned, run_poisoned

DATA = dataset()
CLIENTS = list(range(len(SIZES)))
WITH_DATA = [client for client in CLIENTS if SIZES[client]]
PRIVATE = ["dp-fedavg", "dp-signfed"]

every_private = pytest.mark.parametrize("name", PRIVATE)


def run(name, **changes):
    return simulate(experiment(name, **changes), data=DATA, partition=deal())


def norm_of(fed):
    """The claimed L2 norm of a contribution, by hand: sqrt(n), or for updates 64 sqrt(n) steps."""
    root = math.sqrt(fed.task.parameters)
    return root if isinstance(fed.scheme, DPSignFed) else 64 * root


def noise_of(fed, client, participants, round=1):
    """A client's share, drawn again from its seed."""
    promise = fed.task.promise
    share = promise.share(norm_of(fed) * promise.noise_multiplier, participants)
    return torch.from_numpy(
        share.sample(SeededWords(fed.task.randomness, round, client), fed.task.parameters)
    )


def integers_of(fed, clients=CLIENTS, **others):
    """What each client contributes without its noise, shape (K, n), and the total without noise."""
    played = play(fed, [clients], **others)
    (given,), (total,) = played.given, played.totals
    noise = [noise_of(fed, client, len(clients), others.get("round", 1)) for client in clients]
    rows = torch.stack([given[client][0] - own for client, own in zip(clients, noise, strict=True)])
    return rows, total.values - sum(noise), played


def given_changes(fed, changes, accepted=None):
    """What clients contribute without noise whose training came to `changes`, shape (K, n)."""
    ids = np.arange(len(changes)) % len(SIZES)
    cohort = fed.cohort(ids, 1, {}, len(ids))
    usable = torch.isfinite(changes).all(1) if accepted is None else accepted
    trained = Trained(changes, torch.zeros(len(ids)), usable)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("discreet.schemes.base.train", lambda *_: trained)
        (phase,) = fed.scheme.phases(fed.task)
        given = fed.scheme.contribute(fed.task, phase, fed.scheme.init(fed.task), (), cohort)
    noise = torch.stack([noise_of(fed, int(client), len(ids)) for client in ids])
    return given, given.elements - noise


def test_these_are_all_the_schemes_whose_clients_add_noise():
    # tests/test_schemes_dp_sgd.py has the one in which a single party does
    assert [name for name, kind in SCHEMES.items() if kind.private and not kind.pooled] == PRIVATE


# ---- what is summed, with the noise taken off


def test_under_the_noise_lies_the_sum_of_signfeds_votes():
    fed, plain = federation("dp-signfed", DATA), federation("signfed", DATA)
    rows, total, played = integers_of(fed)
    votes = play(plain, [CLIENTS])
    for client in CLIENTS:
        wanted = votes.given[0][client][0].long() if SIZES[client] else torch.zeros_like(rows[0])
        assert torch.equal(rows[client], wanted)
    assert torch.equal(total, votes.totals[0].values.long())
    assert played.totals[0].count == len(CLIENTS)
    signs = torch.sign(played.totals[0].values)
    settled = signs != 0
    moved = played.state.vector - fed.task.initial()
    rate = fed.scheme.server_learning_rate
    torch.testing.assert_close(moved[settled], (rate * signs[settled]).float(), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(
        moved[~settled].abs(), torch.full_like(moved[~settled], rate), rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("clip_norm", [0.01, 1e6])
def test_under_the_noise_lies_the_sum_of_clipped_updates(clip_norm):
    """With the large clip norm nothing is clipped, with the small one everything is."""
    fed = federation(scheme("dp-fedavg", clip_norm=clip_norm), DATA)
    start = fed.task.initial()
    # a lone client's FedAvg update, without weights: its own change
    plain = federation("fedavg", DATA)
    rows, total, played = integers_of(fed)
    n = fed.task.parameters
    step = clip_norm / (64 * math.sqrt(n))
    for client in WITH_DATA:
        change = (play(plain, [[client]]).state.vector - start).double()
        room = clip_norm - step * math.sqrt(n) / 2
        clipped = change * min(1.0, room / float(change.norm()))
        # the lone update was read off float32 parameters, and rounding is half a step
        assert (rows[client] * step - clipped).abs().max() <= step * 0.5001 + 1e-6
        assert (clip_norm == 0.01) == (float(change.norm()) > room)
    assert not rows[SIZES.index(0)].any()
    assert torch.equal(total, rows.sum(0))
    expected = start.double() + played.totals[0].values.double() * step / len(CLIENTS)
    torch.testing.assert_close(played.state.vector.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_mean_is_over_the_expected_number_of_participants():
    """Whoever turns up: dividing by the number of those who did would make the sensitivity depend on the others."""
    fed = federation("dp-fedavg", DATA, fraction=0.5, sampling="poisson")
    played = play(fed, [[0, 1, 3]])
    step = 1 / (64 * math.sqrt(fed.task.parameters))
    expected = fed.task.initial().double() + played.totals[0].values.double() * step / 4
    torch.testing.assert_close(played.state.vector.double(), expected, rtol=1e-5, atol=1e-6)


# ---- sensitivity

FEDERATIONS = {name: federation(name, DATA) for name in PRIVATE}
VALUES = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -0.0, 1e38, 1e-45, 3e-3]
)


@st.composite
def changes(draw, most=5):
    """Changes of a few clients: one seed's normal numbers at any scale, with some chosen ones written over."""
    count, length = draw(st.integers(2, most)), FEDERATIONS[PRIVATE[0]].task.parameters
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    scales = 10.0 ** np.array(draw(st.lists(st.integers(-40, 37), min_size=count, max_size=count)))
    rows = (rng.normal(size=(count, length)) * scales[:, None]).astype(np.float32)
    for row, place, value in draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, length - 1), VALUES), max_size=4)
    ):
        rows[row, place] = value
    return torch.from_numpy(rows)


@every_private
@given(rows=changes())
def test_no_client_moves_the_sum_by_more_than_the_claimed_norm(name, rows):
    """Taking a client away takes its row away, and nothing else: coins and noise are each client's own."""
    fed = FEDERATIONS[name]
    everyone, integers = given_changes(fed, rows)
    norms = integers.double().norm(dim=1)
    assert (norms <= norm_of(fed) * (1 + 1e-12)).all()
    assert everyone.accepted.all()
    _, fewer = given_changes(fed, rows[:-1])
    moved = integers.sum(0) - fewer.sum(0)
    assert float(moved.double().norm()) <= norm_of(fed) * (1 + 1e-12)
    assert torch.equal(moved, integers[-1])
    released = fed.scheme.release(fed.task)
    assert released.noise.l2_sensitivity == norm_of(fed) and released.noise.dimension == rows.shape[1]
    finite = torch.isfinite(rows).all(1)
    assert torch.equal(everyone.withheld, ~finite)
    assert not integers[~finite].any()


def test_the_claimed_norm_is_reached_or_nearly_so():
    for name, least in (("dp-signfed", 1.0), ("dp-fedavg", 0.98)):
        fed = FEDERATIONS[name]
        _, integers = given_changes(fed, torch.full((2, fed.task.parameters), 1e5))
        assert (integers.double().norm(dim=1) >= least * norm_of(fed) * (1 - 1e-12)).all()


@every_private
def test_a_client_with_ten_times_the_data_has_no_more_influence(name):
    """All hold copies of one example, so that they train alike, and more data could only show as weight."""
    chosen = scheme(name, batch_size=0, steps=2)
    copies = Partition(np.full(11, 5), np.array([0, 1, 11]))
    small = torch.nn.Linear(6, 3)
    rows, _, _ = integers_of(federation(chosen, DATA, partition=copies, model=small, widths=None), [0, 1])
    if name == "dp-signfed":
        assert torch.equal(rows[0], rows[1])
    else:
        assert (rows[0] - rows[1]).abs().max() <= 1 and rows.any()  # one step, where a rounding was close


# ---- nobody, nothing, and nonsense: the laws of tests/test_schemes.py as they are here


@every_private
def test_a_client_without_examples_sends_noise_around_zero_and_is_counted(name):
    fed = federation(name, DATA)
    lone = SIZES.index(0)
    played = play(fed, [CLIENTS])
    elements, accepted, loss, _ = played.given[0][lone]
    assert accepted and loss.isnan()
    assert torch.equal(elements, noise_of(fed, lone, len(CLIENTS))) and elements.any()
    (line,) = run(name, rounds=1).metrics
    (phase,) = fed.scheme.phases(fed.task)
    assert line["participants"] == len(CLIENTS) and line["empty"] == 1 and line["dropped"] == []
    assert line["uplink_bytes"] == len(CLIENTS) * wire_bytes(phase.group, phase.length)
    assert np.isfinite(line["train_loss"]) and line["released"] is True


@every_private
def test_where_nobody_has_examples_the_noise_alone_is_released(name):
    partition = deal([0] * 4)
    result = simulate(experiment(name, rounds=1), data=DATA, partition=partition)
    fed = federation(name, DATA, partition=partition)
    (line,) = result.metrics
    assert (line["participants"], line["empty"], line["train_loss"]) == (4, 4, None)
    assert line["released"] is True and result.result["privacy"]["releases"] == 1
    rows, total, played = integers_of(fed, [0, 1, 2, 3])
    assert not rows.any() and not total.any()
    assert same_bits(result.vector, played.state.vector)
    assert not torch.equal(result.vector, fed.task.initial())


@every_private
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_whose_update_is_not_finite_sends_noise_and_is_named(name, value, monkeypatch):
    partition, bad = deal(first=0), [0, 4]
    clean = federation(name, DATA, partition=partition)
    wanted, _, _ = integers_of(clean)
    rows, total, played = integers_of(poisoned(clean, bad, value))
    assert not rows[bad].any()
    others = [client for client in CLIENTS if client not in bad]
    assert torch.equal(rows[others], wanted[others]) and torch.equal(total, wanted[others].sum(0))
    result = run_poisoned(monkeypatch, experiment(name, rounds=1), bad, partition=partition, value=value)
    assert same_bits(result.vector, played.state.vector)
    (line,) = result.metrics
    assert line["dropped"] == ["0", "4"] and result.result["dropped_updates"] == 2
    assert line["participants"] == len(CLIENTS) and line["empty"] == 1 and line["released"] is True
    losses = [float(played.given[0][client][2]) for client in others if SIZES[client]]
    assert line["train_loss"] == pytest.approx(np.mean(losses))
    whole = run_poisoned(
        monkeypatch, experiment(name, rounds=1, lanes=8), bad, partition=partition, value=value
    )
    assert_same_run(result, whole)  # one stack, or three


@every_private
def test_an_empty_poisson_round_is_a_release_like_any_other(name):
    result = run(name, sampling="poisson", fraction=1e-9)
    assert [line["participants"] for line in result.metrics] == [0, 0, 0]
    assert [line["released"] for line in result.metrics] == [True] * 3
    assert result.result["privacy"]["releases"] == 3
    assert result.checkpoint.facts["ledger"][0]["count"] == 3


# ---- secure sums


@pytest.mark.parametrize("chosen", [DPSignFed, DPFedAvg])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_masked_sums_give_the_same_model_bit_for_bit(chosen, sampling):
    def once(secure):
        return simulate(
            Experiment(
                data=Data(clients=9),
                model=Model(options={"widths": [4]}),
                scheme=chosen(steps=2, learning_rate=0.1),
                privacy=Privacy(noise_multiplier=0.8),
                fraction=0.7 if sampling == "poisson" else 6 / 9,
                sampling=sampling,
                secure=secure,
                rounds=3,
                engine=Engine(lanes=4, workers=1),
            )
        )

    clear, masked, auto = once("none"), once("masked"), once("auto")
    assert min(line["participants"] for line in clear.metrics) >= 3
    assert same_bits(clear.vector, masked.vector)
    assert_same_run(masked, auto)
    assert (clear.result["secure"], masked.result["secure"], auto.result["secure"]) == (
        "none",
        "masked",
        "masked",
    )
    assert auto.experiment.secure == "masked"
    assert clear.result["privacy"] == masked.result["privacy"]
    for line, plain in zip(masked.metrics, clear.metrics, strict=True):
        assert line["released"] and line["participants"] == plain["participants"]
        assert line["uplink_bytes"] > plain["uplink_bytes"]  # keys and shares besides


@every_private
def test_two_clients_cannot_hide_anyone_and_are_refused(name):
    with pytest.raises(ConfigError, match=r"secure = 'masked': expected at least 3 clients a round"):
        simulate(experiment(name, secure="masked"), data=DATA, partition=deal([9, 9]))


@every_private
def test_a_round_too_small_to_hide_anyone_is_not_released(name):
    chosen = {"secure": "masked", "sampling": "poisson", "fraction": 0.4, "rounds": 10}
    result = simulate(experiment(name, **chosen), data=DATA, partition=deal([9] * 4))
    drawn = [line["participants"] for line in result.metrics]
    assert {1, 2} & set(drawn) and max(drawn) >= 3  # both kinds of round occur with this seed
    assert [line["released"] for line in result.metrics] == [count not in (1, 2) for count in drawn]
    assert result.result["privacy"]["releases"] == sum(count not in (1, 2) for count in drawn)


# ---- the ledger and the budget


@every_private
@pytest.mark.parametrize(
    ("sampling", "fraction", "drawn", "shares"),
    # of 8 clients at 0.4, more than 8 is impossible and 8 has probability 0.4^8 = 7e-4
    [
        ("poisson", 0.4, Poisson(0.4), 8),
        ("fixed", 0.4, FixedSize(3, 8), 3),
        ("fixed", 1.0, FixedSize(8, 8), 8),
    ],
)
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_result_s_epsilon_is_the_accountant_s_for_the_rounds_that_ran(
    name, sampling, fraction, drawn, shares, rounds
):
    privacy = Privacy(noise_multiplier=2.0, delta=1e-3)
    chosen = {"sampling": sampling, "fraction": fraction, "privacy": privacy}
    result = run(name, rounds=rounds, **chosen)
    fed = federation(name, DATA, **chosen)
    released = Released(drawn, DiscreteGaussianSum(2.0, norm_of(fed), fed.task.parameters, shares))
    wanted = spent(Ledger().add(released, rounds), 1e-3)
    assert result.result["privacy"] == {**wanted.to_dict(), "noise": "discrete-gaussian", "unit": "client"}
    assert 0 < result.result["privacy"]["epsilon"] < math.inf


@every_private
def test_epsilon_survives_a_kill(name, tmp_path):
    privacy = Privacy(noise_multiplier=2.0, epsilon=1e3)
    chosen = {"privacy": privacy, "rounds": 4, "sampling": "poisson", "fraction": 0.5}
    given = {"data": DATA, "partition": deal()}
    whole = simulate(experiment(name, **chosen), **given, out=tmp_path / "whole")

    class Crash(Exception):
        pass

    def crash(metrics, rounds):
        if metrics["round"] == 2:
            raise Crash

    with pytest.raises(Crash):
        simulate(experiment(name, **chosen), **given, out=tmp_path / "cut", on_round=crash)
    state = json.loads((tmp_path / "cut" / "state.json").read_text())
    assert sum(entry["count"] for entry in state["ledger"]) == 2
    resumed = simulate(experiment(name, **chosen), **given, out=tmp_path / "cut", resume=True)
    assert_same_run(whole, resumed)
    results = [json.loads((tmp_path / part / "result.json").read_text()) for part in ("whole", "cut")]
    assert results[0]["privacy"] == results[1]["privacy"] == resumed.result["privacy"]
    assert results[0]["privacy"]["releases"] == 4


@every_private
def test_noise_and_a_budget_stop_before_the_round_that_would_pass_it(name, tmp_path):
    noise = {"noise_multiplier": 2.0, "delta": 1e-3}
    released = federation(name, DATA, privacy=Privacy(**noise)).scheme.release(
        federation(name, DATA, privacy=Privacy(**noise)).task
    )
    three, four = (spent(Ledger().add(released, count), 1e-3).epsilon for count in (3, 4))
    budget = (three + four) / 2
    privacy = Privacy(**noise, epsilon=budget)
    result = run(name, rounds=9, privacy=privacy, eval_every=9)
    assert len(result.metrics) == result.result["rounds"] == 3
    assert result.result["privacy"]["epsilon"] == three <= budget < four
    assert "accuracy" in result.metrics[-1] and "accuracy" not in result.metrics[0]  # the last is evaluated
    assert result.final["round"] == 3
    # to raise the number of rounds does not raise the budget
    given = {"data": DATA, "partition": deal(), "out": tmp_path / "run"}
    simulate(experiment(name, rounds=2, privacy=privacy), **given)
    more = simulate(experiment(name, rounds=9, privacy=privacy), **given, resume=True)
    assert len(more.metrics) == 3 and same_bits(more.vector, result.vector)


@every_private
@pytest.mark.parametrize(("sampling", "fraction"), [("poisson", 0.5), ("fixed", 1.0)])
def test_a_budget_alone_is_enough_for_all_rounds(name, sampling, fraction, tmp_path):
    chosen = {"sampling": sampling, "fraction": fraction, "rounds": 5}
    privacy = Privacy(epsilon=4.0, delta=1e-3)
    result = run(name, privacy=privacy, **chosen)
    assert len(result.metrics) == 5 and result.result["privacy"]["releases"] == 5
    assert 0.97 * 4.0 < result.result["privacy"]["epsilon"] <= 4.0
    multiplier = result.experiment.privacy.noise_multiplier
    assert multiplier == result.result["privacy"]["noise_multiplier"]
    fed = federation(name, DATA, privacy=privacy, **chosen)
    drawn, largest = fed.task.promise.sampling, fed.task.promise.largest_cohort
    assert multiplier == calibrate(
        4.0,
        1e-3,
        5,
        drawn,
        noise=lambda sigma: DiscreteGaussianSum(sigma, norm_of(fed), fed.task.parameters, largest),
    )
    # what was written down is the same run again
    again = run(name, privacy=result.experiment.privacy, **chosen)
    assert_same_run(result, again)


# ---- dropouts, and clients who are taken to add no noise


def promise(tolerance=0.0, dishonest=0, largest=10):
    return Promise(1.0, FixedSize(largest, largest), largest, largest, tolerance, dishonest)


@pytest.mark.parametrize(
    ("participants", "tolerance", "dishonest", "needed", "shares"),
    [
        (10, 0.0, 0, 10, 10),
        (10, 0.3, 0, 7, 7),
        (10, 0.25, 0, 8, 8),  # 7.5 must not be rounded down: 7 shares of a 7.5th would fall short
        (10, 0.3, 2, 7, 5),
        (10, 0.9, 4, 5, 1),  # at least one honest share
        (3, 0.0, 5, 6, 1),  # never enough
        (0, 0.0, 0, 1, 1),
        (1, 0.99, 0, 1, 1),
    ],
)
def test_how_many_must_be_in_a_sum(participants, tolerance, dishonest, needed, shares):
    one = promise(tolerance, dishonest)
    assert (one.needed(participants), one.shares(participants)) == (needed, shares)
    assert one.share(100.0, participants).sigma == pytest.approx(100 / math.sqrt(shares))


@given(st.integers(1, 500), st.floats(0, 0.99), st.integers(0, 50), st.floats(1, 1e4))
def test_the_fewest_honest_shares_that_are_released_give_the_promised_noise(
    count, tolerance, dishonest, deviation
):
    one = promise(tolerance, dishonest)
    honest = one.needed(count) - dishonest
    share = deviation / math.sqrt(one.shares(count))
    assert honest >= 1 and honest * share**2 >= deviation**2 * (1 - 1e-12)


@every_private
def test_a_round_with_too_few_survivors_is_not_released(name, monkeypatch):
    """Poisson cohorts that are sometimes no larger than the number of dishonest clients."""
    privacy = Privacy(noise_multiplier=2.0, assumed_dishonest=3)
    chosen = experiment(name, rounds=12, sampling="poisson", fraction=0.5, privacy=privacy)
    sizes = [len(sample(chosen, len(SIZES), round)) for round in range(1, 13)]
    assert 0 < sum(size <= 3 for size in sizes) < 12 and min(sizes) > 0
    states = []
    real = type(chosen.scheme).evaluate

    def evaluate(self, task, state, *others, **more):
        states.append(state.vector.clone())
        return real(self, task, state, *others, **more)

    monkeypatch.setattr(type(chosen.scheme), "evaluate", evaluate)
    result = simulate(chosen, data=DATA, partition=deal())
    assert [line["released"] for line in result.metrics] == [size > 3 for size in sizes]
    before = federation(name, DATA, privacy=privacy).task.initial()
    for size, state in zip(sizes, states, strict=True):
        assert torch.equal(state, before) == (size <= 3)
        before = state
    assert result.result["privacy"]["releases"] == sum(size > 3 for size in sizes)


# ---- the modulus


@pytest.mark.parametrize("multiplier", [0.5, 3.0, 40.0])
def test_the_modulus_is_that_of_the_rules(multiplier):
    privacy = Privacy(noise_multiplier=multiplier)
    n = FEDERATIONS["dp-signfed"].task.parameters
    root = math.sqrt(n)
    for chosen, bits in (
        (scheme("dp-signfed"), bits_for_sum(1, 8, root * multiplier)),
        (scheme("dp-signfed", modulus="paper"), bits_by_paper_rule(n, 8, multiplier)),
        (scheme("dp-fedavg"), bits_for_sum(64 * root, 8, 64 * root * multiplier)),
    ):
        fed = federation(chosen, DATA, privacy=privacy)
        (phase,) = fed.scheme.phases(fed.task)
        assert phase.group.bits == bits and phase.length == n and phase.scope == "all"


@pytest.mark.parametrize("clients", [1, 2, 100])
@pytest.mark.parametrize(("tolerance", "dishonest"), [(0.0, 0), (0.9, 0), (0.0, 7), (0.5, 3)])
@pytest.mark.parametrize(
    "chosen", [scheme("dp-signfed"), scheme("dp-signfed", modulus="paper"), scheme("dp-fedavg")]
)
def test_no_modulus_wraps_however_much_noise_is_added(clients, tolerance, dishonest, chosen):
    """Shares are sized for the fewest survivors: where nobody drops out or cheats, there is more noise than promised."""
    privacy = Privacy(noise_multiplier=5.0, dropout_tolerance=tolerance, assumed_dishonest=dishonest)
    parts = deal([0] * clients)
    fed = federation(chosen, DATA, partition=parts, privacy=privacy, sampling="poisson", fraction=0.8)
    (phase,) = fed.scheme.phases(fed.task)
    largest = 1 if isinstance(chosen, DPSignFed) else norm_of(fed)
    for count in range(dishonest + 1, fed.task.promise.largest_cohort + 1):
        noise = 5.0 * norm_of(fed) * math.sqrt(count / fed.task.promise.shares(count))
        chance = wrap_probability(
            phase.group.bits, largest, count, noise, parameters=phase.length, rounds=1000
        )
        assert chance < 1e-24


# ---- the noise itself


@every_private
@pytest.mark.parametrize(("tolerance", "dishonest"), [(0.0, 0), (0.25, 2)])
def test_the_total_s_noise_has_the_promised_deviation(name, tolerance, dishonest):
    """Over 40 rounds of a total of noise alone; false alarm 1e-6 (chi-squared, both sides)."""
    privacy = Privacy(noise_multiplier=2.0, dropout_tolerance=tolerance, assumed_dishonest=dishonest)
    fed = federation(name, DATA, partition=deal([0] * 8), privacy=privacy)
    totals = torch.cat(
        [play(fed, [CLIENTS], round=round).totals[0].values for round in range(1, 41)]
    ).double()
    # 8 shares, each sized for 8 (1 - 0.25) - 2 = 4 of them
    variance = (2.0 * norm_of(fed)) ** 2 * (8 / 4 if dishonest else 1)
    count = len(totals)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count)
    assert low < float((totals**2).sum()) / variance < high
    assert abs(float(totals.mean())) < stats.norm.isf(5e-7) * math.sqrt(variance / count)


@every_private
def test_every_client_and_round_has_noise_of_its_own(name):
    fed = federation(name, DATA, partition=deal([0] * 8))
    shares = [
        tuple(elements.tolist())
        for round in (1, 2)
        for elements, *_ in play(fed, [CLIENTS], round=round).given[0].values()
    ]
    assert len(set(shares)) == 16


# ---- what is refused


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"scheme": {"name": "dp-signfed"}}, "privacy.epsilon"),
        ({"scheme": {"name": "dp-fedavg"}}, "privacy.epsilon"),
        ({"scheme": {"name": "dp-fedavg"}, "privacy": {}}, "privacy.epsilon"),
        ({"scheme": {"name": "fedavg"}, "privacy": {"epsilon": 1.0}}, "privacy"),
        ({"scheme": {"name": "fedavg"}, "secure": "masked"}, "secure"),
        ({"scheme": {"name": "signfed"}, "secure": "masked"}, "secure"),
        *(
            ({"privacy": {"epsilon": 1.0, "delta": delta}}, "privacy.delta")
            for delta in (0.0, 1.0, -1e-5, 2.0)
        ),
        *(({"privacy": {"noise_multiplier": value}}, "privacy.noise_multiplier") for value in (0.0, -1.0)),
        *(({"privacy": {"epsilon": value}}, "privacy.epsilon") for value in (0.0, -1.0, math.inf, math.nan)),
        ({"privacy": {"epsilon": 1.0, "dropout_tolerance": 1.0}}, "privacy.dropout_tolerance"),
        ({"privacy": {"epsilon": 1.0, "assumed_dishonest": -1}}, "privacy.assumed_dishonest"),
        ({"privacy": {"epsilon": 1.0, "accountant": "none"}}, "privacy.accountant"),
        ({"scheme": {"name": "dp-signfed", "modulus": 8}, "privacy": {"epsilon": 1.0}}, "scheme.modulus"),
        (
            {"scheme": {"name": "dp-fedavg", "clip_norm": 0.0}, "privacy": {"epsilon": 1.0}},
            "scheme.clip_norm",
        ),
    ],
)
def test_what_is_refused_is_named(table, key):
    with pytest.raises(ConfigError) as caught:
        from_table({"scheme": {"name": "dp-signfed"}} | table)
    assert str(caught.value).startswith(f"{key} ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [FedAvg, SignFed])
def test_schemes_without_noise_take_no_privacy_in_python_either(kind):
    with pytest.raises(ConfigError, match=r"^privacy .*dp-fedavg, dp-signfed"):
        Experiment(scheme=kind(), privacy=Privacy(epsilon=1.0))
    with pytest.raises(ConfigError, match=r"^secure "):
        Experiment(scheme=kind(), secure="masked")


@every_private
def test_a_budget_too_small_for_one_round_is_refused_before_anything_is_written(name, tmp_path):
    privacy = Privacy(noise_multiplier=0.5, epsilon=0.1)
    with pytest.raises(ConfigError, match=r"^privacy\.epsilon .*at least one round"):
        simulate(experiment(name, privacy=privacy), data=DATA, partition=deal(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@every_private
@pytest.mark.parametrize("multiplier", [1e-4, 1e6])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_written(
    name, multiplier, sampling, tmp_path
):
    chosen = experiment(name, privacy=Privacy(noise_multiplier=multiplier), sampling=sampling)
    with pytest.raises(ConfigError, match=r"^privacy\.noise_multiplier "):
        simulate(chosen, data=DATA, partition=deal(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@every_private
def test_a_scheme_that_is_given_no_promise_says_so(name):
    fed = federation(name, DATA)
    task = dataclasses.replace(fed.task, promise=None)
    with pytest.raises(LocalProtocolError, match="no promise"):
        fed.scheme.phases(task)
