"""Reads a network into its structure, layer by layer, and refuses by name what scales do not pass through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet.blocks import Concatenation, Residual
from discreet.dropout import StreamDropout
from discreet.errors import ModelError
from discreet.network import Network
from discreet.schemes.lossless.layers import BATCH_NORMS, CONVOLUTIONS, ELEMENTWISE, POOLINGS, why_not
from discreet.schemes.lossless.structure import Rule, Shift, Structure, without_last

Scales = NDArray[np.int64]


def read(network: Network, shape: tuple[int, ...]) -> Structure:
    """The structure of a network.

    Args:
        network: the network; its module must be nested `nn.Sequential`s, with `Residual` and `Concatenation` blocks.
        shape: of one input.

    Raises:
        ModelError: a layer is not supported; the message names it.
    """
    module = network.replica("cpu")
    reader = _Reader(network, module)
    name, last = _last_layer(module)
    # a network with dropout has a hook of ours, which numbers a layer's calls anew
    _no_hooks("", module, ours=1 if network.dropout_names else 0)
    body = without_last(module, name)
    with torch.no_grad():
        sample = torch.zeros(1, *shape)
        sample, scales = reader.through(body, "", sample, np.zeros(shape[0], dtype=np.int64))
        scales = reader.flat(scales, sample, name, last)
    reader.linear(name, last, scales, np.zeros(last.out_features, dtype=np.int64))
    rules, numbers = reader.finished()
    first_of_last = next(slot for slot in network.layout if slot.name == _join(name, "weight"))
    if [slot.name for slot in network.layout[-1 - (last.bias is not None) :]] != [
        _join(name, part) for part in ("weight", "bias")[: 1 + (last.bias is not None)]
    ]:
        raise ModelError(f"{_called(name, last)}: expected the last layer's parameters behind all others'")
    return Structure(
        scales=int(numbers.max()) + 1,
        rules=rules,
        shifts=tuple(
            Shift(weight, bias, _tensor(numbers[out]), _tensor(numbers[into]), ratio)
            for weight, bias, out, into, ratio in reader.shifts
        ),
        last=name,
        hidden=first_of_last.offset,
        width=last.in_features,
        outputs=last.out_features,
        bias=last.bias is not None,
        into=_tensor(numbers[scales]),
        shape=shape,
        slots=tuple(slot.shape for slot in network.layout),
    )


def _last_layer(module: nn.Module) -> tuple[str, nn.Linear]:
    """The name of the last layer, and the layer."""
    name, layer = "", module
    while type(layer) is nn.Sequential:
        if not len(layer):
            raise ModelError(
                f"{_called(name, layer)} is empty: lossless perturbation needs a last linear layer"
            )
        if name:
            _no_hooks(name, layer)
        last = list(layer._modules)[-1]
        name, layer = _join(name, last), layer[-1]
    if type(layer) is not nn.Linear:
        reason = (
            "the last layer must be linear, since the noise on the outputs is taken off its gradients"
            if name
            else "expected an nn.Sequential, whose order of layers can be read"
        )
        raise ModelError(f"{_called(name, layer)}: {reason}")
    if name:
        _no_hooks(name, layer)
    return name, layer


class _Reader:
    """Goes through a module in the order of its forward pass, and gathers scales and rules."""

    def __init__(self, network: Network, module: nn.Module) -> None:
        self.layout = [slot.name for slot in network.layout]
        self.known: dict[str, tuple[Scales, Scales]] = {}
        self.shifts: list[tuple[str, str, Scales, Scales, Tensor]] = []
        self.parents: list[int] = [0]
        self.seen: dict[int, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in self.seen:
                raise ModelError(
                    f"parameter {name} is {self.seen[id(parameter)]} again: tied weights would need two scales at once"
                )
            self.seen[id(parameter)] = name
        self.trained = {name for name, one in module.named_parameters() if one.requires_grad}
        self.owners: dict[int, str] = {}

    def through(self, layer: nn.Module, name: str, sample: Tensor, scales: Scales) -> tuple[Tensor, Scales]:
        """Outputs of a layer on a sample, and the scales of their channels."""
        if name:
            _no_hooks(name, layer)
        kind = type(layer)
        if kind is nn.Sequential:
            for child, inner in layer._modules.items():
                sample, scales = self.through(_there(inner), _join(name, child), sample, scales)
            return sample, scales
        if kind is Residual:
            return self._residual(layer, name, sample, scales)
        if kind is Concatenation:
            return self._concatenation(layer, name, sample, scales)
        after = self._passed(layer, name, sample, scales)
        output: Tensor = layer(sample.clone())
        return output, after

    def _residual(self, block: Any, name: str, sample: Tensor, scales: Scales) -> tuple[Tensor, Scales]:
        body, of_body = self.through(block.body, _join(name, "body"), sample, scales)
        around, of_shortcut = sample, scales
        if block.shortcut is not None:
            around, of_shortcut = self.through(block.shortcut, _join(name, "shortcut"), sample, scales)
        if body.shape != around.shape:
            raise ModelError(
                f"{_called(name, block)}: the body puts out shape {tuple(body.shape[1:])} and the shortcut "
                f"{tuple(around.shape[1:])}: expected the same"
            )
        for one, other in zip(of_body.tolist(), of_shortcut.tolist(), strict=True):
            self._join_scales(one, other)
        return around + body, of_body

    def _concatenation(self, block: Any, name: str, sample: Tensor, scales: Scales) -> tuple[Tensor, Scales]:
        found = [
            self.through(branch, _join(name, f"branches.{place}"), sample, scales)
            for place, branch in enumerate(block.branches)
        ]
        return torch.cat([one for one, _ in found], dim=1), np.concatenate([one for _, one in found])

    def _passed(self, layer: Any, name: str, sample: Tensor, scales: Scales) -> Scales:
        """The scales behind a layer that is no block."""
        kind = type(layer)
        dimensions = sample.dim() - 2
        if kind in ELEMENTWISE:
            if kind is nn.PReLU:
                self._own(name, layer)
                none = np.zeros(1, dtype=np.int64)
                self.known[_join(name, "weight")] = (none, none)
            return scales
        if kind in POOLINGS:
            self._takes(layer, name, POOLINGS[kind], dimensions)
            return scales
        if kind is nn.Flatten:
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise ModelError(
                    f"{_called(name, layer)} flattens some dimensions only: expected nn.Flatten()"
                )
            return scales.repeat(math.prod(sample.shape[2:]))
        if kind is nn.Linear:
            after = self._new(layer.out_features)
            self.linear(name, layer, self.flat(scales, sample, name, layer), after)
            return after
        if kind in CONVOLUTIONS:
            self._takes(layer, name, CONVOLUTIONS[kind], dimensions)
            return self._convolution(name, layer, scales)
        if kind in BATCH_NORMS and layer.running_mean is not None and not layer.training:
            return self._batch_norm(name, layer, scales)
        raise ModelError(f"{_called(name, layer)} {why_not(layer)}")

    def flat(self, scales: Scales, sample: Tensor, name: str, layer: nn.Module) -> Scales:
        """The scales of a linear layer's inputs, which must be flat."""
        if sample.dim() != 2:
            raise ModelError(
                f"{_called(name, layer)} is given inputs of shape {tuple(sample.shape[1:])}: expected nn.Flatten() before it"
            )
        return scales

    def linear(self, name: str, layer: nn.Linear, into: Scales, out: Scales) -> None:
        """Rules of a linear layer."""
        if len(into) != layer.in_features:
            raise ModelError(
                f"{_called(name, layer)} is given {len(into)} inputs: expected {layer.in_features}"
            )
        self._weighted(name, layer, out, into[None, :])

    def _convolution(self, name: str, layer: Any, scales: Scales) -> Scales:
        after = self._new(layer.out_channels)
        tail = (1,) * (layer.weight.dim() - 2)
        by_group = scales.reshape(layer.groups, -1).repeat(layer.out_channels // layer.groups, axis=0)
        self._weighted(name, layer, after, by_group.reshape(*by_group.shape, *tail))
        return after

    def _weighted(self, name: str, layer: Any, out: Scales, into: Scales) -> None:
        self._own(name, layer)
        tail = (1,) * (layer.weight.dim() - 1)
        self.known[_join(name, "weight")] = (out.reshape(-1, *tail), into)
        if layer.bias is not None:
            self.known[_join(name, "bias")] = (out, np.zeros(1, dtype=np.int64))

    def _batch_norm(self, name: str, layer: Any, scales: Scales) -> Scales:
        if not layer.affine:
            if bool((layer.running_mean == 0).all()):
                return scales
            raise ModelError(
                f"{_called(name, layer)} subtracts a constant that no scale can reach: expected affine=True, or a "
                "stored mean of 0"
            )
        after = self._new(layer.num_features)
        self._own(name, layer)
        weight, bias = _join(name, "weight"), _join(name, "bias")
        self.known[weight] = (after, scales)
        self.known[bias] = (after, np.zeros(1, dtype=np.int64))
        mean, variance = layer.running_mean.double(), layer.running_var.double()
        ratio = mean / (variance + layer.eps).sqrt()
        if bool((ratio != 0).any()):
            self.shifts.append((weight, bias, after, scales, ratio))
        return after

    def _own(self, name: str, layer: nn.Module) -> None:
        """Refuse a layer that stands in two places or has frozen parameters."""
        if id(layer) in self.owners:
            raise ModelError(
                f"{_called(name, layer)} is {self.owners[id(layer)]} again: tied weights would need two scales at once"
            )
        self.owners[id(layer)] = name
        for part, _ in layer.named_parameters():
            if _join(name, part) not in self.trained:
                raise ModelError(
                    f"parameter {_join(name, part)} is frozen: participants know it, and it cannot be scaled unseen"
                )

    @staticmethod
    def _takes(layer: nn.Module, name: str, wanted: int, found: int) -> None:
        if wanted != found:
            raise ModelError(
                f"{_called(name, layer)} is given inputs of {found + 1} dimensions: expected {wanted + 1}, channels first"
            )

    # ---- scales, and which are the same

    def _new(self, count: int) -> Scales:
        first = len(self.parents)
        self.parents += range(first, first + count)
        return np.arange(first, first + count, dtype=np.int64)

    def _root(self, scale: int) -> int:
        while self.parents[scale] != scale:
            self.parents[scale] = scale = self.parents[self.parents[scale]]
        return scale

    def _join_scales(self, one: int, other: int) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        self.parents[high] = low  # number 0, which is fixed, stays a root

    def finished(self) -> tuple[tuple[Rule, ...], Scales]:
        """The rules in the order of the layout, and the final number of every scale."""
        roots = np.array([self._root(scale) for scale in range(len(self.parents))], dtype=np.int64)
        _, numbers = np.unique(roots, return_inverse=True)
        missing = [name for name in self.layout if name not in self.known]
        if missing:
            raise ModelError(f"parameter {missing[0]} belongs to no layer of the forward pass")
        rules = [
            Rule(name, _tensor(numbers[self.known[name][0]]), _tensor(numbers[self.known[name][1]]))
            for name in self.layout
        ]
        return tuple(rules), numbers


def _no_hooks(name: str, layer: nn.Module, ours: int = 0) -> None:
    if len(layer._forward_pre_hooks) > ours or layer._forward_hooks or layer._backward_hooks:
        raise ModelError(f"{_called(name, layer)} has hooks, which may do anything: expected none")
    if "forward" in vars(layer):
        raise ModelError(f"{_called(name, layer)} has a `forward` of its own: expected that of its class")


def _there(layer: nn.Module | None) -> nn.Module:
    return nn.Identity() if layer is None else layer


def _tensor(numbers: Scales) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64))


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _called(name: str, layer: nn.Module) -> str:
    kind = "Dropout" if isinstance(layer, StreamDropout) else type(layer).__name__
    return f"layer {name} ({kind})" if name else f"the model ({kind})"
