"""Confined models: where each participant's began, and where it has got to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.cohort import Grid
from discreet.schemes.base import Task
from discreet.schemes.confined.layout import Layout
from discreet.schemes.confined.start import ConfinedStart

REMEMBERED = 1 << 28
"""First models of so many numbers in all are remembered by a simulation; of more, each is drawn when it is needed."""


@dataclass(frozen=True, eq=False)
class Models:
    """The confined models of a task's participants.

    Attributes:
        start: how each is drawn.
        task: the task.
        grid: who holds what.
        layout: who holds which part; None where everybody holds a whole network.
        alike: whether the participants of a row, of whom there are some, start from one head.
        remembered: first models, by participant; those that are drawn are put in.
    """

    start: ConfinedStart
    task: Task
    grid: Grid
    layout: Layout | None
    alike: bool
    remembered: dict[int, Tensor]

    def first(self, participant: int, length: int) -> Tensor:
        """A participant's first confined model, of some length, drawn anew."""
        draw, randomness = self.start.draw, self.task.randomness
        if self.layout is None or not self.alike:
            return draw(randomness, participant, length)
        upper = self.layout.cut.upper_size
        block = draw(randomness, participant, length - upper)
        leader = participant - participant % self.grid.columns
        return torch.cat([block, draw(randomness, leader, upper, "head of a row")])

    def at_hand(self, participant: int, length: int) -> Tensor:
        """The same on the task's device; remembered, if all participants' are few numbers."""
        if participant in self.remembered:
            return self.remembered[participant]
        found = self.first(participant, length).to(self.task.learner.device)
        if self.grid.participants * length <= REMEMBERED:
            self.remembered[participant] = found
        return found

    def own(self, participant: int, displacement: Tensor) -> Tensor:
        """A participant's model once all have moved so far.

        Args:
            participant: its number.
            displacement: shape (length,).

        Returns:
            Parameters in the network's order, shape (n,); with columns, its columns of the first layer and its own layers
            above.
        """
        layout = self.layout
        if layout is None:
            return self.first(participant, self.task.parameters).to(displacement.device) + displacement
        column = participant % layout.columns
        first = self.first(participant, layout.own_length(column)).to(displacement.device)
        moved = layout.moved(first, column, displacement)
        return moved if layout.columns > 1 else layout.whole(moved)
