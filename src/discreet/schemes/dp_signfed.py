"""DP-SignFed: votes of one bit a parameter under client-level differential privacy."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.adversaries.settings import Misdeed
from discreet.checked import plain
from discreet.cohort import Cohort
from discreet.privacy.modulus import bits_by_paper_rule
from discreet.privacy.releases import Released
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.private import bits_for, noisy, promise_of, released
from discreet.schemes.signfed import majority, votes
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.ring import Ring
from discreet.training import HYPERPARAMETERS, LocalTraining


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=HYPERPARAMETERS)
class DPSignFed(SharedModel, ServerStep, LocalTraining):
    """SignFed with client-level differential privacy: noisy votes modulo 2^b, of which only the sum is seen.

    A client sends ``sign(change) + noise``, noise an integer one of variance ``n (noise multiplier)^2 / shares``.
    One client moves the sum of votes by at most sqrt(n) in L2. From arXiv 2010.07808, section on DP-SignFed.

    Attributes:
        server_learning_rate: how far the majority moves each parameter (gamma in the paper).
        modulus: ``sum``: what the noisy sum needs; ``paper``: what the paper takes, as if every share could be as
            large as the whole noise.
    """

    summary: ClassVar[str] = "noisy one-bit votes, summed modulo 2^b: differentially private"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost", "noise"})
    private: ClassVar[bool] = True
    modular: ClassVar[bool] = True

    server_learning_rate: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    modulus: Literal["sum", "paper"] = "sum"

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: the noisy votes."""
        promise, n = promise_of(task), task.parameters
        bits = bits_for(task, 1, math.sqrt(n))
        if self.modulus == "paper":  # whose rule is the larger one, but for one or two clients
            bits = max(bits, bits_by_paper_rule(n, promise.largest_cohort, promise.noise_multiplier))
        return (Phase("votes", Ring(bits), n),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Votes and noise."""
        trained = task.train(self, payload.vector, cohort)
        signs = votes(trained.changes, cohort, task.randomness).to(torch.int64)
        return noisy(task, signs, math.sqrt(task.parameters), trained, cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Step by the majority."""
        winner = majority(totals[0].values, task.randomness, round)
        return GlobalModel(moved(state.vector, winner, self.step_size(round)))

    def release(self, task: Task) -> Released:
        """One noisy sum of signs."""
        return released(task, math.sqrt(task.parameters), task.parameters)
