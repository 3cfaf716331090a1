"""The gradients in a view: what reached a party, brought into the model's order and up to a scale it knows.

A change that a client made to its model is read as a gradient with its sign turned, and so are votes: that is what an
attacker takes them for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.schemes import (
    ConfinedGradientDescent,
    DPFedAvg,
    DPSignFed,
    FedAvg,
    FedSGD,
    Lossless,
    RobustFedAvg,
    SignFed,
)
from discreet.schemes.base import GlobalModel, Task
from discreet.schemes.confined.fixed import Fixed
from discreet.schemes.lossless.layout import Integers, Layout
from discreet.schemes.lossless.noise import Perturbed
from discreet.schemes.lossless.reading import read
from discreet.secure.groups import lifted
from discreet.view import Seen, View

Scheme = Any


@dataclass(frozen=True, eq=False)
class Leak:
    """A gradient as a party sees it.

    Attributes:
        round: in which it was sent.
        client: whose it is; None for a sum.
        point: the parameters at which it was taken, float64, shape (n,); of `cgd` only how far those have moved, the
            same for everybody.
        gradient: float64, shape (n,). Of one that has a scale, the mean over the examples.
    """

    round: int
    client: int | None
    point: Tensor
    gradient: Tensor


def readable(scheme: Scheme) -> bool:
    """Whether gradients can be read out of what is sent."""
    averaging = FedSGD | FedAvg | RobustFedAvg | SignFed | DPFedAvg | DPSignFed
    return isinstance(scheme, averaging | ConfinedGradientDescent | Lossless)


def sums(scheme: Scheme, task: Task, view: View) -> tuple[Leak, ...]:
    """The sums that a party learns of, in order of the rounds.

    A server has them as they were added up; to a participant the models of two rounds in a row tell them.

    Args:
        scheme: that was played.
        task: public facts; its randomness is not used.
        view: the party's.
    """
    if view.party.role != "participant":
        return tuple(
            Leak(one.round, None, point, gradient)
            for one, point in _with_points(scheme, task, view)
            if one.total is not None
            and (gradient := _gradient(scheme, task, one, one.total.values, single=False)) is not None
        )
    points = {one.round: point for one, point in _with_points(scheme, task, view)}
    found = []
    for round, point in points.items():
        following = points.get(round + 1)
        factor = _factor(scheme, round)
        if following is not None and factor is not None:
            found.append(Leak(round, None, point, (point - following) / factor))
    return tuple(found)


def singles(scheme: Scheme, task: Task, view: View) -> tuple[Leak, ...]:
    """Single clients' gradients, where they reach the party; by rounds, and then in the clients' order."""
    return tuple(
        Leak(one.round, client, point, gradient)
        for one, point in _with_points(scheme, task, view)
        for client, elements in (one.contributions or {}).items()
        if (gradient := _gradient(scheme, task, one, elements, single=True)) is not None
    )


def _with_points(scheme: Scheme, task: Task, view: View) -> list[tuple[Seen, Tensor]]:
    """What was seen of rounds of one phase, with the points that they began at."""
    found = []
    for one in view.seen:
        if one.payload is not None and (point := _point(scheme, task, one.payload)) is not None:
            found.append((one, point))
    return found


def _point(scheme: Scheme, task: Task, payload: Any) -> Tensor | None:
    if isinstance(payload, GlobalModel | Perturbed):
        return payload.vector.double()
    if isinstance(scheme, ConfinedGradientDescent) and task.grid is not None and task.grid.columns == 1:
        layout = scheme.layout(task)
        moved: Tensor = payload.displacements[0].double()
        return moved if layout is None else layout.whole(moved)
    return None


def _factor(scheme: Scheme, round: int) -> float | None:
    """By how much the model of the next round lies further down along the gradient; None where that is another path."""
    if isinstance(scheme, FedSGD):
        return scheme.learning_rate
    if isinstance(scheme, FedAvg | RobustFedAvg | DPFedAvg):
        return scheme.step_size(round) * scheme.learning_rate
    if isinstance(scheme, SignFed | DPSignFed):
        return scheme.step_size(round)
    if isinstance(scheme, ConfinedGradientDescent) and scheme.optimizer == "sgd":
        return scheme.step_size(round)
    return None


def _gradient(scheme: Scheme, task: Task, one: Seen, elements: Tensor, *, single: bool) -> Tensor | None:
    """What the elements of a message, or of a sum, say of the gradient."""
    phase = scheme.phases(task)[-1]
    values = lifted(phase.group, elements).double()
    if isinstance(scheme, ConfinedGradientDescent):
        return None if values.dim() > 1 else _confined(scheme, task, values)
    if isinstance(scheme, Lossless):
        return _perturbed(scheme, task, one.payload, values)
    if values.dim() > 1:  # contributions that were not added up, or the sums of several groups
        values = values.sum(0)
    if isinstance(scheme, FedSGD):
        return values[:-1] / values[-1]
    if isinstance(scheme, FedAvg):
        return values[:-1] / values[-1] / -scheme.learning_rate
    if isinstance(scheme, DPFedAvg):
        clip_norm = float(one.payload.clip_norm)
        if not clip_norm:
            return None  # the sum is of norms
        count = 1.0 if single or task.promise is None else task.promise.expected_cohort
        step = clip_norm / scheme.update_norm(task) / count
        return values[: task.parameters] * (step / -scheme.learning_rate)
    return -values


def _confined(scheme: ConfinedGradientDescent, task: Task, values: Tensor) -> Tensor | None:
    """A total or a contribution of `cgd`."""
    if task.grid is None:
        return None
    if task.modular:
        fixed = Fixed(task.grid, scheme.largest_gradient, scheme.largest_activation)
        values = fixed.decode("gradient", values)
    layout = scheme.layout(task)
    return values if layout is None else layout.whole(values)


def _perturbed(scheme: Lossless, task: Task, payload: Perturbed, values: Tensor) -> Tensor | None:
    """The gradient of the perturbed model, which comes before all noise terms."""
    layout = Layout(read(task.learner.network, task.learner.shape), payload.m)
    if task.modular:
        if task.grid is None:
            return None
        integers = Integers.of(layout, payload.limits, payload.powers, task.grid.participants)
        values = integers.decoded(values)
    hidden, last = layout.structure.hidden, layout.terms * layout.structure.hidden
    return torch.cat([values[:hidden], values[last : last + layout.gradient]]) / values[-1]
