"""The models that can be trained: those built in, and the user's own.

`MODELS` is the table of built-in models. A user's own model is ``"package.module:factory"``, a callable, or an
`nn.Module`; `build` checks it and returns a `Network`. What is shared of a model and what stays is written in
`discreet.network`.

``package.module`` is imported from the installed packages and from whatever else is on ``sys.path``; the command
line puts the current folder there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import ConfigError, ModelError, UnknownKey
from discreet.names import did_you_mean
from discreet.network import Network, Slot, network_of, notes
from discreet.options import positive
from discreet.probe import check_runs, users_code
from discreet.randomness import SERVER, Seeded
from discreet.residual import resnet

__all__ = [
    "MODELS",
    "Network",
    "Slot",
    "TextAverage",
    "autoencoder",
    "build",
    "cnn",
    "linear",
    "mlp",
    "notes",
    "resnet",
    "text",
]

Factory = Callable[..., nn.Module]


def linear(*, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer on the flattened input: (logistic) regression."""
    return mlp(input_shape=input_shape, outputs=outputs, widths=())


def mlp(*, input_shape: tuple[int, ...], outputs: int, widths: Sequence[int] = (200,)) -> nn.Module:
    """Linear layers with ReLU between them, on the flattened input.

    On 28 x 28 pixels, 10 classes and one hidden layer of 200 it has 159,010 parameters.

    Args:
        input_shape: of one input.
        outputs: how many.
        widths: of the hidden layers, each at least 1; none for a linear model.
    """
    return nn.Sequential(nn.Flatten(), *_dense((prod(input_shape), *positive("widths", widths)), outputs))


def cnn(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    channels: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
) -> nn.Module:
    """Two 5 x 5 convolutions, each padded to keep the size, with ReLU and max pooling; then linear layers.

    The networks of McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
    AISTATS 2017. Every pooling halves height and width.

    * In general: channels (32, 64), 2 x 2 pooling, one hidden layer of 512. On 1 x 28 x 28 and 10 classes this is
      their MNIST network of 1,663,370 parameters.
    * On 3 x 32 x 32 and 3 x 24 x 24, their CIFAR network: channels (64, 64), overlapping 3 x 3 pooling with step 2,
      hidden layers of 384 and 192. They trained on crops of 24 x 24, where it has 1,068,298 parameters (10 classes);
      on whole pictures of 32 x 32 it has 1,756,426. Its local response normalisation is left out.

    Args:
        input_shape: (channels, height, width), at least 4 pixels each way.
        outputs: how many.
        channels: of the two convolutions, instead of those above.
        widths: of the hidden layers, instead of those above.

    Raises:
        ModelError: the inputs are not such images.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ModelError(
            f"model cnn: inputs have shape {input_shape}: expected images of shape (channels, height, width), "
            "at least 4 x 4 pixels"
        )
    first, height, width = input_shape
    coloured = input_shape in {(3, 32, 32), (3, 24, 24)}
    channels = positive("channels", channels if channels is not None else (64, 64) if coloured else (32, 64))
    widths = positive("widths", widths if widths is not None else (384, 192) if coloured else (512,))
    if len(channels) != 2:
        raise ConfigError("model.channels", list(channels), "two numbers, one for each convolution")
    features: list[nn.Module] = []
    for inward, outward in pairwise((first, *channels)):
        pool = nn.MaxPool2d(3, stride=2, padding=1) if coloured else nn.MaxPool2d(2)
        features += [nn.Conv2d(inward, outward, 5, padding=2), nn.ReLU(), pool]
    pixels = (height // 4) * (width // 4)
    return nn.Sequential(*features, nn.Flatten(), *_dense((pixels * channels[1], *widths), outputs))


class TextAverage(nn.Module):
    """The average of a text's token embeddings, then linear layers.

    Inputs are token numbers of shape (batch, length), integers from 0 to vocabulary - 1, 0 for padding. Padding has
    no part in the average; a text of padding alone has the average 0.
    """

    def __init__(self, vocabulary: int, embedding: int, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.head = nn.Sequential(*_dense((embedding, *widths), outputs))

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs of shape (batch, outputs)."""
        embedded = self.embedding(tokens)
        present = (tokens != 0).to(embedded.dtype)
        shares = present / present.sum(dim=1, keepdim=True).clamp(min=1)
        average = torch.bmm(shares.unsqueeze(1), embedded).squeeze(1)
        outputs: Tensor = self.head(average)
        return outputs


def text(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    vocabulary: int,
    embedding: int = 64,
    widths: Sequence[int] = (),
) -> nn.Module:
    """An average of token embeddings, then linear layers; see `TextAverage`.

    Args:
        input_shape: (length,).
        outputs: how many.
        vocabulary: how many token numbers there are, 0 for padding included.
        embedding: numbers an embedding has, at least 1.
        widths: of hidden layers with ReLU between the average and the outputs; none by default.
    """
    if len(input_shape) != 1:
        raise ModelError(
            f"model text: inputs have shape {input_shape}: expected token numbers of shape (length,)"
        )
    if type(embedding) is not int or embedding < 1:
        raise ConfigError("model.embedding", embedding, "a whole number of at least 1")
    return TextAverage(vocabulary, embedding, positive("widths", widths), outputs)


def autoencoder(
    *, input_shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = (128,), code: int = 32
) -> nn.Module:
    """Linear layers down to a short code and up again to the flattened input, with ReLU between them.

    Neither the code nor the output is cut by a ReLU. On 28 x 28 pixels it has 209,968 parameters.

    Args:
        input_shape: of one input.
        outputs: as many as an input has values: the targets are the inputs (``data.task = "reconstruct"``).
        hidden: widths of the layers before the code; those behind it are the same in reverse.
        code: numbers that are left of an input, at least 1.

    Raises:
        ModelError: there are not as many outputs as inputs.
    """
    values = prod(input_shape)
    if outputs != values:
        raise ModelError(
            f"model autoencoder: it puts out the {values} values of an input, and {outputs} are wanted: "
            "set data.task = 'reconstruct'"
        )
    if type(code) is not int or code < 1:
        raise ConfigError("model.code", code, "a whole number of at least 1")
    widths = positive("hidden", hidden)
    encoder = nn.Sequential(*_dense((values, *widths), code))
    decoder = nn.Sequential(*_dense((code, *reversed(widths)), values))
    return nn.Sequential(nn.Flatten(), encoder, decoder)


MODELS: Mapping[str, Factory] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "text": text,
    "autoencoder": autoencoder,
}
"""The built-in models. Each takes `input_shape` and `outputs` (and `vocabulary`, for texts) and its options."""


def build(
    spec: str | nn.Module | Factory,
    *,
    shape: tuple[int, ...],
    outputs: int,
    vocabulary: int | None,
    options: Mapping[str, Any],
    randomness: Seeded,
    probe: Tensor,
    classes: bool,
) -> Network:
    """Make a model, check that it can be trained here, and return it as a function of its parameters.

    Args:
        spec: a name in `MODELS`; ``"package.module:factory"``; a factory (a function or an `nn.Module` class),
            called with those of `input_shape`, `outputs` and `vocabulary` that it takes; or an `nn.Module`, which
            then starts from its own weights whatever the seed. A factory must draw its weights from torch's
            generator; its buffers and frozen parameters are those drawn with `randomness`.
        shape: of one input.
        outputs: how many the model must have: the number of classes, or of values.
        vocabulary: how many token numbers there are, where inputs are texts; None elsewhere.
        options: passed to the factory by name.
        randomness: of the first weights.
        probe: a few inputs as the model takes them, shape (batch, *shape), batch at least 2.
        classes: whether targets are class numbers; only words the errors.

    Raises:
        ConfigError: there is no such built-in model or option, or an option's value cannot be.
        ModelError: the model cannot be made, or breaks a rule of `discreet.network`.
    """
    name = spec if isinstance(spec, str) else getattr(spec, "__name__", type(spec).__name__)
    made = _find(spec) if isinstance(spec, str) else spec
    if isinstance(made, nn.Module):
        if options:
            raise UnknownKey(f"model.{next(iter(options))}", "a model given ready-made takes no options")
        with users_code(f"model {name} cannot be copied"):
            network = network_of(made)
    else:
        draw = _drawer(name, made, _arguments(name, made, shape, outputs, vocabulary, options))
        first = draw(randomness)
        with users_code(f"model {name} cannot be copied"):
            network = network_of(first, draw)
        parameters = {key: parameter.detach() for key, parameter in network.original.named_parameters()}
        if not _equal(network.initial(randomness), network.flatten(parameters).to(torch.float32)):
            raise ModelError(
                f"model {name}: its factory gives other weights each time, although torch's generator starts "
                "from the same seed: expected weights that are fixed or drawn from torch's generator"
            )
    check_runs(name, network, probe, outputs, classes=classes)
    return network


def _find(spec: str) -> object:
    """The built-in factory of that name, or what ``package.module:name`` names."""
    if spec in MODELS:
        return MODELS[spec]
    path, colon, name = spec.partition(":")
    if not colon:
        choice = f"one of {', '.join(MODELS)}, or package.module:factory"
        raise ConfigError("model.name", spec, choice + did_you_mean(spec, MODELS))
    with users_code(f"model {spec}: cannot import {path!r}"):
        found: object = importlib.import_module(path)
    for part in name.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [known for known in dir(found) if not known.startswith("_")])
            raise ModelError(
                f"model {spec}: {path} has no {name!r}: expected the name of a factory in it{near}"
            )
        found = getattr(found, part)
    return found


def _arguments(
    name: str,
    factory: object,
    shape: tuple[int, ...],
    outputs: int,
    vocabulary: int | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The keyword arguments for a factory: what it takes of what we know, and the options."""
    if not callable(factory):
        raise ModelError(f"model {name} is a {type(factory).__name__}: expected a factory or an nn.Module")
    offered = {"input_shape": shape, "outputs": outputs, "vocabulary": vocabulary}
    takes, takes_all = _keywords(factory)
    if name in MODELS and (vocabulary is not None) != ("vocabulary" in takes):
        kind = "token numbers, which only 'text' takes" if vocabulary is not None else "no token numbers"
        others = ", ".join(key for key in MODELS if key != name) if vocabulary is None else "text"
        raise ConfigError("model.name", name, f"{others}, or a model of your own: the inputs are {kind}")
    known = [key for key in takes if key not in offered]
    for key in options:
        if key in offered or not (takes_all or key in known):
            choice = f"model {name} takes {', '.join(known) or 'no options'}"
            raise UnknownKey(f"model.{key}", choice + did_you_mean(key, known))
    if vocabulary is None:
        del offered["vocabulary"]
    return {key: value for key, value in offered.items() if takes_all or key in takes} | dict(options)


def _keywords(factory: Callable[..., object]) -> tuple[list[str], bool]:
    """The names of the keyword arguments a callable takes, and whether it takes any other as well."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables written in C show no signature
        return [], False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return [parameter.name for parameter in parameters if parameter.kind in named], takes_all


def _drawer(name: str, factory: object, arguments: Mapping[str, Any]) -> Callable[[Seeded], nn.Module]:
    """A function that makes the model with weights from a seed, and leaves torch's generator as it was."""
    if not callable(factory):
        raise ModelError(f"model {name}: {type(factory).__name__} is no function that makes a model")

    def draw(randomness: Seeded) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # only the CPU's generator: torch.manual_seed would reset those of accelerators for good
            torch.default_generator.manual_seed(randomness.torch_seed(0, SERVER, "model"))
            with users_code(f"model {name}: its factory failed"):
                module = factory(**arguments)
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"model {name}: its factory returned a {type(module).__name__}: expected an nn.Module"
            )
        return module

    return draw


def _dense(widths: Sequence[int], outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inward, outward in pairwise(widths):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
    return [*layers, nn.Linear(widths[-1], outputs)]


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
