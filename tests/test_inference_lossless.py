"""Attacks on lossless perturbation: each finds a secret that was planted, on a model that has learnt its examples."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from discreet import Dataset, load, losses, simulate
from discreet.adversaries.inference import Disguised, loss_threshold
from discreet.adversaries.inference.lossless import (
    aimed_at,
    by_true_outputs,
    from_weights,
    in_clear,
    regression,
    two_rounds,
    without_labels,
)
from discreet.adversaries.inference.perturbed import Estimate, guessed_scales, rescaling
from discreet.cohort import Examples
from discreet.config import Data, Model
from discreet.network import network_of
from discreet.randomness import Seeded
from discreet.schemes import FedAvg
from discreet.schemes.lossless.noise import Perturbed, draw, perturb, strength
from discreet.schemes.lossless.probing import true_hidden
from discreet.schemes.lossless.reading import read
from discreet.view import Party, Seen, View
from federations import deal, experiment
from perturbed_models import IMAGE, NETWORKS, SHAPES, images, made

HELD, CLIENTS = 50, 3
NONE = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class Trained:
    """A model that has learnt its examples by heart, and the same one step of training later."""

    network: object
    structure: object
    vector: torch.Tensor
    later: torch.Tensor
    own: Examples
    others: Examples
    unseen: Examples

    def planted(self, m, *, round=1, rho=10.0, later=False):
        """What a participant is sent of it, and the secret that hides it."""
        vector = self.later if later else self.vector
        return plant(self.network, self.structure, vector, m, self.own.inputs, round=round, rho=rho)


def plant(network, structure, vector, m, inputs, *, round=1, rho=10.0):
    noise = draw(structure, m, "uniform", Seeded(7), round)
    hidden = true_hidden(network, structure, vector, inputs.double())
    secret = noise.of_strength(strength(noise, structure, vector, hidden, rho) if m else 0.0)
    seen = perturb(structure, vector, secret, noise.ratios, noise.groups)
    payload = Perturbed(seen, noise.ratios, noise.groups, m, round, NONE, NONE.to(torch.int8))
    return Disguised(network, structure, payload), secret


@pytest.fixture(scope="module")
def trained():
    digits = load("digits")
    data = Dataset("digits", "images", held(digits.train, HELD * CLIENTS), digits.test, digits.classes)
    chosen = experiment(
        FedAvg(steps=40, batch_size=0, optimizer="adam", learning_rate=0.01),
        rounds=8,
        widths=None,
        lanes=1,
        eval_every=8,
    )
    chosen = chosen.__class__(
        **{
            **vars(chosen),
            "data": Data(clients=1),
            "model": Model(loss="squared-error", options={"widths": [64]}),
        }
    )
    run = simulate(chosen, data=data, partition=deal((HELD * CLIENTS,), first=0))
    vector, structure = run.vector.double(), read(run.network, data.shape)
    free = vector.clone().requires_grad_()
    inputs, targets = data.train.gather(torch.arange(len(data.train)))
    losses.squared_error(run.network.apply(free, inputs), targets).mean().backward()
    others = Examples(data.train.inputs[HELD:], data.train.targets[HELD:])
    return Trained(
        run.network,
        structure,
        vector,
        vector - 0.05 * free.grad,
        held(data.train, HELD),
        others,
        data.test,
    )


def held(examples, count):
    return Examples(examples.inputs[:count], examples.targets[:count])


def off(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


# ---- what is found


@pytest.mark.parametrize("m", [1, 3, 10])
def test_regression_on_own_labels_finds_gamma_and_predicts(trained, m):
    disguised, secret = trained.planted(m)
    found = regression(disguised, trained.own, losses.squared_error)
    assert off(found.gamma, secret.gamma) < 0.01
    inputs = trained.unseen.inputs
    wanted = trained.network.apply(trained.vector, inputs)
    assert off(disguised.as_it_comes(inputs), wanted) > 2  # it was hidden from who makes no effort
    assert off(found.outputs(inputs), wanted) < 0.1
    # more noise changes nothing
    stronger, _ = trained.planted(m, rho=100.0)
    again = regression(stronger, trained.own, losses.squared_error)
    assert off(again.outputs(inputs), wanted) == pytest.approx(off(found.outputs(inputs), wanted), rel=0.5)


@pytest.mark.parametrize("m", [1, 10])
def test_without_labels_it_finds_nearly_as_much(trained, m):
    disguised, secret = trained.planted(m)
    found = without_labels(disguised, trained.own.inputs, losses.squared_error, classes=True)
    assert off(found.gamma, secret.gamma) < 0.02
    wanted = trained.network.apply(trained.vector, trained.unseen.inputs)
    assert off(found.outputs(trained.unseen.inputs), wanted) < 0.2


@pytest.mark.parametrize("m", [1, 10])
def test_the_weights_of_one_round_tell_gamma_coarsely_without_any_data(trained, m):
    disguised, secret = trained.planted(m)
    found = from_weights(disguised)
    assert off(found.gamma, secret.gamma) < 0.1
    inputs = trained.unseen.inputs
    right = found.outputs(inputs).argmax(1) == trained.network.apply(trained.vector, inputs).argmax(1)
    assert right.double().mean() > 0.9


@pytest.mark.parametrize("m", [1, 3, 10])
def test_the_weights_of_two_rounds_tell_gamma_without_any_data(trained, m):
    (first, secret), (second, later) = trained.planted(m), trained.planted(m, round=2, later=True)
    wanted = trained.network.apply(trained.vector, trained.unseen.inputs)
    found = two_rounds(first, second)
    assert off(found.gamma, secret.gamma) < 1e-3
    assert off(found.outputs(trained.unseen.inputs), wanted) < 0.01
    assert off(two_rounds(second, first).gamma, later.gamma) < 1e-3


def test_two_rounds_may_differ_in_m(trained):
    (first, secret), (second, later) = trained.planted(2), trained.planted(10, round=2, later=True)
    assert off(two_rounds(first, second).gamma, secret.gamma) < 1e-3
    assert off(two_rounds(second, first).gamma, later.gamma) < 1e-3


@pytest.mark.parametrize("m", [1, 3, 10])
def test_within_a_group_differences_are_in_clear(trained, m):
    disguised, _ = trained.planted(m)
    inputs = trained.unseen.inputs
    true = trained.network.apply(trained.vector, inputs)
    known = in_clear(disguised, inputs)
    ratios, groups = disguised.payload.ratios, disguised.payload.groups.tolist()
    for output, group in enumerate(groups):
        first = groups.index(group)
        wanted = true[:, output] / ratios[output] - true[:, first] / ratios[first]
        assert torch.allclose(known[:, output], wanted, rtol=0, atol=1e-10)
    assert int((known.abs().amax(0) > 1e-6).sum()) == 10 - m


def test_membership_is_at_chance_as_predictions_come_and_the_true_models_after_the_regression(trained):
    disguised, _ = trained.planted(10)
    found = regression(disguised, trained.own, losses.squared_error)

    def attacked(predict):
        return loss_threshold(predict, losses.squared_error, trained.others, trained.unseen)

    true = attacked(lambda inputs: trained.network.apply(trained.vector, inputs))
    raw, after = attacked(disguised.as_it_comes), attacked(found.outputs)
    assert true.advantage > 0.5  # there is something to find
    assert raw.advantage < raw.chance
    assert after.advantage >= 0.9 * true.advantage


def test_scales_show_in_the_sizes_of_weights_and_between_rounds(trained):
    (first, secret), (second, later) = trained.planted(1), trained.planted(1, round=2, later=True)
    spread = float(secret.scales[1:].log().std())
    guessed = guessed_scales(trained.structure, first.vector)
    assert float((guessed / secret.scales).log()[1:].std()) < spread / 3
    change = rescaling(trained.structure, first.vector, second.vector)
    assert torch.allclose(change, later.scales / secret.scales, rtol=0.01, atol=0)
    assert off(Estimate(first, secret.gamma).vector(), trained.vector) < 0.5


# ---- in every network that can be perturbed


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_exact_is_so_in_every_network(name):
    network = network_of(made(name))
    data = images(SHAPES.get(name, IMAGE))
    structure = read(network, data.shape)
    vector = network.initial(Seeded(1)).double()
    inputs = data.test.inputs
    (first, secret), (second, later) = (
        plant(network, structure, vector, 2, inputs, round=round) for round in (1, 2)
    )
    wanted = network.apply(vector, inputs)
    judged = by_true_outputs(first, inputs, wanted)
    assert off(judged.gamma, secret.gamma) < 1e-9
    assert off(judged.outputs(inputs), wanted) < 1e-9
    # weights that do not move at all give everything away, but for BatchNorms, whose biases are shifted too
    if not structure.shifts:
        change = rescaling(structure, first.vector, second.vector)
        assert torch.allclose(change, later.scales / secret.scales, rtol=1e-9, atol=0)
    # without hidden neurons only the difference of two rounds' noise is to be had
    if not structure.shifts and structure.hidden:
        assert off(two_rounds(first, second).gamma, secret.gamma) < 1e-6


def test_without_additive_noise_there_is_nothing_to_take_off():
    network = network_of(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    structure = read(network, (4,))
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    examples = Examples(inputs, torch.arange(20) % 3)
    vector = network.initial(Seeded(1)).double()
    sent = [plant(network, structure, vector, 0, inputs, round=round)[0] for round in (1, 2)]
    wanted = network.apply(vector, inputs)
    for found in (
        regression(sent[0], examples, losses.squared_error),
        without_labels(sent[0], inputs, losses.squared_error, classes=True),
        from_weights(sent[0]),
        two_rounds(*sent),
    ):
        assert off(found.outputs(inputs), wanted) < 1e-12
    assert off(in_clear(sent[0], inputs), wanted) < 1e-12
    assert regression(sent[0], examples, losses.cross_entropy) is None
    assert without_labels(sent[0], inputs, losses.cross_entropy, classes=True) is None


# ---- where a loss pulls outputs


def test_aims_are_where_losses_are_smallest():
    classes, values = torch.tensor([2, 0]), torch.tensor([[1.0, -2.0, 0.5]])
    one_hot = torch.tensor([[0.0, 0, 1], [1, 0, 0]]).double()
    assert torch.allclose(aimed_at(losses.squared_error, classes, 3), one_hot)
    assert torch.allclose(aimed_at(losses.mean_squared_error, values, 3), values.double())
    # 1/n + (y_i - mean y) / n = t_i at the least; with mean 0 that is n t_i - 1
    assert torch.allclose(aimed_at(losses.quadratic_cross_entropy, classes, 3), 3 * one_hot - 1)
    assert aimed_at(losses.cross_entropy, classes, 3) is None


def test_only_perturbed_models_of_a_view_are_taken_and_in_order(trained):
    (first, _), (second, _) = trained.planted(1), trained.planted(1, round=2, later=True)
    seen = (
        Seen(1, "gradient", first.payload),
        Seen(2, "gradient", None),
        Seen(5, "gradient", second.payload),
    )
    view = View(Party("participant", 0), seen)
    sent = Disguised.of(view, trained.network, trained.structure)
    assert [one.payload for one in sent] == [first.payload, second.payload]
    assert np.array_equal(list(view.payloads()), [1, 5])
