"""Membership inference: its figures by hand, and what guessing gives."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.adversaries.inference import loss_threshold, membership
from discreet.audits.member import most_advantage
from discreet.cohort import Examples
from discreet.errors import DataError
from discreet.losses import squared_error

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


def test_figures_by_hand():
    # by falling score: member, member, other, member, other, other
    found = membership(torch.tensor([9.0, 8.0, 4.0]), torch.tensor([7.0, 3.0, 1.0]))
    assert found.advantage == pytest.approx(2 / 3)  # two members before the first other; 1 - 1/3 later
    assert found.auc == pytest.approx(8 / 9)  # of 9 pairs, one is the wrong way round
    assert found.found_at(0.01) == pytest.approx(2 / 3)
    assert found.found_at(1 / 3) == pytest.approx(1.0)
    assert (found.members, found.others) == (3, 3)


@given(SCORES, SCORES)
def test_figures_are_what_their_definitions_say(members, others):
    found = membership(torch.tensor(members), torch.tensor(others))
    pairs = [(a > b) + (a == b) / 2 for a, b in itertools.product(members, others)]
    assert found.auc == pytest.approx(np.mean(pairs))
    differences, at_none = [0.0], 0.0
    for threshold in range(-4, 5):
        true = np.mean([score > threshold for score in members])
        false = np.mean([score > threshold for score in others])
        differences.append(true - false)
        at_none = max(at_none, true) if false == 0 else at_none
    assert found.advantage == pytest.approx(max(differences))
    assert found.found_at(0.001) == pytest.approx(at_none)


def test_scores_that_are_no_numbers_are_the_least_likely_members():
    nan, inf = math.nan, math.inf
    assert membership(torch.tensor([nan, nan]), torch.tensor([-inf, 0.0])).auc == pytest.approx(0.25)
    assert membership(torch.tensor([inf, 1e308]), torch.tensor([nan, 0.0])).advantage == 1


def test_guessing_passes_the_level_of_chance_once_in_twenty_times():
    """If it is 5 %, of 800 trials 7.4 % would pass by chance once in a thousand times."""
    rng = np.random.default_rng(5)
    draws = torch.from_numpy(rng.normal(size=(800, 200)))
    passed = [(one := membership(row[:120], row[120:])).advantage > one.chance for row in draws]
    assert 0.02 < np.mean(passed) < 0.074


def test_small_losses_are_taken_for_members():
    inputs = torch.arange(6.0)[:, None]
    targets = torch.tensor([[0.0], [1.0], [2.0], [0.0], [0.0], [0.0]])
    members, others = Examples(inputs[:3], targets[:3]), Examples(inputs[3:], targets[3:])
    found = loss_threshold(lambda inputs: inputs, squared_error, members, others)
    assert found.advantage == found.auc == 1
    opposite = loss_threshold(lambda inputs: inputs, squared_error, others, members)
    assert opposite.advantage == opposite.auc == 0


@pytest.mark.parametrize(("members", "others"), [(0, 3), (3, 0)])
def test_nobody_to_compare_is_refused(members, others):
    with pytest.raises(DataError, match=r"members|others"):
        membership(torch.zeros(members), torch.zeros(others))


def test_the_advantage_under_differential_privacy_is_that_of_randomised_response():
    """The likeliest answer of a mechanism that tells the truth with probability e^eps / (1 + e^eps) reaches the bound."""
    for epsilon in (0.1, 1.0, 3.0):
        truth = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert most_advantage(epsilon, 0.0) == pytest.approx(truth - (1 - truth))
    # a mechanism that gives everything away with probability delta, and else nothing
    assert most_advantage(0.0, 0.01) == pytest.approx(0.01)
    assert most_advantage(math.inf, 1e-5) == pytest.approx(1.0)
