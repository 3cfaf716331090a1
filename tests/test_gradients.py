import itertools
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from discreet.gradients import LayeredGradient, can_stack, choose_path, lane_gradient, linear_layers
from discreet.losses import cross_entropy, mean_squared_error, squared_error
from discreet.network import network_of
from federations import same_bits

PATHS = ("layers", "vmap", "autograd")


def huber(outputs, targets):
    """A loss of the user's own."""
    return F.huber_loss(outputs, targets, reduction="none").sum(-1)


def make_chain(widths, biases, relus, flatten=False):
    parts = [nn.Flatten()] if flatten else []
    for place, (inward, outward) in enumerate(itertools.pairwise(widths)):
        parts.append(nn.Linear(inward, outward, bias=biases[place]))
        if place < len(widths) - 2 and relus[place]:
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


def make_case(module, loss, shape, lanes=3, batch=4, seed=0, fixed=None):
    """Stacked parameters, and a batch for each lane; some examples are padding, of weight 0."""
    torch.manual_seed(seed)
    network = network_of(module)
    # well away from 0: a ReLU's kink could otherwise lie between two ways of rounding
    stack = [torch.randn(lanes, *slot.shape) for slot in network.layout]
    inputs = torch.randn(lanes, batch, *shape)
    outputs = network.apply(torch.zeros(network.count), inputs[0]).shape[-1]
    if loss is cross_entropy or (loss is squared_error and seed % 2):
        targets = torch.randint(outputs, (lanes, batch))
    else:
        targets = torch.randn(lanes, batch, outputs)
    real = torch.rand(lanes, batch) < 0.7
    real[:, 0] = True
    weights = real / real.sum(1, keepdim=True)
    return network, stack, inputs, targets, weights, torch.arange(lanes)


def reference(network, stack, inputs, targets, weights, loss, lane):
    """Gradients and loss of one lane in float64, over its real examples alone, by autograd on the module itself."""
    module = network.to_module(torch.cat([part[lane].flatten() for part in stack])).double()
    real = weights[lane] > 0
    outputs, wanted = module(inputs[lane][real].double()), targets[lane][real]
    if loss is cross_entropy:
        value = F.cross_entropy(outputs, wanted)
    elif loss is mean_squared_error:
        value = F.mse_loss(outputs, wanted.double())
    elif loss is squared_error:
        if wanted.dim() == 1:
            wanted = F.one_hot(wanted, outputs.shape[-1])
        value = F.mse_loss(outputs, wanted.double(), reduction="sum") / (2 * len(outputs))
    else:
        value = loss(outputs, wanted.double()).mean()
    return torch.autograd.grad(value, list(module.parameters())), value.detach()


@st.composite
def chains(draw):
    depth = draw(st.integers(1, 4))
    widths = draw(st.lists(st.integers(1, 7), min_size=depth + 1, max_size=depth + 1))
    flags = st.lists(st.booleans(), min_size=depth, max_size=depth)
    module = make_chain(widths, draw(flags), draw(flags))
    loss = draw(st.sampled_from([cross_entropy, mean_squared_error, squared_error, huber]))
    sizes = {
        "lanes": draw(st.integers(1, 4)),
        "batch": draw(st.integers(1, 8)),
        "seed": draw(st.integers(0, 999)),
    }
    return module, loss, (widths[0],), sizes


@given(chains())
def test_the_three_paths_agree_with_autograd_on_each_lane_alone(chain):
    module, loss, shape, sizes = chain
    network, stack, inputs, targets, weights, keys = make_case(module, loss, shape, **sizes)
    for path in PATHS:
        gradients, losses = lane_gradient(path, network, loss, 1)(stack, inputs, targets, weights, keys)
        assert losses.shape == (len(inputs),)
        for lane in range(len(inputs)):
            wanted, value = reference(network, stack, inputs, targets, weights, loss, lane)
            assert losses[lane].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5), path
            for found, right in zip(gradients, wanted, strict=True):
                assert found[lane].shape == right.shape
                scale = max(1.0, right.abs().max().item())
                assert (found[lane] - right).abs().max() < 1e-4 * scale, path


@given(chains(), st.sampled_from([0.0, 0.01, 0.5]))
def test_descend_is_a_step_of_sgd(chain, weight_decay):
    module, loss, shape, sizes = chain
    network, stack, inputs, targets, weights, keys = make_case(module, loss, shape, **sizes)
    free = [part.clone() for part in stack]
    optimizer = torch.optim.SGD(free, lr=0.3, weight_decay=weight_decay)
    gradients, wanted = lane_gradient("autograd", network, loss, 1)(stack, inputs, targets, weights, keys)
    for parameter, gradient in zip(free, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    layered = LayeredGradient(linear_layers(network, 1), loss)
    losses = layered.descend(stack, inputs, targets, weights, 0.3, weight_decay)
    assert torch.allclose(losses, wanted, rtol=1e-4, atol=1e-5)
    for found, right in zip(stack, free, strict=True):
        assert torch.allclose(found, right, rtol=1e-4, atol=1e-4 * max(1.0, right.abs().max().item()))


def test_images_are_flattened():
    module = make_chain([12, 5, 3], [True, True], [True], flatten=True)
    network, *batch = make_case(module, cross_entropy, (3, 2, 2))
    found = [lane_gradient(path, network, cross_entropy, 3)(*batch) for path in PATHS]
    for gradients, losses in found[1:]:
        assert torch.allclose(losses, found[0][1], atol=1e-5)
        for one, other in zip(gradients, found[0][0], strict=True):
            assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("batch", [3, 5])
def test_a_loss_written_for_one_batch_is_given_one(batch):
    """`F.cross_entropy` takes the second dimension for the classes: a stack of batches would mislead it in silence."""

    def users_loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    module = make_chain([4, 3], [True], [])
    network, stack, inputs, targets, weights, keys = make_case(
        module, cross_entropy, (4,), lanes=3, batch=batch
    )
    wanted, losses = lane_gradient("layers", network, cross_entropy, 1)(stack, inputs, targets, weights, keys)
    for path in PATHS:
        found, values = lane_gradient(path, network, users_loss, 1)(stack, inputs, targets, weights, keys)
        assert torch.allclose(values, losses, atol=1e-5), path
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-5), path


# ---- a lane's numbers are its own


NETWORKS = [
    ("layers", make_chain([6, 5, 3], [True, False], [True])),
    ("vmap", make_chain([6, 5, 3], [True, True], [True])),
    ("vmap", nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.LayerNorm(5), nn.Linear(5, 3))),
    ("vmap", nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))),
    ("autograd", nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))),
]


@pytest.mark.parametrize(("path", "module"), NETWORKS)
@settings(max_examples=10)
@given(st.integers(0, 3), st.integers(0, 99), st.sampled_from(["random", "huge", "nan", "inf"]))
def test_a_lane_is_the_same_bits_whatever_the_others_hold(path, module, lane, seed, others):
    network, stack, inputs, targets, weights, keys = make_case(
        module, cross_entropy, (6,), lanes=4, seed=seed
    )
    gradient = lane_gradient(path, network, cross_entropy, 1)
    first, losses = gradient(stack, inputs, targets, weights, keys)
    fill = {"random": 1.0, "huge": 1e30, "nan": float("nan"), "inf": float("inf")}[others]
    other = torch.arange(4) != lane
    stack = [part.clone() for part in stack]
    for part in (*stack, inputs):
        part[other] = torch.randn_like(part[other]) * fill
    targets[other] = 0
    weights[other] = 1.0
    keys[other] += 17
    again, values = gradient(stack, inputs, targets, weights, keys)
    assert same_bits(losses[lane], values[lane])
    for one, two in zip(first, again, strict=True):
        assert same_bits(one[lane], two[lane])


@pytest.mark.parametrize(("path", "module"), NETWORKS)
def test_a_lane_is_the_same_bits_in_any_place(path, module):
    network, *batch = make_case(module, cross_entropy, (6,), lanes=4)
    gradient = lane_gradient(path, network, cross_entropy, 1)
    order = torch.tensor([2, 0, 3, 1])
    straight, losses = gradient(*batch)
    moved, values = gradient([part[order] for part in batch[0]], *(part[order] for part in batch[1:]))
    assert same_bits(losses[order], values)
    for one, two in zip(straight, moved, strict=True):
        assert same_bits(one[order], two)


@pytest.mark.parametrize("path", PATHS)
def test_inputs_are_left_alone(path):
    module = make_chain([6, 5, 3], [True, True], [True])
    network, stack, *rest = make_case(module, cross_entropy, (6,))
    before = [part.clone() for part in (*stack, *rest)]
    lane_gradient(path, network, cross_entropy, 1)(stack, *rest)
    assert all(same_bits(one, two) for one, two in zip(before, (*stack, *rest), strict=True))


# ---- which networks are chains


def tied():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_without_relu():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, layer)


def tied_weights():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), two)


def frozen(what):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    getattr(module[0], what).requires_grad_(False)
    return module


class OwnForward(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs) * 2


def overridden():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[1].forward = torch.tanh
    return module


def hooked():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].register_forward_hook(lambda layer, inputs, outputs: outputs * 2)
    return module


@pytest.mark.parametrize(
    "module",
    [
        tied(),
        tied_without_relu(),
        tied_weights(),
        frozen("weight"),
        frozen("bias"),
        nn.Sequential(nn.Linear(4, 2), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Linear(4, 2),
        OwnForward(nn.Linear(4, 2)),
        nn.Sequential(OwnForward(nn.Linear(4, 4)), nn.Linear(4, 2)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        hooked(),
        overridden(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_no_chain_is_not_taken_for_one(module):
    network = network_of(module)
    assert linear_layers(network, 1) is None
    assert choose_path(network, 1) != "layers"
    with pytest.raises(ValueError, match="not a chain"):
        lane_gradient("layers", network, cross_entropy, 1)


def test_images_without_flatten_are_no_chain():
    module = make_chain([4, 3], [True], [])
    assert linear_layers(network_of(module), 1) is not None
    assert linear_layers(network_of(module), 3) is None


def test_one_relu_used_twice_counts_twice():
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    layers = linear_layers(network_of(module), 1)
    assert layers is not None and [layer.relu for layer in layers] == [True, True, False]


def test_nested_sequentials_are_one_chain():
    module = nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU())),
        nn.Sequential(),
        nn.Linear(5, 2, bias=False),
    )
    layers = linear_layers(network_of(module), 3)
    assert layers is not None
    assert [(layer.weight, layer.bias, layer.relu) for layer in layers] == [(0, 1, True), (2, None, False)]


def test_layers_may_have_names():
    named = {
        "first": nn.Linear(4, 5),
        "act": nn.ReLU(),
        "rest": nn.Sequential(OrderedDict(last=nn.Linear(5, 2))),
    }
    layers = linear_layers(network_of(nn.Sequential(OrderedDict(named))), 1)
    assert layers is not None and [(layer.weight, layer.bias) for layer in layers] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("module", "path"),
    [
        (make_chain([4, 3, 2], [True, True], [True]), "layers"),
        (nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "vmap"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, 2)), "vmap"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten()), "vmap"),
        (nn.Sequential(nn.Linear(600, 1000), nn.Tanh()), "autograd"),
        (nn.Sequential(nn.Linear(600, 1000), nn.ReLU(), nn.Linear(1000, 2)), "layers"),
    ],
)
def test_the_path_is_chosen_by_the_network(module, path):
    assert choose_path(network_of(module), 1) == path


class Branching(nn.Module):
    """Does what the numbers say, which `vmap` cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs if outputs.sum() > 0 else -outputs


def itemised(outputs, targets):
    return cross_entropy(outputs, targets) * outputs.sum().item()


@pytest.mark.parametrize(
    ("module", "loss", "can"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), cross_entropy, True),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 2), nn.Flatten()), cross_entropy, True),
        (Branching(), cross_entropy, False),
        (nn.Sequential(nn.Linear(4, 3)), itemised, False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whether_lanes_can_be_stacked_is_tried(module, loss, can, dtype):
    network = network_of(module)
    inputs, targets = torch.randn(2, 4, dtype=dtype), torch.tensor([0, 2])
    assert can_stack(network, loss, torch.zeros(network.count), inputs, targets) is can


def test_dropout_follows_the_keys():
    module = nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    network, stack, inputs, targets, weights, _ = make_case(module, cross_entropy, (6,), lanes=3)
    for part in (*stack, inputs, weights, targets):
        part[1:] = part[:1]  # three times the same lane, but for the keys
    found = {}
    for path in ("vmap", "autograd"):
        _, losses = lane_gradient(path, network, cross_entropy, 1)(
            stack, inputs, targets, weights, torch.tensor([5, 5, 6])
        )
        assert losses[0] == losses[1] != losses[2]
        found[path] = losses.numpy()
    assert np.allclose(found["vmap"], found["autograd"], atol=1e-5)
