import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from discreet import preparation, simulate
from discreet.batches import draw_batches
from discreet.data.partition import Partition
from discreet.evaluation import evaluate
from discreet.schemes import Centralized, FedAvg, Local
from discreet.training import train
from federations import SIZES, dataset, deal, experiment, federation, scheme

DATA = dataset()
SETTINGS = {"epochs": 2, "batch_size": 8, "learning_rate": 0.2}


def train_for(fed, client, rounds):
    """A client's model after so many rounds alone, in plain PyTorch; a fresh optimizer each round."""
    module = fed.task.learner.network.to_module(fed.task.initial()).train()
    for round in range(1, rounds + 1):
        optimizer = fed.scheme.make_optimizer(list(module.parameters()))
        batches = draw_batches(fed.scheme, fed.cohort(np.array([client]), round, {}), 1, fed.task.randomness)
        for step in range(batches.steps[0]):
            chosen = batches.indices[0, step][batches.weights[0, step] > 0]
            optimizer.zero_grad()
            F.cross_entropy(module(DATA.train.inputs[chosen]), DATA.train.targets[chosen]).backward()
            optimizer.step()
    return module


def judge(module):
    with torch.no_grad():
        outputs = module(DATA.test.inputs)
    right = (outputs.argmax(1) == DATA.test.targets).double().mean().item()
    return right, F.cross_entropy(outputs.double(), DATA.test.targets).item()


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
def test_centralized_is_fedavg_with_one_client_that_holds_everything(extra):
    settings = SETTINGS | extra
    if extra.get("optimizer") == "adam":
        settings |= {"learning_rate": 0.01}
    whole = Partition(deal().order, np.array([0, sum(SIZES)]))
    one = simulate(experiment(Centralized(**settings)), data=DATA, partition=deal())
    other = simulate(experiment(FedAvg(**settings)), data=DATA, partition=whole)
    assert one.accuracy.tolist() == other.accuracy.tolist()
    assert np.allclose(one.loss, other.loss, rtol=1e-4)
    assert np.allclose(one.series("train_loss"), other.series("train_loss"), rtol=1e-4)
    (own,) = one.checkpoint.tensors["kept"]
    assert torch.allclose(own, other.vector, atol=2e-5)
    assert one.metrics[-1]["participants"] == one.result["participants"] == 1


@pytest.mark.parametrize("chosen", [{"fraction": 0.1}, {"fraction": 0.01, "sampling": "poisson"}])
def test_centralized_trains_on_everything_in_every_round(chosen):
    one, other = (
        simulate(experiment(Centralized(**SETTINGS), **changes), data=DATA, partition=deal())
        for changes in ({}, chosen)
    )
    assert one.loss.tolist() == other.loss.tolist()


def test_centralized_by_hand():
    fed = federation(Centralized(**SETTINGS), DATA)
    result = simulate(experiment(Centralized(**SETTINGS)), data=DATA, partition=deal())
    accuracy, loss = judge(train_for(fed, 0, 3))
    assert result.final["accuracy"] == pytest.approx(accuracy)
    assert result.final["loss"] == pytest.approx(loss, rel=1e-4)
    assert "worst" not in result.result


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9}])
def test_local_tells_the_mean_and_the_worst_of_models_trained_alone(extra):
    chosen = Local(**SETTINGS, **extra)
    fed = federation(chosen, DATA)
    result = simulate(experiment(chosen), data=DATA, partition=deal())
    models = [train_for(fed, client, 3) for client, size in enumerate(SIZES) if size]
    accuracies, losses = zip(*map(judge, models), strict=True)
    assert len(set(accuracies)) > 1
    assert result.final["accuracy"] == pytest.approx(np.mean(accuracies))
    assert result.final["loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    assert result.result["worst"]["accuracy"] == pytest.approx(min(accuracies))
    assert result.result["worst"]["loss"] == pytest.approx(max(losses), rel=1e-3)
    last = result.metrics[-1]
    assert last["worst_accuracy"] == result.result["worst"]["accuracy"]
    for own, module in zip(result.checkpoint.tensors["kept"], models, strict=True):
        assert torch.allclose(own, torch.cat([p.detach().flatten() for p in module.parameters()]), atol=2e-5)


@pytest.mark.parametrize("kind", [Local, Centralized])
def test_nothing_is_sent(kind):
    result = simulate(experiment(kind(steps=1)), data=DATA, partition=deal())
    for line in result.metrics:
        assert line["uplink_bytes"] == line["downlink_bytes"] == 0
    assert (
        result.result["bits_per_parameter"]
        == result.result["uplink_bytes"]
        == result.result["downlink_bytes"]
        == 0
    )
    assert result.vector is None and result.best_vector is None
    with pytest.raises(ValueError, match="no global model"):
        result.model()


def test_every_local_client_trains_in_every_round_whatever_the_fraction():
    chosen = Local(**SETTINGS)
    runs = [
        simulate(experiment(chosen, rounds=rounds, fraction=0.25, seed=3), data=DATA, partition=deal())
        for rounds in (1, 2)
    ]
    kept = [
        dict(zip(one.checkpoint.facts["kept"], one.checkpoint.tensors["kept"], strict=True)) for one in runs
    ]
    with_data = {client for client, size in enumerate(SIZES) if size}
    assert kept[0].keys() == kept[1].keys() == with_data
    assert not any(torch.equal(kept[0][client], kept[1][client]) for client in with_data)
    assert [line["participants"] for line in runs[1].metrics] == [len(with_data)] * 2


def test_a_local_model_that_becomes_nan_is_kept_as_it_was():
    wild = Local(steps=1, batch_size=0, learning_rate=1e38)
    fed = federation(wild, DATA)
    cohort = fed.cohort(np.array([0, 1]), 1, {1: torch.full((fed.task.parameters,), 1e30)})
    (phase,) = fed.scheme.phases(fed.task)
    given = fed.scheme.contribute(fed.task, phase, fed.scheme.init(fed.task), (), cohort)
    assert given.accepted.tolist()[1] is False
    assert torch.equal(given.kept[1], cohort.kept[1])


def test_who_holds_some_features_trains_and_is_judged_on_those_alone():
    """As if the others had never been there: the same as data in which they are 0."""
    data, rows = dataset(), deal()
    columns = (np.array([0, 2, 5]), np.array([1, 3, 4]))
    split = Partition(rows.order, rows.offsets, columns)
    chosen = scheme("local")
    found = simulate(experiment(chosen), data=data, partition=split)
    assert found.result["participants"] == 16
    alone = []
    for column, features in enumerate(columns):
        blind = dataclasses.replace(
            data, **{part: hidden(getattr(data, part), features) for part in ("train", "test")}
        )
        fed = preparation.prepare(experiment(chosen), blind, rows)
        for row in range(rows.clients):
            # the streams of client row * 2 + column, on the examples of row
            cohort = dataclasses.replace(fed.cohort(np.array([row]), 1, {}), ids=np.array([row * 2 + column]))
            vector = fed.task.initial()
            for number in range(1, 4):
                now = dataclasses.replace(cohort, round=number)
                vector = vector + train(fed.task.learner, chosen, vector, now, fed.task.randomness).changes[0]
            if len(cohort.indices[0]):
                alone.append(evaluate(fed.task.learner, vector, blind.test))
    last = found.metrics[-1]
    assert last["loss"] == pytest.approx(np.mean([one.loss for one in alone]), rel=1e-5)
    assert last["worst_accuracy"] == pytest.approx(min(one.accuracy for one in alone))


def hidden(examples, features):
    inputs = torch.zeros_like(examples.inputs)
    inputs[:, features] = examples.inputs[:, features]
    return dataclasses.replace(examples, inputs=inputs)


def test_some_participants_may_stand_for_all():
    run = simulate(experiment(scheme("local", trained=3)), data=dataset(), partition=deal())
    # of 8, evenly spread: 0, 4 (half to even: 3.5 is 4) and 7
    assert all(line["participants"] == 3 for line in run.metrics)
    assert run.checkpoint.facts["kept"] == [0, 4, 7]
