"""CGD as a scheme: its phases, its state, and what a round does to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass as frozen
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort, Examples, Grid
from discreet.cut import cut
from discreet.errors import ConfigError, LocalProtocolError
from discreet.evaluation import Evaluation, Map
from discreet.privacy.releases import Released
from discreet.schemes.base import Contribution, Phase, Task, Total
from discreet.schemes.confined import fused, judged, participants, theory
from discreet.schemes.confined.fixed import BITS, Fixed
from discreet.schemes.confined.layout import Layout, layout_of
from discreet.schemes.confined.models import Models
from discreet.schemes.confined.start import ConfinedStart
from discreet.schemes.confined.steps import CommonStep, Displacement
from discreet.secure.groups import Group, Reals
from discreet.secure.ring import Ring
from discreet.training import mean_gradients


@frozen(frozen=True, eq=False)
class Payload:
    """What participants are told: how far all models have moved, which they can add up from the totals themselves.

    Attributes:
        displacements: shape (1 + max_delay, length), newest first.
        nbytes: that one participant is sent a round: its own part of the last total.
    """

    displacements: Tensor
    nbytes: int


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConfinedGradientDescent(ConfinedStart, CommonStep):
    """Every participant keeps a model of its own, and all models move by the sum of all gradients.

    Participant l draws its confined model ``w_1^l`` alone. In round k it computes the gradient of its share of the
    global loss at its own model; only the sum G of all gradients is seen, and every model steps by the same
    ``-alpha_k G``. So ``w_k^l = w_1^l + D_k``, with one D for all. Data may be split by rows, by columns, or both.
    From Zhang et al., arXiv 2104.13050.

    With columns, the pre-activations of the first layer are added up within a row (``forward = "joint"``), and each
    participant applies its own upper layers to them; gradients of the first layer are added up within columns, those
    of the upper layers over everybody. ``forward = "independent"`` is algorithm 2 of the paper as it is written: each
    participant predicts from its own features alone.

    Guarantees, where sums are secure: nobody but a participant sees its model or its gradient. Everybody sees the
    sum of each round, and hence how far all models have moved together; the participants of a row see its
    pre-activations. Whoever sees those and the totals of all columns can solve for the row's features: the two sums
    must not be in one hand. For linear regression the totals of some rounds give everybody ``X^T X``, as plain training
    does. No differential privacy.

    Attributes:
        batch_size: examples of a row in a round; 0 for all. The participants of a row draw the same.
        forward: ``joint`` or ``independent``.
        heads: of the participants of a row, their layers above the first: each draws its ``own``, or all start from
            one, which the ``row`` draws together; it then learns as if it were one participant with all columns, and
            its participants know each other's heads.
        max_delay: participants of a row are up to so many rounds behind, in each round anew (asynchronous CGD,
            section 8 of the paper); 0 for none.
        evaluated: how many participants' models are evaluated, evenly spread; 0 for all.
        largest_gradient: with secure sums, the largest coordinate of one example's gradient that is not cut.
        largest_activation: with secure sums, the largest share of a pre-activation that is not cut.
    """

    summary: ClassVar[str] = "confined models, moved by the sum of gradients; no model is shared"
    pooled: ClassVar[bool] = False
    everyone: ClassVar[bool] = True
    splits_columns: ClassVar[bool] = True
    counts_examples: ClassVar[bool] = True
    private: ClassVar[bool] = False
    modular: ClassVar[bool] = True
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "boost"})

    batch_size: int = Field(default=0, ge=0)
    forward: Literal["joint", "independent"] = "joint"
    heads: Literal["own", "row"] = "own"
    max_delay: int = Field(default=0, ge=0)
    evaluated: int = Field(default=0, ge=0)
    largest_gradient: float = Field(default=256.0, gt=0, allow_inf_nan=False)
    largest_activation: float = Field(default=1024.0, gt=0, allow_inf_nan=False)

    def __post_init__(self) -> None:
        ConfinedStart.__post_init__(self)
        CommonStep.__post_init__(self)

    # ---- what is laid out where

    def layout(self, task: Task) -> Layout | None:
        """Who holds which part; None for a network that is not split, of which everybody holds a whole one.

        Raises:
            ConfigError: there are columns, and the network cannot be split; or delta is given for others than there are.
        """
        memory = self._memory(task)
        if "layout" not in memory:
            memory["layout"] = self._layout(task)
        found: Layout | None = memory["layout"]
        return found

    def models(self, task: Task) -> Models:
        """Of the participants, which no party has all of; the errors are those of `layout`."""
        layout, remembered = self.layout(task), self._memory(task).setdefault("first models", {})
        return Models(self, task, _grid(task), layout, self._alike(task), remembered)

    def _memory(self, task: Task) -> dict[str, Any]:
        """What this scheme has worked out for the task; another scheme's, or other settings', is another."""
        memory: dict[str, Any] = task.scratch.setdefault(repr(self), {})
        return memory

    def _layout(self, task: Task) -> Layout | None:
        grid = _grid(task)
        if isinstance(self.initial_scale, list) and len(self.initial_scale) != grid.participants:
            raise ConfigError(
                "scheme.initial_scale",
                f"{len(self.initial_scale)} values",
                f"one, or one for each of the {grid.participants} participants",
            )
        found = cut(task.learner.network, task.learner.dimensions) if task.learner.augment is None else None
        if found is not None:
            return layout_of(found, grid, joint=self.forward == "joint")
        if grid.columns > 1:
            raise ConfigError(
                "data.columns",
                grid.columns,
                "1 for this model: only a chain that begins with a linear layer (and has no dropout or augmentation) "
                "can be split by columns",
            )
        return None

    def _joint(self, task: Task) -> bool:
        """Whether a row's pre-activations are summed."""
        return self.forward == "joint" and _grid(task).columns > 1

    def _alone(self, task: Task) -> bool:
        """Whether participants predict without the others of their row, of whom there are some."""
        return self.forward == "independent" and _grid(task).columns > 1

    def _alike(self, task: Task) -> bool:
        """Whether the participants of a row start from one head, of whom there are some."""
        return self.heads == "row" and _grid(task).columns > 1

    # ---- the scheme

    def init(self, task: Task) -> Displacement:
        """Nothing has moved."""
        layout = self.layout(task)
        length = task.parameters if layout is None else layout.length
        return self.start(length, task.learner.device, self.max_delay)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """With columns and a joint forward pass the rows' pre-activations; then the gradients."""
        layout = self.layout(task)
        if layout is None:
            return (Phase("gradient", self._group(task), task.parameters),)
        upper = layout.cut.upper_size
        length = layout.block + upper
        if layout.columns == 1:
            return (Phase("gradient", self._group(task), length),)
        gradient = Phase("gradient", self._group(task), length, "column", common=upper)
        if not self._joint(task):
            return (gradient,)
        examples = min(self.batch_size, layout.padded) if self.batch_size else layout.padded
        return (Phase("pre-activations", self._group(task), examples * layout.cut.hidden, "row"), gradient)

    def broadcast(self, task: Task, state: Displacement, round: int) -> Payload:
        """How far all models have moved."""
        layout = self.layout(task)
        each = task.parameters if layout is None else layout.block + layout.cut.upper_size
        displacements = torch.cat([state.displacement.unsqueeze(0), state.history])
        return Payload(displacements, each * state.displacement.element_size())

    def sent_to(self, task: Task, payload: Payload, participant: int) -> Payload:
        """The displacements of a participant's own column, its block first and then the upper layers."""
        layout = self.layout(task)
        if layout is None or layout.columns == 1:
            return payload
        first = participant % layout.columns * layout.block
        every, blocks = payload.displacements, layout.columns * layout.block
        own = torch.cat([every[:, first : first + layout.block], every[:, blocks:]], dim=1)
        return replace(payload, displacements=own)

    def placed(self, task: Task, payload: Payload, participant: int) -> Payload:
        """The displacements with those of other columns at 0, which the participant does not look at."""
        layout = self.layout(task)
        if layout is None or layout.columns == 1:
            return payload
        own = payload.displacements
        whole = own.new_zeros(len(own), layout.length)
        first = participant % layout.columns * layout.block
        whole[:, first : first + layout.block] = own[:, : layout.block]
        whole[:, layout.columns * layout.block :] = own[:, layout.block :]
        return replace(payload, displacements=whole)

    def own_model(self, task: Task, payload: Payload, participant: int, kept: Tensor | None) -> Tensor | None:
        """The participant's confined model; with columns its block of the first layer, and its upper layers."""
        return self.models(task).own(participant, payload.displacements[0])

    def _seen(self, task: Task, payload: Payload, cohort: Cohort) -> Tensor:
        """The displacement that each participant has got to, shape (length,) or (K, length)."""
        if not self.max_delay:
            return payload.displacements[0]
        most = min(self.max_delay, cohort.round - 1)
        streams = (task.common.stream(cohort.round, row, "delay") for row in cohort.row.tolist())
        return payload.displacements[[int(stream.integers(most + 1)) for stream in streams]]

    def contribute(
        self, task: Task, phase: Phase, payload: Payload, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """Shares of pre-activations, or gradients at the participants' own models."""
        layout = self.layout(task)
        if layout is None:
            return self._whole(task, payload, cohort)
        examples = _grid(task).examples
        rows = participants.rows_of(cohort, layout.padded, examples, self.batch_size, task.common)
        mine = participants.held(
            task, layout, self.models(task).at_hand, self._seen(task, payload, cohort), cohort, rows
        )
        there = torch.from_numpy(cohort.sizes > 0)
        if phase.name == "pre-activations":
            elements = participants.shares_of_hidden(mine).flatten(1)
            losses = torch.full((len(cohort),), torch.nan)
            return self._sent(task, phase, elements, there, losses, cohort)
        if received:
            values = received[0].values if received[0].values.dim() > 1 else received[0].values[None]
            places = (
                torch.from_numpy(cohort.row)
                if len(values) > 1
                else torch.zeros(len(cohort), dtype=torch.int64)
            )
            hidden = self._read(task, "pre-activations", values[places])
            hidden = hidden.to(mine.inputs).view(*mine.weights.shape, layout.cut.hidden)
        else:
            hidden = participants.shares_of_hidden(mine)
        by_block, by_upper, losses = participants.gradients(task, layout, mine, hidden)
        elements = torch.cat([by_block, by_upper / layout.columns], dim=1)
        return self._sent(task, phase, elements, there, losses / mine.weights.sum(1), cohort)

    def _whole(self, task: Task, payload: Payload, cohort: Cohort) -> Contribution:
        """Gradients of networks that are not split."""
        models = self.models(task)
        own = [models.at_hand(client, task.parameters) for client in cohort.ids.tolist()]
        found = mean_gradients(
            task.learner,
            torch.stack(own) + self._seen(task, payload, cohort),
            cohort,
            task.randomness,
            self.batch_size,
        )
        share = torch.from_numpy(cohort.sizes / _grid(task).examples).to(found.changes)
        (phase,) = self.phases(task)
        return self._sent(task, phase, found.changes * share[:, None], found.accepted, found.losses, cohort)

    def update(self, task: Task, state: Displacement, totals: tuple[Total, ...], round: int) -> Displacement:
        """Move by the total."""
        values = self._read(task, "gradient", totals[-1].values)
        layout = self.layout(task)
        if layout is not None and values.dim() > 1:
            upper = layout.cut.upper_size
            values = torch.cat([values[:, : layout.block].flatten(), values[0, layout.block :][:upper]])
        return self.moved(state, values, round)

    def vector(self, state: Displacement) -> Tensor | None:
        """There is no global model."""
        return None

    def confined(self, task: Task, state: Displacement, participant: int) -> Tensor:
        """The confined model of one participant, which only that participant may see.

        Returns:
            Parameters of the network, shape (n,).

        Raises:
            ConfigError: there is no such participant, or it holds a part of a network only.
        """
        grid = _grid(task)
        if not isinstance(participant, int) or not 0 <= participant < grid.participants:
            raise ConfigError("participant", participant, f"0 to {grid.participants - 1}")
        if grid.columns > 1:
            raise ConfigError("participant", participant, "data split by rows alone: here each holds a part")
        return self.models(task).own(participant, state.displacement)

    def release(self, task: Task) -> Released | None:
        """None: no differential privacy is promised."""
        return None

    def evaluate(
        self,
        task: Task,
        state: Displacement,
        kept: dict[int, Tensor],
        examples: Examples,
        parallel: Map,
    ) -> Evaluation:
        """Mean and worst over the participants' confined models."""
        return judged.evaluate(
            task,
            _grid(task),
            self.layout(task),
            self.models(task).first,
            state,
            examples,
            self.evaluated,
            not self._alone(task),
            self._alike(task),
            parallel,
        )

    def constants(self, task: Task, rounds: int, parallel: Map) -> Mapping[str, float | None]:
        """How far confined models lie from the mean of their column, and theorem 1's figures where there are only rows.

        No party knows them; a simulation does.
        """
        layout, grid, models = self.layout(task), _grid(task), self.models(task)

        def draw(participant: int) -> Tensor:
            column = participant % grid.columns
            length = task.parameters if layout is None else layout.own_length(column)
            return models.first(participant, length)

        columns = [
            theory.spread_of(draw, range(column, grid.participants, grid.columns), parallel)
            for column in range(grid.columns)
        ]
        epsilon = columns[0].epsilon if grid.columns == 1 else None
        # of other steps, of batches and of delays the theorem says nothing
        covered = self.optimizer == "sgd" and not self.batch_size and not self.max_delay
        bound = None
        if epsilon is not None and covered:
            bound = theory.theorem_bound(epsilon, rounds, self.decay)
        return {
            "spread": math.sqrt(sum(one.rms**2 for one in columns) / grid.columns),
            "theorem_epsilon": epsilon,
            "theorem_bound": bound,
        }

    # ---- adding up without writing single contributions down

    def fuses(self, task: Task) -> bool:
        """With real numbers, all examples, nobody behind or malicious, and a network cut behind its first layer."""
        alone = task.modular or self.batch_size or self.max_delay or task.adversary
        return not alone and self.layout(task) is not None

    def subtotal(
        self,
        task: Task,
        phase: Phase,
        payload: Payload,
        received: tuple[Total, ...],
        cohort: Cohort,
        parallel: Map,
    ) -> tuple[Total, Contribution]:
        """The total of all participants; of those whose loss is finite, if it is not for some."""
        layout, grid = self.layout(task), _grid(task)
        if layout is None or len(cohort) != grid.participants:
            return self._added(task, phase, payload, received, cohort)
        memory = self._memory(task)
        if "kept" not in memory:
            memory["kept"] = fused.prepare(
                task,
                grid,
                layout,
                self.models(task).first,
                cohort,
                not self._alone(task),
                self._alike(task),
                parallel,
            )
        kept: fused.Kept = memory["kept"]
        if phase.name == "pre-activations":
            rows = fused.hidden_of_all(layout, kept, payload.displacements[0], parallel)
            losses = torch.full((len(cohort),), torch.nan)
            total = Total(rows.view(grid.rows, -1), len(cohort))
            return total, self._nothing(cohort, losses)
        hidden: Tensor | None = None
        if received:
            hidden = received[0].values.view(-1, layout.piece, layout.cut.hidden)
        elif not self._alone(task):
            hidden = fused.hidden_of_all(layout, kept, payload.displacements[0], parallel)
        blocks, upper, by_piece = fused.total_gradient(
            task, layout, kept, payload.displacements[0], hidden, parallel
        )
        values = torch.cat([blocks, upper.expand(layout.columns, -1)], dim=1)
        if not values.isfinite().all():
            return self._added(task, phase, payload, received, cohort)
        sizes = torch.from_numpy(grid.sizes).to(by_piece)
        by_row = by_piece.view(grid.rows, -1).sum(1) * grid.examples / sizes
        total = Total(values if phase.scope == "column" else values[0], int((cohort.sizes > 0).sum()))
        return total, self._nothing(cohort, by_row.cpu().repeat_interleave(layout.columns))

    def _added(
        self, task: Task, phase: Phase, payload: Payload, received: tuple[Total, ...], cohort: Cohort
    ) -> tuple[Total, Contribution]:
        """The sum of what `contribute` gives, stack by stack."""
        grid = _grid(task)
        groups = {"all": 1, "row": grid.rows, "column": grid.columns}[phase.scope]
        values = torch.zeros(groups, phase.length, dtype=torch.float64)
        accepted, losses = [], []
        for part in cohort.chunks(task.learner.lanes):
            given = self.contribute(task, phase, payload, received, part)
            places = {"all": part.row * 0, "row": part.row, "column": part.column}[phase.scope]
            usable = given.accepted.cpu()
            values.index_add_(
                0, torch.from_numpy(places)[usable], given.elements.cpu()[usable].to(torch.float64)
            )
            accepted.append(usable)
            losses.append(given.losses.cpu())
        if phase.common:
            values[:, -phase.common :] = values[:, -phase.common :].sum(0)
        everyone = torch.cat(accepted)
        given = Contribution(torch.empty(len(cohort), 0), everyone, torch.cat(losses))
        return Total(values[0] if phase.scope == "all" else values, int(everyone.sum())), given

    def _nothing(self, cohort: Cohort, losses: Tensor) -> Contribution:
        return Contribution(torch.empty(len(cohort), 0), torch.from_numpy(cohort.sizes > 0), losses)

    # ---- numbers on the wire

    def _group(self, task: Task) -> Group:
        return Ring(BITS) if task.modular else Reals()

    def _fixed(self, task: Task) -> Fixed:
        return Fixed(_grid(task), self.largest_gradient, self.largest_activation)

    def _sent(
        self, task: Task, phase: Phase, elements: Tensor, there: Tensor, losses: Tensor, cohort: Cohort
    ) -> Contribution:
        """What leaves the participants: real numbers, or integers rounded at random without bias.

        Where sums have to be secure, who has nothing to add adds zeros: it is not seen who that is.
        """
        if task.adversary is not None and phase.name == "gradient":
            shares = torch.from_numpy(cohort.sizes / _grid(task).examples)
            elements = task.adversary.forged(elements, cohort, task.randomness, shares)
        usable = there.cpu() & elements.isfinite().all(1).cpu()
        if not task.modular:
            return Contribution(elements, usable, losses)
        values = torch.where(usable[:, None], elements.cpu(), 0.0)
        integers, saturated = self._fixed(task).encode(phase, values, cohort, task.randomness)
        return Contribution(integers, torch.ones_like(usable), losses, withheld=~usable, saturated=saturated)

    def _read(self, task: Task, phase: str, values: Tensor) -> Tensor:
        return self._fixed(task).decode(phase, values) if task.modular else values


def _grid(task: Task) -> Grid:
    if task.grid is None:
        raise LocalProtocolError("CGD was not told who holds what")
    return task.grid
