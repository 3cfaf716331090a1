"""Lossless perturbation as a scheme: what is recovered, how exactly, and what is refused."""

import dataclasses
import itertools
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

from discreet import losses, preparation, simulate
from discreet.config import from_table, load
from discreet.errors import ConfigError, Diverged, ModelError
from discreet.forecast import plan
from discreet.models import MODELS
from discreet.randomness import Seeded
from discreet.schemes import Lossless
from discreet.schemes.base import Total
from discreet.schemes.lossless.probing import probe
from discreet.training import mean_gradients
from federations import SIZES, dataset, deal, experiment, federation, play
from perturbed_models import (
    CLASSES,
    CLIENTS,
    IMAGE,
    NETWORKS,
    SHAPES,
    chain,
    half_squares,
    held,
    images,
    made,
    relative,
    true_gradient,
)

DATA = {name: images(SHAPES.get(name, IMAGE)) for name in NETWORKS}
STEP = {"learning_rate": 1.0}


def setting(scheme, *, data, model, loss=None, **changes):
    return federation(scheme, data, model=model, loss=loss, widths=None, **changes)


def recovered(fed, state=None, round=1):
    """The gradient that the server gets back from all clients of a round, up to the rounding of one step of size 1."""
    state = fed.scheme.init(fed.task) if state is None else state
    return state.vector - play(fed, [CLIENTS], round=round, state=state).state.vector


# ---- exact recovery


@pytest.mark.parametrize("m", [1, 2, CLASSES])
@pytest.mark.parametrize("path", ["vmap", "autograd"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_that_is_recovered_is_that_of_autograd(name, path, m):
    model, data = made(name), DATA[name]
    fed = setting(Lossless(m=m, rho=10.0, **STEP), data=data, model=model, gradients=path)
    wanted = true_gradient(model, data.train, held(), half_squares)
    assert relative(recovered(fed), wanted) < 1e-11


@pytest.mark.parametrize("name", ["chain", "linear", "without_biases"])
@pytest.mark.parametrize("m", [1, 2, CLASSES])
def test_by_hand_it_is_the_same(name, m):
    model, data = made(name), DATA[name]
    fed = setting(Lossless(m=m, rho=10.0, **STEP), data=data, model=model, gradients="layers")
    wanted = true_gradient(model, data.train, held(), half_squares)
    assert relative(recovered(fed), wanted) < 1e-11


@pytest.mark.parametrize("secure", ["masked", "additive"])
@pytest.mark.parametrize("m", [1, CLASSES])
@pytest.mark.parametrize("name", ["chain", "convolutions", "residual"])
def test_a_secure_sum_in_fixed_point_loses_nothing(name, secure, m):
    model, data = made(name), DATA[name]
    run = assert_nothing_is_lost(Lossless(m=m, rho=10.0, **STEP), model, data, secure)
    assert run.metrics[0]["saturated"] == 0


def assert_nothing_is_lost(scheme, model, data, secure, loss=half_squares):
    """The run, of one secure sum, after which the model has taken the true step."""
    chosen = experiment(scheme, widths=None, rounds=1, secure=secure)
    run = simulate(chosen, data=data, partition=deal(), model=model)
    start = torch.cat([one.detach().double().flatten() for one in model.parameters()])
    assert relative(start - run.vector, true_gradient(model, data.train, held(), loss)) < 1e-11
    return run


def test_without_additive_noise_a_secure_sum_loses_nothing_either():
    model, data = made("convolutions"), DATA["convolutions"]
    loss = nn.CrossEntropyLoss(reduction="none")
    assert_nothing_is_lost(Lossless(rho=0.0, **STEP), model, data, "masked", loss)


def test_what_has_no_room_in_fixed_point_is_cut_and_counted():
    chosen = experiment(Lossless(headroom=1.0, **STEP), widths=None, rounds=1, secure="masked")
    data = images()
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, inputs=data.train.inputs * 1e3))
    run = simulate(chosen, data=data, partition=deal(), model=chain())
    assert run.metrics[0]["saturated"] > 0
    (note,) = [note for note in run.result["notes"] if "fixed point" in note]
    assert note.startswith(f"{run.metrics[0]['saturated']:,} numbers were too large")
    assert note.endswith("in 1 rounds, the first 1: raise scheme.headroom (now 1)")


def test_a_thousand_clients_fit_into_the_ring():
    """In fixed point, with 1,000 shares of the room; what they bring is added up modulo 2^64."""
    data = images((6,), train=1200, test=2)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    partition = deal([1] * 800 + [2] * 200, first=0)
    fed = setting(Lossless(rho=10.0, **STEP), data=data, model=model, secure="masked", partition=partition)
    state, (phase,) = fed.scheme.init(fed.task), fed.scheme.phases(fed.task)
    payload = fed.scheme.broadcast(fed.task, state, 1)
    given = fed.scheme.contribute(fed.task, phase, payload, (), fed.cohort(np.arange(1000), 1, {}))
    assert not given.saturated.any()
    after = fed.scheme.update(fed.task, state, (Total(given.elements.sum(0), 1000),), 1)
    wanted = true_gradient(model, data.train, range(1200), half_squares)
    assert relative(state.vector - after.vector, wanted) < 1e-11


def test_a_secure_round_to_which_nobody_could_add_changes_nothing():
    fed = setting(Lossless(), data=images(), model=chain(), secure="masked")
    state = fed.scheme.init(fed.task)
    nothing = Total(torch.zeros(fed.scheme.phases(fed.task)[0].length, dtype=torch.int64), 3)
    assert fed.scheme.update(fed.task, state, (nothing,), 1) is state


def test_resnet_20_is_recovered():
    if "resnet" not in MODELS:
        pytest.skip("there is no resnet")
    shape = (3, 16, 16)
    data = images(shape, train=6, test=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS["resnet"](input_shape=shape, outputs=CLASSES)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a start at which no block is left out
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    fed = setting(
        Lossless(**STEP), data=data, model=model, gradients="autograd", partition=deal([2, 3, 1], first=0)
    )
    state = fed.scheme.init(fed.task)
    found = state.vector - play(fed, [[0, 1, 2]], state=state).state.vector
    assert relative(found, true_gradient(model, data.train, range(6), half_squares)) < 1e-11


LOSSES = {
    "squared-error": (half_squares, CLASSES),
    "quadratic-cross-entropy": (losses.quadratic_cross_entropy, CLASSES),
    "mse": (lambda outputs, targets: ((outputs - targets) ** 2).mean(1), -CLASSES),
    "squared-error on values": (half_squares, -CLASSES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_quadratic_loss_is_recovered(name):
    wanted_loss, targets = LOSSES[name]
    model, data = made("convolutions"), images(targets=targets)
    loss = losses.find(name.removesuffix(" on values"), classes=targets > 0)
    fed = setting(Lossless(m=2, **STEP), data=data, model=model, loss=loss)
    wanted = true_gradient(model, data.train, held(), wanted_loss)
    assert relative(recovered(fed), wanted) < 1e-11


def skewed_distance(outputs, targets):
    """A quadratic loss of a user's own, with curvature between outputs."""
    apart = outputs - nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs)
    return apart.square().sum(-1) + 0.5 * apart[..., 0] * apart[..., 1]


def test_a_users_own_quadratic_loss_is_found_to_be_one():
    model, data = made("chain"), DATA["chain"]
    fed = setting(Lossless(m=2, **STEP), data=data, model=model, loss=skewed_distance)
    wanted = true_gradient(model, data.train, held(), skewed_distance)
    assert relative(recovered(fed), wanted) < 1e-11


def test_one_output_is_enough():
    data = images(targets=-1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 5), nn.ReLU(), nn.Linear(5, 1))
    fed = setting(Lossless(rho=10.0, **STEP), data=data, model=model)
    wanted = true_gradient(model, data.train, held(), half_squares)
    assert relative(recovered(fed), wanted) < 1e-11


def assert_as_without_noise(fed):
    """What is recovered is the mean gradient on the same batches."""
    state = fed.scheme.init(fed.task)
    cohort = fed.cohort(np.array(CLIENTS), 1, {})
    plain = mean_gradients(fed.task.learner, state.vector, cohort, fed.task.randomness, fed.scheme.batch_size)
    sizes = torch.from_numpy(cohort.sizes).double()
    wanted = (plain.changes * sizes[:, None]).sum(0) / sizes.sum()
    assert relative(recovered(fed, state), wanted) < 1e-12


@pytest.mark.parametrize("path", ["vmap", "autograd"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_batches_and_dropout_are_those_of_fedsgd(path, batch_size):
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(128, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, CLASSES)
    )
    data = images()
    fed = setting(Lossless(batch_size=batch_size, **STEP), data=data, model=model, gradients=path)
    assert_as_without_noise(fed)


@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
@pytest.mark.parametrize(("widths", "batch_size"), [((12, 9), 1), ((1, 1), 0), ((12, 1), 0), ((1, 9), 1)])
def test_a_single_example_and_a_single_neuron_are_no_exception(path, widths, batch_size):
    first, second = widths
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(128, first), nn.ReLU()),
        *(nn.Linear(first, second), nn.ReLU(), nn.Linear(second, CLASSES)),
    )
    with torch.no_grad():
        for layer in (model[1], model[3]):  # a neuron that is dead has no gradient
            layer.weight.abs_()
    data = images()
    fed = setting(Lossless(batch_size=batch_size, m=2, **STEP), data=data, model=model, gradients=path)
    assert_as_without_noise(fed)


# ---- how exact


def test_the_error_grows_as_the_square_of_the_noise():
    model, data = made("chain"), DATA["chain"]
    wanted = true_gradient(model, data.train, held(), half_squares)
    rhos = np.array([30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0])
    errors = []
    for rho in rhos:
        fed = setting(Lossless(rho=float(rho), **STEP), data=data, model=model)
        errors.append(np.mean([relative(recovered(fed, round=round), wanted) for round in range(1, 6)]))
    slope = np.polyfit(np.log(rhos), np.log(errors), 1)[0]
    assert abs(slope - 2) < 0.2


def test_in_float32_it_is_exact_to_a_millionth_at_the_beginning():
    data = dataset(train=90, features=20)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    fed = setting(Lossless(rho=1.0, precision="float32", **STEP), data=data, model=model)
    wanted = true_gradient(model, data.train, held(), half_squares)
    assert fed.scheme.phases(fed.task)[0].group.dtype == torch.float32
    assert 1e-9 < relative(recovered(fed), wanted) < 1e-6


@pytest.mark.parametrize("m", [1, 3])
def test_kappa_tells_the_error(m):
    """Half an epsilon times kappa is the error of a recovery, give or take a factor of five."""
    model, data = made("chain"), DATA["chain"]
    wanted = true_gradient(model, data.train, held(), half_squares)
    ratios = []
    for rho in (100.0, 1000.0):
        fed = setting(Lossless(rho=rho, m=m, **STEP), data=data, model=model)
        state = fed.scheme.init(fed.task)
        after = play(fed, [CLIENTS], state=state).state
        error = relative(state.vector - after.vector, wanted)
        ratios.append(error / (float(after.kappa) * 2.0**-53))
    assert all(0.2 < ratio < 5 for ratio in ratios), ratios


@pytest.mark.parametrize("m", [1, 3])
def test_kappa_tells_the_error_of_integers_too(m):
    """With so much headroom it is they that the error comes from: the same factor of five."""
    scheme = Lossless(m=m, rho=1000.0, headroom=1e7, **STEP)
    settled = {"data": images(), "partition": deal(), "model": chain()}
    clear, shared = (
        simulate(experiment(scheme, widths=None, rounds=1, secure=secure), **settled)
        for secure in ("none", "additive")
    )
    first = preparation.prepare(clear.experiment, *settled.values()).task.initial().double()
    wanted, found = (run.checkpoint.tensors["state.vector"] - first for run in (clear, shared))
    assert 0.2 < relative(found, wanted) / (shared.result["kappa"] * 2.0**-53) < 5
    assert shared.result["kappa"] > 100 * clear.result["kappa"]


def test_the_digits_lost_are_in_the_result():
    data = images()
    run = simulate(experiment(Lossless(), widths=None), data=data, partition=deal(), model=chain())
    kappas = [line["kappa"] for line in run.metrics]
    assert all(kappa > 1 for kappa in kappas)
    assert run.result["kappa"] == max(kappas)
    assert run.result["digits_lost"] == pytest.approx(np.log10(max(kappas)))
    assert not [note for note in run.result["notes"] if "rho" in note]


def test_noise_that_may_be_felt_is_remarked():
    chosen = experiment(Lossless(rho=3e5), widths=None, rounds=2)
    run = simulate(chosen, data=images(), partition=deal(), model=chain())
    (note,) = [note for note in run.result["notes"] if "rho" in note]
    assert note.startswith("in 2 rounds, the first 1,") and "lower scheme.rho" in note


def test_in_float32_a_remark_is_made_where_more_than_its_rounding_is_lost():
    def notes(rho):
        chosen = experiment(Lossless(rho=rho, precision="float32"), widths=None, rounds=2)
        run = simulate(chosen, data=images(), partition=deal(), model=chain())
        lost = max(line["kappa"] for line in run.metrics) * 2.0**-23
        return lost, [note for note in run.result["notes"] if "rho" in note]

    torch.manual_seed(3)  # the network's first weights
    lost, found = notes(1.0)
    assert 2.0**-22 < lost < 1e-4 and not found


def test_what_could_leave_no_digit_is_refused():
    with pytest.raises(ConfigError, match=r"scheme\.rho = 1e\+300: expected at most 1e\+09"):
        Lossless(rho=1e300)
    with pytest.raises(ConfigError, match=r"scheme\.headroom = 1e\+20"):
        Lossless(headroom=1e20)


def test_noise_that_drowns_the_gradient_stops_the_run():
    chosen = experiment(Lossless(rho=1e8), widths=None)
    with pytest.raises(Diverged, match=r"digits of the recovered gradient; lower scheme\.rho \(now 1e\+08\)"):
        simulate(chosen, data=images(), partition=deal(), model=chain())


# ---- the same training


def reference(model, examples, rows, rounds, make, loss=half_squares):
    """Full-batch training in float64, by autograd and one of torch's optimizers; shape (n,)."""
    module = nn.Sequential(*model).double().eval()
    inputs, targets = examples.inputs[rows].double(), examples.targets[rows]
    optimizer = make(module.parameters())
    for _ in range(rounds):
        optimizer.zero_grad()
        loss(module(inputs), targets).mean().backward()
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in module.parameters()])


OPTIMIZERS = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
    "momentum": ({"momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.01)),
    "adam": (
        {"square_average": 0.97},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.97), weight_decay=0.01),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_is_that_of_plain_training(name):
    options, make = OPTIMIZERS[name]
    data, model = images(), made("convolutions")
    chosen = Lossless(optimizer=name, learning_rate=0.1, weight_decay=0.01, m=2, **options)
    run = simulate(experiment(chosen, rounds=5, widths=None), data=data, partition=deal(), model=model)
    wanted = reference(made("convolutions"), data.train, torch.from_numpy(held()), 5, make)
    # the first steps of Adam are signs of gradients, which rounding can turn
    assert float((run.vector - wanted).abs().max()) < 1e-9


def test_without_additive_noise_any_loss_is_trained_on():
    data, model = images(), made("chain")
    chosen = Lossless(rho=0.0, learning_rate=0.1)
    run = simulate(experiment(chosen, rounds=5, widths=None), data=data, partition=deal(), model=model)
    wanted = reference(
        made("chain"),
        data.train,
        torch.from_numpy(held()),
        5,
        lambda p: torch.optim.SGD(p, lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
    )
    assert float((run.vector - wanted).abs().max()) < 1e-12
    assert run.result["digits_lost"] == 0


def test_a_presets_first_rounds():
    run = simulate(load("digits-lossless", ["rounds=6", "data.clients=4", "eval_every=1"]))
    assert run.final["loss"] < run.metrics[0]["loss"]


@pytest.mark.parametrize("name", ["digits-lossless", "mnist-lossless"])
def test_presets_are_of_this_scheme(name):
    assert isinstance(load(name).scheme, Lossless)


# ---- what goes over the wire


@pytest.mark.parametrize("m", [1, 2])
def test_messages_hold_the_hidden_layers_m_plus_2_times(m):
    run = simulate(
        experiment(Lossless(m=m), widths=None, rounds=1), data=images(), partition=deal(), model=chain()
    )
    hidden, last = 128 * 12 + 12 + 12 * 9 + 9, 9 * CLASSES + CLASSES
    # for the last layer one vector of its inputs' length, and one number for its bias; then the weight
    up = (m + 2) * hidden + last + (9 + 1) + 1
    clients = sum(size > 0 for size in SIZES)
    assert run.result["uplink_bytes"] == 8 * up * clients
    # the model, r^a and the groups
    assert run.result["downlink_bytes"] == 8 * (hidden + last + 2 * CLASSES) * len(SIZES)


@pytest.mark.parametrize("secure", ["none", "masked"])
@pytest.mark.parametrize("changes", [{}, {"rho": 0.0}, {"rho": 1.0, "precision": "float32"}])
def test_it_says_how_much_participants_are_sent(changes, secure):
    fed = setting(Lossless(**changes), data=images(), model=chain(), secure=secure)
    payload = fed.scheme.broadcast(fed.task, fed.scheme.init(fed.task), 1)
    tensors = [getattr(payload, field.name) for field in dataclasses.fields(payload)]
    assert fed.scheme.payload_bytes(fed.task) == sum(
        one.nbytes for one in tensors if isinstance(one, torch.Tensor)
    )


def test_a_plan_knows_what_it_sends():
    changes = ["rounds=2", "model.name=mlp", "model.widths=[20]", "privacy.noise_multiplier=20"]
    rows = {row.scheme: row for row in plan(load("digits-dp-signfed", changes)).traffic}
    sizes = [64, 20, 10]
    layers = [inward * outward + outward for inward, outward in itertools.pairwise(sizes)]
    up = 3 * sum(layers[:-1]) + layers[-1] + sizes[-2] + 1 + 1
    assert rows["lossless"].bits == 64
    assert rows["lossless"].megabytes_a_round == pytest.approx(8 * up / 1e6)
    assert rows["lossless"].downlink_megabytes_a_round == pytest.approx(8 * (sum(layers) + 20) / 1e6)


# ---- the probe batch


@pytest.mark.parametrize("kind", ["uniform", "normal", "test"])
def test_rho_is_measured_on_the_probe_batch_that_was_chosen(kind):
    # inputs far from both [0, 1) and variance 1
    data = images()
    data = dataclasses.replace(data, test=dataclasses.replace(data.test, inputs=40 * data.test.inputs - 10))
    fed = setting(Lossless(rho=5.0, probe=kind), data=data, model=chain())
    state = fed.scheme.init(fed.task)
    seen = fed.scheme.broadcast(fed.task, state, 1).vector
    rows = {
        "uniform": probe(fed.task.randomness, IMAGE, torch.device("cpu")),
        "normal": probe(fed.task.randomness, IMAGE, torch.device("cpu"), normal=True),
        "test": data.test.inputs.double(),
    }

    def ratio(inputs):
        true, noisy = (fed.task.learner.network.apply(one, inputs) for one in (state.vector, seen))
        return float((noisy - true).square().mean().sqrt() / true.square().mean().sqrt())

    found = {name: ratio(inputs) for name, inputs in rows.items()}
    assert found.pop(kind) == pytest.approx(5, rel=1e-9)
    assert all(abs(other - 5) > 1e-4 for other in found.values())


def test_normal_inputs_are_like_a_standardised_table():
    # 32 x 1,000 numbers: each bound is passed by chance once in 10^6
    found = probe(Seeded(4), (1000,), torch.device("cpu"), normal=True)
    assert found.shape == (32, 1000) and bool(found.isfinite().all())
    assert abs(float(found.mean())) < 5 / 32_000**0.5
    assert abs(float(found.square().mean()) - 1) < 5 * (2 / 32_000) ** 0.5
    assert abs(float((found.abs() < 0.6745).double().mean()) - 0.5) < 5 * (0.25 / 32_000) ** 0.5


@pytest.mark.parametrize("kind", ["normal", "test"])
def test_a_secure_sum_has_room_whatever_the_probe_batch(kind):
    scheme = Lossless(rho=10.0, probe=kind, **STEP)
    run = assert_nothing_is_lost(scheme, made("chain"), DATA["chain"], "masked")
    assert run.metrics[0]["saturated"] == 0


def test_a_public_probe_batch_makes_room_for_its_own_scale():
    """Where inputs are a thousand times as large, a probe batch of such inputs cuts nothing."""
    data = images()
    data = dataclasses.replace(
        data,
        **{
            part: dataclasses.replace(one, inputs=one.inputs * 1e3)
            for part, one in (("train", data.train), ("test", data.test))
        },
    )
    found = []
    for kind in ("uniform", "test"):
        scheme = Lossless(headroom=16.0, probe=kind, **STEP)
        chosen = experiment(scheme, widths=None, rounds=1, secure="masked")
        found.append(simulate(chosen, data=data, partition=deal(), model=chain()).metrics[0]["saturated"])
    assert found[0] > 0 and found[1] == 0


def test_without_test_examples_there_are_none_to_probe_with(monkeypatch):
    monkeypatch.setattr(Lossless, "contribute", None)  # nobody is asked
    with pytest.raises(
        ConfigError, match=r"scheme\.probe = 'test': expected uniform or normal: there are no test"
    ):
        simulate(
            experiment(Lossless(probe="test"), widths=None),
            data=images(test=0),
            partition=deal(),
            model=chain(),
        )
    with pytest.raises(ConfigError, match=r"scheme\.probe = 'mine'"):
        Lossless(probe="mine")


# ---- what is refused


@pytest.mark.parametrize("rho", [0.1, 3.0])
def test_cross_entropy_is_refused_with_additive_noise(rho):
    with pytest.raises(ModelError) as caught:
        setting(Lossless(rho=rho), data=images(), model=chain(), loss=losses.cross_entropy)
    text = str(caught.value)
    assert "cross-entropy is not" in text and "quadratic in the outputs" in text and "\n" not in text
    assert "model.loss = 'squared-error'" in text and "scheme.rho = 0" in text


def absolute(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs)).abs().sum(-1)


def clipped(outputs, targets):
    return nn.functional.huber_loss(
        outputs, nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs), reduction="none"
    ).sum(-1)


def clipped_far_off(outputs, targets):
    return clipped(outputs / 1000, targets)


def heavy_on_the_last_class(outputs, targets):
    return torch.where(targets == CLASSES - 1, 5.0, 1.0).to(outputs) * half_squares(outputs, targets)


def centred_in_its_batch(outputs, targets):
    return half_squares(outputs - outputs.mean(0), targets)


@pytest.mark.parametrize(
    "loss", [absolute, clipped, clipped_far_off, heavy_on_the_last_class, centred_in_its_batch]
)
def test_losses_that_are_quadratic_in_places_are_refused(loss):
    with pytest.raises(ModelError, match=f"{__name__}:{loss.__name__} is not"):
        setting(Lossless(), data=images(), model=chain(), loss=loss)


def test_there_are_no_more_groups_than_outputs():
    with pytest.raises(ConfigError, match=r"scheme\.m = 4: expected 1 to 3, the model's outputs"):
        setting(Lossless(m=4), data=images(), model=chain())
    setting(
        Lossless(m=4, rho=0.0), data=images(), model=chain()
    )  # where there is no noise, nothing is in groups


def test_float32_is_for_little_noise():
    with pytest.raises(ConfigError, match=r"scheme\.rho = 2\.0: expected at most 1"):
        Lossless(precision="float32", rho=2.0)


@pytest.mark.parametrize(
    "field", ["steps", "epochs", "clip_norm", "server_learning_rate", "optimizer_options", "compression"]
)
def test_local_training_clipping_and_compression_are_unknown(field):
    with pytest.raises(ConfigError, match=f"scheme.{field}"):
        Lossless(**{field: 1})


def test_its_model_is_read_before_a_client_is_asked(monkeypatch):
    def never(*given):
        raise AssertionError("a client was asked")

    monkeypatch.setattr(Lossless, "contribute", never)
    with pytest.raises(ModelError, match=r"layer 1 \(Tanh\)"):
        simulate(
            experiment(Lossless(), widths=None),
            data=dataset(),
            partition=deal(),
            model=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        )


def test_it_is_what_the_file_says():
    table = tomllib.loads('[scheme]\nname = "lossless"\nnoise = "powers-of-two"\nrho = 0.0\nm = 2\n')
    assert from_table(table).scheme == Lossless(noise="powers-of-two", rho=0.0, m=2)
    with pytest.raises(ConfigError, match=r"scheme\.noise"):
        Lossless(noise="gaussian")
    assert preparation.prepare(from_table(table)).scheme.m == 2
