"""The theorems of lossless perturbation, as checks: what is exact, and what is hidden and what is not.

Numbers in parentheses are those of arXiv 2002.09843's theorems, as the project counts them: (1) the forward relation,
(2) the gradient relation, (3) exact recovery, (4) infinitely many pre-images, (5) predictions and m.
"""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from discreet import losses
from discreet.cohort import Cohort, Examples
from discreet.errors import LocalProtocolError
from discreet.network import network_of
from discreet.randomness import Seeded, SystemRandom
from discreet.schemes.lossless.layout import Layout
from discreet.schemes.lossless.noise import Perturbed, draw, perturb, preimage, strength
from discreet.schemes.lossless.preparing import prepared
from discreet.schemes.lossless.probing import probe, true_hidden
from discreet.schemes.lossless.quadratic import curvature
from discreet.schemes.lossless.reading import read
from discreet.schemes.lossless.recovery import Removal, recover
from discreet.schemes.lossless.structure import without_last
from discreet.schemes.lossless.work import contributed
from discreet.training import Learner, mean_gradients
from perturbed_models import (
    CLASSES,
    IMAGE,
    NETWORKS,
    SHAPES,
    half_squares,
    images,
    made,
    relative,
    true_gradient,
)

CPU = torch.device("cpu")
EMPTY = torch.empty(0, dtype=torch.float64)


class Setting:
    """A network under noise of one round."""

    def __init__(self, name, m=2, kind="uniform", seed=0, rho=3.0, dtype=torch.float64, loss=None):
        self.shape = SHAPES.get(name, IMAGE)
        self.module = made(name)
        self.network = network_of(self.module)
        self.learner = Learner(
            self.network,
            loss or losses.squared_error,
            "vmap",
            2,
            CPU,
            dimensions=len(self.shape),
            shape=self.shape,
        )
        self.structure = read(self.network, self.shape)
        self.vector = self.network.initial(Seeded(0)).double()
        self.noise = draw(self.structure, m, kind, Seeded(seed), 1)
        size = 0.0
        if m:
            inputs = probe(Seeded(0), self.shape, CPU)
            hidden = true_hidden(self.network, self.structure, self.vector, inputs)
            size = strength(self.noise, self.structure, self.vector, hidden, rho)
        self.secret = self.noise.of_strength(size)
        seen = perturb(self.structure, self.vector, self.secret, self.noise.ratios, self.noise.groups)
        self.payload = Perturbed(
            seen.to(dtype), self.noise.ratios, self.noise.groups, m, 1, EMPTY, EMPTY.to(torch.int8)
        )
        self.inputs = images(self.shape).train.inputs[:20].double()
        self.targets = images(self.shape).train.targets[:20]

    def outputs(self, vector):
        return self.network.apply(vector, self.inputs)

    def hidden(self, vector):
        return true_hidden(self.network, self.structure, vector, self.inputs)

    def r(self):
        return self.secret.outputs(self.noise.ratios, self.noise.groups)


def cohort_of(examples, sizes):
    ids = np.arange(len(sizes))
    edges = np.cumsum([0, *sizes])
    return Cohort(
        ids=ids,
        examples=examples,
        indices=tuple(np.arange(start, end) for start, end in itertools.pairwise(edges)),
        round=1,
        capacity=max(sizes),
        row=ids,
        column=ids * 0,
        kept=(None,) * len(ids),
    )


# ---- (1) forward


@pytest.mark.parametrize("name", NETWORKS)
def test_1_hidden_outputs_are_scaled_and_predictions_moved(name):
    one = Setting(name)
    true, seen = one.hidden(one.vector), one.hidden(one.payload.vector)
    scaled = true * one.secret.scales[one.structure.into]
    assert relative(seen, scaled) < 1e-13
    alpha = seen.sum(1) + one.structure.bias
    moved = one.outputs(one.payload.vector) - alpha[:, None] * one.r()
    assert relative(moved, one.outputs(one.vector)) < 1e-12


def test_the_noise_is_rho_times_the_outputs():
    for rho in (0.5, 3.0, 40.0):
        one = Setting("convolutions", rho=rho, m=CLASSES)
        inputs = probe(Seeded(0), one.shape, CPU)
        true, seen = (one.network.apply(at, inputs) for at in (one.vector, one.payload.vector))
        found = (seen - true).square().mean().sqrt() / true.square().mean().sqrt()
        assert float(found) == pytest.approx(rho, rel=1e-9)


# ---- (2) gradients


@pytest.mark.parametrize("loss", ["squared-error", "mse", "quadratic-cross-entropy"])
def test_2_the_true_gradient_is_the_perturbed_one_less_the_noise_terms(loss):
    """The terms as they are defined, by autograd: sigma_s of alpha r_s^T slope, beta of alpha^2 / 2."""
    one = Setting("nested", loss=losses.LOSSES[loss])
    values = loss == "mse"
    targets = torch.nn.functional.one_hot(one.targets, CLASSES).double() if values else one.targets
    seen = one.payload.vector.clone().requires_grad_()
    module = without_last(one.network.replica(), one.structure.last)
    below = {
        slot.name: part
        for slot, part in zip(one.network.layout, one.network.unflatten(seen).values(), strict=True)
        if slot.offset < one.structure.hidden
    }
    hidden = functional_call(module, below, (one.inputs,))
    outputs = one.outputs(seen)
    alpha = hidden.sum(1) + 1
    each = one.learner.loss(outputs, targets)
    (slope,) = torch.autograd.grad(each.sum(), outputs, create_graph=True)

    def gradient(value):
        return torch.autograd.grad(value.mean(), seen, retain_graph=True)[0]

    curved = curvature(one.learner.loss, CLASSES)
    found = gradient(each)
    for group in range(2):
        r_s = torch.where(one.noise.groups == group, one.noise.ratios, 0.0)
        found = found - one.secret.gamma[group] * gradient(alpha * (slope @ r_s))
    r = one.r()
    found = found + (r @ curved @ r) * gradient(alpha.square() / 2)
    # alpha and the noise are constants of the last layer's own derivatives only below it
    below_last = slice(0, one.structure.hidden)
    wanted = true_gradient(one.module, Examples(one.inputs, targets), range(20), one.learner.loss)
    factors = one.secret.factors(one.structure)
    assert relative((factors * found)[below_last], wanted[below_last]) < 1e-12


@pytest.mark.parametrize("path", ["vmap", "autograd"])
def test_the_terms_are_those_of_their_definition(path):
    """What a participant sends, against the derivatives of what is written in brackets in the maths."""
    one = Setting("convolutions")
    one.learner = Learner(
        one.network, losses.squared_error, path, 2, CPU, dimensions=len(one.shape), shape=one.shape
    )
    ready = prepared(one.learner, 2, torch.float64)
    found = contributed(
        ready, one.payload, cohort_of(Examples(one.inputs, one.targets), [20]), Seeded(0), 0
    ).changes[0]
    seen = one.payload.vector.clone().requires_grad_()
    module = without_last(one.network.replica(), one.structure.last)
    named = dict(
        zip((slot.name for slot in one.network.layout), one.network.unflatten(seen).values(), strict=True)
    )
    below = {name: part for name, part in named.items() if name in dict(module.named_parameters())}
    hidden = functional_call(module, below, (one.inputs,))
    alpha = hidden.sum(1) + 1
    wrong = one.outputs(seen) - torch.nn.functional.one_hot(one.targets, CLASSES)
    wanted = [half_squares(one.outputs(seen), one.targets)]
    for group in range(2):
        r_s = torch.where(one.noise.groups == group, one.noise.ratios, 0.0)
        wanted.append(alpha * (wrong @ r_s))
    wanted.append(alpha.square() / 2)
    hidden_size = one.structure.hidden
    for place, value in enumerate(wanted):
        (by_all,) = torch.autograd.grad(value.mean(), seen, retain_graph=True)
        mine = found[place * hidden_size : (place + 1) * hidden_size]
        assert relative(mine, by_all[:hidden_size]) < 1e-12
        if place == 0:
            last = found[4 * hidden_size : 4 * hidden_size + one.structure.count - hidden_size]
            assert relative(last, by_all[hidden_size:]) < 1e-12
    rest = found[4 * hidden_size + one.structure.count - hidden_size :]
    assert relative(rest[:-1], (alpha[:, None] * hidden).mean(0).detach()) < 1e-13
    assert float(rest[-1]) == pytest.approx(float(alpha.detach().mean()))


# ---- (3) recovery


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(["chain", "without_biases", "residual", "normalised"]),
    m=st.integers(1, CLASSES),
    kind=st.sampled_from(["uniform", "powers-of-two"]),
    seed=st.integers(0, 2**32),
    rho=st.floats(0.1, 10.0),
)
def test_3_recovery_is_exact_under_any_noise(name, m, kind, seed, rho):
    one = Setting(name, m=m, kind=kind, seed=seed, rho=rho)
    ready = prepared(one.learner, m, torch.float64)
    examples = Examples(one.inputs, one.targets)
    sizes = [3, 12, 5]
    found = contributed(ready, one.payload, cohort_of(examples, sizes), Seeded(0), 0)
    weights = torch.tensor(sizes).double()[:, None]
    total = torch.cat([found.changes * weights, weights], dim=1).sum(0)
    removal = Removal.of(
        Layout(one.structure, m), one.secret, one.noise.ratios, one.noise.groups, ready.curvature
    )
    back = recover(removal, total)
    wanted = true_gradient(one.module, examples, range(20), half_squares)
    assert relative(back.gradient, wanted) < 1e-11
    assert back.kappa >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", ["vmap", "autograd"])
@pytest.mark.parametrize("name", ["chain", "convolutions", "residual"])
def test_powers_of_two_alone_change_no_bit(name, path, dtype):
    """Without additive noise the gradient that is recovered is the plain one in all its bits."""
    one = Setting(name, m=0, kind="powers-of-two", dtype=dtype, loss=losses.cross_entropy)
    one.structure = read(one.network, one.shape)
    if one.structure.shifts:
        # a stored mean enters the biases by a sum, which rounds
        for layer in one.network.module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.zero_()
        one.structure = read(one.network, one.shape)
        seen = perturb(one.structure, one.vector, one.secret, one.noise.ratios, one.noise.groups)
        one.payload = Perturbed(seen.to(dtype), EMPTY, EMPTY.long(), 0, 1, EMPTY, EMPTY.to(torch.int8))
    learner = Learner(one.network, losses.cross_entropy, path, 2, CPU, dimensions=3, shape=one.shape)
    ready = prepared(learner, 0, dtype)
    cohort = cohort_of(Examples(one.inputs.float(), one.targets), [3, 12, 5])
    found = contributed(ready, one.payload, cohort, Seeded(0), 0).changes
    plain = mean_gradients(ready.learner, one.vector.to(dtype), cohort, Seeded(0)).changes
    assert found.dtype == plain.dtype == dtype
    factors = one.secret.factors(one.structure)
    assert len(factors.unique()) > 3
    for mine, theirs in zip(found, plain, strict=True):
        removal = Removal.of(Layout(one.structure, 0), one.secret, EMPTY, EMPTY.long(), EMPTY)
        back = recover(removal, torch.cat([mine.double(), torch.ones(1)]))
        assert torch.equal(back.gradient.to(dtype), theirs)
        assert back.kappa == 1


# ---- (4) pre-images


@pytest.mark.parametrize("name", NETWORKS)
def test_4_other_models_would_look_the_same(name):
    one = Setting(name)
    assert relative(preimage(one.structure, one.payload, one.secret), one.vector) < 1e-12
    others = []
    for seed in (1, 2):
        other = draw(one.structure, 2, "uniform", Seeded(seed), 1).of_strength(float(seed))
        model = preimage(one.structure, one.payload, other)
        again = perturb(one.structure, model, other, one.noise.ratios, one.noise.groups)
        assert relative(again, one.payload.vector) < 1e-12
        others.append(model)
    # they are other models, and predict other things
    for model, than in ((others[0], one.vector), (others[1], one.vector), tuple(others)):
        assert relative(model, than) > 0.1
        assert relative(one.outputs(model), one.outputs(than)) > 0.1


# ---- (5) predictions


@pytest.mark.parametrize("m", [1, 2, CLASSES])
def test_5_within_a_group_predictions_are_in_clear_up_to_one_number(m):
    """``y_i / r_i - y_k / r_k`` is exact for every input: n_L - m of the n_L numbers of a prediction are not hidden."""
    one = Setting("chain", m=m, rho=30.0)
    true, seen = (one.outputs(at) / one.noise.ratios for at in (one.vector, one.payload.vector))
    groups = one.noise.groups
    shown = 0
    for group in range(m):
        members = torch.nonzero(groups == group).flatten()
        for other in members[1:]:
            apart_true, apart_seen = (at[:, members[0]] - at[:, other] for at in (true, seen))
            assert relative(apart_seen, apart_true) < 1e-11
            shown += 1
    assert shown == CLASSES - m
    # between groups there is nothing of the kind: what is seen there is mostly noise
    for left in range(CLASSES):
        for right in range(left):
            if groups[left] != groups[right]:
                apart_true, apart_seen = (at[:, left] - at[:, right] for at in (true, seen))
                assert relative(apart_seen, apart_true) > 1


def test_5_the_noise_is_one_number_an_input_times_a_vector_all_inputs_share():
    """What the m numbers leave: all predictions' noise together has rank 1, and an input's own alpha is no secret."""
    one = Setting("convolutions", m=CLASSES)
    moved = one.outputs(one.payload.vector) - one.outputs(one.vector)
    alpha = one.hidden(one.payload.vector).sum(1) + 1
    singular = torch.linalg.svdvals(moved)
    assert float(singular[1] / singular[0]) < 1e-12
    assert relative(moved, alpha[:, None] * one.r()) < 1e-12


# ---- losses


def renamed(loss):
    """The loss as a user's own, of which nothing is known."""
    return lambda outputs, targets: loss(outputs, targets)


@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("name", losses.LOSSES)
def test_curvatures_are_second_derivatives(name, outputs):
    loss = losses.LOSSES[name]
    found = curvature(loss, outputs)
    if name == "cross-entropy":
        assert found is None and curvature(renamed(loss), outputs) is None
        return
    target = torch.randn(1, outputs).double() if name == "mse" else torch.tensor([1])
    point = torch.randn(outputs).double()
    wanted = torch.autograd.functional.hessian(lambda y: loss(y[None], target).sum(), point)
    assert relative(found, wanted) < 1e-12
    assert relative(curvature(renamed(loss), outputs), wanted) < 1e-12


def test_the_curvature_of_a_users_loss_for_one_value():
    found = curvature(lambda outputs, targets: 3 * (outputs - targets).square().sum(-1), 1)
    assert found.tolist() == [[6.0]]


# ---- the noise


def test_scales_and_ratios_are_in_their_ranges():
    structure = read(network_of(nn.Sequential(nn.Linear(6, 4000), nn.ReLU(), nn.Linear(4000, 9))), (6,))
    one = draw(structure, 4, "uniform", Seeded(1), 1)
    assert float(one.scales[0]) == 1 and len(one.scales) == 4001
    logs = one.scales[1:].log10()
    assert float(logs.abs().max()) <= 1
    # uniform in (-1, 1): of 4,000 the mean has sd 0.0091, the mean square (1/3) sd 0.0047; five sds, 1e-6 by chance
    assert abs(float(logs.mean())) < 0.046 and abs(float(logs.square().mean()) - 1 / 3) < 0.024
    assert float(one.ratios.min()) >= 0.75 and float(one.ratios.max()) <= 1.25
    assert len(one.ratios.unique()) == 9
    assert sorted(np.bincount(one.groups).tolist()) == [2, 2, 2, 3]
    assert float(one.gamma.abs().min()) >= 0.5 and float(one.gamma.abs().max()) <= 2
    two = draw(structure, 4, "powers-of-two", Seeded(1), 1).scales[1:].log2()
    assert torch.equal(two, two.round()) and set(two.tolist()) == {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}


def test_each_rounds_noise_is_fresh_and_a_seeds_is_its_own():
    structure = read(network_of(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))), (6,))
    first, again = (draw(structure, 2, "uniform", Seeded(1), 1) for _ in range(2))
    assert torch.equal(first.scales, again.scales) and torch.equal(first.gamma, again.gamma)
    others = [
        draw(structure, 2, "uniform", randomness, round)
        for randomness, round in ((Seeded(1), 2), (Seeded(2), 1), (SystemRandom(), 1), (SystemRandom(), 1))
    ]
    for place, other in enumerate(others):
        for one in (first, *others[:place]):
            assert (one.scales[1:] != other.scales[1:]).all() and (one.gamma != other.gamma).all()


def test_a_secret_is_neither_printed_nor_stored():
    secret = Setting("chain").secret
    assert repr(secret) == str(secret) == "Secret(hidden)"
    assert str(float(secret.gamma[0])) not in f"{secret!r} {secret}"
    for store in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(LocalProtocolError, match="not to be stored or sent"):
            store(secret)


def test_what_is_sent_has_no_part_of_the_secret():
    one = Setting("chain")
    sent = torch.cat([one.payload.vector, one.payload.ratios])
    for hidden in (*one.secret.gamma, *one.secret.scales[1:]):
        assert not (sent == hidden).any()
