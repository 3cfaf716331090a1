"""Membership inference by likelihood ratio (LiRA): was this model trained with the example, or as if without it?

The attacker trains shadow models, each on a random half of the candidates, and learns from them how confident a model
is in an example that it was trained with, and in one that it was not. From Carlini et al. 2022 (arXiv 2112.03570):
Gaussians of logit-scaled confidences, one pair an example; *online* takes both, *offline* the one without the example.

What is not as in the paper: all shadows start from the same weights. They are trained in one place and in one way
whatever the scheme, and for as many passes as make them as confident, in the mean, as the model that is attacked; that
takes the share of members among the candidates as known. With fewer than `OWN_SPREAD` shadows one spread is taken for
all examples, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.inference.membership import Predict
from discreet.cohort import Cohort, Examples
from discreet.evaluation import PIECE
from discreet.losses import Loss
from discreet.optimizers import LocalTraining
from discreet.randomness import Seeded
from discreet.training import Learner, train

OWN_SPREAD = 64
"""From so many shadow models on, each example has a spread of its own."""

SMALLEST_SPREAD = 1e-6
FAINT = 1e-30
"""Confidences of values are taken of losses no smaller than this."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """What shadow models say of the candidates.

    Attributes:
        held: shape (K, P), which of P candidates each of K shadow models was trained on.
        confidences: shape (K, P), float64, what each says of each, see `confidences`.
    """

    held: Tensor
    confidences: Tensor

    def mean(self, share: float) -> float:
        """The mean confidence over candidates of whom this share are members."""
        inside, outside = self.confidences[self.held].mean(), self.confidences[~self.held].mean()
        return float(share * inside + (1 - share) * outside)


def balanced(shadows: int, candidates: int, stream: np.random.Generator) -> Tensor:
    """Which candidates each shadow model is trained on: every candidate is in half of them.

    Args:
        shadows: K, even and at least 2.
        candidates: P.
        stream: that they are drawn from.

    Returns:
        Bool, shape (K, P).
    """
    half = np.arange(shadows) < shadows // 2
    return torch.from_numpy(stream.permuted(np.tile(half, (candidates, 1)), axis=1).T.copy())


def confidences(predict: Predict, loss: Loss, examples: Examples) -> Tensor:
    """How sure a model is of each example's target: of classes the log of the odds, of values minus the loss's log.

    Args:
        predict: the model.
        loss: one value an example.
        examples: B of them.

    Returns:
        Float64, shape (B,); finite, the least where a model gives no number.
    """
    found = [torch.empty(0, dtype=torch.float64)]
    with torch.no_grad():
        for places in torch.split(torch.arange(len(examples), device=examples.targets.device), PIECE):
            inputs, targets = examples.gather(places)
            found.append(confidence(predict(inputs).double(), targets, loss).cpu())
    largest = torch.finfo(torch.float32).max  # room for sums in float64
    return torch.cat(found).nan_to_num(nan=-largest, posinf=largest, neginf=-largest).clamp(-largest, largest)


def confidence(outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """`confidences` of outputs, shape (B, outputs), without any care for what is not finite."""
    if targets.is_floating_point():
        return -loss(outputs, targets.to(outputs)).clamp(min=FAINT).log()
    chosen = targets.unsqueeze(-1)
    others = outputs.scatter(-1, chosen, -torch.inf).logsumexp(-1)
    return outputs.gather(-1, chosen).squeeze(-1) - others


def shadow_models(
    learner: Learner,
    plan: LocalTraining,
    start: Tensor,
    pool: Examples,
    held: Tensor,
    randomness: Seeded,
) -> Iterator[Tensor]:
    """Trains all shadow models side by side, for ever.

    Args:
        learner: model and loss; its lanes say how many are trained at once.
        plan: optimizer and batches; a pass takes what it takes of them.
        start: parameters that all start from, shape (n,).
        pool: P candidates.
        held: shape (K, P), who is trained on what.
        randomness: streams that batches are drawn from.

    Yields:
        The parameters after each pass over the data, shape (K, n); the same memory is not used again.
    """
    once = replace(plan, steps=None, epochs=1)
    count = len(held)
    indices: tuple[NDArray[np.int64], ...] = tuple(np.flatnonzero(row) for row in held.numpy())
    cohort = Cohort(
        ids=np.arange(count),
        examples=pool,
        indices=indices,
        round=1,
        capacity=max(len(rows) for rows in indices),
        row=np.arange(count),
        column=np.zeros(count, dtype=np.int64),
        kept=(None,) * count,
    )
    models = start.expand(count, -1)
    while True:
        trained = train(learner, once, models, cohort, randomness)
        models = torch.where(trained.accepted[:, None], models + trained.changes, models)
        yield models
        cohort = replace(cohort, round=cohort.round + 1)


def as_confident(
    learner: Learner,
    models: Iterator[Tensor],
    pool: Examples,
    held: Tensor,
    level: float,
    share: float,
    passes: int,
) -> Shadows:
    """Shadow models at the pass at which they are, in the mean, as confident as the model that is attacked.

    Args:
        learner: model and loss.
        models: parameters after each pass, as `shadow_models` gives them.
        pool: P candidates.
        held: shape (K, P).
        level: the attacked model's mean confidence over all candidates.
        share: of the candidates that are members.
        passes: at most so many are made.
    """
    best: Shadows | None = None
    for _, vectors in zip(range(passes), models, strict=False):
        now = torch.stack([confidences(learner_predict(learner, row), learner.loss, pool) for row in vectors])
        found = Shadows(held, now)
        if best is None or abs(found.mean(share) - level) < abs(best.mean(share) - level):
            best = found
        if found.mean(share) > level:
            break
    if best is None:
        raise ValueError(f"{passes} passes of shadow training: expected at least one")
    return best


def learner_predict(learner: Learner, vector: Tensor) -> Predict:
    """The outputs of a model in evaluation."""
    return lambda inputs: learner.network.apply(vector, inputs)


def likelihood_ratio(observed: Tensor, shadows: Shadows) -> tuple[Tensor, Tensor]:
    """How much more likely each candidate's confidence is with it than without it.

    Args:
        observed: shape (P,), the attacked model's confidences.
        shadows: what shadow models say; each candidate is in at least one and not in all.

    Returns:
        Float64, shape (P,) each: *online*, the logarithm of the ratio of both Gaussians' densities; *offline*, by how
        many standard deviations the confidence is above the mean without the example.
    """
    observed = observed.double()
    inside, outside = _moments(shadows, shadows.held), _moments(shadows, ~shadows.held)
    online = _log_density(observed, *inside) - _log_density(observed, *outside)
    return online, (observed - outside[0]) / outside[1]


def _moments(shadows: Shadows, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each candidate's confidences over the chosen shadow models, shape (P,) each."""
    count = chosen.sum(0)
    mean = torch.where(chosen, shadows.confidences, 0).sum(0) / count
    squares = torch.where(chosen, shadows.confidences - mean, 0).square()
    if len(chosen) >= OWN_SPREAD:
        variance = squares.sum(0) / count
    else:
        # one for all: so few numbers an example would give spreads near 0 by chance
        spare = (count - 1).sum().clamp(min=1)
        variance = (squares.sum() / spare).expand(len(mean))
    return mean, variance.sqrt().clamp(min=SMALLEST_SPREAD)


def _log_density(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Of a Gaussian, but for a constant."""
    return -((values - mean) / deviation).square() / 2 - deviation.log()
