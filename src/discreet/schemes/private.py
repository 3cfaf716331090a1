"""DP-SignFed and DP-StdFed: client-level differential privacy by noise that the clients add themselves.

Each client adds a share of discrete Gaussian noise to integers modulo 2^b; the sum has the promised noise, and with a
secure sum nobody sees anything but it. A client that has no examples, or whose update is NaN or infinite, still sends
its share, around the zero vector: whether it could train shows neither in the sum's noise nor in who takes part.

What is promised: (epsilon, delta)-differential privacy of everything that is released, for one client's whole data, in
a run whose participants add their shares and whose sum is secure. In a simulation the noise is seeded: it measures
accuracy, and protects nobody.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.checked import plain
from discreet.cohort import Cohort
from discreet.errors import LocalProtocolError
from discreet.privacy.modulus import bits_by_paper_rule, bits_for_sum
from discreet.privacy.promise import Promise
from discreet.privacy.releases import DiscreteGaussianSum, Released
from discreet.privacy.words import SeededWords
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.signfed import majority, votes
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.ring import Ring
from discreet.training import HYPERPARAMETERS, LocalTraining, Trained, train


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=HYPERPARAMETERS)
class DPSignFed(SharedModel, ServerStep, LocalTraining):
    """SignFed with client-level differential privacy: noisy votes modulo 2^b, of which only the sum is seen.

    A client sends ``sign(change) + noise``, noise a discrete Gaussian of variance ``n (noise multiplier)^2 / shares``.
    One client moves the sum of votes by at most sqrt(n) in L2. From arXiv 2010.07808, section on DP-SignFed.

    Attributes:
        server_learning_rate: how far the majority moves each parameter (gamma in the paper).
        modulus: ``sum``: what the noisy sum needs; ``paper``: what the paper takes, as if every share could be as
            large as the whole noise.
    """

    summary: ClassVar[str] = "noisy one-bit votes, summed modulo 2^b: differentially private"
    private: ClassVar[bool] = True

    server_learning_rate: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    modulus: Literal["sum", "paper"] = "sum"

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: the noisy votes."""
        promise, n = _promise(task), task.parameters
        deviation = math.sqrt(n) * promise.noise_multiplier * promise.most_noise
        bits = bits_for_sum(1, promise.largest_cohort, deviation)
        if self.modulus == "paper":  # whose rule is the larger one, but for one or two clients
            bits = max(bits, bits_by_paper_rule(n, promise.largest_cohort, promise.noise_multiplier))
        return (Phase("votes", Ring(bits), n),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Votes and noise."""
        trained = train(task.learner, self, payload.vector, cohort, task.randomness)
        signs = votes(trained.changes, cohort, task.randomness).to(torch.int64)
        return _noisy(task, signs, math.sqrt(task.parameters), trained, cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Step by the majority."""
        winner = majority(totals[0].values, task.randomness, round)
        return GlobalModel(moved(state.vector, winner, self.step_size(round)))

    def release(self, task: Task) -> Released:
        """One noisy sum of signs."""
        return _released(task, math.sqrt(task.parameters))


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=HYPERPARAMETERS)
class DPFedAvg(SharedModel, ServerStep, LocalTraining):
    """FedAvg with client-level differential privacy (DP-StdFed): clipped updates in fixed point, with noise.

    Every update is clipped as a whole to ``clip_norm`` in L2, rounded to a grid on which its norm is still at most
    that, and given a share of discrete Gaussian noise. The server divides the sum by the *expected* number of
    participants. Unweighted: a client cannot buy influence with its number of examples. From McMahan et al. 2018
    (arXiv 1710.06963) and arXiv 2010.07808.

    Attributes:
        clip_norm: S, above 0.
    """

    summary: ClassVar[str] = "clipped, noisy updates in fixed point: differentially private (DP-StdFed)"
    private: ClassVar[bool] = True

    clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    STEPS_A_ROOT: ClassVar[int] = 64
    """The clip norm is this many times sqrt(n) steps of the grid: rounding costs under 1 % of it."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: the noisy updates."""
        promise, norm = _promise(task), self.norm_in_steps(task)
        deviation = norm * promise.noise_multiplier * promise.most_noise
        bits = bits_for_sum(norm, promise.largest_cohort, deviation)
        return (Phase("update", Ring(bits), task.parameters),)

    def norm_in_steps(self, task: Task) -> float:
        """The largest L2 norm of a contribution, in steps of the grid."""
        return self.STEPS_A_ROOT * math.sqrt(task.parameters)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Clipped updates and noise."""
        trained = train(task.learner, self, payload.vector, cohort, task.randomness)
        norm, root = self.norm_in_steps(task), math.sqrt(task.parameters)
        # rounding moves a vector by at most half a step a coordinate, sqrt(n) / 2 in L2: leave room for it
        changes = trained.changes.cpu().double() * (norm / self.clip_norm)
        shrink = ((norm - root / 2) / changes.norm(dim=1)).clamp(max=1.0)
        steps = (changes * shrink[:, None]).round()
        steps = torch.where(trained.accepted.cpu()[:, None], steps, 0).to(torch.int64)
        return _noisy(task, steps, norm, trained, cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Move along the sum over the expected number of participants."""
        step = self.clip_norm / self.norm_in_steps(task)
        mean = totals[0].values.double() * (step / _promise(task).expected_cohort)
        return GlobalModel(moved(state.vector, mean, self.step_size(round)))

    def release(self, task: Task) -> Released:
        """One noisy sum of updates."""
        return _released(task, self.norm_in_steps(task))


def _promise(task: Task) -> Promise:
    if task.promise is None:
        raise LocalProtocolError("a differentially private scheme was given no promise to keep")
    return task.promise


def _noisy(task: Task, integers: Tensor, norm: float, trained: Trained, cohort: Cohort) -> Contribution:
    """Add each client's share of noise; where a client has no update to send, around zero.

    Args:
        task: the task.
        integers: shape (K, n), int64, each row of at most `norm` in L2.
        norm: one client's largest contribution.
        trained: what the clients' training gave.
        cohort: the clients.
    """
    promise = _promise(task)
    usable = trained.accepted.cpu()
    participants = len(cohort) if cohort.participants is None else cohort.participants
    share = promise.share(norm * promise.noise_multiplier, participants)
    words = [SeededWords(task.randomness, cohort.round, int(client)) for client in cohort.ids]
    noise = np.stack([share.sample(source, integers.shape[1]) for source in words])
    elements = torch.where(usable[:, None], integers, 0) + torch.from_numpy(noise)
    everyone = torch.ones_like(usable)
    return Contribution(elements, everyone, trained.losses, withheld=~usable)


def _released(task: Task, norm: float) -> Released:
    promise = _promise(task)
    # shares of the largest cohort are the smallest: the correction for a sum of discrete Gaussians is largest there
    noise = DiscreteGaussianSum(promise.noise_multiplier, norm, task.parameters, promise.largest_cohort)
    return Released(promise.sampling, noise)
