"""DP-SignFed: votes of one bit a parameter under client-level differential privacy."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort
from discreet.optimizers import LocalTraining
from discreet.privacy.modulus import bits_by_paper_rule
from discreet.privacy.releases import Released
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.private import bits_for, noisy, promise_of, released
from discreet.schemes.robust import trimmed_mean
from discreet.schemes.signfed import majority, votes
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.ring import Ring


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class DPSignFed(SharedModel, ServerStep, LocalTraining):
    """SignFed with client-level differential privacy: noisy votes modulo 2^b, of which only the sum is seen.

    A client sends ``sign(change) + noise``, noise an integer one of variance ``n (noise multiplier)^2 / shares``.
    One client moves the sum of votes by at most sqrt(n) in L2. From arXiv 2010.07808, section on DP-SignFed.

    Masks hide what a client sends, so a single one that sends more than a vote can decide every coordinate. With
    `groups` g above 1, a round's clients are dealt into g groups, each with a masked sum of its own, and the model
    follows the sign of the median of those sums, of each coordinate.

    **Guarantees:** while fewer than half of the sums that are released have a malicious client in them, every
    coordinate's median lies between two honest groups' sums, whatever those clients send. That says much only where
    votes outweigh noise: a client that boosts weighs as much as 1.3 to 1.7 standard deviations of one sum's noise in
    votes, where without groups it weighs as much as half of the modulus, 12 of them. A client is in one group and each
    sum has all of the noise, so that epsilon is what one sum costs. The price is that noise: against the votes it weighs
    as much as up to sqrt(pi g / 2) times as much would in one sum (2.0, 2.7, 3.2 times for 3, 5, 7 groups).

    Attributes:
        server_learning_rate: how far the majority moves each parameter (gamma in the paper).
        modulus: ``sum``: what the noisy sum needs; ``paper``: what the paper takes, as if every share could be as
            large as the whole noise.
        groups: g, at least 1, and odd for choice: 4 withstand no more than 3.
    """

    summary: ClassVar[str] = "noisy one-bit votes, summed modulo 2^b: differentially private"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost", "noise"})
    private: ClassVar[bool] = True
    modular: ClassVar[bool] = True

    server_learning_rate: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    modulus: Literal["sum", "paper"] = "sum"
    groups: int = Field(default=1, ge=1)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum, or one for each group: the noisy votes."""
        promise, n = promise_of(task), task.parameters
        bits = bits_for(task, 1, math.sqrt(n))
        if self.modulus == "paper":  # whose rule is the larger one, but for one or two clients
            bits = max(bits, bits_by_paper_rule(n, promise.largest_cohort, promise.noise_multiplier))
        return (Phase("votes", Ring(bits), n, groups=self.groups),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Votes and noise."""
        trained = task.train(self, payload.vector, cohort)
        signs = votes(trained.changes, cohort, task.randomness).to(torch.int64)
        return noisy(task, signs, math.sqrt(task.parameters), trained, cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Step by the majority, or by the groups' median."""
        counts = totals[0].values
        if self.groups > 1:
            counts = trimmed_mean(counts, (len(counts) - 1) // 2)
        winner = majority(counts, task.randomness, round)
        return GlobalModel(moved(state.vector, winner, self.step_size(round)))

    def release(self, task: Task) -> Released:
        """One noisy sum of signs: the one that a client is in."""
        return released(task, math.sqrt(task.parameters), task.parameters)
