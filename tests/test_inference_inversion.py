"""Gradient inversion: images that were planted come back, and of noise nothing does."""

import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from discreet import load
from discreet.adversaries.inference import inversion, leaks
from discreet.adversaries.inference.inversion import Picture
from discreet.adversaries.inference.likeness import EXACT, psnr, ssim
from discreet.audits import audit
from discreet.audits.inversion import worked_on
from discreet.config import Privacy
from discreet.losses import cross_entropy, squared_error
from discreet.network import network_of
from discreet.randomness import Seeded
from discreet.schemes import ConfinedGradientDescent, DPFedAvg, FedAvg, FedSGD, Lossless
from discreet.simulation import observe
from federations import dataset, experiment, federation

UNIT = Picture((1, 8, 8), 0.0, 1.0)


def chain(inputs=64, hidden=24, outputs=10, *, bias=True, seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(inputs, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, outputs)
    return network_of(nn.Sequential(nn.Flatten(), *layers))


def start(network):
    return network.initial(Seeded(0))


def gradient_of(network, vector, inputs, targets, loss=cross_entropy):
    free = vector.clone().requires_grad_()
    return torch.autograd.grad(loss(network.apply(free, inputs), targets).mean(), free)[0].double()


def digits(count, first=0):
    return load("digits").train.gather(torch.arange(first, first + count))


# ---- likeness


def test_psnr_by_hand():
    black = torch.zeros(1, 2, 2)
    assert float(psnr(black, black + 0.1, 1.0)) == pytest.approx(20.0, abs=1e-4)
    # one pixel of four is off by the whole span: 10 log10(4)
    one = black.clone()
    one[0, 0, 0] = 255.0
    assert float(psnr(one, black, 255.0)) == pytest.approx(10 * math.log10(4))
    assert float(psnr(one, one, 255.0)) == pytest.approx(EXACT)
    many = psnr(torch.rand(3, 1, 1, 4, 4), torch.rand(1, 5, 1, 4, 4), 1.0)
    assert many.shape == (3, 5)


def test_ssim_is_what_its_definition_says():
    """Window by window, with numpy's own variances."""
    rng = np.random.default_rng(0)
    one, other = rng.random((1, 9, 10)), rng.random((1, 9, 10))
    other = 0.5 * one + 0.5 * other
    wanted = []
    for top in range(3):
        for left in range(4):
            a, b = (image[0, top : top + 7, left : left + 7].ravel() for image in (one, other))
            (va, vab), (_, vb) = np.cov(a, b)
            top_line = (2 * a.mean() * b.mean() + 1e-4) * (2 * vab + 9e-4)
            wanted.append(top_line / ((a.mean() ** 2 + b.mean() ** 2 + 1e-4) * (va + vb + 9e-4)))
    pair = torch.from_numpy(one)[None], torch.from_numpy(other)[None]
    assert float(ssim(*pair, 1.0)) == pytest.approx(np.mean(wanted))
    assert float(ssim(pair[0], pair[0], 1.0)) == pytest.approx(1.0)
    assert abs(float(ssim(pair[0], torch.from_numpy(rng.random((1, 1, 9, 10))), 1.0))) < 0.3


# ---- the first layer


def test_one_example_is_in_its_first_layers_gradient():
    network, (image, label) = chain(), digits(1)
    found = inversion.from_first_layer(network, gradient_of(network, start(network), image, label), UNIT, 1)
    assert found.shape == (1, 1, 8, 8)
    torch.testing.assert_close(found[0], image[0].double(), rtol=0, atol=1e-5)


def test_the_model_at_which_it_was_taken_is_not_needed_and_its_length_says_nothing():
    network, (image, label) = chain(), digits(1, first=7)
    hidden = 3.0 * torch.randn(network.count, generator=torch.Generator().manual_seed(1))
    gradient = 1e-3 * gradient_of(network, hidden, image, label)
    found = inversion.from_first_layer(network, gradient, UNIT, 1)
    torch.testing.assert_close(found[0], image[0].double(), rtol=0, atol=1e-5)


def test_a_neuron_that_fires_for_one_example_gives_it_out_of_many():
    """Each of six inputs has a neuron of its own: all six come back, from one mean gradient."""
    network = chain(6, 6, 3)
    vector = start(network).clone()
    vector[:36] = torch.eye(6).flatten() * 2
    vector[36:42] = -1.0
    inputs = torch.eye(6).view(6, 1, 2, 3) * 0.9 + 0.05
    gradient = gradient_of(network, vector, inputs, torch.arange(6) % 3)
    found = inversion.from_first_layer(network, gradient, Picture((1, 2, 3), 0.0, 1.0), 8)
    errors = torch.cdist(found.flatten(1), inputs.double().flatten(1)).amin(0)
    assert float(errors.max()) < 1e-5


def test_votes_of_one_example_show_where_it_is_black():
    network, (image, label) = chain(hidden=64), digits(1)
    gradient = gradient_of(network, start(network), image, label)
    coins = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], len(gradient)))
    votes = torch.where(gradient == 0, coins, gradient.sign())
    # neurons that the example does not reach have coins for all votes; what is left tells white from black
    found = inversion.from_first_layer(network, votes, UNIT, 1)[0]
    lit = image[0] > 0
    assert float(found[lit].mean()) > float(found[~lit].mean()) + 0.3


def test_models_of_which_the_first_layer_says_nothing():
    gradient = torch.ones(10_000, dtype=torch.float64)
    assert inversion.from_first_layer(chain(bias=False), gradient, UNIT, 1) is None
    pictures = network_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)))
    assert inversion.from_first_layer(pictures, gradient, UNIT, 1) is None
    assert inversion.from_first_layer(chain(), torch.zeros(10_000), UNIT, 1) is None


# ---- matching


def test_labels_are_counted_by_the_last_layer():
    """At a model of zeros predictions are even: the gradient by output c is 1 / 10 less the share of class c."""
    network, (images, labels) = chain(), digits(6)
    gradient = gradient_of(network, torch.zeros(network.count), images, labels)
    assert sorted(inversion.labels_from(network, gradient, 6)) == sorted(labels.tolist())


def test_labels_without_a_bias():
    torch.manual_seed(0)
    network = network_of(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10, bias=False))
    )
    image, label = digits(1, first=4)
    gradient = gradient_of(network, start(network), image, label)
    assert inversion.labels_from(network, gradient, 1) == label.tolist()


@pytest.mark.parametrize(("loss", "least"), [(cross_entropy, 25), (squared_error, 18)])
def test_matching_finds_one_example_and_nothing_in_noise(loss, least):
    """The direction alone says little about how bright an image is, the less so with a quadratic loss."""
    network, (image, label) = chain(), digits(1)
    vector = start(network)
    gradient = gradient_of(network, vector, image, label, loss)
    labels = inversion.labels_from(network, gradient, 1)
    assert labels == label.tolist()

    def found(wanted):
        return inversion.by_matching(network, loss, vector, wanted, UNIT, labels, Seeded(1), steps=100)

    assert float(psnr(found(gradient)[0], image[0], 1.0)) > least
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=network.count))
    mean = load("digits").test.inputs.mean(0)
    blind = float(psnr(mean, image[0], 1.0))
    assert float(psnr(found(noise)[0], image[0], 1.0)) < blind


# ---- the gradients in a view


def watched(name, party="server", rounds=2, data=None, **changes):
    fed = federation(name, data or dataset(), **changes)
    return fed, observe(fed, None, [party], rounds).views[party]


def exact(fed, point, clients):
    """The mean gradient over all examples of some clients, by autograd."""
    places = torch.from_numpy(np.concatenate([fed.partition.indices(client) for client in clients]))
    inputs, targets = fed.train.gather(places)
    return gradient_of(fed.task.learner.network, point.float(), inputs, targets, fed.task.learner.loss)


EVERYONE = [0, 1, 3, 4, 5, 6, 7]
"""Who holds examples in `federations.deal`."""


@pytest.mark.parametrize("name", ["fedsgd", "fedavg"])
def test_means_of_gradients_are_read_off(name):
    chosen = FedSGD() if name == "fedsgd" else FedAvg(steps=1, batch_size=0, learning_rate=0.2)
    fed, view = watched(chosen)
    for leak in leaks.sums(fed.scheme, fed.task, view):
        torch.testing.assert_close(leak.gradient, exact(fed, leak.point, EVERYONE), rtol=1e-3, atol=1e-6)
    single = leaks.singles(fed.scheme, fed.task, view)
    assert [(leak.round, leak.client) for leak in single] == [
        (round, one) for round in (1, 2) for one in EVERYONE
    ]
    for leak in single:
        torch.testing.assert_close(leak.gradient, exact(fed, leak.point, [leak.client]), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "cgd", "signfed"])
def test_a_participant_reads_the_same_sum_off_two_models(name):
    """All but the last round's, of which it has not seen what came of it."""
    fed, view = watched(name, rounds=3)
    _, own = watched(name, "participant:4", rounds=3)
    theirs, mine = (leaks.sums(fed.scheme, fed.task, one) for one in (view, own))
    assert [leak.round for leak in mine] == [1, 2] and len(theirs) == 3
    for one, other in zip(mine, theirs, strict=False):
        torch.testing.assert_close(one.point, other.point)
        wanted = other.gradient.sign() if name == "signfed" else other.gradient
        there = other.gradient != 0  # a tie of votes is a coin
        torch.testing.assert_close(one.gradient[there], wanted[there], rtol=1e-2, atol=1e-4)
    assert not leaks.singles(fed.scheme, fed.task, own)


@pytest.mark.parametrize("secure", ["none", "additive"])
def test_cgd_gives_a_gradient_at_a_model_that_is_not_told(secure):
    fed, view = watched(ConfinedGradientDescent(), secure=secure)
    leak = leaks.sums(fed.scheme, fed.task, view)[0]
    assert not leak.point.any()
    state = fed.scheme.init(fed.task)
    count = sum(fed.partition.sizes)
    wanted = sum(
        exact(fed, fed.scheme.confined(fed.task, state, one), [one]) * fed.partition.sizes[one] / count
        for one in EVERYONE
    )
    torch.testing.assert_close(leak.gradient, wanted, rtol=1e-3, atol=1e-5)
    singles = leaks.singles(fed.scheme, fed.task, view)
    assert len(singles) == (14 if secure == "none" else 0)


@pytest.mark.parametrize("changes", [{}, {"secure": "masked"}])
def test_lossless_gives_the_gradient_of_the_perturbed_model(changes):
    fed, view = watched(Lossless(), **changes)
    leak = leaks.sums(fed.scheme, fed.task, view)[0]
    assert torch.equal(leak.point, view.payloads()[1].vector)
    wanted = exact(fed, leak.point, EVERYONE)
    assert float((leak.gradient - wanted).norm()) < 1e-4 * float(wanted.norm())


def test_differentially_private_sums_come_in_the_unit_of_gradients():
    """With next to no noise and no clipping: the mean of the clients' mean gradients."""
    chosen = DPFedAvg(steps=1, batch_size=0, learning_rate=0.2, clip_norm=2.0)
    quiet = Privacy(noise_multiplier=4e-3)
    fed, view = watched(chosen, privacy=quiet, sampling="fixed", fraction=1.0)
    (leak, _) = leaks.sums(fed.scheme, fed.task, view)
    wanted = sum(exact(fed, leak.point, [one]) for one in EVERYONE) / 8  # who has nothing is expected too
    assert float((leak.gradient - wanted).norm()) < 0.25 * float(wanted.norm())


def test_schemes_without_gradients():
    assert not leaks.readable(experiment("local").scheme)
    assert not leaks.readable(experiment("centralized").scheme)


def test_how_many_examples_go_into_an_update():
    assert worked_on(FedSGD(), 40) == 40
    assert worked_on(FedSGD(batch_size=8), 40) == 8
    assert worked_on(FedAvg(steps=3, batch_size=4), 40) == 12
    assert worked_on(FedAvg(steps=30, batch_size=4), 40) == 40
    assert worked_on(FedAvg(batch_size=7), 40) == 40
    assert worked_on(SimpleNamespace(), 5) == 5


# ---- the audit


def findings(made):
    return {(one["attack"], one["figure"]): one for one in made.record["audits"]["inversion"]["findings"]}


def test_the_audit_finds_single_examples_and_draws_them(tmp_path):
    made = audit(
        "digits-fedavg",
        settings=["scheme.name=fedsgd", "scheme.batch_size=1", "rounds=1", "data.clients=40"],
        attacks=["inversion"],
        out=tmp_path / "run",
        quick=True,
    )
    found = findings(made)
    best = found["an update of 1 example: the better of both", "PSNR, dB"]
    assert best["measured"] > 60 > 20 > best["chance"]
    assert found["an update of 1 example: matching gradients", "PSNR, dB"]["measured"] > 20
    assert found["an update of 1 example: the better of both", "SSIM"]["measured"] > 0.99
    assert made.record["audits"]["inversion"]["pictures"] == ["audit-inversion-images.png"]
    assert (tmp_path / "run" / "audit-inversion-images.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "settings",
    [
        # masked sums with noise
        ["scheme.name=dp-fedavg", "privacy.epsilon=4.0", "secure=masked", "scheme.clip_norm=0.5"],
        # votes of many steps
        ["scheme.name=signfed", "scheme.steps=20"],
    ],
)
def test_the_audit_is_no_better_than_chance_where_little_is_left(settings, tmp_path):
    made = audit(
        "digits-fedavg",
        settings=["rounds=2", "fraction=1.0", "data.clients=10", *settings],
        attacks=["inversion"],
        out=tmp_path / "run",
        quick=True,
    )
    for (attack, figure), one in findings(made).items():
        if attack.startswith("the sum") and figure == "PSNR, dB":
            assert one["measured"] < one["chance"] + 3, attack
            assert one["unprotected"] > 20


@pytest.mark.data
def test_on_mnist_one_example_comes_back_above_20_db(tmp_path):
    if not os.environ.get("DISCREET_DATA"):
        pytest.skip("DISCREET_DATA names no folder with MNIST")
    made = audit(
        "mnist-fedavg",
        settings=["scheme.name=fedsgd", "scheme.batch_size=1", "rounds=1", "fraction=0.005"],
        attacks=["inversion"],
        out=tmp_path / "run",
        quick=True,
    )
    found = findings(made)
    for attack in ("first layer's rows", "matching gradients"):
        one = found[f"an update of 1 example: {attack}", "PSNR, dB"]
        assert one["measured"] > 20 > one["chance"] + 3
