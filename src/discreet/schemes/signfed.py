"""SignFed: one bit a parameter, and the majority decides."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort
from discreet.optimizers import LocalTraining
from discreet.randomness import SERVER, Keyed, Seeded
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.groups import Signs


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class SignFed(SharedModel, ServerStep, LocalTraining):
    """Clients vote on the direction of each parameter; the server steps by the majority.

    A client votes ``sign(change)``, tossing a fair coin where the change is exactly 0. The server moves every
    parameter by ``server_learning_rate * sign(sum of votes)``, again with a fair coin for ties. Votes are not
    weighted by examples, which a client could lie about. From arXiv 2010.07808, section on SignFed.

    Guarantees: a client moves each parameter's count by at most 1, whatever it sends. No privacy: the server sees
    every vote, and participants see the global model of every round.

    Attributes:
        server_learning_rate: how far a vote moves each parameter (gamma in the paper, 0.001 to 0.005 there).
    """

    summary: ClassVar[str] = "one bit a parameter; the majority of votes moves the model"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost"})

    server_learning_rate: float = Field(default=0.001, gt=0, allow_inf_nan=False)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: the votes."""
        return (Phase("votes", Signs(), task.parameters),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """The signs of the changes."""
        trained = task.train(self, payload.vector, cohort)
        signs = votes(trained.changes, cohort, task.randomness)
        return Contribution(signs, trained.accepted, trained.losses)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Step by the majority."""
        winner = majority(totals[0].values, task.randomness, round)
        return GlobalModel(moved(state.vector, winner, self.step_size(round)))


def votes(changes: Tensor, cohort: Cohort, randomness: Seeded | Keyed) -> Tensor:
    """The votes of K clients, shape (K, n), int8 of -1 and +1; a fair coin of the client's own where a change is 0."""
    signs = torch.sign(changes).to("cpu", torch.int8)
    undecided = signs == 0
    for lane in undecided.any(1).nonzero().flatten().tolist():
        stream = randomness.stream(cohort.round, int(cohort.ids[lane]), "coins")
        _toss(signs[lane], undecided[lane], stream)
    return signs


def majority(counts: Tensor, randomness: Seeded | Keyed, round: int) -> Tensor:
    """The sign of each count, int8, shape (n,); a fair coin of the server's for ties."""
    winner = torch.sign(counts).to(torch.int8)
    _toss(winner, winner == 0, randomness.stream(round, SERVER, "ties"))
    return winner


def _toss(signs: Tensor, where: Tensor, stream: np.random.Generator) -> None:
    """Fill `signs` with fair coins of -1 and +1 at the places `where`."""
    coins = stream.integers(0, 2, size=int(where.sum()), dtype=np.int8) * 2 - 1
    signs[where] = torch.from_numpy(coins)
