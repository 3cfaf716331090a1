"""DP-FedAvg (DP-StdFed): clipped updates in fixed point under client-level differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort, Examples
from discreet.errors import ConfigError
from discreet.evaluation import Evaluation, Map
from discreet.optimizers import LocalTraining
from discreet.privacy.releases import Released
from discreet.schemes import clipping
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.private import bits_for, noisy, promise_of, released
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.ring import Ring

QUANTILE, RATE = 0.5, 0.2
"""Of adaptive clipping, if nothing else is asked for: the values of the paper's experiments."""


@plain_dataclass(frozen=True, eq=False)
class ClippedModel(GlobalModel):
    """The state, and the payload, of `DPFedAvg`: what everybody is told.

    Attributes:
        vector: shape (n,), the model's parameters.
        clip_norm: shape (), float64: what updates are clipped to this round; 0 for not known yet.
    """

    clip_norm: Tensor


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class DPFedAvg(SharedModel, ServerStep, LocalTraining):
    """FedAvg with client-level differential privacy (DP-StdFed): clipped updates in fixed point, with noise.

    Every update is clipped as a whole to the clip norm S in L2, rounded to a grid on which its norm is still at most
    that, and given a share of integer noise. The server divides the sum by the *expected* number of participants.
    Unweighted: a client cannot buy influence with its number of examples. From McMahan et al. 2018 (arXiv 1710.06963)
    and arXiv 2010.07808.

    Where S comes from, and what that costs, is `clip`:

    * ``fixed``: it is `clip_norm` in every round. Costs nothing: to be taken where a good S is known, from public data
      or from elsewhere.
    * ``median``: the first round finds the median norm of its clients' updates and leaves the model as it is; S is
      that from then on. Costs one round: one release like any other, counted like any other. It wants a cohort of well
      over 10 times the noise multiplier. A first round whose sum is not released, or to which nobody came, is played
      again, and paid for again if it was released.
    * ``adaptive``: with its update every client says whether its norm was within S, and after each round S moves
      towards the quantile `clip_quantile` of the norms. Costs no epsilon: update and answer are one vector, released
      once, whose largest norm is larger by a factor of 1 / sqrt(1 - COUNT_SHARE); 5 % more noise on the update is the
      price. To be taken where updates shrink as the training goes on. From Andrew et al. 2021, arXiv 1905.03871.

    **Guarantees:** without its noise a contribution has an L2 norm of at most `norm_in_steps`, whatever a client's
    update is; that is what `release` states.

    Attributes:
        clip: how the clip norm is chosen.
        clip_norm: S; where it starts, if it is adaptive; a guess to look around, from 2^-12 to 2^12 times as much, if
            it is the median.
        clip_quantile: of adaptive clipping: the share of updates to be left unclipped, in (0, 1).
        clip_learning_rate: of adaptive clipping: of the logarithm of S, above 0.
    """

    summary: ClassVar[str] = "clipped, noisy updates in fixed point: differentially private (DP-StdFed)"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost", "noise", "clip"})
    private: ClassVar[bool] = True
    modular: ClassVar[bool] = True

    clip: Literal["fixed", "median", "adaptive"] = "fixed"
    clip_norm: float = Field(default=1.0, ge=clipping.SMALLEST, le=clipping.LARGEST, allow_inf_nan=False)
    clip_quantile: float = Field(default=QUANTILE, gt=0, lt=1)
    clip_learning_rate: float = Field(default=RATE, gt=0, allow_inf_nan=False)

    STEPS_A_ROOT: ClassVar[int] = 64
    """The clip norm is this many times sqrt(n) steps of the grid: rounding costs under 1 % of it."""

    COUNT_SHARE: ClassVar[float] = 0.1
    """Of adaptive clipping: the share of a contribution's squared norm that goes to the count of updates within S.

    The update has 1 / sqrt(1 - 0.1), about 5 %, more noise than alone, and the count a standard deviation of
    noise multiplier / (2 sqrt(0.1)), about 1.6 clients for each unit of the noise multiplier.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip == "adaptive":
            return
        for name, usual in (("clip_quantile", QUANTILE), ("clip_learning_rate", RATE)):
            if (value := getattr(self, name)) != usual:
                raise ConfigError(f"scheme.{name}", value, "to be left out, unless scheme.clip is adaptive")

    def init(self, task: Task) -> ClippedModel:
        """The initial model, and the first clip norm."""
        return ClippedModel(task.initial(), _scalar(0.0 if self.clip == "median" else self.clip_norm))

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: the noisy updates; with adaptive clipping, one element more."""
        bits = bits_for(task, self.update_norm(task), self.norm_in_steps(task))
        return (Phase("update", Ring(bits), self.length(task)),)

    def length(self, task: Task) -> int:
        """Elements of a contribution."""
        return task.parameters + (self.clip == "adaptive")

    def update_norm(self, task: Task) -> float:
        """The largest L2 norm of an update, in steps of the grid: what the clip norm is there."""
        return self.STEPS_A_ROOT * math.sqrt(task.parameters)

    def answer(self, task: Task) -> int:
        """With adaptive clipping, what a client adds if its update is within S, and takes off if not; else 0."""
        if self.clip != "adaptive":
            return 0
        return int(self.update_norm(task) * math.sqrt(self.COUNT_SHARE / (1 - self.COUNT_SHARE)))

    def norm_in_steps(self, task: Task) -> float:
        """The largest L2 norm of a contribution, in steps of the grid."""
        return math.hypot(self.update_norm(task), self.answer(task))

    def contribute(
        self, task: Task, phase: Phase, payload: ClippedModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Clipped updates, or in which range their norms lie, and noise."""
        trained = task.train(self, payload.vector, cohort)
        usable = trained.accepted.cpu()[:, None]
        changes = torch.where(usable, trained.changes.cpu().double(), 0.0)
        norm, clip_norm = self.update_norm(task), float(payload.clip_norm)
        if not clip_norm:
            integers = clipping.histogram(changes, self.clip_norm, int(norm))
        else:
            integers = clipping.clipped(changes, clip_norm, norm)
            if task.adversary is not None:
                integers = task.adversary.unclipped(integers, changes * (norm / clip_norm), cohort)
            if self.clip == "adaptive":
                answers = clipping.within(changes, clip_norm, self.answer(task))
                integers = torch.cat([integers, answers], dim=1)
        return noisy(task, integers, self.norm_in_steps(task), trained, cohort)

    def update(self, task: Task, state: ClippedModel, totals: tuple[Total, ...], round: int) -> ClippedModel:
        """Move along the sum over the expected number of participants, or learn the clip norm, or both."""
        values, expected = totals[0].values.double(), promise_of(task).expected_cohort
        norm, clip_norm = self.update_norm(task), float(state.clip_norm)
        if not clip_norm:
            found = clipping.median_norm(values[: clipping.BINS], self.clip_norm)
            return ClippedModel(state.vector, _scalar(found))
        mean = values[: task.parameters] * (clip_norm / norm / expected)
        vector = moved(state.vector, mean, self.step_size(round))
        if self.clip == "adaptive":
            share = float(values[-1]) / (2 * self.answer(task) * expected) + 0.5
            clip_norm = clipping.adapted(clip_norm, share, self.clip_quantile, self.clip_learning_rate)
        return ClippedModel(vector, _scalar(clip_norm))

    def evaluate(
        self, task: Task, state: GlobalModel, kept: dict[int, Tensor], examples: Examples, parallel: Map
    ) -> Evaluation:
        """How good the global model is; with what the clip norm has come to."""
        found = super().evaluate(task, state, kept, examples, parallel)
        if isinstance(state, ClippedModel):
            found = replace(found, extras={"clip_norm": float(state.clip_norm)})
        return found

    def release(self, task: Task) -> Released:
        """One noisy sum: of updates, of their norms' ranges, or of updates with the answers.

        Raises:
            ConfigError: the median is to be found with a model of fewer parameters than there are ranges.
        """
        if self.clip == "median" and task.parameters < clipping.BINS:
            raise ConfigError(
                "scheme.clip",
                self.clip,
                f"fixed or adaptive: a model of {task.parameters} parameters has fewer than the {clipping.BINS} "
                "that the median's histogram takes",
            )
        return released(task, self.norm_in_steps(task), self.length(task))


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
