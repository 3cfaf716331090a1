"""Clients that fall silent in a round: how often, that masked and plain sums agree, and what is refused."""

import dataclasses
import json
import re
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from command_server import Ended
from discreet import simulate, sums
from discreet.config import Dropouts, Privacy
from discreet.errors import ConfigError, RunFolderError
from discreet.evaluation import Evaluation
from discreet.rounds import play_round
from discreet.sampling import attend, sample
from discreet.schemes import SCHEMES, FedAvg
from discreet.schemes.base import Contribution, Phase, SharedModel, Total
from discreet.secure.groups import Reals
from discreet.secure.masking import STAGES, Stage, failures
from discreet.tolerance import check_releases
from federations import SIZES, assert_same_run, dataset, deal, experiment, federation, play, same_bits
from test_simulation_phases import FusedFedAvg

DATA = dataset(features=7)
PRIVATE = ["dp-fedavg", "dp-signfed"]
HALF = Privacy(noise_multiplier=0.5, dropout_tolerance=0.5)
QUARTER = Privacy(noise_multiplier=0.5, dropout_tolerance=0.25)


def run(chosen, *, sizes=SIZES, out=None, resume=False, on_round=None, **changes):
    whole = experiment(chosen, **changes)
    return simulate(whole, data=DATA, partition=deal(sizes), out=out, resume=resume, on_round=on_round)


def gone(whole, clients, rounds):
    """For each round, how many of the drawn are lost and how many fall silent at all."""
    there = [attend(whole, clients, round) for round in range(1, rounds + 1)]
    return [(one.lost, one.lost + len(one.silent(Stage.UNMASK))) for one in there]


# ---- who falls silent, and when


def test_clients_fall_silent_at_the_rates_that_are_asked_for():
    rates = Dropouts(advertise=0.1, share=0.2, mask=0.3, unmask=0.25)
    rounds, clients = 500, 20
    whole = experiment("fedavg", dropouts=rates)
    there = [attend(whole, clients, round) for round in range(1, rounds + 1)]
    # 0.1 fall silent first; of the 0.9 left a fifth, of the 0.72 left 0.3, of the 0.504 left a quarter
    chances = np.array([0.1, 0.18, 0.216, 0.126, 0.378])
    assert (rates.lost, rates.silent) == pytest.approx((0.496, 0.622))
    counts = np.array([sum(len(one.silent(stage)) for one in there) for stage in STAGES])
    counts = np.append(counts, rounds * clients - counts.sum())
    expected = rounds * clients * chances
    # chi-square over the five fates of 10,000 clients: one alarm in 10^6
    assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, 4)
    # each client on its own: the number lost in a round is binomial; one alarm in 10^6
    sizes = np.bincount(np.clip([one.lost for one in there], 5, 15) - 5, minlength=11)
    law = stats.binom(clients, 0.496)
    tails = [law.cdf(5), *law.pmf(np.arange(6, 15)), law.sf(14)]
    expected = rounds * np.array(tails)
    assert ((sizes - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, 10)


def test_every_drawn_client_has_one_fate():
    whole = experiment("fedavg", fraction=0.5, dropouts=Dropouts(advertise=0.2, mask=0.4, unmask=0.2))
    for round in range(1, 50):
        there = attend(whole, 40, round)
        assert there.drawn.tolist() == sample(whole, 40, round).tolist()
        lost = [
            client for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK) for client in there.silent(stage)
        ]
        assert sorted(lost + there.sending.tolist()) == there.drawn.tolist()
        assert len(lost) == there.lost and set(there.silent(Stage.UNMASK)) <= set(there.sending.tolist())
        assert not there.silent(Stage.SHARE)  # its rate is 0


def test_a_clients_fate_does_not_hang_on_who_else_was_drawn():
    rates = Dropouts(share=0.3, unmask=0.3)
    few, all_of_them = (experiment("fedavg", fraction=part, dropouts=rates) for part in (0.3, 1.0))
    for round in range(1, 20):
        some, every = attend(few, 30, round), attend(all_of_them, 30, round)
        assert some.steps.tolist() == every.steps[some.drawn].tolist()


def test_a_higher_rate_only_adds_to_those_who_are_lost():
    low, high = (
        [
            set(attend(experiment("fedavg", dropouts=Dropouts(advertise=0.1, mask=rate)), 50, round).sending)
            for round in range(1, 10)
        ]
        for rate in (0.2, 0.5)
    )
    assert all(more >= less for more, less in zip(low, high, strict=True)) and low != high


def test_seeds_and_rounds_lose_other_clients():
    def fates(seed, round):
        return attend(experiment("fedavg", seed=seed, dropouts=Dropouts(mask=0.5)), 60, round).steps.tolist()

    drawn = [fates(seed, round) for seed in (0, 1) for round in (1, 2)]
    assert len(set(map(tuple, drawn))) == 4


def test_where_nobody_falls_silent_nothing_is_written_of_it(tmp_path):
    result = run("fedavg", out=tmp_path / "run")
    assert "dropouts" not in tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert [line["lost"] for line in result.metrics] == [0, 0, 0]
    assert_same_run(result, run("fedavg", dropouts=Dropouts()))


# ---- the sum of those who are left


def by_hand(fed, there, round, state):
    """A round of a scheme with one sum, over those who are left; noise is sized for those who were drawn."""
    playing = play_round(fed.scheme, fed.task, state, round)
    ask = next(playing)
    cohort = fed.cohort(there.sending, round, {}, len(there.drawn))
    given = fed.scheme.contribute(fed.task, ask.phase, ask.payload, (), cohort)
    half = 2 ** (ask.phase.group.bits - 1)
    total = (given.elements.sum(0) + half) % (2 * half) - half
    with pytest.raises(StopIteration) as end:
        playing.send(Total(total, len(cohort)))
    return end.value.value


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "signfed", "local"])
def test_a_round_is_that_of_the_clients_that_are_left(name):
    rates = Dropouts(advertise=0.1, share=0.1, mask=0.2, unmask=0.9)
    result = run(name, rounds=3, dropouts=rates)
    fed, state, kept = federation(name, DATA), None, {}
    for number, line in enumerate(result.metrics, 1):
        there = attend(result.experiment, len(SIZES), number)
        left = there.sending.tolist()
        played = play(fed, [left], round=number, state=state, kept=kept)
        state, kept = played.state, played.kept
        assert line["lost"] == there.lost == len(SIZES) - len(left)
        assert line["empty"] == sum(SIZES[client] == 0 for client in left)
        assert line["participants"] == len(left) - line["empty"]
    assert sum(line["lost"] for line in result.metrics) == result.result["lost_contributions"] > 3
    for field in dataclasses.fields(state):
        assert same_bits(result.checkpoint.tensors[f"state.{field.name}"], getattr(state, field.name))
    if kept:
        stacked = torch.stack([kept[client] for client in sorted(kept) if SIZES[client]])
        assert same_bits(result.checkpoint.tensors["kept"], stacked)


@pytest.mark.parametrize("secure", ["none", "masked"])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_round_is_that_of_the_clients_that_are_left(name, secure):
    rates = Dropouts(advertise=0.1, share=0.05, mask=0.15, unmask=0.05)
    result = run(name, rounds=3, dropouts=rates, privacy=HALF, secure=secure)
    fed = federation(name, DATA, privacy=HALF)
    state = fed.scheme.init(fed.task)
    for number, line in enumerate(result.metrics, 1):
        there = attend(result.experiment, len(SIZES), number)
        assert line["released"] and (line["lost"], line["participants"]) == (there.lost, len(there.sending))
        state = by_hand(fed, there, number, state)
    assert same_bits(result.vector, state.vector)
    assert result.result["lost_contributions"] > 0


STEPS = [stage.value for stage in STAGES]
RATES = st.one_of(
    *(st.floats(0.05, 0.3).map(lambda rate, step=step: {step: rate}) for step in STEPS),
    st.fixed_dictionaries({step: st.floats(0, 0.09) for step in STEPS}),
)


@settings(max_examples=12)
@given(
    st.sampled_from(PRIVATE),
    RATES,
    st.integers(0, 2**40),
    st.sampled_from([{}, {"sampling": "poisson", "fraction": 0.9}]),
)
def test_masked_sums_of_whoever_is_left_equal_plain_ones(name, rates, seed, drawn):
    """Half of K clients, rounded down, may be lost. Where more fall silent in all, but the last in unmask, it depends."""
    chosen = {"privacy": HALF, "dropouts": Dropouts(**rates), "seed": seed, "rounds": 2, **drawn}
    clear, masked = (run(name, secure=secure, **chosen) for secure in ("none", "masked"))
    there = [attend(masked.experiment, len(SIZES), round) for round in (1, 2)]
    for one, plain, line in zip(there, clear.metrics, masked.metrics, strict=True):
        size, silent = len(one.drawn), one.lost + len(one.silent(Stage.UNMASK))
        assert plain["released"] == (one.lost <= size // 2)
        if silent <= size // 2 or one.lost > size // 2:
            assert line["released"] == plain["released"]
    if [line["released"] for line in clear.metrics] == [line["released"] for line in masked.metrics]:
        for line in (*clear.metrics, *masked.metrics):
            del line["uplink_bytes"], line["downlink_bytes"]
        assert_same_run(clear, masked)
        assert clear.result["privacy"] == masked.result["privacy"]


@pytest.mark.parametrize("step", STEPS)
def test_each_step_really_loses_clients_in_masked_sums(step):
    """With this seed every step has its dropouts, and the sums come out all the same."""
    chosen = {"privacy": HALF, "dropouts": Dropouts(**{step: 0.3}), "rounds": 4, "seed": 3}
    clear, masked = (run("dp-signfed", secure=secure, **chosen) for secure in ("none", "masked"))
    silent = [all_gone for _, all_gone in gone(masked.experiment, len(SIZES), 4)]
    assert sum(silent) >= 4 and max(silent) <= 4
    assert all(line["released"] for line in masked.metrics) and same_bits(clear.vector, masked.vector)


def test_workers_and_a_schemes_own_sums_change_nothing(monkeypatch):
    monkeypatch.setitem(SCHEMES, "fused", FusedFedAvg)
    chosen, local = {"dropouts": Dropouts(mask=0.4)}, {"steps": 2, "batch_size": 4}
    plain = run(FedAvg(**local), **chosen)
    assert_same_run(plain, run(FedAvg(**local), workers=2, **chosen))
    assert_same_run(plain, run(FusedFedAvg(**local), **chosen))
    assert plain.result["lost_contributions"] > 0


def test_masked_sums_without_noise_bear_a_third_of_a_cohort():
    """Of 8 clients 2 may be lost; one without examples sends zeros. Additive sums give the plain sum of integers."""
    chosen = {"rounds": 10, "dropouts": Dropouts(share=0.05, mask=0.15), "seed": 4}
    for sizes in ([5] * 8, [5] * 7 + [0]):
        masked = run("cgd", sizes=sizes, secure="masked", **chosen)
        there = [attend(masked.experiment, 8, round) for round in range(1, 11)]
        silent = [one.drawn[one.steps < len(STAGES)].tolist() for one in there]
        held = [len(ids) <= 2 for ids in silent]
        assert [line.get("released", True) for line in masked.metrics] == held
        assert {True, False} == set(held)
        first = held.index(False)
        assert first > 0
        parts = [
            run("cgd", sizes=sizes, secure=how, **chosen | {"rounds": first})
            for how in ("masked", "additive")
        ]
        moved, plain = (part.checkpoint.tensors["state.displacement"] for part in parts)
        assert same_bits(moved, plain) and moved.any() and sum(one.lost for one in there[:first])
    with pytest.raises(
        ConfigError, match=r"rates at which most masked rounds of 8 clients lose no more than 2"
    ):
        run("cgd", sizes=[5] * 8, secure="masked", dropouts=Dropouts(mask=0.35))


@pytest.mark.parametrize(("seed", "round"), [(3, 2), (6, 4), (11, 1)])
def test_more_losses_than_planned_end_a_masked_round_even_where_it_could_be_unmasked(seed, round):
    """With these seeds every secret has shares enough, but the graph was planned to hide clients while 6 are left."""
    chosen = {"rounds": round, "seed": seed, "dropouts": Dropouts(mask=0.27)}
    line = run("cgd", sizes=[5] * 8, secure="masked", **chosen).metrics[-1]
    assert line["lost"] > 2 and line["released"] is False


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """Sums of clients' numbers, within rows and within columns."""

    rows: Tensor
    columns: Tensor


@dataclasses.dataclass(frozen=True)
class TwoSums(SharedModel):
    """Adds up clients' numbers within rows, then within columns."""

    summary = "sums for tests"

    def init(self, task):
        return Seen(torch.zeros(0), torch.zeros(0))

    def vector(self, state):
        return None

    def evaluate(self, task, state, kept, examples, parallel):
        return Evaluation(None, None)

    def phases(self, task):
        return Phase("rows", Reals(), 1, "row"), Phase("columns", Reals(), 1, "column")

    def contribute(self, task, phase, payload, received, cohort):
        numbers = torch.from_numpy(cohort.ids).float()[:, None]
        return Contribution(numbers, torch.ones(len(cohort), dtype=torch.bool), torch.ones(len(cohort)))

    def update(self, task, state, totals, round):
        return Seen(totals[0].values, totals[1].values)


def test_who_is_lost_is_lost_for_every_sum_of_the_round_and_is_not_worked_on(monkeypatch):
    worked_on = []
    real = TwoSums.contribute

    def contribute(self, task, phase, payload, received, cohort):
        worked_on.append((cohort.round, phase.name, cohort.ids.tolist()))
        return real(self, task, phase, payload, received, cohort)

    monkeypatch.setattr(TwoSums, "contribute", contribute)
    monkeypatch.setitem(SCHEMES, "two-sums", TwoSums)
    chosen = experiment(
        TwoSums(), rounds=1, lanes=2, seed=4, dropouts=Dropouts(share=0.2, mask=0.2, unmask=0.5)
    )
    left = attend(chosen, 6, 1).sending.tolist()
    assert 3 <= len(left) < 6
    result = simulate(
        chosen, data=DATA, partition=deal([3] * 6)
    )  # each client is a row, and all of them the column
    state = result.checkpoint.tensors
    assert state["state.rows"][:, 0].tolist() == [client if client in left else 0 for client in range(6)]
    assert state["state.columns"].tolist() == [[sum(left)]]
    for phase in ("rows", "columns"):
        assert [client for _, name, ids in worked_on if name == phase for client in ids] == left
    (line,) = result.metrics
    # a float32 up in each phase; the second phase's answer goes to those who are left
    assert line["uplink_bytes"] == len(left) * (4 + 4) and line["participants"] == len(left)


def test_bytes_are_those_that_are_sent():
    result = run("fedavg", dropouts=Dropouts(mask=0.4, unmask=0.4))
    n = result.result["parameters"]
    for line in result.metrics:
        assert line["downlink_bytes"] == len(SIZES) * 4 * n  # the model went to everyone who was drawn
        assert line["uplink_bytes"] == line["participants"] * 4 * (n + 1)
    assert result.result["lost_contributions"] > 0
    assert result.result["bits_per_parameter"] == pytest.approx(32 * (n + 1) / n)


def test_who_falls_silent_in_a_masked_sum_sends_nothing_from_then_on():
    """Two clients of 8 are lost, in one step or another: the earlier, the fewer bytes."""

    def uplink(step=None):
        chosen = {"privacy": HALF, "secure": "masked", "rounds": 1}
        if step is None:
            return run("dp-signfed", **chosen).metrics[0]["uplink_bytes"]
        rates = Dropouts(**{step: 0.3})
        for seed in range(100):
            whole = experiment("dp-signfed", seed=seed, dropouts=rates, **chosen)
            if gone(whole, len(SIZES), 1)[0][1] == 2:
                (line,) = simulate(whole, data=DATA, partition=deal()).metrics
                assert line["released"] and line["lost"] == (0 if step == "unmask" else 2)
                return line["uplink_bytes"]
        raise AssertionError("no seed loses two")

    fewer = [uplink(step) for step in ("advertise", "share", "mask", "unmask")]
    assert fewer == sorted(set(fewer)) and fewer[-1] < uplink()


def test_a_round_in_which_everybody_is_lost_leaves_the_model():
    result = run("fedavg", rounds=2, dropouts=Dropouts(advertise=0.999999))
    for line in result.metrics:
        assert (line["lost"], line["participants"], line["uplink_bytes"]) == (len(SIZES), 0, 0)
        assert line["train_loss"] is None
    assert same_bits(result.vector, federation("fedavg", DATA).task.initial())
    assert result.result["bits_per_parameter"] == 0


# ---- too few are left


@pytest.mark.parametrize(("secure", "step"), [("none", "mask"), ("masked", "share"), ("masked", "unmask")])
@pytest.mark.parametrize("name", PRIVATE)
def test_rounds_that_lose_too_many_are_not_released_and_cost_nothing(name, secure, step, monkeypatch):
    """A quarter of 8 clients may be lost: 2. Each has 4 neighbours, and 3 of 5 shares unmask what it sent."""
    states, real = [], SCHEMES[name].evaluate

    def evaluate(self, task, state, *others, **more):
        states.append(state.vector.clone())
        return real(self, task, state, *others, **more)

    monkeypatch.setattr(SCHEMES[name], "evaluate", evaluate)
    chosen = {"privacy": QUARTER, "rounds": 12, "secure": secure, "dropouts": Dropouts(**{step: 0.24})}
    result = run(name, **chosen)
    released = [line["released"] for line in result.metrics]
    assert {True, False} == set(released)
    for seen, (lost, silent) in zip(released, gone(result.experiment, len(SIZES), 12), strict=True):
        assert seen or silent > 2
        # of fewer than 3 who are left to answer, no secret's shares are enough
        assert not (seen and (lost > 2 or silent > 5))
    before = federation(name, DATA).task.initial()
    for state, seen in zip(states, released, strict=True):
        assert torch.equal(state, before) == (not seen)
        before = state
    assert result.result["privacy"]["releases"] == sum(released)
    assert result.checkpoint.facts["ledger"][0]["count"] == sum(released)


def test_a_budget_goes_on_until_it_is_spent_on_rounds_that_are_seen():
    privacy = Privacy(noise_multiplier=2.0, epsilon=1.0, delta=1e-3, dropout_tolerance=0.25)
    whole = experiment("dp-signfed", rounds=1, privacy=privacy)
    with pytest.raises(ConfigError, match=r"^privacy\.epsilon"):
        simulate(whole, data=DATA, partition=deal())  # not even one
    privacy = dataclasses.replace(privacy, epsilon=6.0)
    lost = run("dp-signfed", rounds=60, privacy=privacy, dropouts=Dropouts(mask=0.24))
    nobody = run("dp-signfed", rounds=60, privacy=privacy)
    assert lost.result["privacy"] == nobody.result["privacy"]
    assert 60 > len(lost.metrics) > len(nobody.metrics) == nobody.result["privacy"]["releases"]


@pytest.mark.parametrize("secure", ["none", "masked"])
def test_rates_that_the_tolerance_does_not_bear_are_refused_with_one_that_does(secure, tmp_path):
    """Of 20 clients 12 % at mask, and of the others 20 % at unmask, which only a masked sum needs."""
    rates = Dropouts(mask=0.12, unmask=0.2)
    chosen = {"secure": secure, "dropouts": rates, "sizes": [4] * 20, "rounds": 1}
    privacy = Privacy(noise_multiplier=2.0, dropout_tolerance=0.05)
    with pytest.raises(ConfigError) as caught:
        run("dp-signfed", privacy=privacy, out=tmp_path / "run", **chosen)
    chance = {"none": 0.12, "masked": 1 - 0.88 * 0.8}[secure]
    assert not (tmp_path / "run").exists() and caught.value.key == "dropouts"
    said = str(caught.value)
    assert said.startswith(f"dropouts = '{chance:.2%} of a round'") and "\n" not in said
    assert "privacy.dropout_tolerance (now 0.05)" in said
    advised = float(re.search(r"([0-9.]+) there would do", said)[1])
    # no more than one round of a thousand loses more than that share of 20, by the binomial law
    most = int(advised * 20 + 1e-9)
    assert stats.binom.sf(most, 20, chance) <= 1e-3 < stats.binom.sf(most - 1, 20, chance)
    assert "999 of 1,000 rounds of 20 clients" in said
    better = dataclasses.replace(privacy, dropout_tolerance=advised)
    assert run("dp-signfed", privacy=better, **chosen).metrics[0]["released"]


@pytest.mark.parametrize(
    ("secure", "rates", "tolerance", "fine"),
    [
        ("none", {}, 0.0, True),
        ("none", {"unmask": 0.9}, 0.0, True),  # nothing to unmask
        ("masked", {"unmask": 0.1}, 0.0, False),
        (
            "none",
            {"mask": 0.01},
            0.0,
            False,
        ),  # on average more than the tolerance, though rarely anyone at all
        (
            "none",
            {"mask": 0.24},
            0.24,
            False,
        ),  # 0.24 * 8 = 1.92 of 8 rounds down to 1: two rounds of three fail
        ("none", {"mask": 0.24}, 0.25, True),  # 2 of 8: one round of three fails
    ],
)
def test_what_is_refused_is_what_mostly_fails(secure, rates, tolerance, fine):
    privacy = Privacy(noise_multiplier=2.0, dropout_tolerance=tolerance)
    fed = federation("dp-signfed", DATA, privacy=privacy, secure=secure, dropouts=Dropouts(**rates))
    if fine:
        check_releases(fed)
        return
    with pytest.raises(ConfigError, match=r"^dropouts = "):
        check_releases(fed)


def test_where_a_small_cohort_cannot_lose_so_many_the_advice_is_for_fewer_rounds():
    """Of 8 with a colluder, 5 can be lost and 2 still hide; 28 % lose 4 or fewer in 19 rounds of 20, 6 in 999 of 1,000."""
    law = stats.binom(8, 0.28)
    assert law.sf(6) < 1e-3 < law.sf(5) and law.sf(4) < 0.05 < law.sf(3)
    chosen = {"privacy": QUARTER, "secure": "masked", "dropouts": Dropouts(share=0.28)}
    with pytest.raises(ConfigError, match=r"0\.5 there would do for 19 of 20 rounds of 8 clients"):
        check_releases(federation("dp-fedavg", DATA, **chosen))
    check_releases(federation("dp-fedavg", DATA, **chosen | {"privacy": HALF}))


def test_where_no_tolerance_would_do_lower_rates_are_advised():
    """Of 8 clients 0.8 lost at each of two steps: in one round of a thousand or more, all of them."""
    fed = federation("dp-fedavg", DATA, privacy=HALF, dropouts=Dropouts(advertise=0.8, mask=0.8))
    with pytest.raises(ConfigError, match="lower rates, or more than 8 clients a round"):
        check_releases(fed)


# ---- who may collude


def test_masks_hide_a_client_from_as_many_as_are_taken_to_be_dishonest(monkeypatch):
    """60 clients, of whom 20 may cheat: a graph planned for 6 colluders would not hide the others from 20."""
    used, real = [], sums.masked_sum

    def recorded(vectors, bits, **terms):
        used.append((terms["degree"], terms["threshold"]))
        return real(vectors, bits, **terms)

    monkeypatch.setattr(sums, "masked_sum", recorded)
    for dishonest in (0, 20):
        privacy = Privacy(noise_multiplier=2.0, assumed_dishonest=dishonest)
        result = run("dp-signfed", secure="masked", rounds=1, privacy=privacy, sizes=[1] * 60, widths=(1,))
        assert result.metrics[0]["released"]
    few, many = (failures(60, *graph, dropped=0, corrupt=20).security for graph in used)
    assert many <= 2**-40 < few
    assert failures(60, *used[0], dropped=0, corrupt=6).security <= 2**-40


def test_a_cohort_in_which_no_two_can_hide_is_refused_before_it_runs(tmp_path):
    privacy = Privacy(noise_multiplier=2.0, assumed_dishonest=7)
    with pytest.raises(ConfigError, match=r"at least 2 clients are neither corrupt \(up to 7\)"):
        run("dp-signfed", secure="masked", privacy=privacy, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run("dp-signfed", secure="none", privacy=privacy).metrics[0]["released"]


# ---- interruptions, and the command line


@pytest.mark.parametrize(("name", "secure"), [("fedavg", "none"), ("dp-signfed", "masked")])
def test_a_run_that_was_interrupted_loses_the_same_clients(name, secure, tmp_path):
    privacy = QUARTER if SCHEMES[name].private else None
    chosen = {"rounds": 5, "dropouts": Dropouts(share=0.1, unmask=0.05), "privacy": privacy, "secure": secure}
    whole = run(name, **chosen)

    def interrupt(metrics, rounds):
        if metrics["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, out=tmp_path / "run", on_round=interrupt, **chosen)
    others = chosen | {"dropouts": Dropouts(share=0.15, unmask=0.05)}
    with pytest.raises(RunFolderError, match=r"dropouts.share is 0.1 there and 0.15 here"):
        run(name, out=tmp_path / "run", resume=True, **others)
    assert_same_run(whole, run(name, out=tmp_path / "run", resume=True, **chosen))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["lost_contributions"] == sum(line["lost"] for line in whole.metrics) > 0


def test_a_folder_from_before_there_were_dropouts_goes_on(tmp_path):
    path = tmp_path / "run"
    whole = run("fedavg", rounds=4)
    run("fedavg", rounds=2, out=path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["lost"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    resumed = run("fedavg", rounds=4, out=path, resume=True)
    assert same_bits(whole.vector, resumed.vector) and resumed.result["lost_contributions"] == 0


def test_rates_are_set_on_the_command_line(inside, tmp_path):
    def command(*settings):
        quick = ["rounds=2", "data.clients=10", *settings]
        options = [part for setting in quick for part in ("--set", setting)]
        return inside("run", "digits-fedavg", *options, "--out", "run", "--quiet", "--json", cwd=tmp_path)

    said = "discreet: unknown key 'dropouts.maks': did you mean dropouts.mask?\n"
    assert command("dropouts.maks=0.1") == Ended(2, "", said)
    ended = command("fraction=1.0", "dropouts.mask=0.5")
    assert ended.code == 0 and json.loads(ended.out)["lost_contributions"] > 0
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["dropouts"] == {"advertise": 0.0, "share": 0.0, "mask": 0.5, "unmask": 0.0}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["lost"] + line["participants"] + line["empty"] == 10 for line in lines)
