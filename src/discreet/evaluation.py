"""How good a model is on examples that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from discreet.cohort import Examples
from discreet.training import Learner

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or the parallel map of a pool: results come in the order of the arguments."""

PIECE = 1000
"""Examples evaluated at once."""


@dataclass(frozen=True)
class Evaluation:
    """How good a model is; the mean over models where each participant has its own.

    Attributes:
        accuracy: fraction of right answers; None for regression, and where there were no examples.
        loss: mean loss an example; None where there were no examples.
        worst_accuracy, worst_loss: of the worst participant's model, where each has its own.
        extras: other figures of the state, by the names they have in the metrics.
    """

    accuracy: float | None
    loss: float | None
    worst_accuracy: float | None = None
    worst_loss: float | None = None
    extras: Mapping[str, float] = field(default_factory=dict)


def evaluate(learner: Learner, vector: Tensor, examples: Examples, parallel: Map = map) -> Evaluation:
    """Evaluate one model.

    Args:
        learner: model and loss.
        vector: parameters, shape (n,).
        examples: any number; with none, all results are None.
        parallel: maps over pieces of the examples.
    """
    if not len(examples):
        return Evaluation(None, None)
    classes = examples.targets.dim() == 1

    # pieces of even size: none is so small that a layer cannot take its statistics
    count = -(-len(examples) // PIECE)
    bounds = [len(examples) * place // count for place in range(count + 1)]

    def piece(start: int, end: int) -> tuple[float, int]:
        places = torch.arange(start, end, device=learner.device)
        inputs, targets = examples.gather(places)
        with torch.no_grad():
            outputs = learner.network.apply(vector, inputs, module=learner.network.replica())
            loss = learner.loss(outputs, targets).sum(dtype=torch.float64)
            right = (outputs.argmax(1) == targets).sum() if classes else torch.zeros(())
        return float(loss), int(right)

    found = list(parallel(lambda bound: piece(*bound), pairwise(bounds)))
    loss = sum(one for one, _ in found) / len(examples)
    return Evaluation(sum(right for _, right in found) / len(examples) if classes else None, loss)


def evaluate_each(
    learner: Learner, vectors: Sequence[Tensor], examples: Examples, parallel: Map = map
) -> Evaluation:
    """Evaluate many models: the mean, and (of more than one) the worst, of their accuracies and losses."""
    if len(vectors) == 1:
        return evaluate(learner, vectors[0], examples, parallel)
    return combined(list(parallel(lambda vector: evaluate(learner, vector, examples), vectors)))


def combined(found: Sequence[Evaluation]) -> Evaluation:
    """The mean of some models' accuracies and losses, and the worst."""
    losses = [one.loss for one in found if one.loss is not None]
    accuracies = [one.accuracy for one in found if one.accuracy is not None]
    if not losses:
        return Evaluation(None, None)
    return Evaluation(
        sum(accuracies) / len(accuracies) if accuracies else None,
        sum(losses) / len(losses),
        min(accuracies) if accuracies else None,
        max(losses),
    )
