"""Averaging: FedSGD and FedAvg (StdFed), the baselines that the other schemes are judged by."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort
from discreet.optimizers import LocalTraining
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.groups import Reals
from discreet.training import Trained


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAvg(SharedModel, ServerStep, LocalTraining):
    """Federated averaging: clients train locally, the server averages their changes weighted by examples.

    ``w += server_learning_rate * sum(|D_k| * change_k) / sum(|D_k|)``. The weights travel in the sum, as one more
    coordinate. Called StdFed in arXiv 2010.07808; from McMahan et al. 2017 (arXiv 1602.05629), algorithm 1.

    Guarantees: none. The server sees every update (masked sums are for integers, which these are not), and
    participants see the global model of every round.

    The server's step size is along the mean change; 1 is plain averaging.
    """

    summary: ClassVar[str] = "averages the clients' updates, weighted by examples (StdFed)"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost"})

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: weighted changes, and the weights."""
        return (Phase("update", Reals(), task.parameters + 1),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """``|D_k| * change_k`` and ``|D_k|``."""
        return weighted(task.boosted(task.train(self, payload.vector, cohort), cohort), cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Move along the weighted mean."""
        return GlobalModel(moved(state.vector, weighted_mean(totals[0]), self.step_size(round)))


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedSGD(SharedModel):
    """One gradient a client and round; the server steps along their mean, weighted by examples.

    From McMahan et al. 2017 (arXiv 1602.05629), section 2. Guarantees: as `FedAvg`.

    Attributes:
        batch_size: examples each client draws for its gradient; 0 for all that it has.
        learning_rate: the server's, above 0.
    """

    summary: ClassVar[str] = "one gradient a client and round, averaged"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost"})

    batch_size: int = Field(default=0, ge=0)
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One sum: weighted gradients, and the weights."""
        return (Phase("gradient", Reals(), task.parameters + 1),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """``|D_k| * gradient_k`` and ``|D_k|``."""
        found = task.gradients(payload.vector, cohort, self.batch_size)
        return weighted(task.boosted(found, cohort), cohort)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Step against the weighted mean gradient."""
        return GlobalModel(moved(state.vector, weighted_mean(totals[0]), -self.learning_rate))


def weighted(trained: Trained, cohort: Cohort) -> Contribution:
    """Changes times the number of examples, which itself is appended; shape (K, n + 1)."""
    sizes = torch.from_numpy(cohort.sizes).to(trained.changes)
    elements = torch.empty(len(cohort), trained.changes.shape[1] + 1, dtype=sizes.dtype, device=sizes.device)
    torch.mul(trained.changes, sizes[:, None], out=elements[:, :-1])
    elements[:, -1] = sizes
    return Contribution(elements, trained.accepted, trained.losses)


def weighted_mean(total: Total) -> Tensor:
    """The mean change in float64, shape (n,), from a sum of what `weighted` gives."""
    return total.values[:-1] / total.values[-1]
