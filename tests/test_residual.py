import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from discreet.blocks import Concatenation, Residual
from discreet.errors import ConfigError, ModelError
from discreet.gradients import can_stack, lane_gradient
from discreet.losses import cross_entropy, squared_error
from discreet.models import build
from discreet.network import notes
from discreet.randomness import Seeded
from discreet.residual import resnet


def test_residual_adds_the_shortcut():
    body, shortcut, inputs = nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(4, 3)
    assert torch.equal(Residual(body, shortcut)(inputs), body(inputs) + shortcut(inputs))
    square = nn.Linear(3, 3)
    assert torch.equal(Residual(square)(inputs), inputs + square(inputs))


def test_concatenation_keeps_the_order_of_its_branches():
    inputs = torch.randn(2, 3, 4, 4)
    branches = nn.Conv2d(3, 2, 1), nn.Identity(), nn.Conv2d(3, 5, 1)
    found = Concatenation(*branches)(inputs)
    assert found.shape == (2, 10, 4, 4)
    assert torch.equal(found[:, 2:5], inputs) and torch.equal(found[:, 5:], branches[2](inputs))
    with pytest.raises(ValueError, match="no branches"):
        Concatenation()


def test_blocks_register_their_parts():
    named = dict(
        Concatenation(Residual(nn.Linear(2, 2)), Residual(nn.Identity(), nn.Linear(2, 2))).named_parameters()
    )
    assert sorted(named) == [
        "branches.0.body.bias",
        "branches.0.body.weight",
        "branches.1.shortcut.bias",
        "branches.1.shortcut.weight",
    ]


def made(shape=(3, 32, 32), outputs=10, **options):
    return build(
        "resnet",
        shape=shape,
        outputs=outputs,
        vocabulary=None,
        options=options,
        randomness=Seeded(3),
        probe=torch.rand(2, *shape),
        classes=True,
    )


def test_resnet_20_has_twenty_layers_and_their_parameters():
    network = made()
    layers = [layer for layer in network.module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    shortcuts = [layer for layer in layers if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)]
    assert len(layers) - len(shortcuts) == 20 and len(shortcuts) == 2
    # 3*9*16+16; six of 16*9*16+16; 16*9*32+32 and five of 32*9*32+32; 32*9*64+64 and five of 64*9*64+64;
    # shortcuts 16*32+32 and 32*64+64; 64*10+10
    assert network.count == 448 + 6 * 2320 + 4640 + 5 * 9248 + 18496 + 5 * 36928 + 544 + 2112 + 650 == 271_690
    assert notes(network) == () and not list(network.module.buffers())


def test_pictures_are_halved_at_the_second_and_the_third_stage():
    module, sizes = resnet(input_shape=(3, 32, 32), outputs=10), []
    for layer in module:
        if isinstance(layer, Residual):
            layer.register_forward_hook(lambda _, __, outputs: sizes.append(tuple(outputs.shape[1:])))
    module(torch.rand(2, 3, 32, 32))
    assert sizes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


@pytest.mark.parametrize("blocks", [1, 3, 9])
def test_deeper_networks_do_not_start_larger(blocks):
    torch.manual_seed(0)
    module = resnet(input_shape=(3, 16, 16), outputs=10, blocks=blocks)[:-3]
    with torch.no_grad():
        after = module[:2](torch.randn(8, 3, 16, 16))
        last = module[2:](after)
    # each of m blocks adds about 1 / m of the second moment: (1 + 1 / m)^m in all, below e; within a factor of 4
    assert 0.25 < (last.square().mean() / after.square().mean()).item() < 4 * math.e


def test_the_network_is_positively_homogeneous():
    """Biases, and so the outputs, scale with the inputs."""
    torch.manual_seed(0)
    module = resnet(input_shape=(2, 8, 8), outputs=3, blocks=1, widths=(3, 4)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    inputs = torch.randn(4, 2, 8, 8).double()
    outputs = module(inputs)
    scaled = {
        name: parameter * 3 if name.endswith("bias") else parameter
        for name, parameter in module.named_parameters()
    }
    assert torch.allclose(functional_call(module, scaled, (inputs * 3,)), outputs * 3, rtol=1e-12)


def test_branches_that_share_a_scale_only_scale_the_outputs():
    """What a channel's scale is can be changed at all that write it and all that read it, and nothing is changed."""
    torch.manual_seed(1)
    block = Residual(
        nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1)),
        nn.Conv2d(2, 4, 1),
    )
    module = nn.Sequential(block, nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    inputs, scale = torch.randn(5, 2, 6, 6).double(), torch.tensor([0.5, 2.0, 3.0, 0.1]).double()
    before = module(inputs)
    with torch.no_grad():
        for layer in (block.body[2], block.shortcut):
            layer.weight.mul_(scale[:, None, None, None])
            layer.bias.mul_(scale)
        module[2].weight.div_(scale[:, None, None])
    assert torch.allclose(module(inputs), before, rtol=1e-12)


def test_an_example_does_not_depend_on_the_others():
    network = made((3, 8, 8), blocks=1, widths=[4, 6])
    vector, inputs = network.initial(Seeded(3)).double(), torch.randn(5, 3, 8, 8).double()
    for training in (True, False):
        together = network.apply(vector, inputs, training=training)
        alone = torch.cat([network.apply(vector, one[None], training=training) for one in inputs])
        assert torch.allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_its_gradients_are_the_same_on_both_paths(loss):
    torch.manual_seed(0)
    network = made((3, 8, 8), outputs=4, blocks=1, widths=[4, 6])
    vectors = network.initial(Seeded(3)) + 0.05 * torch.randn(2, network.count)
    inputs, targets = torch.randn(2, 3, 3, 8, 8), torch.randint(4, (2, 3))
    assert can_stack(network, loss, vectors[0], inputs[0], targets[0])
    stack = list(network.unflatten(vectors).values())
    weights, keys = torch.full((2, 3), 1 / 3), torch.zeros(2, dtype=torch.int64)
    one, other = (
        lane_gradient(path, network, loss, 3)(stack, inputs, targets, weights, keys)
        for path in ("vmap", "autograd")
    )
    assert torch.allclose(one[1], other[1], rtol=1e-5)
    for found, wanted in zip(one[0], other[0], strict=True):
        assert wanted.abs().max() > 0, "no layer starts without a gradient"
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"blocks": 0}, "blocks"),
        ({"blocks": 1.5}, "blocks"),
        ({"widths": []}, "widths"),
        ({"widths": [0]}, "widths"),
    ],
)
def test_impossible_options_are_refused(options, key):
    with pytest.raises(ConfigError, match=rf"model\.{key} = "):
        made(**options)


@pytest.mark.parametrize("shape", [(28, 28), (3, 3, 32), (10,)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ModelError, match=r"model resnet: inputs have shape .*at least 4 x 4 pixels"):
        made(shape)
