"""Noisy votes in several sums: who is in which, what is summed and released, and what that withstands and costs."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
import torch

from discreet import SCHEMES, Adversary, Data, Experiment, Privacy, simulate
from discreet.config import Dropouts
from discreet.errors import ConfigError
from discreet.forecast import plan
from discreet.privacy.planning import largest_cohort
from discreet.privacy.releases import FixedSize, Poisson
from discreet.sampling import Attendance, attend, grouped
from federations import assert_same_run, same_bits

STEPS = {"steps": 2, "learning_rate": 0.1}


def asked(groups=3, clients=12, multiplier=0.5, **changes):
    fields = {name: changes.pop(name) for name in ("modulus", "server_learning_rate") if name in changes}
    usual = {
        "data": Data(clients=clients),
        "scheme": SCHEMES["dp-signfed"](groups=groups, **STEPS, **fields),
        "privacy": Privacy(noise_multiplier=multiplier, delta=1e-3),
        "rounds": 2,
        "secure": "none",
    }
    return Experiment(**(usual | changes))


def everybody(clients):
    return Attendance(np.arange(clients), np.full(clients, 4))


def members(experiment, clients, round):
    there = attend(experiment, clients, round)
    return grouped(experiment, there, clients, round, experiment.scheme.groups)


# --- who is in which


@pytest.mark.parametrize(("clients", "fraction", "groups"), [(12, 1.0, 3), (40, 0.5, 6), (11, 1.0, 4)])
def test_a_cohort_of_fixed_size_is_dealt_evenly_and_anew_in_every_round(clients, fraction, groups):
    experiment = asked(groups, clients, fraction=fraction)
    rounds = [[one.drawn.tolist() for one in members(experiment, clients, number)] for number in (1, 2, 1)]
    assert rounds[0] == rounds[2] != rounds[1]
    drawn = attend(experiment, clients, 1).drawn.tolist()
    assert sorted(client for own in rounds[0] for client in own) == drawn
    sizes = [len(own) for own in rounds[0]]
    assert (
        len(sizes) == groups and max(sizes) - min(sizes) <= 1 and max(sizes) == math.ceil(len(drawn) / groups)
    )
    assert all(own == sorted(own) for own in rounds[0])


def test_under_poisson_sampling_nobodys_group_depends_on_who_else_is_drawn():
    experiment = asked(5, 50, sampling="poisson", fraction=0.5)

    def groups_among(drawn):
        there = Attendance(np.array(drawn), np.full(len(drawn), 4))
        parts = grouped(experiment, there, 50, 7, 5)
        return {client: number for number, one in enumerate(parts) for client in one.drawn.tolist()}

    all_of_them = groups_among(range(50))
    assert sorted(np.bincount(list(all_of_them.values()))) == [10] * 5
    some = groups_among(range(0, 50, 3))
    assert some == {client: all_of_them[client] for client in range(0, 50, 3)}


def test_who_falls_silent_when_goes_with_them_into_their_group():
    there = Attendance(np.arange(6), np.array([0, 1, 2, 3, 4, 4]))
    parts = grouped(asked(2, 6), there, 6, 1, 2)
    assert {int(c): int(s) for one in parts for c, s in zip(one.drawn, one.steps, strict=True)} == dict(
        enumerate([0, 1, 2, 3, 4, 4])
    )


def test_the_largest_group():
    assert largest_cohort(FixedSize(100, 1000), 1000, 8) == 13
    assert largest_cohort(Poisson(1.0), 11, 4) == 3
    # of 125 clients with a chance of 0.1: well above their mean of 12.5, and far below all of 1,000
    assert 30 < largest_cohort(Poisson(0.1), 1000, 8) < 45


# --- what is summed


def test_each_sum_is_of_its_own_group_and_the_model_follows_the_median():
    experiment = asked(rounds=1, server_learning_rate=0.25)
    run = simulate(experiment, watch=["server"])
    (seen,) = run.views["server"].seen
    groups = members(experiment, 12, 1)
    sums = [sum(seen.contributions[client] for client in own.drawn.tolist()) for own in groups]
    # shares wrap, sums do not: by hand, the remainder that is nearest to 0
    modulus = 2 ** round(run.result["bits_per_parameter"])
    centred = [(one + modulus // 2) % modulus - modulus // 2 for one in sums]
    assert seen.total.count == 12 and torch.equal(seen.total.values, torch.stack(centred))
    for at in range(0, seen.total.values.shape[1], 61):
        middle = statistics.median(seen.total.values[:, at].tolist())
        moved = float(run.vector[at] - seen.payload.vector[at])
        assert moved == pytest.approx(math.copysign(0.25, middle) if middle else moved, rel=1e-5)


def test_one_client_is_in_one_sum_and_moves_it_by_no_more_than_is_accounted_for():
    experiment = asked(rounds=1)
    plain = simulate(experiment, watch=["server"])
    lied = simulate(
        dataclasses.replace(experiment, adversary=Adversary(attack="sign-flip", clients=[5])),
        watch=["server"],
    )
    before, after = (run.views["server"].seen[0].total.values for run in (plain, lied))
    changes = (before - after).double().norm(dim=1)
    own = next(number for number, one in enumerate(members(experiment, 12, 1)) if 5 in one.drawn)
    n = before.shape[1]
    # -1 for 1 wherever it tosses no coin: of a client that is replaced, twice the norm of one that is removed
    assert 1.5 * math.sqrt(n) < changes[own] <= 2 * math.sqrt(n)
    assert changes.sum() == changes[own]


def test_every_sum_has_all_of_the_noise():
    """Deviation over n = 15,010 coordinates: within 5 of its standard errors, below 1e-5 to fail for three sums."""
    run = simulate(asked(multiplier=20.0, rounds=1), watch=["server"])
    values = run.views["server"].seen[0].total.values.double()
    n = values.shape[1]
    promised = math.sqrt(n) * 20.0  # beside it four votes are nothing
    assert values.std(dim=1).tolist() == pytest.approx([promised] * 3, rel=5 / math.sqrt(2 * n))


def test_epsilon_is_that_of_one_sum():
    one, three = (simulate(asked(groups, rounds=1)).result["privacy"] for groups in (1, 3))
    assert three["epsilon"] == pytest.approx(one["epsilon"], rel=1e-9)
    assert three["noise_multiplier"] == one["noise_multiplier"]


def test_masked_sums_of_groups_equal_those_in_the_clear_with_dropouts_too():
    privacy = Privacy(noise_multiplier=0.5, delta=1e-3, dropout_tolerance=0.4)
    silent = Dropouts(mask=0.1, unmask=0.05)
    masked, clear = (
        simulate(asked(2, 16, privacy=privacy, dropouts=silent, secure=secure, rounds=3))
        for secure in ("masked", "none")
    )
    assert any(line["lost"] for line in clear.metrics)
    assert same_bits(masked.vector, clear.vector)
    # the keys and shares of masks come on top
    assert masked.result["uplink_bytes"] > clear.result["uplink_bytes"]


def losing(groups, clients, rounds, **changes):
    """Groups of four, of which each bears the loss of one."""
    privacy = Privacy(noise_multiplier=0.5, delta=1e-3, dropout_tolerance=0.25)
    dropouts = Dropouts(mask=0.24)
    return asked(
        groups, clients, rounds=rounds, eval_every=rounds, privacy=privacy, dropouts=dropouts, **changes
    )


def test_a_group_that_loses_too_many_is_left_out_and_the_others_count():
    experiment = losing(4, 16, 5)
    run = simulate(experiment, watch=["server"])
    partly = 0
    for one in run.views["server"].seen:
        groups = members(experiment, 16, one.round)
        enough = [own for own in groups if own.lost <= 1]
        partly += 0 < len(enough) < 4
        assert one.total.values.shape[0] == len(enough)
        assert one.total.count == sum(len(own.sending) for own in enough)
    assert partly  # or nothing is tested


def test_a_round_of_which_no_sum_is_released_changes_nothing_and_costs_nothing():
    run = simulate(losing(2, 8, 30), watch=["server"])
    lost = [line["round"] for line in run.metrics if not line["released"]]
    assert lost  # or nothing is tested: a group loses two of four in every fourth round
    seen = {one.round: one for one in run.views["server"].seen}
    for number in lost:
        assert seen[number].total is None
        if number < 30:
            assert same_bits(seen[number].payload.vector, seen[number + 1].payload.vector)
    fewer = simulate(asked(2, 8, rounds=30 - len(lost), eval_every=30, privacy=run.experiment.privacy))
    assert run.result["privacy"]["epsilon"] == pytest.approx(fewer.result["privacy"]["epsilon"])


def test_groups_repeat_with_any_workers_and_go_on_after_an_interruption(tmp_path):
    def experiment(workers):
        made = asked(3, 14, rounds=3, sampling="poisson", fraction=0.8)
        return dataclasses.replace(made, engine=dataclasses.replace(made.engine, workers=workers))

    whole = simulate(experiment(1))
    assert_same_run(whole, simulate(experiment(2)))

    def stop(metrics, rounds):
        if metrics["round"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(experiment(1), on_round=stop, out=tmp_path / "run")
    assert_same_run(whole, simulate(experiment(1), resume=True, out=tmp_path / "run"))


# --- what is refused, and what a plan says


@pytest.mark.parametrize(
    ("groups", "changes", "words"),
    [
        (13, {}, r"scheme\.groups = 13: expected at most 12, the clients of a round"),
        (6, {"secure": "masked"}, r"scheme\.groups = 6: expected fewer, of more than 2 clients each"),
        (6, {"secure": "masked", "sampling": "poisson", "fraction": 1.0}, r"of more than 2 clients each"),
        (0, {}, r"scheme\.groups"),
    ],
)
def test_groups_that_are_too_small_are_refused(groups, changes, words):
    with pytest.raises(ConfigError, match=words):
        simulate(asked(groups, **changes))


def test_groups_all_of_whose_members_may_cheat_are_refused():
    dishonest = Privacy(noise_multiplier=0.5, delta=1e-3, assumed_dishonest=4)
    with pytest.raises(ConfigError):
        simulate(asked(3, 12, privacy=dishonest, secure="masked"))


@pytest.mark.parametrize("secure", ["masked", "none"])
def test_groups_whose_sums_would_never_be_released_are_refused_before_anything_runs(secure):
    dishonest = Privacy(noise_multiplier=0.5, delta=1e-3, assumed_dishonest=4)
    with pytest.raises(ConfigError, match=r"scheme\.groups"):
        simulate(asked(3, 12, privacy=dishonest, secure=secure))
    assert simulate(asked(1, 12, privacy=dishonest, secure=secure)).metrics[0]["released"]


def test_with_groups_the_promise_is_for_data_that_is_replaced_by_nothing():
    """One client more would be dealt with all others anew, so that nothing is promised of that."""
    for groups, adjacency in ((1, "add-remove"), (3, "zero-out")):
        experiment = asked(groups, 12)
        found = plan(experiment).adjacency, simulate(experiment).result["privacy"]["adjacency"]
        assert found == (adjacency, adjacency)


def test_a_plan_of_groups_agrees_with_the_run():
    experiment = asked(3, 30, secure="masked", rounds=2)
    made, run = plan(experiment), simulate(experiment)
    assert made.groups == 3 and made.cohort == 30 and made.survivors == 10
    assert made.epsilon == pytest.approx(run.result["privacy"]["epsilon"])
    assert made.bits_per_parameter == pytest.approx(run.result["bits_per_parameter"])
    assert dict(made.rows())["clients a round"] == "30 of 30, always, in 3 groups"
    # other schemes are planned for as they would run
    one = plan(asked(1, 30, secure="masked", rounds=2))
    assert one.groups == 1
    averages = [next(row for row in some.traffic if row.scheme == "dp-fedavg") for some in (made, one)]
    assert averages[0] == averages[1]


# --- what groups withstand


def test_a_median_of_groups_withstands_a_boosted_client_that_one_sum_does_not():
    def accuracy(groups):
        plan = Adversary(attack="sign-flip", clients=[0], boost=50.0, omit_noise=True)
        experiment = Experiment(
            data=Data(clients=30),
            scheme=SCHEMES["dp-signfed"](
                groups=groups, steps=10, learning_rate=0.1, server_learning_rate=0.003
            ),
            privacy=Privacy(noise_multiplier=0.05, delta=1e-3),
            rounds=20,
            eval_every=20,
            secure="none",
            adversary=plan,
        )
        return simulate(experiment).final["accuracy"]

    assert accuracy(1) < 0.3 and accuracy(5) > 0.6
