"""Membership inference: was an example in the training data? Judged by the loss of a model, or of any predictions.

Whoever can predict can ask: examples that were trained on tend to have a smaller loss. From Yeom et al. 2018
(arXiv 1709.01604, adversary 1), with the threshold left open: a curve instead of a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import auc, roc_curve
from torch import Tensor

from discreet.cohort import Examples
from discreet.errors import DataError
from discreet.evaluation import PIECE
from discreet.losses import Loss

Predict = Callable[[Tensor], Tensor]
"""Inputs, shape (B, ...), to outputs, shape (B, outputs)."""

BY_CHANCE = 0.05
"""How often an attack that knows nothing passes what `Membership.chance` says."""


@dataclass(frozen=True, eq=False)
class Membership:
    """How well members are told from others, at every threshold.

    Attributes:
        false_positive: share of the others that are taken for members, rising from 0 to 1.
        true_positive: share of the members that are, at the same thresholds.
        members, others: how many of them were asked about.
    """

    false_positive: NDArray[np.float64]
    true_positive: NDArray[np.float64]
    members: int
    others: int

    @property
    def advantage(self) -> float:
        """The largest difference of the two shares, at least 0: 0 for guessing, 1 for certainty."""
        return float((self.true_positive - self.false_positive).max())

    @property
    def auc(self) -> float:
        """The chance that a member looks more like one than another example does; 0.5 for guessing."""
        return float(auc(self.false_positive, self.true_positive))

    @property
    def chance(self) -> float:
        """The advantage that guessing passes once in 20 times, since the best threshold is taken.

        ``sqrt(ln(1 / 0.05) (1 / members + 1 / others) / 2)``: the one-sided test of Kolmogorov and Smirnov, whose
        asymptotic is on the safe side.
        """
        return math.sqrt(-math.log(BY_CHANCE) * (1 / self.members + 1 / self.others) / 2)

    def found_at(self, false_positive: float) -> float:
        """Share of the members that are found where at most this share of the others is taken for members.

        With fewer others than ``1 / false_positive``, that is where none is.
        """
        allowed = self.false_positive <= false_positive + 1e-12
        return float(self.true_positive[allowed].max())


def membership(members: Tensor, others: Tensor) -> Membership:
    """Compare the scores of members with those of others.

    Args:
        members: shape (M,), M at least 1: the higher, the more an example looks like a member. NaN is the lowest.
        others: shape (N,), N at least 1, likewise.

    Raises:
        DataError: there are no members, or no others.
    """
    for name, scores in (("members", members), ("others", others)):
        if not len(scores):
            raise DataError(name, "expected at least one example, to compare members with others")
    scores = torch.cat([members, others]).double().cpu()
    largest = torch.finfo(torch.float64).max
    scores = scores.nan_to_num(nan=-largest, posinf=largest, neginf=-largest)
    truth = np.repeat([1, 0], [len(members), len(others)])
    false_positive, true_positive, _ = roc_curve(truth, scores.numpy(), drop_intermediate=False)
    return Membership(false_positive, true_positive, len(members), len(others))


def loss_threshold(predict: Predict, loss: Loss, members: Examples, others: Examples) -> Membership:
    """Take examples with a small loss for members.

    Args:
        predict: the model that is asked: a final one, or predictions of any other kind.
        loss: one value an example.
        members: examples that were trained on.
        others: examples that were not.

    Raises:
        DataError: there are no members, or no others.
    """
    return membership(-losses_of(predict, loss, members), -losses_of(predict, loss, others))


def losses_of(predict: Predict, loss: Loss, examples: Examples) -> Tensor:
    """The loss of each example, float64, shape (count,)."""
    found = [torch.empty(0, dtype=torch.float64)]
    with torch.no_grad():
        for places in torch.split(torch.arange(len(examples), device=examples.targets.device), PIECE):
            inputs, targets = examples.gather(places)
            outputs = predict(inputs).double()
            wanted = targets.double() if targets.is_floating_point() else targets
            found.append(loss(outputs, wanted).cpu())
    return torch.cat(found)
