"""Robust averaging against hand-made updates, NumPy and SciPy; and that its sum cannot be made secure."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet import Adversary, ConfigError, simulate
from discreet.schemes import RobustFedAvg
from discreet.schemes.base import GlobalModel, Total
from discreet.schemes.robust import COORDINATES, clipped_mean, krum_order, trimmed_mean
from federations import dataset, deal, experiment, federation, play, same_bits, scheme

DATA = dataset()
RULES = ("mean", "median", "trimmed-mean", "krum", "multi-krum", "norm-clip")
LINE = torch.tensor([[0.0], [1.0], [10.0], [2.0], [4.0]])


def rule(aggregate, **changes):
    return RobustFedAvg(aggregate=aggregate, **changes)


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        (rule("mean"), 17 / 5),
        (rule("median"), 2.0),
        (rule("trimmed-mean"), 7 / 3),  # without 0 and 10
        (rule("trimmed-mean", assumed_malicious=0.0), 17 / 5),
        (rule("trimmed-mean", assumed_malicious=0.4), 2.0),
        (rule("krum"), 1.0),  # of its two nearest: 0 has 1 + 4, 1 has 1 + 1, 2 has 1 + 4
        (rule("multi-krum"), 7 / 4),  # all but 10
        (rule("norm-clip"), (0 + 1 + 2 + 2 + 2) / 5),  # the median norm is 2
        (rule("norm-clip", clip_norm=4.0), (0 + 1 + 4 + 2 + 4) / 5),
    ],
    ids=lambda value: getattr(value, "aggregate", ""),
)
def test_five_numbers_by_hand(chosen, wanted):
    found = chosen.aggregated(LINE)
    assert found.dtype == torch.float64 and found.tolist() == [pytest.approx(wanted)]


@pytest.mark.parametrize("aggregate", RULES)
def test_one_update_is_its_own_mean(aggregate):
    update = torch.tensor([[3.0, -4.0]])
    assert rule(aggregate).aggregated(update).tolist() == [3.0, -4.0]


@pytest.mark.parametrize("aggregate", RULES)
def test_updates_of_zero_stay_zero(aggregate):
    assert rule(aggregate).aggregated(torch.zeros(4, 3)).tolist() == [0.0] * 3


def updates(count, length, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, length)).astype(np.float32))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 999))
def test_medians_and_trimmed_means_are_numpys_and_scipys(count, length, seed):
    some = updates(count, length, seed)
    assert rule("median").aggregated(some).numpy() == pytest.approx(np.median(some.double().numpy(), axis=0))
    cut = min(-(-2 * count // 10), (count - 1) // 2)
    wanted = stats.trim_mean(some.double().numpy(), (cut + 1e-6) / count, axis=0)
    assert rule("trimmed-mean").aggregated(some).numpy() == pytest.approx(wanted)


@given(st.integers(3, 10), st.integers(0, 3), st.integers(0, 999))
def test_krum_is_its_definition(count, malicious, seed):
    some = updates(count, 4, seed)
    scores = []
    for one in range(count):
        others = sorted(float(((some[one] - some[k]).double() ** 2).sum()) for k in range(count) if k != one)
        scores.append(sum(others[: max(1, count - malicious - 2)]))
    assert krum_order(some, malicious).tolist() == np.argsort(scores, kind="stable").tolist()


def test_more_coordinates_than_are_looked_at_together():
    some = updates(5, 2 * COORDINATES + 3, 0)
    found = trimmed_mean(some, 2)
    assert found.numpy() == pytest.approx(np.median(some.double().numpy(), axis=0))
    exact = ((some.double()[:, None] - some.double()) ** 2).sum(2)
    scores = exact.sort(1).values[:, 1:3].sum(1)
    assert krum_order(some, 1).tolist() == scores.argsort().tolist()


@pytest.mark.parametrize("aggregate", ["median", "trimmed-mean", "krum", "multi-krum"])
@settings(max_examples=30)
@given(
    far=st.floats(1e2, 1e30), sign=st.sampled_from([-1, 1]), place=st.integers(0, 9), seed=st.integers(0, 99)
)
def test_one_update_however_large_moves_it_no_further_than_honest_ones_lie(aggregate, far, sign, place, seed):
    some = updates(10, 6, seed)
    attacked = some.clone()
    attacked[place] = sign * far
    honest = torch.cat([some[:place], some[place + 1 :]]).double()
    found = rule(aggregate).aggregated(attacked)
    assert (found >= honest.amin(0) - 1e-9).all() and (found <= honest.amax(0) + 1e-9).all()
    assert abs(rule("mean").aggregated(attacked)[0]) > 1


@given(st.integers(1, 8), st.floats(0.1, 10), st.integers(0, 99))
def test_nobody_adds_more_than_the_norm_they_are_clipped_to(count, clip_norm, seed):
    some = updates(count, 5, seed) * 3
    wanted = some.double() / torch.clamp(some.double().norm(dim=1, keepdim=True) / clip_norm, min=1)
    assert clipped_mean(some, clip_norm).numpy() == pytest.approx(wanted.mean(0).numpy(), abs=1e-7)
    huge = torch.cat([some, torch.full((1, 5), 1e30)])
    assert clipped_mean(huge, clip_norm).norm() <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("aggregate", RULES)
@given(st.permutations(range(7)))
def test_the_order_of_clients_does_not_matter(aggregate, order):
    some = updates(7, 5, 3)
    one, other = (rule(aggregate).aggregated(rows) for rows in (some, some[list(order)]))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_server_is_given_every_update_in_the_clients_order():
    fed = federation("robust-fedavg", DATA)
    played = play(fed, [[5, 3], [0, 7]])
    (phase,), (total,) = fed.scheme.phases(fed.task), played.totals
    assert phase.gathered and total.count == 4
    (contributions,) = played.given
    for row, client in zip(total.values, (0, 3, 5, 7), strict=True):
        assert same_bits(row, contributions[client][0])


def test_the_mean_is_fedavgs_where_all_hold_equally_much():
    sizes = (6,) * 8
    one, other = (
        simulate(experiment(name, rounds=3), data=DATA, partition=deal(sizes))
        for name in ("fedavg", scheme("robust-fedavg", aggregate="mean"))
    )
    torch.testing.assert_close(one.vector, other.vector, rtol=1e-5, atol=1e-6)


def test_the_servers_step_is_along_what_takes_the_means_place():
    chosen = RobustFedAvg(server_learning_rate=2.0, server_half_life=1.0)
    fed = federation(chosen, DATA)
    length = fed.task.parameters
    rows = torch.tensor([[1.0], [5.0], [3.0]]).expand(3, length)
    after = chosen.update(fed.task, GlobalModel(torch.ones(length)), (Total(rows, 3),), 2)
    assert (after.vector == 1 + 2.0 / 2 * 3).all()


@pytest.mark.parametrize("secure", ["masked", "additive"])
def test_it_cannot_be_summed_securely_and_the_result_says_who_sees_what(secure):
    with pytest.raises(ConfigError, match=f"secure = '{secure}': expected none: robust-fedavg"):
        experiment("robust-fedavg", secure=secure)
    result = simulate(experiment("robust-fedavg", rounds=1), data=DATA).result
    assert "robust-fedavg: the server sees every client's update in the clear" in result["notes"]
    assert not simulate(experiment("fedavg", rounds=1), data=DATA).result["notes"]
    assert "clear" in RobustFedAvg.summary and "in the clear" in RobustFedAvg.__doc__


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregate": "mode"}, r"scheme\.aggregate = 'mode'"),
        ({"clip_norm": 1.0}, r"scheme\.clip_norm = 1\.0: expected to be left out"),
        ({"assumed_malicious": 0.3}, r"scheme\.assumed_malicious = 0\.3: expected to be left out"),
        ({"aggregate": "krum", "assumed_malicious": 0.5}, r"scheme\.assumed_malicious = 0\.5: .*less than 0\.5"),
        ({"aggregate": "norm-clip", "clip_norm": 0.0}, r"scheme\.clip_norm .*greater than 0"),
    ],
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        RobustFedAvg(**fields)


@pytest.mark.parametrize("aggregate", RULES)
def test_it_learns_whatever_takes_the_means_place(aggregate):
    chosen = scheme("robust-fedavg", aggregate=aggregate, learning_rate=0.3)
    result = simulate(experiment(chosen, rounds=15), data=DATA)
    assert result.final["accuracy"] > 0.5  # guessing gives a third


@pytest.mark.parametrize("aggregate", RULES[1:])
def test_it_withstands_a_boosted_client_that_the_mean_does_not(aggregate):
    plan = Adversary(attack="sign-flip", clients=[4], boost=1000.0)
    partition = deal((10,) * 8)

    def loss(aggregate, plan):
        chosen = scheme("robust-fedavg", aggregate=aggregate)
        return simulate(experiment(chosen, rounds=5, adversary=plan), data=DATA, partition=partition).final[
            "loss"
        ]

    assert loss(aggregate, plan) < 1.5 * loss("mean", None)
    assert loss("mean", dataclasses.replace(plan, boost=30.0)) > 3 * loss("mean", None)
