"""The layers below the last one: forward once, then pull as many cotangents back as there are noise terms.

Three ways, as there are to plain gradients (`discreet.gradients`): by hand for chains of linear layers and ReLUs,
stacked through `torch.func`, and lane after lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from discreet.errors import LocalProtocolError
from discreet.gradients import Layer, Path, activations_of, linear_layers
from discreet.network import Network
from discreet.schemes.lossless.structure import Structure, without_last

Pull = Callable[[Tensor], list[Tensor]]
"""Cotangents of the outputs, shape (L, T, d, B), to gradients of the T products: for each slot (L, T, *shape).

The cotangents may be overwritten.
"""

Body = Callable[[Sequence[Tensor], Tensor, Tensor], tuple[Tensor, Pull]]
"""(stacked parameters, inputs (L, B, ...), keys (L,)) -> outputs (L, B, d), and how to pull cotangents back."""


@dataclass(frozen=True)
class LayeredBody:
    """A chain of linear layers and ReLUs: all cotangents go through each layer in one product."""

    layers: tuple[Layer, ...]

    def __call__(self, parameters: Sequence[Tensor], inputs: Tensor, keys: Tensor) -> tuple[Tensor, Pull]:
        """See `Body`."""
        activations = activations_of(self.layers, parameters, inputs)

        def pull(cotangents: Tensor) -> list[Tensor]:
            gradients = [torch.empty(0)] * len(parameters)
            lanes, terms, _, batch = cotangents.shape
            delta = cotangents
            for place in reversed(range(len(self.layers))):
                layer, below = self.layers[place], activations[place]
                if layer.relu:
                    # what a ReLU puts out is 0 or above: its sign is the mask. A copy in any case: of a single example
                    # the transposed one lies in memory as the activations do, which are still needed
                    turned = activations[place + 1].transpose(1, 2)
                    mask = turned.clone(memory_format=torch.contiguous_format).sign_()
                    delta.mul_(mask.unsqueeze(1))
                products = torch.bmm(delta.view(lanes, -1, batch), below)
                gradients[layer.weight] = products.view(lanes, terms, -1, products.shape[-1])
                if layer.bias is not None:
                    gradients[layer.bias] = delta.sum(3)
                if place:
                    delta = torch.matmul(parameters[layer.weight].transpose(1, 2).unsqueeze(1), delta)
            return gradients

        return activations[-1], pull


def body_of(path: Path, network: Network, structure: Structure, dimensions: int) -> Body:
    """The body of a network, for the use of one thread.

    Args:
        path: how it is to be computed.
        network: the network, in the type of the computation.
        structure: its structure.
        dimensions: of one input.
    """
    if path == "layers":
        layers = linear_layers(network, dimensions)
        if layers is None:
            raise LocalProtocolError("the network is not a chain of Flatten, Linear and ReLU")
        return LayeredBody(layers[:-1])
    module = without_last(network.replica(), structure.last)
    names = [slot.name for slot in network.layout if slot.offset < structure.hidden]
    return _stacked(network, module, names) if path == "vmap" else _one_by_one(network, module, names)


def _stacked(network: Network, module: nn.Module, names: Sequence[str]) -> Body:
    def one(parameters: dict[str, Tensor], inputs: Tensor, key: Tensor) -> Tensor:
        values = parameters | dict.fromkeys(network.dropout_names, key)
        outputs: Tensor = functional_call(module, values, (inputs,))
        return outputs

    lanes = vmap(one)

    def body(parameters: Sequence[Tensor], inputs: Tensor, keys: Tensor) -> tuple[Tensor, Pull]:
        stacked = dict(zip(names, parameters, strict=True))
        if not stacked:
            return lanes(stacked, inputs, keys), lambda cotangents: []
        outputs, pull_one, *_ = vjp(lambda values: lanes(values, inputs, keys), stacked)

        def pull(cotangents: Tensor) -> list[Tensor]:
            found = [pull_one(one.transpose(1, 2).contiguous())[0] for one in cotangents.unbind(1)]
            return [torch.stack([by_term[name] for by_term in found], dim=1) for name in names]

        return outputs, pull

    return body


def _one_by_one(network: Network, module: nn.Module, names: Sequence[str]) -> Body:
    key_buffers = [module.get_buffer(name) for name in network.dropout_names]

    def body(parameters: Sequence[Tensor], inputs: Tensor, keys: Tensor) -> tuple[Tensor, Pull]:
        outputs: list[Tensor] = []
        values: list[list[Tensor]] = []
        for lane in range(len(inputs)):
            for buffer in key_buffers:
                buffer.copy_(keys[lane])
            values.append([stack[lane].detach().requires_grad_() for stack in parameters])
            named = dict(zip(names, values[-1], strict=True))
            with torch.enable_grad():
                outputs.append(functional_call(module, named, (inputs[lane],)))

        def pull(cotangents: Tensor) -> list[Tensor]:
            if not names:
                return []
            found = [_lane(outputs[lane], values[lane], cotangents[lane]) for lane in range(len(outputs))]
            return [torch.stack(slot) for slot in zip(*found, strict=True)]

        return torch.stack([one.detach() for one in outputs]), pull

    return body


def _lane(outputs: Tensor, values: Sequence[Tensor], cotangents: Tensor) -> list[Tensor]:
    """One lane's gradients for cotangents of shape (T, d, B): for each slot (T, *shape)."""
    by_term = [
        torch.autograd.grad(outputs, values, one.T, retain_graph=True, materialize_grads=True)
        for one in cotangents
    ]
    return [torch.stack(slot) for slot in zip(*by_term, strict=True)]
