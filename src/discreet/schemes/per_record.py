"""Gradient steps in which no record counts for more than a clip norm, and noise hides each: by Opacus.

Opacus is an extra, and is imported when it is first needed. From it come the gradient of every single record, the
clipping and the noise. Lots and seeds are our own, so that runs repeat bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from discreet.cohort import Examples
from discreet.dropout import signed64
from discreet.errors import MissingExtra, ModelError
from discreet.gradients import one_by_one
from discreet.network import Network
from discreet.probe import users_code
from discreet.training import Learner

NUMBERS_AT_ONCE = 1 << 22
"""Of the gradients of single records, so many numbers are held at a time, and some copies: 16 MiB in float32."""


class Opacus(NamedTuple):
    """What is used of Opacus."""

    wrapped: Any
    optimizer: Any
    rules: Mapping[type[nn.Module], Any]
    refusals: Mapping[type[nn.Module], Callable[[nn.Module], list[Any]]]


def find_opacus(scheme: str) -> Opacus:
    """Opacus, for a scheme of this name.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator
    except ImportError:
        raise MissingExtra("scheme.name", scheme, "opacus") from None
    return Opacus(GradSampleModule, DPOptimizer, GradSampleModule.GRAD_SAMPLERS, ModuleValidator.VALIDATORS)


def check_layers(network: Network, opacus: Opacus) -> None:
    """Refuse layers of which it is known that they give no gradients of single records.

    Raises:
        ModelError: there is one; it is named.
    """
    for name, layer in network.module.named_modules():
        trained = _has_parameters(layer)
        if isinstance(layer, _BatchNorm) and (trained or layer.running_mean is None):
            remedy = "use GroupNorm or LayerNorm, which treat every record by itself"
        elif trained and type(layer) in opacus.refusals and opacus.refusals[type(layer)](layer):
            remedy = "opacus.layers has DPLSTM, DPGRU and DPMultiheadAttention, which can take such a layer's place"
        elif trained and any(True for _ in layer.buffers()):
            remedy = "expected no buffers in a layer that has parameters of its own"
        else:
            continue
        raise ModelError(
            f"{_label(name, layer)}: Opacus gives no gradients of single records for it: {remedy}"
        )


class Step(NamedTuple):
    """What a step met.

    Attributes:
        usable: records whose gradients were finite.
        loss: the sum of their losses.
    """

    usable: int
    loss: float


class NoisySteps:
    """SGD on clipped gradients of single records, with noise: a model on its way.

    A step draws no records itself: it is told which. It moves the model along

        (sum of the lot's gradients, each scaled down to the clip norm in L2, + noise) / expected size of a lot

    where the noise is Gaussian of standard deviation ``noise_multiplier * clip_norm`` a coordinate.

    **Guarantees:** a record moves the sum by at most `clip_norm` in L2, up to the rounding of float32. One whose
    gradient is NaN or infinite, or of a norm above 1e19, adds nothing. An empty lot is a step with noise alone.

    Args:
        learner: model and loss.
        opacus: from `find_opacus`.
        start: the model's parameters and, where there is momentum, what it has gathered so far; shape (1, n) or (2, n).
        learning_rate, momentum, clip_norm, noise_multiplier: see `DPSGD`.
        expected: size of a lot on average.
        generator: of the noise, on the learner's device.
    """

    def __init__(
        self,
        learner: Learner,
        opacus: Opacus,
        start: Tensor,
        *,
        learning_rate: float,
        momentum: float,
        clip_norm: float,
        noise_multiplier: float,
        expected: int,
        generator: torch.Generator,
    ) -> None:
        self._learner, self._rules, self._rows = learner, opacus.rules, len(start)
        module = learner.network.replica()
        for layer in module.modules():
            if getattr(layer, "inplace", False) is True:
                vars(layer)["inplace"] = False  # which Opacus's hooks do not allow, and changes no result
        by_name = dict(module.named_parameters())
        # Opacus hangs gradients of single records on the parameters
        self._own: list[Any] = [by_name[slot.name] for slot in learner.network.layout]
        self._keys = [module.get_buffer(name) for name in learner.network.dropout_names]
        self._module = opacus.wrapped(module, loss_reduction="sum")
        sgd = torch.optim.SGD(self._own, lr=learning_rate, momentum=momentum)
        for row, place in zip(start.clone(), ("model", "momentum_buffer"), strict=False):
            for parameter, part in zip(self._own, learner.network.unflatten(row).values(), strict=True):
                if place == "model":
                    parameter.data = part
                else:
                    sgd.state[parameter][place] = part
        self._sgd = sgd
        self._optimizer = opacus.optimizer(
            sgd,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            expected_batch_size=expected,
            generator=generator,
        )

    @property
    def piece(self) -> int:
        """Records of which gradients are held at once; it follows from the model alone."""
        return max(1, NUMBERS_AT_ONCE // self._learner.network.count)

    def step(self, lot: Examples, key: Callable[[int], int]) -> Step:
        """Take one step.

        Args:
            lot: its records, any number, on the learner's device.
            key: of the dropout in the lot's piece of this number.
        """
        usable, loss = 0, 0.0
        bounds = range(0, len(lot), self.piece) if len(lot) else range(1)
        for number, start in enumerate(bounds):
            places = torch.arange(start, min(start + self.piece, len(lot)), device=self._learner.device)
            losses = self._differentiate(lot, places, key(number))
            finite = self._leave_out()
            usable += int(finite.sum())
            loss += float(losses[finite].sum(dtype=torch.float64))
            self._optimizer.signal_skip_step(do_skip=number + 1 < len(bounds))
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return Step(usable, loss)

    def state(self) -> Tensor:
        """The parameters and, where there is momentum, what it has gathered; shaped as `start`."""
        rows = [list(self._own), [self._sgd.state[one].get("momentum_buffer") for one in self._own]]
        return torch.stack(
            [torch.cat([part.detach().flatten() for part in row]) for row in rows[: self._rows]]
        )

    def check(self, records: Examples) -> None:
        """Compare the gradient of one record, taken among others, with that of the record alone.

        Args:
            records: at least one; gradients that are not finite are not compared.

        Raises:
            ModelError: the model cannot go through Opacus, or what it does to a record depends on the other records.
        """
        network, loss = self._learner.network, self._learner.loss
        others = [
            _label(name, layer)
            for name, layer in network.module.named_modules()
            if _has_parameters(layer) and type(layer) not in self._rules
        ]
        hint = f", which has no rule of its own for {', '.join(others)}" if others else ""
        with users_code(f"the gradients of single records cannot be had from Opacus{hint}"):
            self._differentiate(records, torch.arange(len(records), device=self._learner.device), 0)
        among = [one.grad_sample[0] for one in self._own]
        self._optimizer.zero_grad(set_to_none=True)
        inputs, targets = records.gather(torch.zeros(1, 1, dtype=torch.int64, device=self._learner.device))
        stack = [one.detach().unsqueeze(0) for one in self._own]
        weights, keys = stack[0].new_ones(1, 1), torch.zeros(1, dtype=torch.int64)
        alone, _ = one_by_one(network, loss)(stack, _as_parameters(inputs, stack[0]), targets, weights, keys)
        for slot, one, other in zip(network.layout, among, alone, strict=True):
            distance, size = float((one - other[0]).norm()), float(other.norm())
            # float32 differs by 1e-6; two records that touch each other differ by much more
            if distance > 1e-3 * size + 1e-6 and size < float("inf"):
                raise ModelError(
                    f"parameter {slot.name}: the gradient that Opacus gives of a record is not that of the record "
                    "alone: expected a model and a loss in which no record of a batch has a part in another's"
                )

    def _differentiate(self, lot: Examples, places: Tensor, key: int) -> Tensor:
        """Put the gradient of each record at `places` into its parameters' `grad_sample`; return their losses."""
        if len(places):
            inputs, targets = lot.gather(places)
            for buffer in self._keys:
                buffer.fill_(signed64(key))
            with torch.enable_grad(), _quiet():
                found = self._learner.loss(self._module(_as_parameters(inputs, self._own[0])), targets)
                torch.autograd.backward(found.sum())
            losses = found.detach()
        else:
            losses = torch.zeros(0, device=self._learner.device)
        for parameter in self._own:
            if parameter.grad_sample is None:  # the lot is empty, or the model makes no use of the parameter
                parameter.grad_sample = parameter.new_zeros(len(places), *parameter.shape)
        return losses

    def _leave_out(self) -> Tensor:
        """Make gradients that are not finite zero, which Opacus would make the model's; say whose were finite."""
        samples: list[Tensor] = [one.grad_sample.view(-1, one.numel()) for one in self._own]
        norms = torch.stack([torch.linalg.vector_norm(one, dim=1) for one in samples])
        finite: Tensor = torch.linalg.vector_norm(norms, dim=0).isfinite()
        if not bool(finite.all()):
            for one in samples:
                one[~finite] = 0
        return finite


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the one warning that Opacus's hooks cause in torch: that a first layer's input needs no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        yield


def _as_parameters(inputs: Tensor, parameter: Tensor) -> Tensor:
    return inputs.to(parameter.dtype) if inputs.is_floating_point() else inputs


def _has_parameters(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _label(name: str, layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"layer {name} ({kind})" if name else f"the model itself ({kind})"
