"""A model as a function of one vector of parameters: what is shared, what stays, and how it is run.

The rules, the same in every scheme:

* **Shared** is the vector of the trainable parameters, in the order of `named_parameters`. Tied weights are one
  parameter: counted, trained and sent once.
* **Public constants** are the parameters with ``requires_grad=False`` and all buffers, integer ones included:
  identical at every party, never trained, never sent.
* **BatchNorm with running statistics** always runs with the stored ones, as in evaluation: its weight and bias are
  trained, its statistics and counter stand still. Without (``track_running_stats=False``) it uses the batch's own
  statistics, in training and in evaluation.
* **Dropout** layers get their masks from a key (see `discreet.dropout`), never from torch's generator.
* **float32** is what is trained and sent; a model of another floating type is converted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from discreet.dropout import StreamDropout, replace_dropout, signed64
from discreet.errors import ModelError
from discreet.randomness import Seeded


@dataclass(frozen=True)
class Slot:
    """Where one trainable parameter lies in the vector.

    Attributes:
        name: as in `named_parameters`.
        shape: its shape.
        offset: its first place in the vector.
        size: how many places it takes.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class Network:
    """A model as a function of one vector of parameters; make one with `discreet.models.build`.

    Attributes:
        module: our private copy, in the form it is trained in (float32, dropout by key, BatchNorm standing still,
            training mode). `apply` swaps tensors in it for a moment, so **only one thread may use it**: give every
            other thread a `replica`.
        original: the model as the user defined it, with its first weights.
        draw: makes a fresh module whose weights come from a seed; None where a module was given ready-made.
        layout: the slots of the trainable parameters, in order.
        dropout_names: the names, among `module`'s buffers, of the keys of its dropout layers.
    """

    module: nn.Module
    original: nn.Module
    draw: Callable[[Seeded], nn.Module] | None
    layout: tuple[Slot, ...]
    dropout_names: tuple[str, ...]

    @property
    def count(self) -> int:
        """n, the number of trainable parameters: the length of the vector."""
        return self.layout[-1].offset + self.layout[-1].size

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vectors of named parameters.

        Args:
            tensors: for each slot's name a tensor of shape (..., *shape), the leading dimensions the same
                for all; other names are ignored.

        Returns:
            shape (..., n), in new memory.

        Raises:
            ValueError: a tensor does not end in its slot's shape.
        """
        parts = []
        for slot in self.layout:
            tensor = tensors[slot.name]
            lead = tensor.dim() - len(slot.shape)
            if lead < 0 or tuple(tensor.shape[lead:]) != slot.shape:
                raise ValueError(f"{slot.name} has shape {tuple(tensor.shape)}, expected (..., {slot.shape})")
            parts.append(tensor.reshape(*tensor.shape[:lead], slot.size))
        return torch.cat(parts, dim=-1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The named parameters of vectors, as views of them.

        Args:
            vector: shape (..., n).

        Returns:
            for each slot's name a view of shape (..., *shape).

        Raises:
            ValueError: the last dimension is not n.
        """
        if not vector.dim() or vector.shape[-1] != self.count:
            raise ValueError(f"vector has shape {tuple(vector.shape)}, expected (..., {self.count})")
        # one split: its gradient is one concatenation, where slices would each add a vector of n zeros
        parts = torch.split(vector, [slot.size for slot in self.layout], dim=-1)
        pairs = zip(self.layout, parts, strict=True)
        return {slot.name: part.view(part.shape[:-1] + slot.shape) for slot, part in pairs}

    def initial(self, randomness: Seeded) -> Tensor:
        """The weights before the first round: float32 of shape (n,), the same for the same seed.

        A model given as a module starts from its own weights whatever the seed. torch's global generator is left
        as it was.

        Raises:
            ModelError: the factory now makes a model with other parameters than before.
        """
        module = self.original if self.draw is None else self.draw(randomness)
        tensors = {name: parameter.detach() for name, parameter in module.named_parameters()}
        for slot in self.layout:
            if slot.name not in tensors or tuple(tensors[slot.name].shape) != slot.shape:
                raise ModelError(
                    f"the model's factory made {slot.name} of shape {slot.shape} once and not again: "
                    "expected the same parameters each time"
                )
        return self.flatten(tensors).to("cpu", torch.float32)

    def apply(
        self,
        vector: Tensor,
        inputs: Tensor,
        *,
        training: bool = False,
        key: int | Tensor = 0,
        module: nn.Module | None = None,
    ) -> Tensor:
        """The model's output with the weights `vector`; differentiable, and fit for `torch.func.vmap`.

        Args:
            vector: shape (n,); its type, float32 or float64, is the type of the computation.
            inputs: a batch, shape (batch, ...); floating ones are converted to the vector's type.
            training: whether dropout, and whatever else asks for the mode, runs as in training.
            key: 64 bits, for dropout's masks in training: an int, or a scalar int64 tensor (one a lane).
            module: a replica of `module`, for use by another thread.

        Returns:
            shape (batch, outputs).
        """
        module = self.module if module is None else module
        tensors = self.unflatten(vector)
        if vector.dtype != torch.float32:
            tensors = _constants(module, tensors, vector.dtype) | tensors
        if training and self.dropout_names:
            if not isinstance(key, Tensor):
                key = torch.tensor(signed64(key), device=vector.device)
            tensors |= dict.fromkeys(self.dropout_names, key)
        if inputs.is_floating_point() and inputs.dtype != vector.dtype:
            inputs = inputs.to(vector.dtype)
        with _mode(module, training):
            outputs: Tensor = functional_call(module, tensors, (inputs,))
        return outputs

    def replica(self, device: torch.device | str | None = None) -> nn.Module:
        """A copy of `module` for another thread, on `device` if one is given."""
        module = copy.deepcopy(self.module)
        return module if device is None else module.to(device)

    def to(self, device: torch.device | str) -> Network:
        """The same network with `module`, and so the public constants, on `device`."""
        return replace(self, module=self.replica(device))

    def to_module(self, vector: Tensor) -> nn.Module:
        """A new module as the user defined it, with the weights `vector` of shape (n,), in evaluation mode.

        Raises:
            ValueError: the vector does not have shape (n,).
        """
        if vector.shape != (self.count,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}, expected ({self.count},)")
        module = copy.deepcopy(self.original)
        tensors = self.unflatten(vector.detach())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in tensors:
                    parameter.copy_(tensors[name])
        return module.eval()


def network_of(original: nn.Module, draw: Callable[[Seeded], nn.Module] | None = None) -> Network:
    """The network of a module; the module is copied and stays as it is.

    Args:
        original: the module as the user defined it.
        draw: makes such a module afresh from a seed; None if there is only this one.

    Raises:
        ModelError: a parameter is lazy, on the meta device, complex or not floating; or none is trainable.
    """
    _check_parameters(original)
    original = copy.deepcopy(original).to("cpu")
    module = copy.deepcopy(original)
    if any(parameter.dtype != torch.float32 for parameter in module.parameters()):
        module = module.to(torch.float32)
    _train(replace_dropout(module))
    layout, offset = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            layout.append(Slot(name, tuple(parameter.shape), offset, parameter.numel()))
            offset += parameter.numel()
    keys = tuple(f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, StreamDropout))
    return Network(module, original, draw, tuple(layout), keys)


def notes(network: Network) -> tuple[str, ...]:
    """One-line remarks on how a model is trained here, where that may not be what its author expects."""
    remarks = []
    types = {str(parameter.dtype).removeprefix("torch.") for parameter in network.original.parameters()}
    if types != {"float32"}:
        found = ", ".join(sorted(types - {"float32"}))
        remarks.append(f"the model has parameters of type {found}: training and messages use float32")
    for name, layer in network.module.named_modules():
        if _stands_still(layer) and _untouched(layer):
            remarks.append(
                f"{name} ({type(layer).__name__}) normalises with its stored statistics, which are the initial ones "
                "(mean 0, variance 1), so it only scales and shifts: use GroupNorm, or load statistics from a "
                "pretrained model"
            )
    return tuple(remarks)


def _check_parameters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            fault = "is lazy, without a shape yet: give the layer its input size, or run the model once"
        elif parameter.is_meta:
            fault = "is on the meta device, without values: build the model on the CPU"
        elif not parameter.is_floating_point():
            fault = f"has type {str(parameter.dtype).removeprefix('torch.')}: expected real floating-point numbers"
        else:
            continue
        raise ModelError(f"parameter {name} {fault}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError("the model has no trainable parameters: expected one with requires_grad=True")


def _stands_still(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) and layer.running_mean is not None


def _untouched(layer: nn.Module) -> bool:
    mean, variance = layer.running_mean, layer.running_var
    if not (isinstance(mean, Tensor) and isinstance(variance, Tensor)):
        return False
    return bool((mean == 0).all()) and bool((variance == 1).all())


def _train(module: nn.Module) -> None:
    """Training mode, but for BatchNorm with running statistics."""
    module.train()
    for layer in module.modules():
        if _stands_still(layer):
            layer.eval()


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    # training mode is the resting state: whoever runs the module directly finds it in the form it is trained in
    if training:
        yield
        return
    module.eval()
    try:
        yield
    finally:
        _train(module)


def _constants(module: nn.Module, trained: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {
        name: tensor.to(dtype) for name, tensor in named if tensor.is_floating_point() and name not in trained
    }
