"""White-box membership inference: its measurements by hand, and what it learns from."""

import math

import numpy as np
import pytest
import torch

from discreet.adversaries.inference.likelihood import confidences, learner_predict
from discreet.adversaries.inference.membership import losses_of, membership
from discreet.adversaries.inference.whitebox import Sighting, features, learnt
from federations import federation


@pytest.mark.parametrize("gradients", ["layers", "vmap", "autograd"])
def test_measurements_are_those_of_each_example_alone(blobs, gradients):
    fed = federation("fedavg", blobs, gradients=gradients)
    learner = fed.task.learner
    vector = fed.task.initial()
    moves = torch.randn(3, len(vector), generator=torch.Generator().manual_seed(2))
    found = features(learner, [Sighting(vector, moves)], blobs.test)
    assert found.shape == (len(blobs.test), 6)
    predict = learner_predict(learner, vector)
    assert torch.allclose(found[:, 0], losses_of(predict, learner.loss, blobs.test).log())
    assert torch.allclose(found[:, 1], confidences(predict, learner.loss, blobs.test))
    last = next(slot for slot in reversed(learner.network.layout) if len(slot.shape) > 1)
    for place in (0, 7):
        own = vector.clone().requires_grad_()
        inputs, targets = blobs.test.gather(torch.tensor([place]))
        (slope,) = torch.autograd.grad(learner.loss(learner.network.apply(own, inputs), targets).sum(), own)
        cosines = torch.nn.functional.cosine_similarity(-slope[None], moves)
        wanted = [
            math.log(slope.norm()),
            math.log(max(1e-12, slope[last.offset : last.offset + last.size].norm())),
            float(cosines.max()),
            float(cosines.min()),
        ]
        assert found[place, 2:].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_over_rounds_the_mean_and_the_change_are_kept(blobs):
    fed = federation("fedavg", blobs)
    vector = fed.task.initial()
    nothing = vector.new_empty(0, len(vector))
    sightings = [Sighting(vector * scale, nothing) for scale in (1, 2, 4)]
    alone = [features(fed.task.learner, [one], blobs.test) for one in sightings]
    found = features(fed.task.learner, sightings, blobs.test)
    assert torch.allclose(found[:, :4], torch.stack(alone).mean(0))
    assert torch.allclose(found[:, 4:], alone[2] - alone[0])


def test_what_was_known_of_some_tells_of_others():
    """Members differ by one deviation in one feature of three: the best possible AUC is Phi(1 / sqrt 2) = 0.760."""
    rng = np.random.default_rng(6)

    def drawn(shift):
        return torch.from_numpy(rng.normal((shift, 0, 5), size=(2000, 3)))

    known, asked = (drawn(1), drawn(0)), (drawn(1), drawn(0))
    got = membership(*(learnt(*known, one) for one in asked))
    assert 0.73 < got.auc < 0.79
    # a spread that is larger is seen too, though its mean is the same
    wide, narrow = torch.from_numpy(rng.normal(size=(2, 1000, 1))) * torch.tensor([2.0, 1.0])[:, None, None]
    got = membership(
        learnt(wide[:500], narrow[:500], wide[500:]), learnt(wide[:500], narrow[:500], narrow[500:])
    )
    assert got.auc > 0.65


def test_what_says_nothing_gives_chance():
    """Once in 20 seeds it would be above the level of chance; this seed is none of them."""
    rng = np.random.default_rng(7)
    one, other, members, others = torch.from_numpy(rng.normal(size=(4, 300, 6)))
    got = membership(learnt(one, other, members), learnt(one, other, others))
    assert got.advantage < got.chance
    constant = torch.ones(5, 3)
    assert learnt(constant, constant, constant).tolist() == [0.0] * 5
