"""Which layers a model may have to be perturbed, which scale each of its neurons has, and what is refused by name."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from discreet.blocks import Concatenation, Residual
from discreet.errors import ModelError
from discreet.network import network_of
from discreet.schemes.lossless.reading import read

IMAGE = (2, 8, 8)


def structure(*layers, shape=(6,)):
    return read(network_of(nn.Sequential(*layers)), shape)


def rule(found, name):
    return next(one for one in found.rules if one.name == name)


# ---- scales


def test_every_neuron_has_a_scale_of_its_own_and_inputs_have_the_scale_1():
    found = structure(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert found.scales == 1 + 5 + 4
    first, second, last = (rule(found, f"{place}.weight") for place in (0, 2, 4))
    assert first.out.flatten().tolist() == [1, 2, 3, 4, 5] and not first.into.any()
    assert torch.equal(second.into.flatten(), first.out.flatten())
    assert second.out.flatten().tolist() == [6, 7, 8, 9]
    # outputs are not scaled: the last layer is moved instead
    assert torch.equal(last.into.flatten(), second.out.flatten()) and not last.out.any()
    assert torch.equal(rule(found, "2.bias").out, second.out.flatten())
    assert (found.hidden, found.width, found.outputs, found.bias) == (35 + 24, 4, 3, True)
    assert found.count == 35 + 24 + 15 and found.last == "4"


def test_a_channels_pixels_share_its_scale():
    found = structure(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2), shape=IMAGE
    )
    assert found.scales == 1 + 3
    assert found.into.tolist() == [1] * 9 + [2] * 9 + [3] * 9


def test_a_group_of_a_convolution_has_its_own_inputs():
    found = structure(
        nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 1, groups=2), nn.Flatten(), nn.Linear(6 * 64, 2), shape=IMAGE
    )
    into = rule(found, "1.weight").into
    assert into.shape == (6, 2, 1, 1)
    assert into.flatten(1).tolist() == [[1, 2]] * 3 + [[3, 4]] * 3


def test_branches_of_a_residual_share_their_scales():
    found = structure(
        nn.Linear(6, 4),
        Residual(nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 4))),
        Residual(nn.Linear(4, 4), nn.Linear(4, 4)),
        nn.Linear(4, 2),
    )
    # 4 for the first layer and the first block's sum, 9 inside it, 4 for the second
    assert found.scales == 1 + 4 + 9 + 4
    first, inner = rule(found, "0.weight").out.flatten(), rule(found, "1.body.2.weight").out.flatten()
    assert torch.equal(first, inner)
    assert torch.equal(rule(found, "2.body.weight").out, rule(found, "2.shortcut.weight").out)


def test_what_is_added_to_the_inputs_is_not_scaled():
    found = structure(nn.Linear(6, 6), Residual(nn.Linear(6, 6)), nn.Linear(6, 2))
    assert found.scales == 1 + 6
    found = structure(Residual(nn.Linear(6, 6)), nn.Linear(6, 2))
    assert found.scales == 1


def test_branches_side_by_side_keep_their_scales():
    found = structure(Concatenation(nn.Linear(6, 2), nn.Identity(), nn.Linear(6, 1)), nn.Linear(9, 2))
    assert found.into.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 3]
    found = structure(
        Residual(Concatenation(nn.Linear(6, 3), nn.Linear(6, 3)), nn.Linear(6, 6)), nn.Linear(6, 2)
    )
    assert found.scales == 1 + 6


def test_a_linear_layer_alone_is_a_network():
    found = read(network_of(nn.Linear(6, 3)), (6,))
    assert (found.scales, found.hidden, found.last, found.count) == (1, 0, "", 21)


def test_parameters_lie_where_the_network_has_them():
    network = network_of(nn.Sequential(nn.Conv2d(2, 3, 3), nn.PReLU(), nn.Flatten(), nn.Linear(108, 2)))
    found = read(network, IMAGE)
    for slot in network.layout:
        assert found.places[slot.name] == slice(slot.offset, slot.offset + slot.size)


# ---- refusals


class Mine(nn.Module):
    def forward(self, values):
        return values


def twice(layer, *others):
    return nn.Sequential(layer, *others, layer, nn.Linear(6, 2))


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 2))
    model[2].weight = model[0].weight
    return model


def frozen():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].weight.requires_grad_(False)
    return model


def overridden():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[1].forward = torch.tanh
    return model


def hooked():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[1].register_forward_hook(lambda module, inputs, outputs: outputs + 1)
    return model


def shifted_norm():
    layer = nn.BatchNorm1d(6, affine=False)
    layer.running_mean += 1
    return nn.Sequential(layer, nn.Linear(6, 2))


def last_not_last():
    """The last layer's parameters come before others', which the forward pass does not show."""
    model = nn.Sequential(nn.Linear(6, 2))
    model.unused = nn.Linear(1, 1)
    return model


def after(layer, *, shape=(6,)):
    return lambda: nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 2)), shape


def on_images(layer):
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 1), layer, nn.Flatten(), nn.LazyLinear(2)), IMAGE


NOT_HOMOGENEOUS = r"is not positively homogeneous"
SIZE_OF_INPUT = r"divides by the size of its own input"
REFUSED = {
    "gelu": (*after(nn.GELU()), r"layer 1 \(GELU\) " + NOT_HOMOGENEOUS),
    "silu": (*after(nn.SiLU()), r"layer 1 \(SiLU\) " + NOT_HOMOGENEOUS),
    "elu": (*after(nn.ELU()), r"layer 1 \(ELU\) " + NOT_HOMOGENEOUS),
    "tanh": (*after(nn.Tanh()), r"layer 1 \(Tanh\) " + NOT_HOMOGENEOUS),
    "sigmoid": (*after(nn.Sigmoid()), r"layer 1 \(Sigmoid\) " + NOT_HOMOGENEOUS),
    "relu6": (*after(nn.ReLU6()), r"layer 1 \(ReLU6\) " + NOT_HOMOGENEOUS),
    "softmax": (*after(nn.Softmax(1)), r"layer 1 \(Softmax\) " + NOT_HOMOGENEOUS),
    "layer norm": (*after(nn.LayerNorm(6)), r"layer 1 \(LayerNorm\) " + SIZE_OF_INPUT),
    "group norm": (*on_images(nn.GroupNorm(2, 4)), r"layer 1 \(GroupNorm\) " + SIZE_OF_INPUT),
    "instance norm": (*on_images(nn.InstanceNorm2d(4)), r"layer 1 \(InstanceNorm2d\) "),
    "instance norm that looks like batch norm": (
        *on_images(nn.InstanceNorm2d(4, track_running_stats=True)),
        r"layer 1 \(InstanceNorm2d\) ",
    ),
    "batch norm in training": (
        *after(nn.BatchNorm1d(6, track_running_stats=False)),
        r"layer 1 \(BatchNorm1d\) normalises with the batch's own statistics",
    ),
    "a mean without a bias": (shifted_norm, (6,), r"layer 0 \(BatchNorm1d\) subtracts a constant"),
    "attention": (
        *after(nn.TransformerEncoderLayer(6, 2, dropout=0.0)),
        r"layer 1 \(TransformerEncoderLayer\) multiplies its inputs with each other",
    ),
    "a module of one's own": (*after(Mine()), r"layer 1 \(Mine\) is none of the layers .*Residual and Conc"),
    "an embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2)),
        (6,),
        r"layer 0 \(Embedding\) is none of the layers",
    ),
    "in a block": (
        lambda: nn.Sequential(Residual(nn.Sequential(nn.Linear(6, 6), nn.Tanh())), nn.Linear(6, 2)),
        (6,),
        r"layer 0\.body\.1 \(Tanh\) ",
    ),
    "in a branch": (
        lambda: nn.Sequential(Concatenation(nn.Linear(6, 6), nn.Tanh()), nn.Linear(12, 2)),
        (6,),
        r"layer 0\.branches\.1 \(Tanh\) ",
    ),
    "a weight used twice": (
        tied,
        (6,),
        r"parameter 2\.weight is 0\.weight again: tied weights would need two scales",
    ),
    "a layer used twice": (
        lambda: twice(nn.Linear(6, 6), nn.ReLU()),
        (6,),
        r"2\.weight is 0\.weight again: tied weights",
    ),
    "a frozen weight": (frozen, (6,), r"parameter 0\.weight is frozen"),
    "a forward of its own": (overridden, (6,), r"layer 1 \(ReLU\) has a `forward` of its own"),
    "a hook": (hooked, (6,), r"layer 1 \(ReLU\) has hooks"),
    "a parametrization": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 2)),
        (6,),
        r"layer 0 \(ParametrizedLinear\) is none of the layers",
    ),
    "a last layer that is not linear": (
        lambda: nn.Sequential(nn.Linear(6, 2), nn.ReLU()),
        (6,),
        r"layer 1 \(ReLU\): the last layer must be linear",
    ),
    "a last layer in a block": (
        lambda: nn.Sequential(Residual(nn.Linear(6, 6))),
        (6,),
        r"layer 0 \(Residual\): the last layer must be linear",
    ),
    "a module that is no sequence": (
        lambda: nn.TransformerEncoderLayer(6, 2, dropout=0.0),
        (6,),
        r"the model \(TransformerEncoderLayer\): expected an nn.Sequential",
    ),
    "parameters nobody uses": (last_not_last, (6,), r"layer unused \(Linear\)|parameter"),
    "flattening in part": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Flatten(), nn.Linear(128, 2)),
        IMAGE,
        r"layer 0 \(Flatten\) flattens some dimensions only",
    ),
    "rows of pixels": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(128, 2)),
        IMAGE,
        r"layer 0 \(Linear\) is given inputs of shape \(2, 8, 8\): expected nn\.Flatten\(\) before it",
    ),
    "pooling of features": (
        lambda: nn.Sequential(nn.MaxPool1d(2), nn.Linear(3, 2)),
        (6,),
        r"layer 0 \(MaxPool1d\) is given inputs of 1 dimensions: expected 2, channels first",
    ),
    "sums that spread": (
        lambda: nn.Sequential(Residual(nn.Conv2d(2, 1, 1)), nn.Flatten(), nn.Linear(128, 2)),
        IMAGE,
        r"layer 0 \(Residual\): the body puts out shape \(1, 8, 8\) and the shortcut \(2, 8, 8\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_perturbed_is_refused_by_name(case):
    make, shape, text = REFUSED[case]
    model = make()
    if any(isinstance(layer, nn.LazyLinear) for layer in model.modules()):
        model(torch.zeros(2, *shape))
    with pytest.raises(ModelError, match=text) as caught:
        read(network_of(model), shape)
    assert "\n" not in str(caught.value)


def test_our_own_hook_for_dropout_is_none_of_the_users():
    layers = nn.Linear(6, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)
    assert structure(*layers).scales == 1 + 4
    model = nn.Sequential(*layers)
    model.register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(ModelError, match=r"the model \(Sequential\) has hooks"):
        read(network_of(model), (6,))


def test_reading_changes_nothing():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    network = network_of(model)
    before = [parameter.detach().numpy().copy() for parameter in network.module.parameters()]
    read(network, (6,))
    assert type(network.module[2]) is nn.Linear
    for old, new in zip(before, network.module.parameters(), strict=True):
        assert np.array_equal(old, new.detach().numpy())
