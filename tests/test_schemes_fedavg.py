"""FedAvg and FedSGD against plain PyTorch, written apart: a loop over clients, autograd, torch's optimizers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from discreet import simulate
from discreet.batches import draw_batches
from discreet.cohort import Examples
from discreet.data.dataset import Dataset
from discreet.randomness import Seeded
from discreet.schemes import FedAvg, FedSGD
from discreet.schemes.base import GlobalModel
from discreet.secure.groups import Reals
from federations import SIZES, dataset, deal, experiment, federation, play, same_bits

DATA = dataset()
REGRESSION = dataset(classes=0)
CLIENTS = list(range(len(SIZES)))


def loss_of(outputs, targets):
    return F.cross_entropy(outputs, targets) if targets.dim() == 1 else F.mse_loss(outputs, targets)


def train_one(fed, vector, client, round, make_optimizer):
    """One client's parameters after its local steps; the batches are those that discreet draws."""
    module = fed.task.learner.network.to_module(vector).train()
    optimizer = make_optimizer(module.parameters())
    cohort = fed.cohort(np.array([client]), round, {})
    batches = draw_batches(fed.scheme, cohort, 1, fed.task.randomness)
    for step in range(batches.steps[0]):
        chosen = batches.indices[0, step][batches.weights[0, step] > 0]
        optimizer.zero_grad()
        loss_of(module(fed.train.inputs[chosen]), fed.train.targets[chosen]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def average(fed, vector, round, make_optimizer, server_learning_rate=1.0):
    """A round of McMahan et al.'s algorithm 1."""
    sizes = {client: len(fed.partition.indices(client)) for client in range(fed.partition.clients)}
    models = {
        client: train_one(fed, vector, client, round, make_optimizer)
        for client, size in sizes.items()
        if size
    }
    mean = sum(sizes[client] * model.double() for client, model in models.items()) / sum(sizes.values())
    return (vector.double() + server_learning_rate * (mean - vector.double())).float()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2)


def decayed(parameters):
    return torch.optim.SGD(parameters, lr=0.2, weight_decay=0.05)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.95))


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (sgd, {"steps": 4, "batch_size": 4}),
        (sgd, {"epochs": 2, "batch_size": 4}),
        (sgd, {"steps": 3, "batch_size": 12}),
        (sgd, {"steps": 3, "batch_size": 1000}),
        (sgd, {"epochs": 3, "batch_size": 0}),
        (sgd, {"batch_size": 5, "server_learning_rate": 0.5}),
        (decayed, {"steps": 4, "batch_size": 4, "weight_decay": 0.05}),
        (momentum, {"steps": 4, "batch_size": 4, "momentum": 0.9}),
        (momentum, {"epochs": 2, "batch_size": 4, "momentum": 0.9}),
        (
            adam,
            {"steps": 4, "batch_size": 4, "optimizer": "adam", "optimizer_options": {"betas": [0.8, 0.95]}},
        ),
        (
            adam,
            {"epochs": 1, "batch_size": 4, "optimizer": "adam", "optimizer_options": {"betas": [0.8, 0.95]}},
        ),
    ],
)
@pytest.mark.parametrize("data", [DATA, REGRESSION], ids=["classes", "regression"])
def test_two_rounds_are_plain_averaging(optimizer, settings, data):
    rate = {sgd: 0.2, decayed: 0.2, momentum: 0.1, adam: 0.01}[optimizer]
    chosen = FedAvg(learning_rate=rate, **settings)
    fed = federation(chosen, data)
    wanted = fed.task.initial()
    for round in (1, 2):
        wanted = average(fed, wanted, round, optimizer, settings.get("server_learning_rate", 1.0))
    found = simulate(experiment(chosen, rounds=2), data=data, partition=deal()).vector
    assert (found - fed.task.initial()).abs().max() > 0.01
    assert torch.allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_a_contribution_carries_its_weight():
    fed = federation("fedavg", DATA)
    played = play(fed, [CLIENTS])
    (phase,) = fed.scheme.phases(fed.task)
    assert phase.group == Reals() and phase.length == fed.task.parameters + 1
    assert [float(played.given[0][client][0][-1]) for client in CLIENTS] == list(SIZES)
    assert played.totals[0].values[-1] == sum(SIZES)


def test_only_sampled_clients_are_averaged():
    fed = federation(FedAvg(steps=2, batch_size=4), DATA)
    two = play(fed, [[1, 4]])
    models = [
        train_one(fed, fed.task.initial(), client, 1, lambda p: torch.optim.SGD(p, lr=0.1))
        for client in (1, 4)
    ]
    wanted = (SIZES[1] * models[0] + SIZES[4] * models[1]) / (SIZES[1] + SIZES[4])
    assert torch.allclose(two.state.vector, wanted, atol=1e-5)


@pytest.mark.parametrize("data", [DATA, REGRESSION], ids=["classes", "regression"])
def test_fedsgd_over_everything_is_the_centralized_gradient_step(data):
    chosen = FedSGD(learning_rate=0.4)
    fed = federation(chosen, data)
    found = simulate(experiment(chosen, rounds=3), data=data, partition=deal()).vector
    rows = torch.from_numpy(fed.partition.order)
    module = fed.task.learner.network.to_module(fed.task.initial())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.4)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(module(data.train.inputs[rows]), data.train.targets[rows]).backward()
        optimizer.step()
    assert torch.allclose(found, torch.cat([p.detach().flatten() for p in module.parameters()]), atol=1e-5)


def test_fedsgd_on_batches_weighs_by_all_that_a_client_has():
    chosen = FedSGD(learning_rate=0.4, batch_size=3)
    fed = federation(chosen, DATA)
    start, mean = fed.task.initial(), 0.0
    for client in CLIENTS:
        cohort = fed.cohort(np.array([client]), 1, {})
        if SIZES[client]:
            # a step of FedAvg with the rate 1 on the same batch is minus its gradient
            batch = draw_batches(FedAvg(steps=1, batch_size=3), cohort, 1, fed.task.randomness)
            rows = batch.indices[0, 0][batch.weights[0, 0] > 0]
            assert len(rows) == min(3, SIZES[client])
            module = fed.task.learner.network.to_module(start)
            loss = loss_of(module(DATA.train.inputs[rows]), DATA.train.targets[rows])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
            mean = mean + SIZES[client] / sum(SIZES) * gradient
    assert torch.allclose(play(fed, [CLIENTS]).state.vector, start - 0.4 * mean, atol=1e-6)


def test_fedavg_of_one_full_step_is_fedsgd():
    one = simulate(experiment(FedAvg(steps=1, batch_size=0, learning_rate=0.3)), data=DATA, partition=deal())
    other = simulate(experiment(FedSGD(learning_rate=0.3)), data=DATA, partition=deal())
    assert torch.allclose(one.vector, other.vector, atol=1e-5)


def test_lanes_change_a_run_by_no_more_than_rounding():
    runs = [simulate(experiment("fedavg", lanes=lanes), data=DATA, partition=deal()) for lanes in (1, 2, 8)]
    for other in runs[1:]:
        assert torch.allclose(runs[0].vector, other.vector, atol=1e-5)


def test_the_start_is_drawn_from_the_seed():
    fed = federation("fedavg", DATA, seed=4)
    assert same_bits(fed.scheme.init(fed.task).vector, fed.task.learner.network.initial(Seeded(4)))


def test_an_update_that_overflows_once_it_is_weighted_is_not_added():
    """A change of 1e38 is finite in float32, and 10 times that is not: the sum would be infinite."""
    inputs = torch.ones(11, 1)
    inputs[:10] = 1e38
    examples = Examples(inputs, torch.tensor([0] * 10 + [1]))
    data = Dataset("line", "table", examples, examples, ("a", "b"))
    # from weights of 0 both classes have probability 1/2, and a gradient is half the input
    fed = federation(
        FedAvg(steps=1, batch_size=0, learning_rate=2.0), data, partition=deal((10, 1), first=0), widths=()
    )
    zero = GlobalModel(torch.zeros(fed.task.parameters))
    (phase,) = fed.scheme.phases(fed.task)
    given = fed.scheme.contribute(fed.task, phase, zero, (), fed.cohort(np.arange(2), 1, {}))
    assert given.accepted.tolist() == [False, True]
    assert given.elements[1].tolist() == pytest.approx([-1, 1, -1, 1, 1])
