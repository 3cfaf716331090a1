"""A network cut behind its first layer, which is linear: what CGD needs to split models by columns.

With ``z = x W + b`` the network is ``rest(z)``. Where the first layer is linear, the share of `z` that comes from some
of the features is a product of its own, and a common displacement of W is one product for all participants.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from discreet.errors import ModelError
from discreet.gradients import Layer, LayeredGradient, leaves_of, linear_layers, loss_gradient
from discreet.losses import Loss
from discreet.network import Network, Slot


@dataclass(frozen=True, eq=False)
class Cut:
    """A network cut behind its first layer.

    Attributes:
        features: inputs of the first layer (d).
        hidden: its outputs (H_1).
        bias: whether it has one.
        upper: the slots of everything above it, in order, with offsets counted from the first of them.
        layers: the rest as a chain of linear layers and ReLUs, counted in `upper`, behind `relu`; or None.
        relu: for a chain, whether a ReLU comes first.
        names: for each slot of `upper` its name in `rest`.
        rest: everything above the first layer, as a module.
    """

    features: int
    hidden: int
    bias: bool
    upper: tuple[Slot, ...]
    layers: tuple[Layer, ...] | None
    relu: bool
    names: tuple[str, ...]
    rest: nn.Sequential

    @property
    def upper_size(self) -> int:
        """Parameters above the first layer."""
        return self.upper[-1].offset + self.upper[-1].size if self.upper else 0

    def unflatten(self, upper: Tensor) -> list[Tensor]:
        """Upper parameters of shape (..., upper_size) as one view of shape (..., *shape) for each slot."""
        return [
            upper[..., slot.offset : slot.offset + slot.size].reshape(*upper.shape[:-1], *slot.shape)
            for slot in self.upper
        ]

    def gradients(
        self, loss: Loss, hidden: Tensor, upper: Sequence[Tensor], targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Gradients of the weighted losses of L participants side by side.

        Args:
            loss: one loss an example.
            hidden: pre-activations of the first layer, shape (L, B, hidden).
            upper: each slot's parameters, shape (L, *shape).
            targets: shape (L, B) or (L, B, outputs).
            weights: shape (L, B).

        Returns:
            Gradients by `upper` and by `hidden`, in their shapes, and the weighted losses, shape (L,).
        """
        if self.layers is None:
            return self._mapped(loss, hidden, upper, targets, weights)
        if not self.layers:
            by_hidden, losses = loss_gradient(loss, hidden, targets, weights)
            return [], by_hidden, losses
        gradients = [torch.empty(0)] * len(upper)
        below_first: list[Tensor] = []
        first = self.layers[0]

        def keep(layer: Layer, delta: Tensor, below: Tensor) -> None:
            gradients[layer.weight] = torch.bmm(delta.transpose(1, 2), below)
            if layer.bias is not None:
                gradients[layer.bias] = delta.sum(1)
            if layer is first:
                below_first.append(torch.bmm(delta, upper[layer.weight]))

        active = hidden.relu() if self.relu else hidden
        losses = LayeredGradient(self.layers, loss).backpropagate(upper, active, targets, weights, keep)
        (by_hidden,) = below_first
        return gradients, by_hidden.mul_(active > 0) if self.relu else by_hidden, losses

    def outputs(self, hidden: Tensor, upper: Sequence[Tensor]) -> Tensor:
        """Outputs of C participants' upper layers on the same pre-activations.

        Args:
            hidden: shape (B, hidden).
            upper: each slot's parameters, shape (C, *shape).

        Returns:
            Shape (C, B, outputs); (1, B, outputs) where there is nothing above the first layer.
        """
        if self.layers is None:
            module = self.module()

            def one(*parameters: Tensor) -> Tensor:
                found: Tensor = functional_call(
                    module, dict(zip(self.names, parameters, strict=True)), (hidden,)
                )
                return found

            if not upper:
                return one().unsqueeze(0)  # the same for everybody
            mapped: Tensor = vmap(one)(*upper)
            return mapped
        found = (hidden.relu() if self.relu else hidden).unsqueeze(0)
        for layer in self.layers:
            weight = upper[layer.weight]
            if len(found) == 1:  # one product with all participants' weights side by side
                product = found[0] @ weight.flatten(0, 1).T
                found = product.view(-1, *weight.shape[:2]).transpose(0, 1)
            else:
                found = found @ weight.transpose(1, 2)
            if layer.bias is not None:
                found = found + upper[layer.bias].unsqueeze(1)
            if layer.relu:
                found = found.relu()
        return found

    def module(self) -> nn.Module:
        """`rest` in evaluation mode, for the use of one thread."""
        return copy.deepcopy(self.rest).eval()

    def _mapped(
        self, loss: Loss, hidden: Tensor, upper: Sequence[Tensor], targets: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        module = self.module()

        def weighted(own: tuple[Tensor, ...], inner: Tensor, answers: Tensor, shares: Tensor) -> Tensor:
            outputs = functional_call(module, dict(zip(self.names, own, strict=True)), (inner,))
            return (loss(outputs, answers) * shares).sum()

        mapped = vmap(grad_and_value(weighted, argnums=(0, 1)))
        (by_upper, by_hidden), losses = mapped(tuple(upper), hidden, targets, weights)
        return list(by_upper), by_hidden, losses


def cut(network: Network, dimensions: int) -> Cut | None:
    """The network cut behind its first layer; None unless it is nested `nn.Sequential`s that begin with a linear one.

    Args:
        network: the network; with dropout it is not cut.
        dimensions: of one input; more than one must be flattened by the network's first layer.
    """
    leaves = leaves_of(network.module)
    if not leaves or network.dropout_names:
        return None
    if type(leaves[0][1]) is nn.Flatten and (leaves[0][1].start_dim, leaves[0][1].end_dim) == (1, -1):
        leaves = leaves[1:]
    elif dimensions != 1:
        return None
    if not leaves:
        return None
    name, first = leaves[0]
    if not isinstance(first, nn.Linear) or type(first) is not nn.Linear:
        return None
    own = [f"{name}.weight"] + ([f"{name}.bias"] if first.bias is not None else [])
    if [slot.name for slot in network.layout[: len(own)]] != own:
        return None  # tied to another layer, or frozen
    start = sum(slot.size for slot in network.layout[: len(own)])
    above = network.layout[len(own) :]
    names = _names(leaves[1:])
    if any(slot.name not in names for slot in above):
        return None
    upper = tuple(Slot(slot.name, slot.shape, slot.offset - start, slot.size) for slot in above)
    chain = linear_layers(network, dimensions)
    layers = None
    if chain is not None:
        shift = len(own)
        layers = tuple(
            Layer(layer.weight - shift, None if layer.bias is None else layer.bias - shift, layer.relu)
            for layer in chain[1:]
        )
    return Cut(
        features=first.in_features,
        hidden=first.out_features,
        bias=first.bias is not None,
        upper=upper,
        layers=layers,
        relu=chain is not None and chain[0].relu,
        names=tuple(names[slot.name] for slot in upper),
        rest=nn.Sequential(*(leaf for _, leaf in leaves[1:])),
    )


def named_part(network: Network, part: Tensor, features: int, dimensions: int) -> dict[str, Tensor]:
    """What a participant holds of a network that is split by columns, by the names that the network has for it.

    Args:
        network: the whole one.
        part: the columns of the first layer's weight for some features, row by row, each followed by the bias if the
            participant has that too; then everything above.
        features: how many.
        dimensions: of one input.

    Raises:
        ModelError: the network cannot be split so, or has other parameters.
    """
    found = cut(network, dimensions)
    width, rest = (0, 1) if found is None else divmod(len(part) - found.upper_size, found.hidden)
    if found is None or rest or not features <= width <= features + found.bias:
        raise ModelError(f"the network has no part of {len(part):,} parameters for {features} features")
    first = part[: found.hidden * width].view(found.hidden, width)
    named = {network.layout[0].name: first[:, :features]}
    if width > features:
        named[network.layout[1].name] = first[:, features]
    upper = found.unflatten(part[found.hidden * width :])
    return named | {slot.name: value for slot, value in zip(found.upper, upper, strict=True)}


def _names(leaves: Sequence[tuple[str, nn.Module]]) -> dict[str, str]:
    """For each parameter of the leaves, its name in the network and in a flat `nn.Sequential` of them."""
    return {
        f"{name}.{inner}": f"{place}.{inner}"
        for place, (name, leaf) in enumerate(leaves)
        for inner, _ in leaf.named_parameters()
    }
