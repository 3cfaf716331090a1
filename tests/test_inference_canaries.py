"""Canaries and the lower bound on epsilon: the bound by hand, and whether it catches noise that is not there."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet import preparation
from discreet.adversaries.inference.canaries import (
    LARGEST_EPSILON,
    Bound,
    among_groups,
    bounded,
    chance_of,
    directions,
    least_epsilon,
    scores,
)
from discreet.adversaries.settings import Adversary
from discreet.audits import canary
from discreet.audits.canary import MODELS, SUMS, claim, evidence, planted, played
from discreet.config import Data, Experiment, Model, Privacy
from discreet.randomness import Seeded
from discreet.schemes import DPFedAvg, DPSignFed

# ---- the bound


def test_the_chance_of_right_guesses_by_hand():
    # epsilon = log 3: each guess is right with probability 3/4
    assert chance_of(2, 2, 2, math.log(3), 0.0) == pytest.approx(9 / 16)
    assert chance_of(2, 2, 1, math.log(3), 0.0) == pytest.approx(15 / 16)
    assert chance_of(3, 3, 2, math.log(3), 0.0) == pytest.approx(27 / 64 + 27 / 64)
    # f(2) = 9/16, f(1) = 15/16, f(0) = 1: of (f(1) - f(2)) / 1 = 6/16 and (f(0) - f(2)) / 2 = 7/32 the larger, times 2 m delta
    assert chance_of(5, 2, 2, math.log(3), 0.01) == pytest.approx(9 / 16 + 2 * 5 * 0.01 * 6 / 16)
    # epsilon 0, 4 guesses, all right: f = 1/16, 5/16, 11/16, 15/16, 1; quotients 4/16, 5/16, 14/48, 15/64
    assert chance_of(10, 4, 4, 0.0, 0.02) == pytest.approx(1 / 16 + 2 * 10 * 0.02 * 5 / 16)
    assert chance_of(10, 4, 0, 1.0, 0.5) == 1
    assert chance_of(10, 0, 0, 1.0, 0.5) == 1
    with pytest.raises(ValueError, match="3 right of 2 guesses"):
        chance_of(5, 2, 3, 1.0, 0.0)


def test_the_bound_by_hand():
    # all of r guesses right: p^r = 1/20, so epsilon = log(p / (1 - p))
    for guesses in (5, 20, 100):
        odds = 0.05 ** (1 / guesses)
        assert least_epsilon(200, guesses, guesses, 0.0) == pytest.approx(math.log(odds / (1 - odds)))
    # 1 - (1 - p)^2 = 1/20 for one or more right of two would need p below 1/2: nothing is shown
    assert least_epsilon(2, 2, 1, 0.0) == 0
    # 4 of 4 right are a matter of luck once in 16 times
    assert least_epsilon(4, 4, 4, 0.0) == 0
    assert least_epsilon(4, 4, 4, 0.0, 0.9) > 0
    assert least_epsilon(10**6, 10**6, 10**6, 0.0, 1e-300) == pytest.approx(LARGEST_EPSILON)


@given(st.integers(1, 60), st.data())
def test_the_bound_holds_where_randomised_response_is_the_truth(guesses, data):
    """More right guesses show more, a larger delta less; and the chance of exceeding the bound is 5 % at most."""
    right = data.draw(st.integers(0, guesses))
    epsilon = least_epsilon(guesses, guesses, right, 0.0)
    assert epsilon <= least_epsilon(guesses, guesses, min(right + 1, guesses), 0.0)
    assert least_epsilon(guesses, guesses, right, 1e-3) <= epsilon
    if epsilon:
        assert chance_of(guesses, guesses, right, epsilon * 1.001, 0.0) > 0.05


def test_the_bound_is_wrong_no_more_often_than_it_says():
    """Randomised response at epsilon 1 by 200 canaries, 1000 times: 5 % are wrong at most, 7.5 % once in 1000 tests."""
    rng = np.random.default_rng(8)
    coins = rng.integers(0, 2, (1000, 200)).astype(bool)
    told = np.where(rng.random(coins.shape) < 1 / (1 + math.exp(-1)), coins, ~coins)
    found = [
        bounded(torch.from_numpy(one + rng.random(200) / 2), own, 0.0).epsilon
        for one, own in zip(told.astype(float), coins, strict=True)
    ]
    assert np.mean(np.array(found) > 1) < 0.075
    assert np.median(found) > 0.3


def test_guesses_are_made_of_the_clearest_scores():
    coins = np.array([False] * 50 + [True] * 50)
    # the outer halves are right, the inner ones the wrong way round
    found = torch.cat([torch.arange(25), 75 - torch.arange(50), 75 + torch.arange(1, 26)]).double()
    bound = bounded(found, coins, 0.0)
    assert (bound.guesses, bound.right) == (50, 50)
    assert bound.epsilon == pytest.approx(least_epsilon(100, 50, 50, 0.0, 1 - 0.05 / 3))
    assert bounded(torch.zeros(1, dtype=torch.float64), np.array([True]), 0.0) == Bound(0.0, 0, 0)


def test_scores_are_inner_products_in_units_of_what_was_released():
    signs = directions(Seeded(1), 3, np.array([4, 9]), 16)
    assert torch.allclose(signs.abs(), torch.full((2, 16), 0.25))
    assert torch.equal(signs, directions(Seeded(1), 3, np.array([4, 9]), 16))
    assert not torch.equal(signs, directions(Seeded(1), 4, np.array([4, 9]), 16))
    assert float(scores(7 * signs[1], signs)[1]) == pytest.approx(
        4.0
    )  # norm 1 over a root mean square of 1/4
    assert scores(torch.zeros(16), signs).tolist() == [0, 0]


def test_of_several_sums_the_ratio_is_mixed_over_the_groups_by_hand():
    signs = torch.full((1, 4), 0.5)
    # units 2 and 1; scores (2 * 0.5 * 4) / 2 = 2 and 0; a canary of norm 2 adds 1 and 2 units
    sums = torch.tensor([[2.0, 2.0, 2.0, 2.0], [1.0, -1.0, 1.0, -1.0]])
    ratio = (math.exp(2 * 1 - 1 / 2) + math.exp(0 - 4 / 2)) / 2
    assert float(among_groups(sums, signs, 2.0, 1.0)[0]) == pytest.approx(math.log(ratio))
    assert float(among_groups(sums, signs, 2.0, 0.25)[0]) == pytest.approx(math.log(0.75 + 0.25 * ratio))
    # who takes part in no sum, or in one of which nothing is known, is as likely in as out
    assert float(among_groups(torch.zeros(2, 4), signs, 2.0, 0.25)[0]) == pytest.approx(0.0, abs=1e-12)
    assert float(among_groups(sums * 100, signs * 0, 0.0, 1.0)[0]) == pytest.approx(0.0, abs=1e-12)


# ---- a run with canaries

ROUNDS = 6


def prepared(scheme, noise=4.0, **changes):
    asked = {"privacy": Privacy(noise_multiplier=noise, delta=1e-4), "secure": "none"} | changes
    return preparation.prepare(
        Experiment(
            data=Data(clients=160), model=Model(name="linear"), scheme=scheme, rounds=ROUNDS, seed=3, **asked
        )
    )


NOISELESS = Adversary(fraction=0.995, omit_noise=True)
"""159 of 160 clients add no noise, and the accountant does not know."""

PRIVATE = [DPSignFed(steps=2), DPFedAvg(steps=2)]


@pytest.mark.parametrize(
    "scheme", [*PRIVATE, DPSignFed(steps=2, groups=5)], ids=["dp-signfed", "dp-fedavg", "groups"]
)
def test_what_is_shown_stays_below_what_is_claimed_and_lies_above_it_without_noise(scheme):
    """True noise passes the claim once in 20 seeds at most; this seed is none of them."""
    fed = prepared(scheme)
    claimed = claim(fed, ROUNDS).epsilon
    found = evidence(planted(fed), ROUNDS, 1e-4)
    assert found.keys() == {SUMS, MODELS}
    for bound in found.values():
        assert bound.epsilon < claimed
    broken = prepared(scheme, noise=8.0, adversary=NOISELESS)
    too_low = claim(broken, ROUNDS).epsilon
    assert 0 < too_low < claimed
    for bound in evidence(planted(broken), ROUNDS, 1e-4).values():
        assert bound.epsilon > too_low


def test_canaries_are_looked_for_a_few_at_a_time(monkeypatch):
    there = planted(prepared(PRIVATE[0], noise=0.5))
    whole = evidence(there, 2, 1e-4)
    sizes, made = set(), canary.directions

    def seen(randomness, round, canaries, length):
        sizes.add(len(canaries))
        return made(randomness, round, canaries, length)

    monkeypatch.setattr(canary, "directions", seen)
    monkeypatch.setattr(canary, "AT_ONCE", 7 * there.federation.task.parameters + 1)
    assert evidence(there, 2, 1e-4) == whole
    assert sizes == {7, 80 % 7} and len(there.canaries) == 80


def test_the_bound_is_not_empty_where_there_is_little_noise():
    fed = prepared(PRIVATE[0], noise=0.5)
    bound = evidence(planted(fed), ROUNDS, 1e-4)[SUMS]
    assert 1 < bound.epsilon < claim(fed, ROUNDS).epsilon


@pytest.mark.parametrize("clip", ["median", "adaptive"])
def test_clip_norms_that_are_found_on_the_way(clip):
    fed = prepared(DPFedAvg(steps=2, clip=clip), sampling="poisson", fraction=0.5)
    there = planted(fed)
    given = list(played(there.federation, 3))
    assert [one.round for one in given] == ([2, 3] if clip == "median" else [1, 2, 3])
    assert {one.total.shape for one in given} == {(1, fed.task.parameters)}


def test_canaries_that_are_in_send_their_signs_and_the_others_nothing_but_noise():
    fed = prepared(PRIVATE[1], noise=1e-4 * 3000)
    there = planted(fed, share=1.0)
    assert len(there.canaries) == 160
    assert 50 < there.coins.sum() < 110  # of 160 coins, all but once in 10^5 times
    sizes = there.federation.partition.sizes
    assert (sizes[~there.coins] == 0).all()
    assert (sizes[there.coins] > 0).all()
    quiet = replace(
        there.federation.task, adversary=replace(there.federation.task.adversary, adversary=NOISELESS)
    )
    silent = replace(quiet, adversary=replace(quiet.adversary, clients=np.arange(160)))
    (release,) = played(replace(there.federation, task=silent), 1)
    signs = directions(fed.task.randomness, 1, there.canaries[there.coins], fed.task.parameters)
    wanted = signs.double().sum(0) * fed.scheme.update_norm(fed.task)
    # each is clipped half a step a coordinate lower, and rounded
    assert float((release.total[0] - wanted).norm() / wanted.norm()) < 0.02
