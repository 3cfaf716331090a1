"""Audit of linear regression: X^T X and X^T y, from what a party sees of the training (table 2 of arXiv 2104.13050)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from discreet.adversaries.inference import leaks
from discreet.adversaries.inference.leaks import Leak
from discreet.adversaries.inference.normal_equations import Moments, columns, parameters, recovered
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.distance import relative_error
from discreet.audits.perturbation import NOTHING
from discreet.gradients import linear_layers
from discreet.losses import mean_squared_error, squared_error
from discreet.plots import DASHES, LIGHT, MARKERS
from discreet.preparation import Federation
from discreet.schemes import ConfinedGradientDescent, DPFedAvg, FedAvg, FedSGD
from discreet.secure.ring import Ring
from discreet.simulation import observe

ROUNDS = 300
"""Of a run, so many are looked at, at most."""

PRODUCTS, ANSWERS = "relative error of X^T X", "relative error of X^T y"

SUM, SINGLE, PLAIN = "from the sums", "from one client's gradients", "plain gradient descent"

START = "all but what the first models add to it"


@dataclass(frozen=True, eq=False)
class Errors:
    """How far off an observer is after some rounds.

    Attributes:
        rounds: it has seen so many, rising.
        products, answers: relative errors, in the Frobenius norm.
    """

    rounds: tuple[int, ...]
    products: tuple[float, ...]
    answers: tuple[float, ...]

    def of(self, figure: str) -> tuple[float, ...]:
        """The errors of `PRODUCTS` or `ANSWERS`."""
        return self.products if figure == PRODUCTS else self.answers


def measure(case: Case) -> Illustrated:
    """Play the run's own rounds again from the first one, and solve for both after each of some rounds."""
    federation, scheme = case.federation, case.federation.scheme
    rounds = min(federation.experiment.rounds, ROUNDS)
    view = observe(federation, None, [str(case.view.party)], rounds).views[str(case.view.party)]
    sums = leaks.sums(scheme, federation.task, view)
    by_client: dict[int, list[Leak]] = {}
    for leak in leaks.singles(scheme, federation.task, view):
        by_client.setdefault(int(leak.client or 0), []).append(leak)
    found: dict[str, tuple[Errors, Moments]] = {}
    whole = true_moments(federation, range(federation.partition.rows))
    if sums:
        found[SUM] = (_errors(federation, sums, whole), whole)
    if by_client:
        client = max(by_client, key=lambda one: len(federation.partition.indices(one)))
        own = true_moments(federation, [client])
        if isinstance(scheme, ConfinedGradientDescent):  # gradients of the sum over all examples
            share = len(federation.partition.indices(client)) / int(federation.partition.sizes.sum())
            own = Moments(own.products * share, own.answers * share)
        found[SINGLE] = (_errors(federation, by_client[client], own), own)
    if not found:
        return Illustrated([])
    plain = _errors(federation, _descent(federation, whole, rounds), whole)
    findings = []
    for name, (errors, moments) in found.items():
        for figure, chance in ((PRODUCTS, _guess(moments.products)), (ANSWERS, 1.0)):
            last, unprotected = errors.of(figure)[-1], plain.of(figure)[-1]
            promise = _promise(federation, name, figure)
            findings.append(Finding(name, figure, last, chance, unprotected, promise))
    series = {name: errors for name, (errors, _) in found.items()} | {PLAIN: plain}
    facts = {
        name: {"rounds": one.rounds, PRODUCTS: one.products, ANSWERS: one.answers}
        for name, one in series.items()
    }
    return Illustrated(findings, {"errors": _drawn(series)}, _finite(facts))


def true_moments(federation: Federation, rows: Sequence[int]) -> Moments:
    """What an observer is after: A and b of the mean gradient over the examples of some rows."""
    places = np.concatenate([np.asarray(federation.partition.indices(row), dtype=np.int64) for row in rows])
    inputs, targets = federation.train.gather(torch.from_numpy(places).to(federation.train.targets.device))
    features = inputs.double().flatten(1)
    if _bias(federation):
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    curvature = 1.0 if federation.task.learner.loss is squared_error else 2.0 / targets.shape[1]
    scale = curvature / len(features)
    return Moments(scale * features.T @ features, scale * features.T @ targets.double())


def _errors(federation: Federation, seen: Sequence[Leak], truth: Moments) -> Errors:
    outputs, bias = int(federation.train.targets.shape[1]), _bias(federation)
    counts = sorted({min(len(seen), round(2 ** (step / 2))) for step in range(2, 40)})
    moments = [recovered(seen[:count], outputs, bias=bias) for count in counts]
    return Errors(
        tuple(counts),
        tuple(relative_error(one.products, truth.products) for one in moments),
        tuple(relative_error(one.answers, truth.answers) for one in moments),
    )


def _descent(federation: Federation, whole: Moments, rounds: int) -> list[Leak]:
    """What gradient descent without any protection shows, at the run's step size."""
    outputs, bias = whole.answers.shape[1], _bias(federation)
    point = federation.task.initial().double().cpu()
    step, found = _step(federation.scheme), []
    for round in range(1, rounds + 1):
        weights = columns(point, outputs, bias=bias)
        slope = parameters(whole.products @ weights - whole.answers, bias=bias)
        found.append(Leak(round, None, point, slope))
        point = point - step * slope
    return found


def _step(scheme: Any) -> float:
    found: float = scheme.learning_rate
    return found * scheme.server_learning_rate if isinstance(scheme, FedAvg | DPFedAvg) else found


def _guess(products: Tensor) -> float:
    """The error of who takes the features to be independent, and all of one size."""
    mean = products.diagonal().mean()
    return relative_error(mean * torch.eye(len(products), dtype=torch.float64), products)


def _promise(federation: Federation, name: str, figure: str) -> str:
    scheme, secure = federation.scheme, federation.experiment.secure
    if federation.task.promise is not None and name == SUM:
        return "all of one client's data but (epsilon, delta)"
    if isinstance(scheme, ConfinedGradientDescent):
        return NOTHING if figure == PRODUCTS else START
    hidden = secure in ("masked", "additive") and isinstance(scheme.phases(federation.task)[-1].group, Ring)
    return "nothing about the sum; single clients" if hidden else NOTHING


def _finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without what JSON has no number for."""
    return {
        name: {
            key: [value if np.isfinite(value) else None for value in values] for key, values in one.items()
        }
        for name, one in facts.items()
    }


def _drawn(series: Mapping[str, Errors]) -> Figure:
    """Errors by the number of rounds that were seen."""
    figure = Figure(figsize=(10.4, 3.9), layout="constrained")
    for axes, title in zip(figure.subplots(1, 2), (PRODUCTS, ANSWERS), strict=True):
        for place, (name, errors) in enumerate(series.items()):
            dash = DASHES[place % len(DASHES)]
            axes.plot(
                errors.rounds,
                np.clip(np.nan_to_num(errors.of(title), nan=1e6), 1e-12, 1e6),
                color=LIGHT[place % len(LIGHT)],
                linestyle=(0, dash) if dash else "-",
                marker=MARKERS[place % len(MARKERS)],
                markersize=4.5,
                linewidth=1.5,
                label=name,
            )
        _dressed(axes, title)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _dressed(axes: Axes, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(0.01, color="#8a8a8a", linewidth=0.8, linestyle=":")
    axes.set_xlabel("rounds seen")
    axes.set_ylabel(title)
    axes.spines[["top", "right"]].set_visible(False)


def _bias(federation: Federation) -> bool:
    return len(federation.task.learner.network.layout) > 1


def _fits(federation: Federation) -> str | None:
    learner, scheme = federation.task.learner, federation.scheme
    layers = linear_layers(learner.network, learner.dimensions)
    squared = learner.loss in (squared_error, mean_squared_error)
    if layers is None or len(layers) != 1 or not squared or federation.train.targets.dim() == 1:
        return "it is about linear regression: a linear model of values, by squared error"
    if federation.partition.column_count > 1:
        return "participants hold some of the columns"
    if isinstance(scheme, FedAvg | DPFedAvg):
        whole = scheme.batch_size == 0 or scheme.batch_size >= federation.capacity
        once = scheme.steps == 1 or (scheme.steps is None and (scheme.epochs or 1) == 1)
        if not (whole and once and scheme.is_plain_sgd):
            return "it is about one gradient a round: scheme.steps = 1, batch_size = 0, plain sgd"
        return None
    if isinstance(scheme, FedSGD | ConfinedGradientDescent):
        return "it is about gradients of all examples: scheme.batch_size = 0" if scheme.batch_size else None
    return "it is about sums of gradients: fedsgd, fedavg, dp-fedavg and cgd"


AUDIT = Audit(
    "how far X^T X and X^T y of a linear regression can be solved for",
    ("server", "participant"),
    1,
    measure,
    _fits,
)
