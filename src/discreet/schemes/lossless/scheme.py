"""Lossless perturbation as a scheme: what a round does, and what the server keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as frozen
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.checked import STRICT, plain
from discreet.cohort import Cohort, Grid
from discreet.errors import ConfigError, Diverged, LocalProtocolError
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.confined.steps import CommonStep, Displacement
from discreet.schemes.fedavg import weighted
from discreet.schemes.lossless import balance
from discreet.schemes.lossless.layout import BITS, Integers
from discreet.schemes.lossless.noise import NoiseKind, Perturbed, draw, perturb, strength
from discreet.schemes.lossless.preparing import Prepared, prepared
from discreet.schemes.lossless.probing import ProbeKind, limits, probe, true_hidden
from discreet.schemes.lossless.recovery import Removal, recover, rounded
from discreet.schemes.lossless.work import as_integers, contributed
from discreet.secure.groups import Group, Reals
from discreet.secure.ring import Ring

DOUBTFUL = {"float64": 1e-6, "float32": 1e-4}
"""Relative errors of a recovered gradient above which there is a remark, by the precision it was asked for in."""

USELESS = 1e-2
"""Relative error of a recovered gradient above which the run stops."""

LARGEST_RHO = 1e9
"""Beyond, no digit could be left: float64 has none at 1e8."""

LARGEST_HEADROOM = 2.0**32
"""Beyond, half of the 63 bits of an integer would be kept free, and it would be no finer than float32."""


@frozen(frozen=True, eq=False)
class PerturbedTraining(GlobalModel):
    """What the server keeps: the true model, which nobody else sees as it is.

    Attributes:
        vector: its parameters, float64, shape (n,).
        mean, square: moving averages of gradients and of their squares, for the optimizers that take them; else empty.
        kappa: of the last recovery, shape (); 0 before the first.
    """

    mean: Tensor
    square: Tensor
    kappa: Tensor


@frozen(frozen=True, eq=False)
class Round:
    """The server's side of one round."""

    payload: Perturbed
    removal: Removal


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lossless(CommonStep, SharedModel):
    """Model perturbation with exact recovery (obfuscation): FedSGD on a model that is disguised anew each round.

    The server multiplies every weight by ``r_i / r_j``, a scale for each neuron or channel, and adds noise to the last
    layer; participants send the gradient of that model and m + 1 noise terms, in which the server's secret enters by
    m numbers only. From their sums it recovers the exact gradient of the true model, up to floating-point rounding:
    about ``epsilon * rho^2``. From Yang et al., arXiv 2002.09843.

    Guarantees: none against a curious participant. Weights are rescaled, and predictions as they come are off by rho
    times their size; with few groups the largest is often that of the right class all the same. Who takes the trouble
    can regress its way back to the true predictions, to within a few percent and often far less, whatever `rho` and
    `m` are, and hidden layers compute the same functions. The server sees the sums of more terms than in plain
    training. For guarantees take a differentially private scheme, and secure sums.

    Whether rounding was felt is measured in every round (``kappa``): above a relative error of 1e-6 (float32: 1e-4) the
    result says so, above 1e-2 the run stops. Participants, and so ``train_loss``, only see the loss of the perturbed model.

    With ``rho = 0`` weights are rescaled and nothing is added: any loss will do, a round costs what FedSGD's does, and
    predictions are in clear.

    Attributes:
        batch_size: examples each client draws for its gradient; 0 for all that it has.
        m: groups of outputs with a secret of their own, from 1 to the number of outputs; each costs one more backward
            pass and hidden gradient.
        noise: of the scales: ``uniform`` in the logarithm, or ``powers-of-two``, by which products are exact.
        rho: root mean square of the noise on the outputs, in outputs, up to 1e9; 0 for none. Errors grow with its square.
        probe: inputs of the batch that rho is measured on: ``uniform`` in [0, 1), as pixels are; ``normal``, of mean 0
            and variance 1, as in a standardised table; ``test``: the first of the test set, which have to be public.
        precision: of the perturbed model, of gradients and of sums in the clear. ``float32`` for rho up to 1 only.
        weight_decay: L2 penalty, at least 0, which the server adds to the gradient.
        headroom: with secure sums, how many times larger than on a probe batch a number may be before it is cut, from 1
            to 2^32. Each doubling takes one of the 63 bits that numbers are written in.
    """

    summary: ClassVar[str] = "gradients of a perturbed model, from which the server recovers the exact one"
    modular: ClassVar[bool] = True
    counts_examples: ClassVar[bool] = True

    batch_size: int = Field(default=0, ge=0)
    m: int = Field(default=1, ge=1)
    noise: NoiseKind = "uniform"
    rho: float = Field(default=3.0, ge=0, allow_inf_nan=False)
    probe: ProbeKind = "uniform"
    precision: Literal["float64", "float32"] = "float64"
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    headroom: float = Field(default=1024.0, ge=1, le=LARGEST_HEADROOM, allow_inf_nan=False)

    def __post_init__(self) -> None:
        CommonStep.__post_init__(self)
        if self.rho > LARGEST_RHO:
            raise ConfigError(
                "scheme.rho",
                self.rho,
                f"at most {LARGEST_RHO:g}: errors grow as its square, in float64 from 1e-16 on",
            )
        if self.precision == "float32" and self.rho > 1:
            raise ConfigError(
                "scheme.rho", self.rho, "at most 1 with precision = 'float32': errors grow as its square"
            )

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of what is sent."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def _ready(self, task: Task) -> Prepared:
        """What follows from the task; see `prepared` for what is refused."""
        memory: dict[str, Any] = task.scratch.setdefault(repr(self), {})
        if "ready" not in memory:
            memory["ready"] = prepared(task.learner, self.m if self.rho else 0, self.dtype)
        found: Prepared = memory["ready"]
        return found

    # ---- the scheme

    def init(self, task: Task) -> PerturbedTraining:
        """The initial model.

        Raises:
            ConfigError: the probe batch is of the test set, and that is empty.
        """
        self._probe(task)
        vector = task.initial().to(torch.float64)
        start = self.start(len(vector), vector.device, dtype=torch.float64)
        return PerturbedTraining(vector, start.mean, start.square, start.total_norm)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: weighted gradients and noise terms, and the weights."""
        group: Group = Ring(BITS) if task.modular else Reals(self.dtype)
        return (Phase("gradient", group, self._ready(task).layout.length),)

    def payload_bytes(self, task: Task) -> int:
        """What one participant is sent a round: the perturbed model, and what is public of the noise."""
        layout = self._ready(task).layout
        outputs = layout.structure.outputs if layout.m else 0
        found = self.dtype.itemsize * (layout.structure.count + outputs) + 8 * outputs
        if task.modular:
            found += 8 * len(layout.segments) + balance.count(layout.structure)
        return found

    def broadcast(self, task: Task, state: GlobalModel, round: int) -> Perturbed:
        """The model under this round's noise, and what is public of that."""
        return self._round(task, state, round).payload

    def contribute(
        self, task: Task, phase: Phase, payload: Perturbed, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """``|D_k|`` times the perturbed gradient and the noise terms, and ``|D_k|``; losses are the perturbed model's."""
        ready = self._ready(task)
        found = contributed(ready, payload, cohort, task.randomness, self.batch_size)
        if not task.modular:
            return weighted(found, cohort)
        return as_integers(_integers(task, ready, payload), found, cohort, _grid(task).capacity)

    def update(
        self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int
    ) -> PerturbedTraining:
        """Recover the mean gradient of the true model, and step against it.

        Raises:
            Diverged: rounding has left too little of the gradient.
        """
        if not isinstance(state, PerturbedTraining):
            raise LocalProtocolError("the state of another scheme")
        ready, played, (total,) = self._ready(task), self._round(task, state, round), totals
        errors = None
        if task.modular:
            integers = _integers(task, ready, played.payload)
            total = replace(total, values=integers.decoded(total.values))
            errors = integers.rounding()
        if not float(total.values[-1]) > 0:
            return state  # those who had nothing to add have added zeros
        found = recover(played.removal, total.values.to(state.vector))
        lost = torch.finfo(self.dtype).eps * found.kappa
        if errors is not None:
            left = float(found.gradient.norm())
            off = rounded(played.removal, errors, float(total.values[-1]))
            lost = max(lost, 2 * off / left) if left else math.inf
        if lost > USELESS:
            raise Diverged(
                round,
                f"rounding leaves no more than {max(0.0, -math.log10(lost)):.0f} digits of the recovered gradient; lower "
                f"scheme.rho (now {self.rho:g}), scheme.learning_rate (now {self.learning_rate:g})"
                f"{f' or scheme.headroom (now {self.headroom:g})' if task.modular else ''}",
            )
        gradient = found.gradient + self.weight_decay * state.vector
        before = Displacement(
            state.vector, state.mean, state.square, state.kappa, state.vector.new_empty(0, len(gradient))
        )
        after = self.moved(before, gradient, round)
        kappa = torch.tensor(
            lost / torch.finfo(self.dtype).eps, dtype=torch.float64, device=state.vector.device
        )
        return PerturbedTraining(after.displacement, after.mean, after.square, kappa)

    def own_model(
        self, task: Task, payload: GlobalModel, participant: int, kept: Tensor | None
    ) -> Tensor | None:
        """None: participants are not to have the true model."""
        return None

    def figures(self, state: PerturbedTraining) -> Mapping[str, float]:
        """How much larger the terms of the last round were than the gradient that was recovered from them."""
        return {"kappa": float(state.kappa)}

    def summed_up(self, history: Sequence[Mapping[str, Any]]) -> Mapping[str, float | None]:
        """The worst round's kappa, and the decimal digits that recovery lost in it."""
        worst = max((line["kappa"] for line in history if "kappa" in line), default=None)
        return {"kappa": worst, "digits_lost": None if worst is None else max(0.0, math.log10(worst))}

    def remarks(self, history: Sequence[Mapping[str, Any]]) -> list[str]:
        """A remark if rounding may be felt."""
        epsilon, most = torch.finfo(self.dtype).eps, DOUBTFUL[self.precision]
        felt = [line["round"] for line in history if epsilon * line.get("kappa", 0.0) > most]
        if not felt:
            return []
        return [
            f"in {len(felt):,} rounds, the first {felt[0]}, the recovered gradient may be off by more than {most:g}: "
            "lower scheme.rho"
        ]

    # ---- a round's noise

    def _round(self, task: Task, state: GlobalModel, round: int) -> Round:
        """The round's noise and payload: a function of (randomness, round, state), remembered between its two uses."""
        memory: dict[str, Any] = task.scratch.setdefault(repr(self), {})
        drawn_for = (task.hidden, round)
        remembered = memory.get("round")
        if remembered is not None and remembered[0] == drawn_for and remembered[1] is state.vector:
            found: Round = remembered[2]
            return found
        made = self._made(task, state.vector, round)
        memory["round"] = (drawn_for, state.vector, made)
        return made

    def _probe(self, task: Task) -> Tensor:
        """The probe batch: float64, shape (B, *shape)."""
        if self.probe == "test":
            if task.public is None or not len(task.public):
                raise ConfigError("scheme.probe", "test", "uniform or normal: there are no test examples")
            return task.public.to(task.learner.device, torch.float64)
        learner = task.learner
        return probe(task.common, learner.shape, learner.device, normal=self.probe == "normal")

    def _made(self, task: Task, vector: Tensor, round: int) -> Round:
        ready = self._ready(task)
        structure, m = ready.structure, ready.layout.m
        noise = draw(structure, m, self.noise, task.hidden, round)
        # as they are sent: the server's sums must be of the same numbers
        noise = replace(noise, ratios=noise.ratios.to(self.dtype))
        size = 0.0
        if m:
            hidden = true_hidden(task.learner.network, structure, vector, self._probe(task))
            size = strength(noise, structure, vector, hidden, self.rho)
        secret = noise.of_strength(size)
        seen = perturb(structure, vector, secret, noise.ratios, noise.groups).to(self.dtype)
        ratios, groups = noise.ratios.to(vector.device), noise.groups.to(vector.device)
        nothing = torch.empty(0, dtype=torch.float64)
        payload = Perturbed(seen, ratios, groups, m, round, nothing, nothing.to(torch.int8))
        if task.modular:
            payload = replace(payload, powers=balance.exponents(structure, seen))
            payload = replace(
                payload, limits=limits(ready, payload, self._probe(task), task.common, self.headroom)
            )
        return Round(payload, Removal.of(ready.layout, secret, ratios, groups, ready.curvature))


def _integers(task: Task, ready: Prepared, payload: Perturbed) -> Integers:
    return Integers.of(ready.layout, payload.limits, payload.powers, _grid(task).participants)


def _grid(task: Task) -> Grid:
    if task.grid is None:
        raise LocalProtocolError("the scheme was not told how many take part")
    return task.grid
