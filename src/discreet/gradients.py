"""Three ways to the gradients of a stack of models, one model a lane; the fastest that fits is chosen.

| path | what it can do | when it is chosen |
|---|---|---|
| ``layers`` | chains of Flatten, Linear and ReLU, derived by hand; plain SGD fused into the product | if the model is such a chain |
| ``vmap`` | what `torch.func.vmap` can do | up to 300,000 parameters, if it can |
| ``autograd`` | everything, lane after lane | everything else: stacking brings nothing there |

A path is a function of stacked parameters and a batch for each lane. All lanes are independent: no lane's result
depends on what the other lanes hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from discreet.losses import Loss, cross_entropy, residuals, squared_error
from discreet.network import Network

Path = Literal["layers", "vmap", "autograd"]


class LaneGradient(Protocol):
    """Gradients of L lanes at once."""

    def __call__(
        self, parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Gradients and losses of the weighted sums of the examples' losses.

        Args:
            parameters: one tensor of shape (L, *shape) for each of the network's slots.
            inputs: shape (L, B, ...).
            targets: shape (L, B) or (L, B, outputs).
            weights: shape (L, B); 1 / count for a mean over count examples, 0 for padding.
            keys: shape (L,), int64, for dropout.

        Returns:
            Gradients, shaped as the parameters, and losses of shape (L,).
        """
        ...


@dataclass(frozen=True)
class Layer:
    """A linear layer: places of its weight and bias in the network's layout, and whether a ReLU follows."""

    weight: int
    bias: int | None
    relu: bool


@dataclass(frozen=True)
class LayeredGradient:
    """Backpropagation through a chain of linear layers and ReLUs, in stacked matrix products."""

    layers: tuple[Layer, ...]
    loss: Loss

    def __call__(
        self, parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """See `LaneGradient`."""
        gradients = [torch.empty(0)] * len(parameters)

        def keep(layer: Layer, delta: Tensor, below: Tensor) -> None:
            gradients[layer.weight] = torch.bmm(delta.transpose(1, 2), below)
            if layer.bias is not None:
                gradients[layer.bias] = delta.sum(1)

        losses = self.backpropagate(parameters, inputs, targets, weights, keep)
        return gradients, losses

    def descend(
        self,
        parameters: Sequence[Tensor],
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        learning_rate: float,
        weight_decay: float,
    ) -> Tensor:
        """One step of plain SGD in place, without writing the gradients down; returns the losses, shape (L,)."""
        shrink = 1 - learning_rate * weight_decay

        def step(layer: Layer, delta: Tensor, below: Tensor) -> None:
            parameters[layer.weight].baddbmm_(delta.transpose(1, 2), below, beta=shrink, alpha=-learning_rate)
            if layer.bias is not None:
                parameters[layer.bias].mul_(shrink).sub_(delta.sum(1), alpha=learning_rate)

        return self.backpropagate(parameters, inputs, targets, weights, step)

    def backpropagate(
        self,
        parameters: Sequence[Tensor],
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        visit: Callable[[Layer, Tensor, Tensor], None],
    ) -> Tensor:
        """Call `visit(layer, gradient of its pre-activations, its input)` from the last layer to the first."""
        activations = activations_of(self.layers, parameters, inputs)
        delta, losses = loss_gradient(self.loss, activations.pop(), targets, weights)
        for place in reversed(range(len(self.layers))):
            layer, below = self.layers[place], activations.pop()
            # the layer below is served first: `visit` may change this weight
            next_delta = torch.bmm(delta, parameters[layer.weight]) if place else delta
            visit(layer, delta, below)
            delta = next_delta.mul_(below > 0) if place and self.layers[place - 1].relu else next_delta
        return losses


def activations_of(layers: Sequence[Layer], parameters: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """The inputs (L, B, ...) of a chain, flattened, and what each of its layers puts out, shapes (L, B, width)."""
    activations = [inputs.flatten(2)]
    for layer in layers:
        weight = parameters[layer.weight].transpose(1, 2)
        if layer.bias is None:
            out = torch.bmm(activations[-1], weight)
        else:
            out = torch.baddbmm(parameters[layer.bias].unsqueeze(1), activations[-1], weight)
        activations.append(out.relu_() if layer.relu else out)
    return activations


def loss_gradient(loss: Loss, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted losses by the outputs, shape (L, B, outputs), and the losses, shape (L,)."""
    if loss is cross_entropy:
        log_probabilities = outputs.log_softmax(-1)
        place = targets.unsqueeze(-1)
        losses = log_probabilities.gather(-1, place).squeeze(-1).mul_(weights).sum(1).neg_()
        delta = log_probabilities.exp_()
        delta.scatter_add_(-1, place, delta.new_full((1, 1, 1), -1.0).expand_as(place))
        return delta.mul_(weights.unsqueeze(-1)), losses
    if loss is squared_error:
        delta = residuals(outputs, targets)
        losses = delta.square().sum(-1).mul_(weights).sum(1).div_(2)
        return delta.mul_(weights.unsqueeze(-1)), losses
    with torch.enable_grad():
        free = outputs.detach().requires_grad_()
        # as one batch: a user's loss may take the second dimension for the classes
        values = loss(free.flatten(0, 1), targets.flatten(0, 1))
        losses = (values.view_as(weights) * weights).sum(1)
        (delta,) = torch.autograd.grad(losses.sum(), free)
    return delta, losses.detach()


def linear_layers(network: Network, dimensions: int) -> tuple[Layer, ...] | None:
    """The network as a chain of linear layers and ReLUs; None if it is anything else.

    Args:
        network: the network.
        dimensions: of one input; more than one must be flattened by the network's first layer.
    """
    leaves = leaves_of(network.module)
    if leaves is None:
        return None
    first = leaves[0][1] if leaves else None
    if type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1):
        leaves = leaves[1:]
    elif dimensions != 1:
        return None
    places = {slot.name: place for place, slot in enumerate(network.layout)}
    layers: list[Layer] = []
    for position, (name, leaf) in enumerate(leaves):
        if type(leaf) is nn.ReLU and position and type(leaves[position - 1][1]) is nn.Linear:
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, relu=True)
        elif type(leaf) is nn.Linear:
            weight, bias = places.get(f"{name}.weight"), places.get(f"{name}.bias")
            if weight is None or (leaf.bias is not None and bias is None):
                return None  # tied to another layer, or frozen
            layers.append(Layer(weight, bias, relu=False))
        else:
            return None
    return tuple(layers) if layers and not layers[-1].relu else None


def leaves_of(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]] | None:
    """The leaves of nested `nn.Sequential`s in the order of the forward pass; None for any other module.

    A layer that is used twice comes twice. Hooks may do anything: None if there are any.
    """
    if type(module) is not nn.Sequential or _hooked(module):
        return None
    found: list[tuple[str, nn.Module]] = []
    # not `named_children`, which leaves out a layer's second place
    for name, child in zip(module._modules, module, strict=True):
        if type(child) is nn.Sequential:
            inner = leaves_of(child, f"{prefix}{name}.")
            if inner is None:
                return None
            found += inner
        elif _hooked(child):
            return None
        else:
            found.append((prefix + name, child))
    return found


def _hooked(module: nn.Module) -> bool:
    replaced = "forward" in vars(module)  # by one of this module's own, not its class's
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or replaced)


def vmapped(network: Network, loss: Loss) -> LaneGradient:
    """The ``vmap`` path, on a copy of the module of its own."""
    module = network.replica()
    names = [slot.name for slot in network.layout]

    def weighted_loss(
        parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, key: Tensor
    ) -> Tensor:
        values = parameters | dict.fromkeys(network.dropout_names, key)
        outputs = functional_call(module, values, (inputs,))
        return (loss(outputs, targets) * weights).sum()

    lanes = vmap(grad_and_value(weighted_loss))

    def gradient(
        parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        stacked = dict(zip(names, parameters, strict=True))
        gradients, losses = lanes(stacked, inputs, targets, weights, keys)
        return [gradients[name] for name in names], losses

    return gradient


def one_by_one(network: Network, loss: Loss) -> LaneGradient:
    """The ``autograd`` path, on a copy of the module of its own."""
    module = network.replica()
    by_name = dict(module.named_parameters())
    own = [by_name[slot.name] for slot in network.layout]
    key_buffers = [module.get_buffer(name) for name in network.dropout_names]

    def gradient(
        parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        found: list[list[Tensor]] = []
        losses = []
        for lane in range(len(inputs)):
            for parameter, stack in zip(own, parameters, strict=True):
                parameter.data = stack[lane]
            for buffer in key_buffers:
                buffer.copy_(keys[lane])
            with torch.enable_grad():
                value = (loss(module(inputs[lane]), targets[lane]) * weights[lane]).sum()
                found.append(list(torch.autograd.grad(value, own, materialize_grads=True)))
            losses.append(value.detach())
        if len(found) == 1:
            return [one.unsqueeze(0) for one in found[0]], losses[0].unsqueeze(0)
        return [torch.stack(slot) for slot in zip(*found, strict=True)], torch.stack(losses)

    return gradient


STACKED_PARAMETERS = 300_000
"""Up to this many parameters, what stacking saves in calls outweighs what it costs in memory traffic."""


def choose_path(network: Network, dimensions: int) -> Path:
    """The path that measures fastest for this kind of network (``benchmarks/paths.py``).

    It depends on the network alone, so that the same experiment takes the same path on every machine.
    """
    if linear_layers(network, dimensions) is not None:
        return "layers"
    return "vmap" if network.count <= STACKED_PARAMETERS else "autograd"


def can_stack(network: Network, loss: Loss, vector: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    """Whether the ``vmap`` path can do this network and loss; tried on a batch (inputs, targets)."""
    stack = [part.expand(2, *part.shape) for part in network.unflatten(vector).values()]
    if inputs.is_floating_point():
        inputs = inputs.to(vector.dtype)
    inputs, targets = (tensor.expand(2, *tensor.shape) for tensor in (inputs, targets))
    weights, keys = vector.new_ones(targets.shape[:2]), torch.zeros(2, dtype=torch.int64)
    try:
        vmapped(network, loss)(stack, inputs, targets, weights, keys)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def lane_gradient(path: Path, network: Network, loss: Loss, dimensions: int) -> LaneGradient:
    """The gradient function of a path, for the use of one thread.

    Raises:
        ValueError: the path cannot do this network.
    """
    if path == "layers":
        layers = linear_layers(network, dimensions)
        if layers is None:
            raise ValueError("the network is not a chain of Flatten, Linear and ReLU")
        return LayeredGradient(layers, loss)
    return vmapped(network, loss) if path == "vmap" else one_by_one(network, loss)
