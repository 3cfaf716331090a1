"""Audit of CGD: what participants who put together what they see find out about another one's model and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.inference import colluders
from discreet.adversaries.inference.inversion import Picture, from_first_layer
from discreet.audits.case import Audit, Case, Finding
from discreet.audits.distance import relative_error
from discreet.audits.perturbation import NOTHING
from discreet.preparation import Federation
from discreet.schemes import ConfinedGradientDescent
from discreet.schemes.confined.fixed import Fixed
from discreet.schemes.confined.layout import Layout
from discreet.simulation import observe
from discreet.view import View

ROUNDS = 40
"""Of a grid, seen from the first one on."""

MOST = 1000
"""So many colluders at most: each one's gradients are worked out."""

MIXTURES = 16
"""Examples that are read off the first layer's gradient, at most."""

DRAWN = "all but what all models have in common"
SUMMED = "all but the sum over the others"
BOTH_SUMS = "nothing where both sums are in one hand"


def measure(case: Case) -> Sequence[Finding]:
    """With whole models: another's model, gradient and examples. With columns: a row's features."""
    if case.federation.partition.column_count > 1:
        return _grid(case)
    inner = _Confined.of(case)
    return [] if inner is None else [*inner.models(), *inner.gradients()]


# ---- whole models


@dataclass(frozen=True, eq=False)
class _Confined:
    """Participants who each have a whole model, in the first round that was observed.

    Attributes:
        case: what is audited.
        target: whose secrets are looked for.
        others: the other participants who hold examples, in order: the first t of them collude.
    """

    case: Case
    target: int
    others: NDArray[np.int64]

    @classmethod
    def of(cls, case: Case) -> _Confined | None:
        """The last participant who holds examples, against the others; None if there is no other."""
        holding = np.flatnonzero(case.federation.partition.sizes)
        return cls(case, int(holding[-1]), holding[:-1]) if len(holding) > 1 else None

    @property
    def numbers(self) -> list[int]:
        """How many collude: from 1 to all but one of the others, and, as a check, all of the others."""
        every = len(self.others)
        chosen = {1, (every - 1) // 2, every - 1, every}
        return sorted(count for count in chosen if 1 <= count <= min(every, MOST))

    def model(self, participant: int, round: int) -> Tensor:
        """A participant's confined model: its own secret."""
        found: Tensor = self.case.federation.scheme.confined(
            self.case.federation.task, self.case.observed.states[round], participant
        )
        return found.double()

    def displacement(self, round: int) -> Tensor:
        """How far all models have moved, as everybody sees it, in the network's order."""
        scheme, task = self.case.federation.scheme, self.case.federation.task
        moved: Tensor = self.case.view.payloads()[round].displacements[0].double()
        layout: Layout | None = scheme.layout(task)
        return moved if layout is None else layout.whole(moved)

    def models(self) -> list[Finding]:
        """How near guesses of the target's model are, and of its predictions."""
        first, last = self.case.round, max(self.case.view.payloads())
        wanted, moved = self.model(self.target, first), self.displacement(first)
        off = relative_error(colluders.model_by_displacement(moved), wanted)
        found = [
            Finding("anybody: how far all have moved", "relative error of its model", off, 1.0, 0.0, DRAWN)
        ]
        if last > first:
            later, now = self.model(self.target, last), self.displacement(last)
            told = colluders.model_from_another_time(wanted, moved, now)
            name, figure = "who knows the model of one round", "relative error of that of a later one"
            found.append(
                Finding(name, figure, relative_error(told, later), relative_error(now, later), 0.0, NOTHING)
            )
        inputs = self._inputs(self.case.unseen)
        outputs = self.case.predict(wanted.float())(inputs)
        guesses = {"anybody: how far all have moved": moved}
        for count in self.numbers:
            if count == len(self.others):
                continue  # nobody else is left to be hidden among
            own = [self.model(int(one), first) for one in self.others[:count]]
            guesses[f"{_some(count)}: the mean of their models"] = torch.stack(own).mean(0)
        for name, guess in guesses.items():
            found.append(_prediction(name, self.case.predict(guess.float())(inputs), outputs, self._classes))
        return found

    def gradients(self) -> list[Finding]:
        """What is left of a total without the colluders' contributions, as a guess of the target's."""
        seen = next(one for one in self.case.view.seen if one.round == self.case.round)
        if seen.total is None:
            return []
        federation, found = self.case.federation, []
        sizes = federation.partition.sizes
        contributions = self._contributions([self.target, *self.others[: max(self.numbers)].tolist()])
        wanted, own = contributions[0].double(), contributions[1:]
        alone = self._example(wanted)
        if seen.contributions is not None:
            off = relative_error(seen.contributions[self.target].double(), wanted)
            name = "the aggregator, sums in the clear"
            found.append(Finding(name, "relative error of its gradient", off, 1.0, 0.0, NOTHING))
        for count in self.numbers:
            left = colluders.remainder(seen.total.values, own[:count].unbind())
            rest = float(sizes.sum() - sizes[self.others[:count]].sum())
            guess = left * (float(sizes[self.target]) / rest)
            name = f"{_some(count)} and the aggregator" + (", all others" * (count == len(self.others)))
            promise = SUMMED if count < len(self.others) else NOTHING
            off = relative_error(guess, wanted)
            found.append(Finding(name, "relative error of its gradient", off, 1.0, 0.0, promise))
            if alone is not None and (nearest := self._example(left)) is not None:
                figure, chance = "relative error of its nearest example", self._nearest(self._mean)
                found.append(Finding(name, figure, nearest, chance, alone, promise))
        return found

    def _contributions(self, clients: Sequence[int]) -> Tensor:
        """What some participants have sent in the round; each of them knows its own."""
        federation, round = self.case.federation, self.case.round
        payload, (phase,) = self.case.view.payloads()[round], federation.scheme.phases(federation.task)
        ids, lanes = np.asarray(clients, dtype=np.int64), federation.task.learner.lanes
        sent = []
        for start in range(0, len(ids), lanes):
            cohort = federation.cohort(ids[start : start + lanes], round, {}, federation.partition.clients)
            given = federation.scheme.contribute(federation.task, phase, payload, (), cohort)
            sent.append(given.elements)
        return torch.cat(sent)

    def _example(self, elements: Tensor) -> float | None:
        """How near the examples that a gradient gives are to the target's nearest one."""
        federation = self.case.federation
        layout: Layout | None = federation.scheme.layout(federation.task)
        if layout is None or not federation.train.inputs.numel():
            return None
        public = self._inputs(self.case.unseen)
        picture = Picture(tuple(public.shape[1:]), float(public.min()), float(public.max()))
        network = federation.task.learner.network
        found = from_first_layer(network, layout.whole(elements), picture, MIXTURES)
        return None if found is None else self._nearest(found)

    def _nearest(self, found: Tensor) -> float:
        """The smallest distance from an example of the target's, over that example's size."""
        held = torch.from_numpy(np.asarray(self.case.federation.partition.indices(self.target), np.int64))
        inputs, _ = self.case.federation.train.gather(held.to(self.case.federation.train.targets.device))
        own = inputs.double().flatten(1).cpu()
        distances = torch.cdist(found.double().flatten(1).cpu(), own)
        return float((distances / own.norm(dim=1).clamp(min=1e-12)).min())

    @property
    def _mean(self) -> Tensor:
        return self._inputs(self.case.unseen).double().mean(0)[None]

    @property
    def _classes(self) -> bool:
        return self.case.federation.train.targets.dim() == 1

    def _inputs(self, examples: Any) -> Tensor:
        inputs: Tensor = examples.gather(torch.arange(len(examples), device=examples.targets.device))[0]
        return inputs


def _prediction(name: str, guessed: Tensor, outputs: Tensor, classes: bool) -> Finding:
    """How near predictions are to the target's own."""
    if classes:
        answers = outputs.argmax(1)
        same = float((guessed.argmax(1) == answers).double().mean())
        most = float(answers.bincount().max()) / len(answers)
        return Finding(name, "share of predictions like its own", same, most, 1.0, NOTHING)
    blind = relative_error(outputs.mean(0).expand_as(outputs), outputs)
    return Finding(
        name, "relative error of its predictions", relative_error(guessed, outputs), blind, 0.0, NOTHING
    )


def _some(count: int) -> str:
    return f"{count} colluder{'s' if count > 1 else ''}"


# ---- data that is split by columns


def _grid(case: Case) -> list[Finding]:
    """A row's features, by whoever sees its sums and how far all columns have moved."""
    federation, scheme = case.federation, case.federation.scheme
    layout: Layout = scheme.layout(federation.task)
    partition, columns = federation.partition, federation.partition.column_count
    row = int(np.flatnonzero(partition.sizes)[0])
    elsewhere = (row + 1) % partition.rows
    insider, helpers = row * columns, [elsewhere * columns + column for column in range(1, columns)]
    names = ["server", *(f"participant:{one}" for one in (insider, *helpers))]
    views = observe(federation, None, names, ROUNDS).views
    server = views["server"]
    moved = [layout.displacements(one.displacements[0])[0] for one in server.payloads().values()]
    by_server = colluders.features_of_row(
        [
            one.view(partition.rows, -1, layout.cut.hidden)[row]
            for one in _pre_activations(federation, server)
        ],
        [torch.cat(list(one), dim=1) for one in moved],
    )
    guesses = {"who adds up pre-activations and gradients": by_server}
    if elsewhere != row:  # or else only the row itself could help
        pooled = [_blocks(layout, views[f"participant:{one}"]) for one in (insider, *helpers)]
        guesses[f"one of the row, {_some(len(helpers))} elsewhere"] = colluders.features_of_row(
            [
                one.view(-1, layout.cut.hidden)
                for one in _pre_activations(federation, views[f"participant:{insider}"])
            ],
            [torch.cat(parts, dim=1) for parts in zip(*pooled, strict=True)],
        )
    held = torch.from_numpy(np.asarray(partition.indices(row), dtype=np.int64))
    truth = _split(layout, federation.train.gather(held)[0])
    blind = _split(layout, case.unseen.gather(torch.arange(len(case.unseen)))[0]).mean(0)
    # what the insider holds itself is no finding
    hidden = slice(layout.width, None)
    chance = relative_error(blind[hidden].expand_as(truth[:, hidden]), truth[:, hidden])
    figure = "relative error of the features that others of the row hold"
    found = []
    for name, guess in guesses.items():
        off = relative_error(guess[: len(truth), hidden], truth[:, hidden])
        found.append(Finding(name, figure, off, chance, 0.0, BOTH_SUMS))
    return found


def _pre_activations(federation: Federation, view: View) -> list[Tensor]:
    """The rows' sums that a party was told, in order of the rounds."""
    scheme, task = federation.scheme, federation.task
    found = [
        one.total.values for one in view.seen if one.phase == "pre-activations" and one.total is not None
    ]
    if not task.modular or task.grid is None:
        return [one.double() for one in found]
    fixed = Fixed(task.grid, scheme.largest_gradient, scheme.largest_activation)
    return [fixed.decode("pre-activations", one) for one in found]


def _blocks(layout: Layout, view: View) -> list[Tensor]:
    """How far a participant's own column has moved, by rounds: shapes (hidden, width)."""
    sent = view.payloads().values()
    return [one.displacements[0][: layout.block].view(layout.cut.hidden, layout.width) for one in sent]


def _split(layout: Layout, inputs: Tensor) -> Tensor:
    """Features column after column, each padded to the widest: shape (B, columns * width)."""
    return layout.inputs(inputs.double().flatten(1)).flatten(1)


def _fits(federation: Federation) -> str | None:
    scheme = federation.scheme
    if not isinstance(scheme, ConfinedGradientDescent):
        return "it is about confined gradient descent"
    if not len(federation.test):
        return "there are no test examples to judge by"
    if federation.partition.column_count == 1:
        return None if np.count_nonzero(federation.partition.sizes) > 1 else "there is nobody else"
    if scheme.forward != "joint":
        return "participants predict alone: rows have no sums"
    if scheme.batch_size or scheme.max_delay:
        return "rows have other examples, or other models, in each round"
    return None


AUDIT = Audit(
    "what colluding participants learn of another one's model and data",
    ("server",),
    5,
    measure,
    _fits,
)
