"""DP-SGD: one party holds all records, and promises each of them differential privacy."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort, Examples
from discreet.errors import ConfigError, LocalProtocolError
from discreet.evaluation import Evaluation, Map, evaluate_each
from discreet.privacy.releases import Gaussian, Poisson, Released
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.per_record import NoisySteps, check_layers, find_opacus
from discreet.schemes.private import promise_of
from discreet.secure.groups import Reals

NAME = "dp-sgd"


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class DPSGD(SharedModel):
    """SGD on all data in one place, with record-level differential privacy; through Opacus, an extra.

    Each step draws a lot: every record is in it with probability ``lot_size / records``, independently of all else.
    The gradient of each is scaled down to `clip_norm` in L2, Gaussian noise of standard deviation
    ``noise_multiplier * clip_norm`` is added to each coordinate of their sum, and SGD steps by that over `lot_size`.
    The number of records is taken as public. Momentum goes on from round to round, so that where rounds are cut means
    nothing to the model. From Abadi et al. 2016, arXiv 1607.00133.

    **Guarantees:** a step is one release of a Poisson-sampled Gaussian sum, for one *record* added or removed; a
    round is `releases` of them. The promise is not about clients, and rests on a party that is trusted with all data.

    Attributes:
        steps: of a round; None for as many as have the size of all data together, ``records / lot_size`` rounded up.
        lot_size: of a lot on average; all records, where there are no more.
        clip_norm: above 0.
        learning_rate: of SGD, above 0.
        momentum: of SGD, in [0, 1).
    """

    pooled: ClassVar[bool] = True
    everyone: ClassVar[bool] = True
    private: ClassVar[bool] = True
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset()
    summary: ClassVar[str] = "all data in one place, clipped and noisy gradients: each record is private"

    steps: int | None = Field(default=None, ge=1)
    lot_size: int = Field(default=256, ge=1)
    clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One phase, in which nothing leaves the party.

        Raises:
            MissingExtra: Opacus is not installed.
            ModelError: the model has a layer that Opacus cannot do.
        """
        check_layers(task.learner.network, find_opacus(NAME))
        return (Phase("train", Reals(), 0),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Nothing; the model goes on in `kept`, with what momentum has gathered as a second row if there is any.

        A model that became NaN or infinite, or met no record with a finite gradient, is kept as it was before.
        """
        trained = [self._train(task, payload, cohort.select(slice(k, k + 1))) for k in range(len(cohort))]
        usable = torch.tensor([fit for _, _, fit in trained])
        return Contribution(
            payload.vector.new_empty(len(cohort), 0),
            torch.ones_like(usable),
            torch.tensor([loss for _, loss, _ in trained]),
            torch.stack([kept for kept, _, _ in trained]),
            withheld=~usable,
        )

    def _train(self, task: Task, payload: GlobalModel, party: Cohort) -> tuple[Tensor, float, bool]:
        """A round of one party: what it keeps, the mean loss of the records it drew, and whether that is usable."""
        (rows,), (before,), client = party.indices, party.kept, int(party.ids[0])
        fresh = before is None
        if before is None:
            before = torch.stack(
                [payload.vector, torch.zeros_like(payload.vector)][: 1 + (self.momentum > 0)]
            )
        learner, streams, probability = task.learner, task.randomness, self.probability(task)
        noise = torch.Generator(learner.device)
        noise.manual_seed(streams.torch_seed(party.round, client, "noise"))
        steps = NoisySteps(
            learner,
            find_opacus(NAME),
            before,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            clip_norm=self.clip_norm,
            noise_multiplier=promise_of(task).noise_multiplier,
            expected=self.expected_lot(task),
            generator=noise,
        )
        if fresh:
            steps.check(_records(party.examples, rows[:2], learner.device))
        coins = streams.stream(party.round, client, "lots")
        shifts = streams.stream(party.round, client, "augmentation")
        key, pieces = streams.torch_seed(party.round, client, "dropout"), -(-len(rows) // steps.piece)
        usable, loss = 0, 0.0
        for step in range(self.releases(task)):
            lot = _records(party.examples, rows[coins.random(len(rows)) < probability], learner.device)
            if learner.augment is not None:
                draws = learner.augment.draw(shifts, (len(lot),))
                lot = replace(lot, inputs=learner.augment.apply(lot.inputs, draws.flips, draws.offsets))
            met = steps.step(lot, lambda piece, first=key + step * pieces: first + piece)  # type: ignore[misc]
            usable, loss = usable + met.usable, loss + met.loss
        after = steps.state()
        # of the noisy steps alone: what a lot held must not decide anything that is seen
        fit = bool(after.isfinite().all())
        return after if fit else before, loss / usable if usable else float("nan"), fit

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Nothing to do."""
        return state

    def vector(self, state: GlobalModel) -> Tensor | None:
        """There is no model that anyone else has."""
        return None

    def evaluate(
        self, task: Task, state: GlobalModel, kept: dict[int, Tensor], examples: Examples, parallel: Map
    ) -> Evaluation:
        """How good the party's model is; before the first round, its start."""
        vectors = [kept[client][0] for client in sorted(kept)] or [state.vector]
        return evaluate_each(task.learner, vectors, examples, parallel)

    def release(self, task: Task) -> Released:
        """One step: the noisy sum of the gradients of a Poisson-sampled lot."""
        return Released(Poisson(self.probability(task)), Gaussian(promise_of(task).noise_multiplier))

    def releases(self, task: Task) -> int:
        """The steps of a round."""
        return self.steps or -(-_count(task) // self.expected_lot(task))

    def expected_lot(self, task: Task) -> int:
        """How many records a lot has on average."""
        return min(self.lot_size, _count(task))

    def probability(self, task: Task) -> float:
        """With which a record is in a lot."""
        return self.expected_lot(task) / _count(task)


def _count(task: Task) -> int:
    """How many records there are."""
    if task.grid is None:
        raise LocalProtocolError(f"{NAME} was not told how many records there are")
    if not task.grid.examples:
        raise ConfigError(
            "data", "no training examples", f"at least one record, of which {NAME} draws its lots"
        )
    return task.grid.examples


def _records(examples: Examples, rows: np.ndarray, device: torch.device) -> Examples:
    """Some of the examples, as they are stored."""
    places = torch.from_numpy(rows.astype(np.int64)).to(device)
    return Examples(examples.inputs.index_select(0, places), examples.targets.index_select(0, places))
