"""Losses: each gives one value an example, so that padding can be weighted out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from discreet.errors import ModelError
from discreet.probe import users_code

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (..., outputs), targets (...) or (..., outputs)) -> one loss an example, shape (...)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of each example, in nats."""
    chosen = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return outputs.logsumexp(-1) - chosen


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each example, averaged over the outputs."""
    return (outputs - targets).square().mean(-1)


LOSSES: Mapping[str, Loss] = {"cross-entropy": cross_entropy, "mse": squared_error}


def find(spec: str | Loss, *, classes: bool) -> Loss:
    """The loss called `spec`.

    Args:
        spec: ``auto``, a name in `LOSSES`, ``package.module:function``, or the function itself.
        classes: whether the targets are class numbers (else values to regress on).

    Raises:
        ModelError: there is no such loss, or it does not fit the targets.
    """
    if callable(spec):
        return spec
    if spec == "auto":
        return cross_entropy if classes else squared_error
    if spec in LOSSES:
        if (spec == "cross-entropy") != classes:
            kind = "class numbers" if classes else "values"
            raise ModelError(f"model.loss = {spec!r} does not fit targets that are {kind}: use 'auto'")
        return LOSSES[spec]
    module_name, _, name = spec.partition(":")
    with users_code(f"model.loss = {spec!r}: expected package.module:function"):
        found = getattr(importlib.import_module(module_name), name)
    if not callable(found):
        raise ModelError(f"model.loss = {spec!r}: {name} is not a function")
    return found  # type: ignore[no-any-return]


def check(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Try a loss on a few examples.

    Raises:
        ModelError: it fails, or does not give one value an example.
    """
    with users_code(f"the loss fails on outputs of shape {tuple(outputs.shape)}"):
        values = loss(outputs, targets)
    if not isinstance(values, torch.Tensor) or values.shape != outputs.shape[:1]:
        shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise ModelError(
            f"the loss must give one value an example, shape ({len(outputs)},), but gave {shape} (reduction='none')"
        )
