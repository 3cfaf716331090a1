"""Autoencoders: targets that are the inputs."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from discreet import SCHEMES, simulate
from discreet.cohort import Examples
from discreet.config import Data, Experiment, Model, from_table, to_table
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.errors import ConfigError, ModelError
from discreet.forecast.subject import subject
from discreet.models import autoencoder
from discreet.preparation import prepare
from discreet.schemes import ConfinedGradientDescent as CGD


def pixels(count=40, shape=(1, 3, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 2, (count,), generator=generator)
    examples = Examples(images, labels)
    return Dataset("made", "image", examples, Examples(images[:9], labels[:9]), ("a", "b"))


def experiment(scheme=None, clients=3, rounds=3, **data):
    return Experiment(
        data=Data(task="reconstruct", clients=clients, **data),
        model=Model(name="autoencoder", options={"hidden": [5], "code": 2}),
        scheme=scheme or CGD(learning_rate=1.0, initial_scale=0.2),
        rounds=rounds,
    )


def test_targets_are_the_inputs_in_the_same_memory():
    data = pixels()
    fed = prepare(experiment(holdout=0.25), data)
    for examples in (fed.train, fed.test, fed.holdout):
        assert examples.targets.data_ptr() == examples.inputs.data_ptr()
        places = torch.tensor([[2, 0], [1, 1]])
        inputs, targets = examples.gather(places)
        assert targets.dtype == torch.float32 and targets.shape == (2, 2, 12)
        torch.testing.assert_close(
            targets, examples.inputs[places].flatten(2).float() / 255, rtol=0, atol=1e-7
        )
        inputs.zero_()  # as a model may do
        assert targets.abs().sum() > 0
    assert fed.train.inputs.data_ptr() == data.train.inputs.data_ptr()
    assert examples.to(torch.device("cpu")).reconstructs and not data.train.reconstructs


def test_other_targets_are_as_they_were():
    data = pixels()
    fed = prepare(dataclasses.replace(experiment(), data=Data(clients=3), model=Model(name="linear")), data)
    assert fed.train is data.train or torch.equal(fed.train.targets, data.train.targets)
    assert not Examples(torch.zeros(0, 2), torch.zeros(0, 2)).reconstructs


def test_labels_still_say_who_holds_what():
    dealt = prepare(experiment(partition="shards", labels_per_client=1, clients=2), pixels()).partition
    labels = pixels().train.targets
    for client in range(2):
        counts = labels[torch.from_numpy(np.asarray(dealt.indices(client)))].bincount(minlength=2)
        assert counts.max() > 0.7 * counts.sum()


@pytest.mark.parametrize("name", ["cgd", "local", "centralized", "fedavg", "fedsgd", "signfed"])
def test_every_scheme_learns_to_reconstruct(name):
    rates = {"learning_rate": 1.0} | ({"initial_scale": 0.2} if name == "cgd" else {})
    run = simulate(experiment(SCHEMES[name](**rates), rounds=40), data=pixels(), out=None)
    assert run.final["accuracy"] is None
    assert run.final["loss"] < 0.9 * run.metrics[0]["loss"] or name == "signfed"
    assert np.isfinite(run.loss).all()


def test_cgd_moves_an_autoencoder_by_the_sum_of_all_gradients():
    """Against autograd on whole networks, one participant at a time; the network is cut, so products are shared."""
    fed = prepare(experiment(), pixels())
    scheme, task, network = fed.scheme, fed.task, fed.task.learner.network
    assert scheme.layout(task) is not None and scheme.fuses(task)
    run = simulate(experiment(), data=pixels())
    starts = [scheme.confined(task, scheme.init(task), client).double() for client in range(3)]
    moved = torch.zeros(network.count, dtype=torch.float64)
    values = pixels().train.inputs.double() / 255
    for _ in range(3):
        total = torch.zeros_like(moved)
        for client, start in enumerate(starts):
            own = values[torch.from_numpy(np.asarray(fed.partition.indices(client)))]
            free = (start + moved).requires_grad_()
            squares = (network.apply(free, own) - own.flatten(1)).square().mean(1)
            total += torch.autograd.grad(squares.sum() / 40, free)[0]
        moved -= total
    for client, start in enumerate(starts):
        torch.testing.assert_close(run.confined(client).double(), start + moved, rtol=1e-4, atol=2e-6)
    errors = []
    for client in range(3):
        outputs = run.model(participant=client)(pixels().test.inputs.float() / 255)
        errors.append(float((outputs - pixels().test.inputs.flatten(1) / 255).square().mean().detach()))
    assert run.final["loss"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert run.result["worst"] == {"accuracy": None, "loss": pytest.approx(max(errors), rel=1e-5)}


def test_the_model_is_a_chain_around_a_code():
    model = autoencoder(input_shape=(1, 28, 28), outputs=784)
    wanted = [(784, 128), (128, 32), (32, 128), (128, 784)]
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == wanted
    count = sum(inward * outward + outward for inward, outward in wanted)
    assert sum(parameter.numel() for parameter in model.parameters()) == count == 209_968
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 784)
    encoder = model[1](torch.rand(5, 784))
    assert encoder.shape == (5, 32) and (encoder < 0).any()  # no ReLU cuts the code


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"data": {"augment": "flip"}}, ConfigError, r"data\.augment = 'flip': expected none"),
        ({"data": {"task": "copy"}}, ConfigError, r"data\.task"),
        ({"data": {"task": "auto"}}, ModelError, r"12 values of an input, and 2.*data\.task"),
        ({"model": {"code": 0}}, ConfigError, r"model\.code = 0"),
        ({"model": {"hidden": [0]}}, ConfigError, r"model\.hidden"),
    ],
)
def test_mistakes_are_one_line(changes, error, said):
    table = to_table(experiment())
    for section, fields in changes.items():
        table[section] |= fields
    with pytest.raises(error, match=said):
        prepare(from_table(table), pixels())


def test_who_holds_some_columns_cannot_know_all_targets():
    columns = (np.arange(6), np.arange(6, 12))
    with pytest.raises(ConfigError, match=r"data\.columns = 2.*reconstruct"):
        prepare(experiment(), pixels(), Partition(np.arange(40), np.array([0, 40]), columns))


def test_texts_have_no_values():
    tokens = torch.ones(6, 3, dtype=torch.int32)
    data = Dataset(
        "made", "text", Examples(tokens, torch.zeros(6, dtype=torch.int64)),
        Examples(tokens, torch.zeros(6, dtype=torch.int64)), ("a",), vocabulary=5,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"data\.task = 'reconstruct'.*texts"):
        prepare(experiment(), data)


def test_runs_of_before_there_was_a_task_can_be_resumed():
    assert "task" not in to_table(Experiment())["data"]
    table = to_table(experiment())
    assert table["data"]["task"] == "reconstruct" and from_table(table) == experiment()


def test_a_plan_knows_how_many_outputs_there_are():
    task, _ = subject(experiment(name="mnist"), None, parameters=None, clients=None)
    assert task.parameters == 2 * 784 * 5 + 2 * 5 * 2 + 5 + 2 + 5 + 784
