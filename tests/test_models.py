from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import discreet.models as models
from discreet.dropout import StreamDropout, random_words, signed64
from discreet.errors import ConfigError, ModelError, UnknownKey
from discreet.models import MODELS, Network, Slot, TextAverage, build, notes
from discreet.randomness import Seeded

SEED = Seeded(3)


def made(spec: Any, shape: tuple[int, ...] = (4,), outputs: int = 3, **changes: Any) -> Network:
    """Build with defaults fit for small tables of four numbers and three classes."""
    arguments = {
        "shape": shape,
        "outputs": outputs,
        "vocabulary": None,
        "options": {},
        "randomness": SEED,
        "probe": torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)),
        "classes": True,
    }
    return build(spec, **(arguments | changes))


def made_text(**changes: Any) -> Network:
    probe = torch.tensor([[3, 1, 2, 0, 0], [0, 0, 0, 0, 0], [6, 6, 1, 4, 5]])
    return made("text", (5,), 2, **({"vocabulary": 7, "probe": probe} | changes))


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def refused(spec: Any, *words: str, **changes: Any) -> None:
    with pytest.raises(ModelError) as error:
        made(spec, **changes)
    for word in words:
        assert word in one_line(error)


def perturbed(network: Network, lanes: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(lanes, network.count, generator=generator) * 0.2 + network.initial(SEED)


# --- the built-in models -------------------------------------------------------------------------------------


def test_the_table_holds_the_models() -> None:
    assert set(MODELS) == {"linear", "mlp", "cnn", "resnet", "text", "autoencoder"}


@pytest.mark.parametrize(
    ("name", "shape", "options", "count"),
    [
        ("linear", (28, 28), {}, 7850),  # 784 * 10 + 10
        ("mlp", (1, 28, 28), {}, 159_010),  # 784 * 200 + 200 + 200 * 10 + 10
        ("mlp", (4,), {"widths": [5, 6]}, 131),  # 4 * 5 + 5 + 5 * 6 + 6 + 6 * 10 + 10
        ("mlp", (4,), {"widths": []}, 50),
        ("cnn", (1, 28, 28), {}, 1_663_370),  # the figure in the paper
        # 5*5*3*64+64 + 5*5*64*64+64 + 64*s*s*384+384 + 384*192+192 + 192*10+10, with s = 8, 6
        ("cnn", (3, 32, 32), {}, 1_756_426),
        ("cnn", (3, 24, 24), {}, 1_068_298),
        # 5*5*1*32+32 + 5*5*32*64+64 + 64*2*2*512+512 + 512*10+10
        ("cnn", (1, 8, 8), {}, 188_810),
        # 5*5*2*3+3 + 5*5*3*4+4 + 4*1*2*6+6 + 6*10+10, sides 5 and 11 rounded down
        ("cnn", (2, 5, 11), {"channels": [3, 4], "widths": [6]}, 581),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], options: dict[str, Any], count: int) -> None:
    network = made(name, shape, 10, options=options)
    assert network.count == count
    assert network.initial(SEED).shape == (count,)


def test_text_parameter_count() -> None:
    # 7 tokens * 3 numbers, 3 * 4 + 4, 4 * 2 + 2
    assert made_text(options={"embedding": 3, "widths": [4]}).count == 21 + 16 + 10


def test_mlp_is_a_plain_chain() -> None:
    network = made("mlp", options={"widths": [5, 6]})
    assert type(network.module) is nn.Sequential
    kinds = [type(layer) for layer in network.module]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_cnn_layers_of_the_paper() -> None:
    kinds = [type(layer).__name__ for layer in made("cnn", (1, 28, 28), 10).module.children()]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Flatten", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("shape", [(1, 3, 28), (28, 28), (64,)])
def test_cnn_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    refused("cnn", str(shape), "4 x 4", shape=shape)


def test_text_refuses_images() -> None:
    refused("text", "(2, 2)", "(length,)", shape=(2, 2), vocabulary=4, probe=torch.zeros(2, 2, 2))


def test_text_averages_over_what_is_not_padding() -> None:
    network = made_text(options={"embedding": 3})
    weights = network.unflatten(network.initial(SEED))
    rows, matrix, bias = weights["embedding.weight"], weights["head.0.weight"], weights["head.0.bias"]
    tokens = torch.tensor([[3, 0, 1, 0], [0, 0, 0, 0], [2, 2, 2, 5]])
    averages = torch.stack([(rows[3] + rows[1]) / 2, torch.zeros(3), (3 * rows[2] + rows[5]) / 4])
    found = network.apply(network.initial(SEED), tokens)
    torch.testing.assert_close(found, averages @ matrix.T + bias)


def test_text_of_padding_alone_has_a_finite_gradient_and_leaves_padding_alone() -> None:
    network = made_text()
    tokens = torch.tensor([[0, 0], [0, 1]])
    gradient = grad(lambda vector: network.apply(vector, tokens).square().sum())(network.initial(SEED))
    assert gradient.isfinite().all()
    rows = network.unflatten(gradient)["embedding.weight"]
    assert not rows[0].any()
    assert rows[1].all()


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_token_numbers_want_text(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(name, (1, 8, 8), vocabulary=10)
    assert "model.name" in one_line(error) and "text" in one_line(error)


def test_text_wants_token_numbers() -> None:
    with pytest.raises(ConfigError) as error:
        made("text")
    assert "linear, mlp, cnn" in one_line(error)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mlp", {"width": [3]}, ["model.width", "did you mean 'widths'?"]),
        ("linear", {"widths": [3]}, ["model.widths", "no options"]),
        ("mlp", {"outputs": 3}, ["model.outputs", "widths"]),
        ("cnn", {"chanels": [1, 2]}, ["model.chanels", "'channels'"]),
    ],
)
def test_unknown_options(name: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UnknownKey) as error:
        made(name, (1, 8, 8), options=options)
    assert all(word in one_line(error) for word in words)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"widths": [0]}),
        ("mlp", {"widths": [2.0]}),
        ("mlp", {"widths": [True]}),
        ("mlp", {"widths": 5}),
        ("mlp", {"widths": "5"}),
        ("cnn", {"channels": [3]}),
        ("cnn", {"channels": [3, -1]}),
        ("text", {"embedding": 0}),
        ("text", {"embedding": 2.5}),
    ],
)
def test_impossible_options(name: str, options: dict[str, Any]) -> None:
    (key,) = options
    with pytest.raises(ConfigError) as error:
        if name == "text":
            made_text(options=options)
        else:
            made(name, (1, 8, 8), options=options)
    assert f"model.{key} = " in one_line(error)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError) as error:
        made("mpl")
    assert "model.name = 'mpl'" in one_line(error) and "did you mean 'mlp'?" in one_line(error)


# --- a vector of parameters ----------------------------------------------------------------------------------


def test_layout_follows_named_parameters() -> None:
    network = made("mlp", options={"widths": [2]})
    assert network.layout == (
        Slot("1.weight", (2, 4), 0, 8),
        Slot("1.bias", (2,), 8, 2),
        Slot("3.weight", (3, 2), 10, 6),
        Slot("3.bias", (3,), 16, 3),
    )
    assert network.count == 19


class OddShapes(nn.Module):
    """A scalar, an empty and a matrix parameter, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.nothing = nn.Parameter(torch.zeros(0, 5))
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) * self.scale + self.nothing.sum()


@given(lead=st.lists(st.integers(0, 3), max_size=2), seed=st.integers(0, 99), double=st.booleans())
@settings(max_examples=25, deadline=None)
def test_flatten_undoes_unflatten(lead: list[int], seed: int, double: bool) -> None:
    network = made(OddShapes)
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(*lead, network.count, generator=generator)
    vector = vector.double() if double else vector
    tensors = network.unflatten(vector)
    assert [tuple(tensors[slot.name].shape) for slot in network.layout] == [
        (*lead, *shape) for shape in [(), (0, 5), (3, 4), (3,)]
    ]
    again = network.flatten(tensors)
    assert again.dtype == vector.dtype
    assert torch.equal(again, vector)


def test_unflatten_gives_views() -> None:
    network = made("linear")
    vectors = torch.zeros(2, network.count)
    network.unflatten(vectors)["1.bias"][1] = 5
    assert vectors.sum() == 3 * 5
    assert vectors[1, -3:].tolist() == [5, 5, 5]


def test_wrong_shapes_are_refused() -> None:
    network = made("linear")
    with pytest.raises(ValueError, match=r"\(14,\), expected \(\.\.\., 15\)"):
        network.unflatten(torch.zeros(14))
    with pytest.raises(ValueError, match="expected"):
        network.unflatten(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"1\.weight has shape \(4, 3\)"):
        network.flatten({"1.weight": torch.zeros(4, 3), "1.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"expected \(15,\)"):
        network.to_module(torch.zeros(2, 15))


def test_initial_weights_follow_the_seed_alone() -> None:
    network = made("mlp")
    before = torch.get_rng_state()
    weights = network.initial(Seeded(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(network.initial(Seeded(5)), weights)
    assert torch.equal(made("mlp", randomness=Seeded(8)).initial(Seeded(5)), weights)
    assert not torch.equal(network.initial(Seeded(6)), weights)
    assert weights.dtype == torch.float32


def test_build_leaves_the_global_generator() -> None:
    before = torch.get_rng_state()
    made(lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)))
    assert torch.equal(torch.get_rng_state(), before)


def test_apply_equals_the_plain_module() -> None:
    network = made("mlp")
    vector = perturbed(network, 1)[0]
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    expected = network.to_module(vector)(inputs)
    assert torch.equal(network.apply(vector, inputs), expected)
    assert torch.equal(network.apply(vector, inputs, module=network.replica()), expected)


def test_replica_shares_no_memory() -> None:
    network = made("linear")
    replica = network.replica()
    with torch.no_grad():
        for parameter in replica.parameters():
            parameter.fill_(9)
    assert all((parameter != 9).all() for parameter in network.module.parameters())
    assert network.to("cpu").module is not network.module


def test_float64_vector_computes_in_float64() -> None:
    network = made(with_batch_norm())
    vector = network.initial(SEED).double()
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    found = network.apply(vector, inputs, training=True)
    assert found.dtype == torch.float64
    expected = network.to_module(vector).double()(inputs.double())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # the module is left as it was
    assert network.apply(vector.float(), inputs).dtype == torch.float32


def test_float64_model_is_trained_in_float32() -> None:
    module = nn.Linear(4, 3).double()
    network = made(module)
    vector = network.initial(SEED)
    assert vector.dtype == torch.float32
    inputs = torch.randn(6, 4)
    assert network.apply(vector, inputs).dtype == torch.float32
    assert next(network.to_module(vector).parameters()).dtype == torch.float64
    assert ["float64" in note for note in notes(network)] == [True]
    assert notes(made("linear")) == ()


# --- stacked lanes -------------------------------------------------------------------------------------------


def loss_of(network: Network, vector: Tensor, inputs: Tensor, key: Tensor | int = 0) -> Tensor:
    outputs = network.apply(vector, inputs, training=True, key=key)
    return (outputs * torch.arange(1.0, outputs.shape[1] + 1)).square().sum()


def autograd_gradient(network: Network, vector: Tensor, inputs: Tensor, key: int) -> Tensor:
    """The gradient by plain autograd on a module whose parameters and keys are set by hand."""
    module = network.replica()
    values = network.unflatten(vector)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
        for name in network.dropout_names:
            module.get_buffer(name).fill_(key)
    outputs = module(inputs)
    loss = (outputs * torch.arange(1.0, outputs.shape[1] + 1)).square().sum()
    names = list(values)
    found = torch.autograd.grad(loss, [parameters[name] for name in names])
    return network.flatten(dict(zip(names, found, strict=True)))


class Tied(nn.Module):
    """Encodes and decodes with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 3, bias=False)
        self.decode = nn.Linear(4, 3)
        self.decode.weight = self.encode.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(inputs)) @ self.encode.weight)


def with_batch_norm(tracked: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(5, track_running_stats=tracked)
    if tracked:
        with torch.no_grad():
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.copy_(torch.linspace(-1, 1, 5))
            norm.running_var.copy_(torch.linspace(0.5, 2, 5))
    return nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Linear(5, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def stackable(name: str) -> tuple[Network, Tensor]:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(3, 2, 1, 8, 8, generator=generator)
    if name == "text":
        tokens = torch.randint(0, 7, (3, 4, 5), generator=generator)
        tokens[1, 2] = 0
        return made_text(options={"embedding": 3, "widths": [4]}), tokens
    if name == "cnn":
        return made("cnn", (1, 8, 8), options={"channels": [2, 3], "widths": [4]}), images
    if name == "mlp":
        return made("mlp", (1, 8, 8), options={"widths": [6]}), images
    spec = {
        "tied": Tied,
        "batch norm": with_batch_norm,
        "batch norm of the batch": lambda: with_batch_norm(tracked=False),
        "dropout": with_dropout,
    }[name]
    return made(spec), torch.randn(3, 4, 4, generator=generator)


LANES = ["mlp", "cnn", "text", "tied", "batch norm", "batch norm of the batch", "dropout"]


@pytest.mark.parametrize("name", LANES)
def test_stacked_gradients_equal_autograd_lane_by_lane(name: str) -> None:
    network, inputs = stackable(name)
    vectors, keys = perturbed(network, 3), torch.tensor([5, -6, 2**62])
    stacked = vmap(grad(lambda v, x, k: loss_of(network, v, x, k)))(vectors, inputs, keys)
    for lane in range(3):
        alone = autograd_gradient(network, vectors[lane], inputs[lane], int(keys[lane]))
        torch.testing.assert_close(stacked[lane], alone, rtol=1e-4, atol=1e-4)
        assert alone.abs().max() > 0


def test_tied_weights_are_one_parameter_with_summed_gradient() -> None:
    network = made(Tied)
    assert [slot.name for slot in network.layout] == ["encode.weight", "decode.bias"]
    assert network.count == 12 + 3
    vector = network.initial(SEED).double()
    inputs = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    found = grad(lambda v: loss_of(network, v, inputs))(vector)
    # central differences: error of order step^2 = 1e-10
    step = 1e-5
    for place in range(network.count):
        shift = torch.zeros_like(vector)
        shift[place] = step
        slope = (loss_of(network, vector + shift, inputs) - loss_of(network, vector - shift, inputs)) / (
            2 * step
        )
        assert abs(found[place] - slope) <= 1e-6 * (1 + abs(slope))
    module = network.to_module(vector)
    assert module.decode.weight is module.encode.weight


# --- dropout -------------------------------------------------------------------------------------------------


def test_random_words_are_splitmix64() -> None:
    # the first words of SplitMix64 from seed 0, as published with its reference implementation
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert random_words(torch.tensor(0), 3).tolist() == [signed64(word) for word in known]


@given(state=st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=50, deadline=None)
def test_random_words_agree_with_python_integers(state: int) -> None:
    def word(counter: int) -> int:
        z = (state + counter * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    assert [w % 2**64 for w in random_words(torch.tensor(state), 5).tolist()] == [
        word(i) for i in range(1, 6)
    ]


def masks(layer: StreamDropout, keys: Tensor, *shape: int) -> Tensor:
    """The masks, 0 or 1, of stacked lanes."""

    def mask(key: Tensor) -> Tensor:
        layer.calls = 0
        found: Tensor = functional_call(layer, {"key": key}, (torch.ones(shape),))
        return (found != 0).to(torch.int64)

    return vmap(mask)(keys)


def test_a_lane_has_the_same_mask_alone_and_stacked() -> None:
    layer = StreamDropout(0.3)
    keys = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])
    stacked = masks(layer, keys, 6, 5)
    for lane, key in enumerate(keys):
        layer.calls = 0
        layer.key.copy_(key)
        assert torch.equal((layer(torch.ones(6, 5)) != 0).to(torch.int64), stacked[lane])
    # rows are dropped alike in a larger batch
    assert torch.equal(masks(layer, keys, 9, 5)[:, :6], stacked)
    assert len({tuple(mask.flatten().tolist()) for mask in stacked}) == 5


def test_outputs_of_a_lane_are_bit_for_bit_those_alone() -> None:
    network = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    generator = torch.Generator().manual_seed(2)
    # small whole numbers: every product and sum is exact, so the order of additions cannot matter
    vectors = torch.randint(-3, 4, (4, network.count), generator=generator).float()
    inputs = torch.randint(-3, 4, (4, 5, 4), generator=generator).float()
    keys = torch.tensor([1, 2, 3, 4])
    run = lambda v, x, k: network.apply(v, x, training=True, key=k)  # noqa: E731
    stacked = vmap(run)(vectors, inputs, keys)
    for lane in range(4):
        assert torch.equal(stacked[lane], run(vectors[lane], inputs[lane], int(keys[lane])))
    assert torch.equal(vmap(run)(vectors[2:], inputs[2:], keys[2:]), stacked[2:])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_rate(p: float) -> None:
    # 100 keys * 1,000 elements; 5 standard deviations: a false alarm in 2 million such tests
    kept = masks(StreamDropout(p), torch.arange(100), 1000).sum().item()
    assert abs(kept - 1e5 * (1 - p)) <= 5 * (1e5 * p * (1 - p)) ** 0.5


def test_masks_of_other_elements_keys_layers_and_calls_are_independent() -> None:
    # of n pairs of fair coins, the agreeing ones: 5 standard deviations, a false alarm in 2 million comparisons
    keys = torch.arange(101)
    one = masks(StreamDropout(0.5), keys, 1000)
    other_layer = masks(StreamDropout(0.5, layer=1), keys, 1000)
    layer = StreamDropout(0.5)

    def second_call(key: Tensor) -> Tensor:
        layer.calls = 1
        return (functional_call(layer, {"key": key}, (torch.ones(1000),)) != 0).to(torch.int64)

    pairs = {
        "keys": (one[1:], one[:-1]),
        "elements": (one[:, 1:], one[:, :-1]),
        "rows of 32": (one[:, 32:], one[:, :-32]),
        "layers": (one, other_layer),
        "calls": (one, vmap(second_call)(keys)),
    }
    for what, (a, b) in pairs.items():
        agree, count = (a == b).sum().item(), a.numel()
        assert abs(agree - count / 2) <= 5 * (count / 4) ** 0.5, what


def test_dropout_scales_so_that_the_mean_stays() -> None:
    layer = StreamDropout(0.75)
    assert set(layer(torch.ones(200)).tolist()) == {0.0, 4.0}
    assert not StreamDropout(1.0)(torch.ones(50)).any()
    assert StreamDropout(0.0)(torch.ones(50)).all()
    assert torch.equal(layer.eval()(torch.ones(50)), torch.ones(50))


@pytest.mark.parametrize(
    ("layer", "shape", "whole"),
    [
        (nn.Dropout(), (6, 5, 4), 3),
        (nn.Dropout1d(), (6, 5, 4), 2),
        (nn.Dropout1d(), (12, 9), 1),
        (nn.Dropout2d(), (6, 5, 2, 4), 2),
        (nn.Dropout3d(), (6, 5, 2, 2, 2), 2),
        (nn.Dropout3d(), (30, 2, 2, 2), 1),
    ],
)
def test_channels_are_dropped_whole(layer: nn.Module, shape: tuple[int, ...], whole: int) -> None:
    root = models.network_of(nn.Sequential(layer, nn.Linear(2, 2))).module
    found = (
        root[0](torch.ones(shape)).flatten(start_dim=whole)
        if whole < len(shape)
        else root[0](torch.ones(shape))
    )
    if whole < len(shape):
        assert torch.equal(found.amin(dim=-1), found.amax(dim=-1))
        found = found[..., 0]
    assert set(found.flatten().tolist()) == {0.0, 2.0}
    # torch's own layer drops the same blocks
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torchs = layer(torch.ones(shape))
    torchs = torchs.flatten(start_dim=whole) if whole < len(shape) else torchs.unsqueeze(-1)
    assert torch.equal(torchs.amin(dim=-1), torchs.amax(dim=-1))


def test_inplace_dropout_changes_its_input() -> None:
    class Ignoring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.linear = nn.Dropout(1.0, inplace=True), nn.Linear(4, 3, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            self.drop(inputs)
            return self.linear(inputs)

    network = made(Ignoring)
    inputs = torch.ones(2, 4)
    assert not network.apply(network.initial(SEED), inputs, training=True).any()


class Reused(nn.Module):
    """One dropout layer, registered twice and used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(100, 2)
        self.drop = nn.Dropout(0.5)
        self.again = self.drop

    def forward(self, inputs: Tensor) -> Tensor:
        once, twice = self.drop(torch.ones_like(inputs)), self.again(torch.ones_like(inputs))
        difference = (once != twice).sum(dim=1, keepdim=True)
        return self.linear(inputs) * 0 + difference


def test_a_layer_used_twice_has_two_masks_and_the_same_again_next_time() -> None:
    network = made(Reused, (100,), 2)
    assert network.dropout_names == ("drop.key",)
    vector, inputs = network.initial(SEED), torch.ones(3, 100)
    found = network.apply(vector, inputs, training=True, key=4)
    assert (found > 20).all()
    assert torch.equal(network.apply(vector, inputs, training=True, key=4), found)
    assert not torch.equal(network.apply(vector, inputs, training=True, key=5), found)


def test_keys_reach_every_dropout_layer_and_only_in_training() -> None:
    network = made(with_dropout)
    assert network.dropout_names == ("1.key", "3.key")
    vector, inputs = network.initial(SEED), torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    plain = network.apply(vector, inputs)
    assert torch.equal(network.apply(vector, inputs, key=9), plain)
    dropped = network.apply(vector, inputs, training=True, key=9)
    assert not torch.equal(dropped, plain)
    assert torch.equal(network.apply(vector, inputs, training=True, key=torch.tensor(9)), dropped)
    assert torch.equal(network.apply(vector, inputs, training=True, key=9 + 2**64), dropped)
    assert network.module.training


def test_the_user_gets_torchs_dropout_back() -> None:
    network = made(with_dropout)
    vector = perturbed(network, 1)[0]
    module = network.to_module(vector)
    assert [type(layer) for layer in module][1] is nn.Dropout
    assert not module.training
    assert not any(isinstance(layer, StreamDropout) for layer in module.modules())
    assert "(1): StreamDropout(p=0.4, layer=0" in repr(network.module)
    assert torch.equal(network.flatten(dict(module.named_parameters())), vector)
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert torch.equal(network.flatten(dict(network.to_module(vector).named_parameters())), vector)


# --- BatchNorm, buffers, frozen parameters -------------------------------------------------------------------


def test_batch_norm_stands_still_in_training() -> None:
    network = made(with_batch_norm)
    vector, inputs = network.initial(SEED), torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    before = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    assert before["1.num_batches_tracked"].dtype == torch.int64
    training = network.apply(vector, inputs, training=True)
    assert torch.equal(training, network.apply(vector, inputs))
    # by hand: the stored mean and variance
    weights = network.unflatten(vector)
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    normed = (hidden - torch.linspace(-1, 1, 5)) / (torch.linspace(0.5, 2, 5) + 1e-5).sqrt()
    normed = normed * weights["1.weight"] + weights["1.bias"]
    torch.testing.assert_close(training, normed.relu() @ weights["3.weight"].T + weights["3.bias"])
    # also by whoever runs the module itself after an evaluation
    network.module(inputs)
    assert all(torch.equal(before[name], buffer) for name, buffer in network.module.named_buffers())
    assert {slot.name for slot in network.layout} >= {"1.weight", "1.bias"}


def test_batch_norm_without_statistics_uses_the_batch_in_both_modes() -> None:
    network = made(lambda: with_batch_norm(tracked=False))
    vector, inputs = network.initial(SEED), torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    weights = network.unflatten(vector)
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    normed = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    expected = normed.relu() @ weights["3.weight"].T + weights["3.bias"]
    for training in (True, False):
        found = network.apply(vector, inputs, training=training)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_untouched_batch_norm_is_remarked_on() -> None:
    (remark,) = notes(made(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))))
    assert remark.startswith("1 (BatchNorm1d)") and "GroupNorm" in remark and "\n" not in remark
    assert notes(made(with_batch_norm)) == ()
    assert notes(made(lambda: with_batch_norm(tracked=False))) == ()


def test_frozen_parameters_and_buffers_are_constants() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
            self.features.requires_grad_(False)
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.features(inputs))[:, self.order]

    network = made(Frozen)
    assert [slot.name for slot in network.layout] == ["head.weight", "head.bias"]
    assert network.module.order.dtype == torch.int64
    module = network.to_module(torch.zeros(network.count))
    assert torch.equal(module.features.weight, network.original.features.weight)
    assert not module.features.weight.requires_grad
    assert module.order.tolist() == [2, 0, 1]
    assert network.apply(network.initial(SEED).double(), torch.ones(2, 4)).dtype == torch.float64


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += len(inputs)
        return self.linear(inputs)


def test_a_buffer_that_moves_is_refused() -> None:
    refused(nn.Sequential(Counting()), "buffer 0.seen", "never sent")
    refused(
        nn.Sequential(
            nn.Linear(4, 3),
            nn.Unflatten(1, (1, 3)),
            nn.InstanceNorm1d(1, track_running_stats=True),
            nn.Flatten(),
        ),
        "buffer 2.running_mean",
    )


def test_a_buffer_that_grows_is_refused() -> None:
    class Growing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("history", torch.zeros(0))

        def forward(self, inputs: Tensor) -> Tensor:
            self.history = torch.cat([self.history, torch.ones(1)])
            return super().forward(inputs)

    refused(Growing(), "buffer history")


def test_a_buffer_that_holds_nan_may_stay() -> None:
    module = nn.Linear(4, 3)
    module.register_buffer("missing", torch.tensor([float("nan"), 1.0]))
    made(module)


# --- what is refused -----------------------------------------------------------------------------------------


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(nn.functional.dropout(inputs, 0.5, training=self.training))


@pytest.mark.parametrize(
    ("module", "culprit"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout()), "layer 1 (AlphaDropout)"),
        (nn.Sequential(nn.Linear(4, 3), nn.RReLU()), "layer 1 (RReLU)"),
        (Functional(), "the forward of Functional"),
        (nn.Sequential(nn.Flatten(), Functional()), "layer 1 (Functional)"),
        (nn.Sequential(type("Own", (nn.Dropout,), {})(), nn.Linear(4, 3)), "layer 0 (Own)"),
    ],
)
def test_randomness_outside_dropout_layers_is_refused(module: nn.Module, culprit: str) -> None:
    refused(module, culprit, "use nn.Dropout")


def test_a_refused_model_leaves_the_global_generator() -> None:
    module = Functional()
    before = torch.get_rng_state()
    refused(module, "draws random numbers")
    assert torch.equal(torch.get_rng_state(), before)


def test_hidden_randomness_and_memory_are_refused() -> None:
    class Memory(nn.Linear):
        runs = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.runs += 1
            return super().forward(inputs) + self.runs

    refused(Memory(4, 3), "different outputs for the same inputs")
    draws = random.Random(1)
    refused(Output(lambda out: out + draws.random()), "different outputs for the same inputs")


def test_weights_that_ignore_the_seed_are_refused() -> None:
    calls: list[int] = []

    def factory() -> nn.Module:
        module = nn.Linear(4, 3)
        calls.append(0)
        nn.init.constant_(module.weight, len(calls))
        return module

    refused(factory, "other weights each time", "torch's generator")


def test_a_factory_that_changes_its_shapes_is_refused() -> None:
    widths = iter([5, 6])

    def factory() -> nn.Module:
        width = next(widths)
        return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))

    refused(factory, "0.weight of shape (5, 4)")


def complex_model() -> nn.Module:
    module = nn.Linear(4, 3)
    module.twist = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return module


def whole_number_model() -> nn.Module:
    module = nn.Linear(4, 3)
    module.table = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    return module


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (complex_model(), ["parameter twist", "complex64"]),
        (whole_number_model(), ["parameter table", "int64"]),
        (nn.LazyLinear(3), ["parameter weight is lazy"]),
        (nn.Linear(4, 3, device="meta"), ["parameter weight", "meta"]),
        (nn.Linear(4, 3).requires_grad_(False), ["no trainable parameters"]),
        (nn.ReLU(), ["no trainable parameters"]),
    ],
)
def test_parameters_that_cannot_be_trained(module: nn.Module, words: list[str]) -> None:
    refused(module, *words)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_user_may_leave_lazy_layers_out() -> None:
    lazy = nn.LazyLinear(3)
    lazy(torch.zeros(1, 4))
    assert made(lazy).count == 15


class Output(nn.Module):
    """A linear layer, then a function of its output."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(4, 3), change

    def forward(self, inputs: Tensor) -> Any:
        return self.change(self.linear(inputs))


def test_output_that_does_not_fit_the_classes() -> None:
    refused(nn.Linear(4, 7), "shape (5, 7) for 5 examples", "(5, 3)", "one score for each of 3 classes")
    refused(Output(lambda out: out[:, 0]), "shape (5,)", "(5, 3)")
    refused(Output(lambda out: out[0]), "shape (3,)")


def test_output_that_does_not_fit_the_values() -> None:
    refused(nn.Linear(4, 7), "shape (5, 7)", "(5, 2), 2 values for each example", outputs=2, classes=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: (out, out), ["tuple", "a tensor of shape (5, 3)"]),
        (lambda out: out.argmax(1, keepdim=True).expand(-1, 3), ["type int64"]),
        (lambda out: out / 0, ["NaN or infinite"]),
        (lambda out: out.detach(), ["does not depend on its trainable parameters"]),
        (lambda out: out.missing, ["fails on inputs of shape (5, 4)", "AttributeError"]),
        (lambda out: out * float(out.detach().numpy().sum()), ["gradient cannot be computed"]),
    ],
)
def test_forward_passes_that_fail(change: Any, words: list[str]) -> None:
    refused(Output(change), *words)


def test_failure_in_one_mode_only() -> None:
    class Moody(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            out = super().forward(inputs)
            return out if self.training else out[:, :2]

    refused(Moody(4, 3), "(5, 2)")


def test_inputs_of_the_wrong_size() -> None:
    refused(nn.Linear(6, 3), "fails on inputs of shape (5, 4)", "RuntimeError")


# --- the user's own models -----------------------------------------------------------------------------------


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + text)
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_factory_by_name(module_file: Any) -> None:
    module_file(
        "own_model",
        "def plain():\n    return nn.Linear(4, 3)\n"
        "def sized(input_shape, outputs, hidden=2):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], hidden), nn.Linear(hidden, outputs))\n"
        "def any_of(**kw):\n    assert sorted(kw) == ['input_shape', 'outputs'], kw\n    return plain()\n"
        "class Net(nn.Linear):\n    def __init__(self, outputs):\n        super().__init__(4, outputs)\n"
        "class Box:\n    make = staticmethod(plain)\n"
        "ready = nn.Linear(4, 3)\n",
    )
    assert made("own_model:plain").count == 15
    assert made("own_model:sized").count == 4 * 2 + 2 + 2 * 3 + 3
    assert made("own_model:sized", options={"hidden": 5}).count == 4 * 5 + 5 + 5 * 3 + 3
    assert made("own_model:any_of").count == 15
    assert made("own_model:Net").count == 15
    assert made("own_model:Box.make").count == 15
    ready = made("own_model:ready")
    assert torch.equal(ready.initial(Seeded(1)), ready.initial(Seeded(2)))
    assert not torch.equal(
        made("own_model:plain").initial(Seeded(1)), made("own_model:plain").initial(Seeded(2))
    )
    with pytest.raises(UnknownKey, match=r"model\.hiden.*'hidden'"):
        made("own_model:sized", options={"hiden": 5})


def test_a_factory_without_a_signature_is_called_without_arguments() -> None:
    class Opaque:
        __signature__ = "none"  # inspect.signature raises TypeError on it

        def __call__(self) -> nn.Module:
            return nn.Linear(4, 3)

    assert made(Opaque()).count == 15


def test_factory_may_take_the_vocabulary() -> None:
    def factory(vocabulary: int, outputs: int) -> nn.Module:
        return TextAverage(vocabulary, 3, (), outputs)

    assert made_text(options={}).count != 0
    network = made(factory, (5,), 2, vocabulary=7, probe=torch.tensor([[1, 2, 0, 0, 6]] * 2))
    assert network.count == 7 * 3 + 3 * 2 + 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module_here:make", ["cannot import 'no_such_module_here'", "ModuleNotFoundError"]),
        ("broken_own_model:make", ["cannot import", "NameError", "undefined_thing"]),
        ("failing_own_model:mak", ["has no 'mak'", "did you mean 'make'?"]),
        ("failing_own_model:make", ["factory failed", "RuntimeError: first second"]),
        ("failing_own_model:number", ["returned a int", "nn.Module"]),
        ("failing_own_model:LIMIT", ["is a float"]),
        ("failing_own_model:needs", ["factory failed", "TypeError", "depth"]),
        ("failing_own_model:", ["has no ''"]),
        (":make", ["cannot import ''"]),
    ],
)
def test_factories_that_fail(module_file: Any, spec: str, words: list[str]) -> None:
    module_file("broken_own_model", "undefined_thing\n")
    module_file(
        "failing_own_model",
        "LIMIT = 1.5\ndef make():\n    raise RuntimeError('first\\nsecond')\ndef number():\n    return 3\n"
        "def needs(depth):\n    return nn.Linear(4, depth)\n",
    )
    refused(spec, *words)


def test_a_given_module_is_copied_and_starts_from_its_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)).eval()
    network = made(module)
    start = network.initial(Seeded(1))
    parameters = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    assert torch.equal(start, parameters)
    assert torch.equal(network.initial(Seeded(2)), start)
    assert type(module[1]) is nn.Dropout and not module.training
    start.zero_()
    assert torch.equal(network.initial(Seeded(1)), parameters)
    with torch.no_grad():
        module[0].weight.zero_()
    assert torch.equal(network.initial(Seeded(1)), parameters)


def test_a_given_module_takes_no_options() -> None:
    with pytest.raises(UnknownKey, match=r"model\.widths.*no options"):
        made(nn.Linear(4, 3), options={"widths": [3]})


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(4, 3)
    module.derived = module.weight * 2
    refused(module, "cannot be copied", "RuntimeError")
