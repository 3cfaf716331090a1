"""References that every scheme is read against: all data in one place, and every participant alone."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort, Examples, seen
from discreet.evaluation import Evaluation, Map, combined, evaluate, evaluate_each
from discreet.optimizers import LocalTraining
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.secure.groups import Reals
from discreet.training import train


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Local(SharedModel, LocalTraining):
    """Every participant trains alone, from a common start; nothing is ever sent.

    All of them train in every round, whatever the experiment's fraction. The result is the mean, and the worst, over
    all participants' models: what federation has to beat. The optimizer starts afresh each round, as a federated
    client's does. Who holds some of the features only sees the others as 0, in training and when it is judged.

    Attributes:
        trained: so many participants, evenly spread, stand for all; 0 for all themselves.
    """

    trained: int = Field(default=0, ge=0)
    splits_columns: ClassVar[bool] = True
    everyone: ClassVar[bool] = True
    summary: ClassVar[str] = "each participant alone: what federation has to beat"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset()

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One phase, in which nothing leaves a participant."""
        return (Phase("train", Reals(), 0),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Nothing; the models go on in `kept`. A model that became NaN or infinite is kept as it was before."""
        start = torch.stack([payload.vector if own is None else own for own in cohort.kept])
        trained = train(task.learner, self, start, cohort, task.randomness)
        kept = torch.where(trained.accepted[:, None], start + trained.changes, start)
        return Contribution(start.new_empty(len(cohort), 0), trained.accepted, trained.losses, kept)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Nothing to do."""
        return state

    def vector(self, state: GlobalModel) -> Tensor | None:
        """There is no global model."""
        return None

    def own_model(
        self, task: Task, payload: GlobalModel, participant: int, kept: Tensor | None
    ) -> Tensor | None:
        """What it has trained; before that, the common start."""
        return payload.vector if kept is None else kept

    def evaluate(
        self, task: Task, state: GlobalModel, kept: dict[int, Tensor], examples: Examples, parallel: Map
    ) -> Evaluation:
        """Mean and worst over the models of all who have trained; before that, the common start."""
        vectors = [kept[client] for client in sorted(kept)] or [state.vector]
        grid = task.grid
        if grid is None or grid.features is None or not kept:
            return evaluate_each(task.learner, vectors, examples, parallel)
        features, shape = grid.features, examples.inputs.shape[1:]

        def judge(client: int) -> Evaluation:
            own = seen(features[client % len(features)], shape).to(examples.inputs.device)
            return evaluate(task.learner, kept[client], replace(examples, inputs=examples.inputs * own))

        return combined(list(parallel(judge, sorted(kept))))


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Centralized(Local):
    """All data in one place: one participant, who holds everybody's examples and trains alone.

    A round is as many ``steps`` as one client would take, and far fewer than a cohort takes together; for a reference
    that federation should not beat, give it ``epochs``.
    """

    pooled: ClassVar[bool] = True
    summary: ClassVar[str] = "all data in one place, trained by one participant"
