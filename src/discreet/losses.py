"""Losses: each gives one value an example, so that padding can be weighted out."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from discreet.errors import ModelError
from discreet.names import did_you_mean
from discreet.probe import users_code

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (..., outputs), targets (...) or (..., outputs)) -> one loss an example, shape (...)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of each example, in nats."""
    chosen = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return outputs.logsumexp(-1) - chosen


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each example, averaged over the outputs; targets are values."""
    return (outputs - targets).square().mean(-1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance of each example's outputs from its targets, ``1/2 ||y - t||^2``.

    Args:
        outputs: y, shape (..., outputs).
        targets: t, values of shape (..., outputs); or class numbers of shape (...), which stand for one-hot vectors.

    Returns:
        shape (...). Its gradient by the outputs is ``y - t``.
    """
    return residuals(outputs, targets).square().sum(-1) / 2


def quadratic_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of each example to second order in the outputs, around 0.

    ``log n + mean(y) - y_t + (mean(y^2) - mean(y)^2) / 2``, with n outputs. Near 0 it is the cross-entropy, in nats;
    far from it, it is a squared distance from one-hot targets, up to the outputs' common level. It may be negative.

    Args:
        outputs: y, shape (..., outputs).
        targets: t, class numbers of shape (...).
    """
    chosen = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    mean = outputs.mean(-1)
    spread = outputs.square().mean(-1) - mean.square()
    return math.log(outputs.shape[-1]) + mean - chosen + spread / 2


def residuals(outputs: Tensor, targets: Tensor) -> Tensor:
    """``outputs - targets``, shape (..., outputs), with class numbers as one-hot vectors; see `squared_error`."""
    if targets.is_floating_point():
        return outputs - targets
    place = targets.unsqueeze(-1)
    return outputs.scatter_add(-1, place, torch.full_like(place, -1, dtype=outputs.dtype))


LOSSES: Mapping[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": mean_squared_error,
    "squared-error": squared_error,
    "quadratic-cross-entropy": quadratic_cross_entropy,
}
"""The losses by the names that `model.loss` takes, beside ``auto``."""

FOR_CLASSES = ("cross-entropy", "squared-error", "quadratic-cross-entropy")
FOR_VALUES = ("mse", "squared-error")


def find(spec: str | Loss, *, classes: bool) -> Loss:
    """The loss called `spec`.

    Args:
        spec: ``auto`` (cross-entropy for classes, the mean squared error for values), a name in `LOSSES`,
            ``package.module:function``, or the function itself.
        classes: whether the targets are class numbers (else values to regress on).

    Raises:
        ModelError: there is no such loss, or it does not fit the targets.
    """
    if callable(spec):
        return spec
    if spec == "auto":
        return cross_entropy if classes else mean_squared_error
    if spec in LOSSES:
        fitting = FOR_CLASSES if classes else FOR_VALUES
        if spec not in fitting:
            kind = "class numbers" if classes else "values"
            raise ModelError(
                f"model.loss = {spec!r} does not fit targets that are {kind}: use auto, {', '.join(fitting)}"
            )
        return LOSSES[spec]
    if ":" not in spec:
        known = f"auto, {', '.join(LOSSES)}, or package.module:function"
        raise ModelError(f"model.loss = {spec!r}: expected {known}{did_you_mean(spec, LOSSES)}")
    module_name, _, name = spec.partition(":")
    with users_code(f"model.loss = {spec!r}: expected package.module:function"):
        found = getattr(importlib.import_module(module_name), name)
    if not callable(found):
        raise ModelError(f"model.loss = {spec!r}: {name} is not a function")
    return found  # type: ignore[no-any-return]


def called(loss: Loss) -> str:
    """A loss by the name that `find` takes, or nearly so where it was handed over as a function."""
    named = next((name for name, one in LOSSES.items() if one is loss), None)
    if named is not None:
        return named
    kind = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{kind.__module__}:{kind.__qualname__}"


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
