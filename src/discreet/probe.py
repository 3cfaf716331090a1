"""What trial runs of a model show: whether it can be trained here, and one line on why not.

Training assumes that a forward pass is a function of parameters, inputs and key: no generator of its own, no
buffer that moves, the same result twice. That cannot be read off a module; a few runs show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from discreet.errors import DiscreetError, ModelError
from discreet.network import Network


@contextmanager
def users_code(doing: str) -> Iterator[None]:
    """Turn any exception of the user's code into a `ModelError` of one line that begins with `doing`."""
    try:
        yield
    except DiscreetError:
        raise
    except Exception as error:  # the user's code may raise anything
        message = " ".join(str(error).split())
        raise ModelError(f"{doing}: {type(error).__name__}: {message}") from error


def check_runs(name: str, network: Network, inputs: Tensor, outputs: int, *, classes: bool) -> None:
    """Run a network on a few inputs, forward in both modes and backward, and check the rules that this can show.

    Args:
        name: of the model, for the errors.
        network: the network, at its first weights.
        inputs: as the model takes them, shape (batch, ...), batch at least 2.
        outputs: how many the model must have.
        classes: whether they are scores of classes.

    Raises:
        ModelError: a run fails, changes a buffer, uses a random generator, is not the same twice, gives another
            shape than (batch, outputs), is not finite, or has no gradient.
    """
    module = network.replica()
    inputs = inputs.to(torch.float32) if inputs.is_floating_point() else inputs
    with torch.random.fork_rng(devices=[]):
        first = _check_output(name, _watched_run(name, module, inputs), len(inputs), outputs, classes)
        with users_code(f"model {name} fails on its second batch"):
            second = module(inputs.clone())
        if not torch.allclose(first, second):
            raise ModelError(
                f"model {name} gives different outputs for the same inputs, in training mode: expected a function "
                "of the inputs, without a memory or random numbers of its own"
            )
        vector = network.flatten(dict(module.named_parameters())).detach()
        with users_code(f"model {name} fails in evaluation mode"):
            _check_output(
                name, network.apply(vector, inputs.clone(), module=module), len(inputs), outputs, classes
            )
        if not first.requires_grad:
            raise ModelError(f"model {name}: its output does not depend on its trainable parameters")
        with users_code(f"model {name}: its gradient cannot be computed"):
            torch.func.grad(lambda at: network.apply(at, inputs.clone(), training=True, module=module).sum())(
                vector
            )


def _watched_run(name: str, module: nn.Module, inputs: Tensor) -> object:
    """A forward pass in training mode that must touch neither buffers nor torch's generator."""
    buffers = {at: buffer.clone() for at, buffer in module.named_buffers()}
    watch = _GeneratorWatch(module)
    with users_code(f"model {name} fails on inputs of shape {tuple(inputs.shape)}"):
        result = module(inputs.clone())
    watch.stop()
    if watch.users:
        raise ModelError(
            f"model {name}: {watch.users[0]} draws random numbers from torch's generator, which would depend on "
            "what else runs: use nn.Dropout, Dropout1d, Dropout2d or Dropout3d layers, or set its dropout to 0"
        )
    for at, buffer in module.named_buffers():
        if at not in buffers or not _same(buffers[at], buffer):
            raise ModelError(
                f"model {name}: a forward pass in training mode changes the buffer {at}: expected buffers that "
                "stay, since they are not trained and never sent"
            )
    return result


class _GeneratorWatch:
    """Notes, during a forward pass, which layers draw from torch's generator: the innermost first."""

    def __init__(self, module: nn.Module) -> None:
        self.users: list[str] = []
        self._states: list[Tensor] = []
        self._hooks = []
        for path, layer in module.named_modules():
            label = (
                f"layer {path} ({type(layer).__name__})" if path else f"the forward of {type(layer).__name__}"
            )
            self._hooks.append(layer.register_forward_pre_hook(self._enter))
            self._hooks.append(layer.register_forward_hook(partial(self._leave, label)))

    def _enter(self, layer: nn.Module, inputs: object) -> None:
        self._states.append(torch.get_rng_state())

    def _leave(self, label: str, layer: nn.Module, inputs: object, outputs: object) -> None:
        if not torch.equal(self._states.pop(), torch.get_rng_state()):
            self.users.append(label)

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _check_output(name: str, found: object, batch: int, outputs: int, classes: bool) -> Tensor:
    meaning = f"one score for each of {outputs} classes" if classes else f"{outputs} values for each example"
    expected = f"expected a tensor of shape ({batch}, {outputs}), {meaning}"
    if not isinstance(found, Tensor):
        raise ModelError(f"model {name}: its output is a {type(found).__name__}: {expected}")
    if tuple(found.shape) != (batch, outputs):
        raise ModelError(
            f"model {name}: its output has shape {tuple(found.shape)} for {batch} examples: {expected}"
        )
    if not found.is_floating_point():
        kind = str(found.dtype).removeprefix("torch.")
        raise ModelError(f"model {name}: its output has type {kind}: expected real floating-point numbers")
    if not bool(torch.isfinite(found).all()):
        raise ModelError(f"model {name}: its output on the first {batch} examples is NaN or infinite")
    return found


def _same(old: Tensor, new: Tensor) -> bool:
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    return bool(((old == new) | ((old != old) & (new != new))).all())
