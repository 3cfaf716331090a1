"""Shadow models and likelihood ratios: what is drawn, what is scored, and that an overfitted model is seen through."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from discreet.adversaries.inference.likelihood import (
    OWN_SPREAD,
    Shadows,
    as_confident,
    balanced,
    confidence,
    confidences,
    likelihood_ratio,
    shadow_models,
)
from discreet.adversaries.inference.membership import membership
from discreet.losses import cross_entropy, squared_error
from discreet.optimizers import LocalTraining
from federations import federation


@given(st.integers(1, 6), st.integers(1, 20))
def test_every_candidate_is_in_half_of_the_shadows(half, candidates):
    held = balanced(2 * half, candidates, np.random.default_rng(1))
    assert held.shape == (2 * half, candidates)
    assert held.dtype == torch.bool
    assert held.sum(0).tolist() == [half] * candidates


def test_confidence_is_the_log_of_the_odds_or_minus_the_log_of_the_loss():
    outputs = torch.tensor([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([2, 1])
    odds = outputs.softmax(1)
    wanted = [math.log(float(odds[row, t] / (1 - odds[row, t]))) for row, t in enumerate(targets.tolist())]
    assert confidence(outputs, targets, cross_entropy).tolist() == pytest.approx(wanted)
    values = torch.tensor([[1.3, -1.2, 2.0], [5.0, 0.0, 2.0]], dtype=torch.float64)
    assert confidence(outputs, values, squared_error).tolist() == pytest.approx(
        [-math.log(0.5), -math.log(2)]  # half of 1, half of 2^2
    )


def test_confidences_are_finite_whatever_a_model_says(blobs):
    examples = blobs.test
    for broken in (math.nan, math.inf, -math.inf):
        found = confidences(
            lambda inputs, broken=broken: torch.full((len(inputs), 3), broken), cross_entropy, examples
        )
        assert found.isfinite().all()
        assert len(found) == len(examples)


def _by_hand(values, held, place):
    inside = [row[place] for row, there in zip(values, held, strict=True) if there[place]]
    outside = [row[place] for row, there in zip(values, held, strict=True) if not there[place]]
    return inside, outside


@pytest.mark.parametrize("count", [4, OWN_SPREAD])
def test_scores_are_those_of_gaussians(count):
    """With few shadows all examples share a spread of their deviations from their own means; with many, none does."""
    rng = np.random.default_rng(3)
    values, held = rng.normal(size=(count, 5)), balanced(count, 5, rng)
    observed = torch.from_numpy(rng.normal(size=5))
    online, offline = likelihood_ratio(observed, Shadows(held, torch.from_numpy(values)))
    sides = [_by_hand(values, held.tolist(), place) for place in range(5)]
    pooled = [
        math.sqrt(
            sum(np.sum((one[side] - np.mean(one[side])) ** 2) for one in sides) / (5 * (count // 2 - 1))
        )
        for side in (0, 1)
    ]
    for place, (inside, outside) in enumerate(sides):
        spread = pooled if count < OWN_SPREAD else [np.std(inside), np.std(outside)]
        value = float(observed[place])
        wanted = norm.logpdf(value, np.mean(inside), spread[0]) - norm.logpdf(
            value, np.mean(outside), spread[1]
        )
        assert float(online[place]) == pytest.approx(wanted)
        assert float(offline[place]) == pytest.approx((value - np.mean(outside)) / spread[1])


def test_the_ratio_finds_what_a_threshold_cannot():
    """Each example has a level of its own, spread 20 times as far as what membership adds; AUC is then Phi(1 / sqrt 2).

    4000 candidates: its standard error is below 0.01, so that it is off by 0.04 less than once in 10,000 times.
    """
    rng = np.random.default_rng(4)
    levels, held = rng.normal(scale=20, size=4000), balanced(40, 4000, rng)
    member = torch.arange(4000) < 2000
    says = torch.from_numpy(levels + rng.normal(size=(40, 4000))) + held
    observed = torch.from_numpy(levels + rng.normal(size=4000)) + member
    plain = membership(observed[member], observed[~member])
    assert plain.auc == pytest.approx(0.5, abs=0.04)
    for score in likelihood_ratio(observed, Shadows(held, says)):
        found = membership(score[member], score[~member])
        assert found.auc == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.04)


def test_shadow_models_learn_what_they_hold_and_stop_where_they_are_sure_enough(blobs):
    fed = federation("fedavg", blobs, widths=(20,))
    learner = replace(fed.task.learner, lanes=2)
    # labels that nothing predicts: whoever knows them has been told
    stream = np.random.default_rng(5)
    pool = replace(blobs.train, targets=torch.from_numpy(stream.integers(0, 3, len(blobs.train))))
    held = balanced(4, len(pool), stream)
    plan = LocalTraining(optimizer="adam", learning_rate=0.05)

    def found(level, passes, share=1.0):
        models = shadow_models(learner, plan, fed.task.initial(), pool, held, fed.task.randomness)
        return as_confident(learner, models, pool, held, level, share, passes)

    far = found(100.0, 15)
    assert far.confidences[held].mean() > far.confidences[~held].mean() + 2
    near = found(0.5, 15)
    assert abs(near.mean(1.0) - 0.5) < 0.7
    assert near.mean(1.0) == pytest.approx(float(near.confidences[held].mean()))
    assert far.mean(1.0) > near.mean(1.0)
    with pytest.raises(ValueError, match="at least one"):
        found(0.0, 0)
