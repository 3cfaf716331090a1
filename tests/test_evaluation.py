from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discreet.cohort import Examples
from discreet.evaluation import PIECE, Evaluation, evaluate, evaluate_each
from discreet.losses import cross_entropy, mean_squared_error
from discreet.network import network_of
from discreet.training import Learner


def learner(module, loss=cross_entropy):
    return Learner(network_of(module), loss, "vmap", 1, torch.device("cpu"))


def examples(count, outputs=3):
    torch.manual_seed(0)
    return Examples(torch.randn(count, 4), torch.randint(outputs, (count,)))


def vectors(module, count):
    torch.manual_seed(1)
    return list(torch.randn(count, sum(p.numel() for p in module.parameters())))


def test_by_hand():
    identity = learner(nn.Linear(2, 2, bias=False))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [2.0, 0.0]])
    found = evaluate(identity, torch.eye(2).flatten(), Examples(inputs, torch.tensor([0, 1, 0, 0])))
    # softmax of (1, 0) gives its first 1 / (1 + e^-1): -log is 0.31326, of its second 1.31326; of (2, 0) 0.12693
    assert found.accuracy == 0.75
    assert found.loss == pytest.approx((0.31326 + 0.31326 + 1.31326 + 0.12693) / 4, abs=1e-5)
    assert found.worst_accuracy is None and found.worst_loss is None


@pytest.mark.parametrize("count", [1, PIECE, 2 * PIECE + 17])
def test_pieces_add_up_to_the_whole(count):
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    data, (vector,) = examples(count), vectors(module, 1)
    network = network_of(module)
    outputs = network.to_module(vector)(data.inputs).detach()
    found = evaluate(learner(module), vector, data)
    assert found.accuracy == (outputs.argmax(1) == data.targets).float().mean(dtype=torch.float64).item()
    assert found.loss == pytest.approx(F.cross_entropy(outputs.double(), data.targets).item(), rel=1e-5)


def test_no_rows_give_none():
    module = nn.Linear(4, 3)
    assert evaluate(learner(module), vectors(module, 1)[0], examples(0)) == Evaluation(None, None)
    assert evaluate_each(learner(module), vectors(module, 3), examples(0)) == Evaluation(None, None)


def test_a_regression_has_a_loss_and_no_accuracy():
    module = nn.Linear(4, 2)
    torch.manual_seed(2)
    data, two = Examples(torch.randn(9, 4), torch.randn(9, 2)), vectors(module, 2)
    wanted = [F.mse_loss(network_of(module).to_module(one)(data.inputs), data.targets).item() for one in two]
    found = evaluate(learner(module, mean_squared_error), two[0], data)
    assert found.accuracy is None and found.loss == pytest.approx(wanted[0], rel=1e-5)
    both = evaluate_each(learner(module, mean_squared_error), two, data)
    assert both.accuracy is None and both.worst_accuracy is None
    assert both.loss == pytest.approx(sum(wanted) / 2, rel=1e-5)
    assert both.worst_loss == pytest.approx(max(wanted), rel=1e-5)


def test_of_many_models_the_mean_and_the_worst_are_told():
    module = nn.Linear(4, 3)
    data, three = examples(50), vectors(module, 3)
    each = [evaluate(learner(module), one, data) for one in three]
    assert len({one.accuracy for one in each}) == 3
    found = evaluate_each(learner(module), three, data)
    assert found.accuracy == pytest.approx(sum(one.accuracy for one in each) / 3)
    assert found.loss == pytest.approx(sum(one.loss for one in each) / 3)
    assert found.worst_accuracy == min(one.accuracy for one in each)
    assert found.worst_loss == max(one.loss for one in each)


def test_one_model_has_no_worst():
    module = nn.Linear(4, 3)
    data, (vector,) = examples(50), vectors(module, 1)
    assert evaluate_each(learner(module), [vector], data) == evaluate(learner(module), vector, data)


def test_dropout_is_off_and_a_pool_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.9), nn.Linear(8, 3))
    data, three = examples(2 * PIECE + 1), vectors(module, 3)
    one = learner(module)
    bare = network_of(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    outputs = bare.to_module(three[0])(data.inputs)
    serial = evaluate(one, three[0], data)
    assert serial.loss == pytest.approx(F.cross_entropy(outputs, data.targets).item(), rel=1e-5)
    with ThreadPoolExecutor(3) as pool:
        assert evaluate(one, three[0], data, pool.map) == serial
        assert evaluate_each(one, three, data, pool.map) == evaluate_each(one, three, data)
