"""How far confined models can stay behind the best model: theorem 1 of the paper, and a bound with all its constants.

Notation: F is the global loss, the mean over all n examples; F_j the part of it that participant j holds, so that
``F = sum_j F_j``; w* a minimum of F. The regret of participant l after T rounds is the mean of ``F(w_k^l) - F(w*)``
over the models of rounds k = 1 to T, each as it was before the round's step.

Everything here needs all confined models: a simulation can work it out, no party of a real federation can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, jacrev, vmap

from discreet.cohort import Examples
from discreet.evaluation import Map
from discreet.training import Learner

AT_ONCE = 16
"""Participants whose models are drawn before their sum is handed on; the same whoever works on them."""

PIECE = 4096
"""Examples whose losses are worked out at once."""

NEWTON_STEPS = 60


@dataclass(frozen=True, eq=False)
class Spread:
    """How far confined models lie from their mean, which no round changes.

    Attributes:
        distances: for each participant l the L2 norm of ``w_1^l - mean_j w_1^j``, shape (m,), float64.
    """

    distances: NDArray[np.float64]

    @property
    def rms(self) -> float:
        """Root of the mean of the squared distances."""
        return float(np.sqrt(np.square(self.distances).mean()))

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """Theorem 1's epsilon of each participant, ``m ||E_j (w_1^l - w_1^j)||``, shape (m,)."""
        return len(self.distances) * self.distances

    @property
    def epsilon(self) -> float:
        """The largest of them."""
        return float(self.epsilons.max())


def spread_of(draw: Callable[[int], Tensor], participants: Sequence[int], parallel: Map = map) -> Spread:
    """The spread of some participants' first models. Each is drawn twice, and few are in memory at a time.

    Args:
        draw: gives a participant's model, flat, all of one length.
        participants: at least one.
        parallel: maps over stacks of participants; it does not change the result.
    """
    stacks = [participants[first : first + AT_ONCE] for first in range(0, len(participants), AT_ONCE)]

    def added(stack: Sequence[int]) -> Tensor:
        total = draw(stack[0]).to(torch.float64)
        for one in stack[1:]:
            total += draw(one)
        return total

    mean = sum(parallel(added, stacks), torch.zeros((), dtype=torch.float64)) / len(participants)

    def measured(stack: Sequence[int]) -> list[float]:
        return [float((draw(one) - mean).norm()) for one in stack]

    return Spread(np.array([one for some in parallel(measured, stacks) for one in some]))


def theorem_bound(epsilon: float, rounds: int, decay: float) -> float:
    """``epsilon + 1 / (mu T + 1) + ln|mu T + 1| / T``: theorem 1 of arXiv 2104.13050, with every constant set to 1.

    The theorem is for a convex loss with Lipschitz constant L (in the L2 norm), gradients and distances to w* that are
    bounded, full batches, and steps of ``alpha / (k + mu T)^2``. It says that the regret is *of the order* of these
    three terms: L, alpha and the bounds are left out of them, and so are the units. So a regret above this number does
    not contradict the theorem, and one below it does not confirm it. It is to be read as how the regret goes with
    delta, m and T. Two things that it hides: for a fixed step (mu = 0) the second term is 1 for ever; and for mu above
    0 all steps together are shorter than ``alpha / (mu T)``, so that with alpha and mu fixed models hardly move when T
    is large. `sure_bound` has all its constants.

    Args:
        epsilon: see `Spread`; at least 0.
        rounds: T, at least 1.
        decay: mu, at least 0; 0 for a fixed step.
    """
    if rounds < 1 or decay < 0:
        raise ValueError(f"rounds = {rounds}, decay = {decay}: expected at least 1, and at least 0")
    reach = decay * rounds + 1
    return epsilon + 1 / reach + math.log(reach) / rounds


def sure_bound(furthest: float, error: float, steps: Sequence[float], smoothness: float) -> float:
    """A bound on a participant's regret that holds for every convex loss with a Lipschitz gradient.

    Let G_k be the sum that all models step by, and e at least ``||G_k - gradient F(w_k^l)||`` (see `gradient_error`).
    With ``d_k = ||w_k^l - w*||`` and F_k short for ``F(w_k^l) - F(w*)``:

    * F is convex: ``F_k <= <gradient, w_k^l - w*> <= <G_k, w_k^l - w*> + e d_k``.
    * A step: ``d_{k+1}^2 = d_k^2 - 2 a_k <G_k, w_k^l - w*> + a_k^2 ||G_k||^2``.
    * F is beta-smooth: ``||gradient||^2 <= 2 beta F_k``, so ``||G_k||^2 <= 4 beta F_k + 2 e^2``.

    Together, where ``a_k <= 1 / (4 beta)``: ``F_k <= (d_k^2 - d_{k+1}^2) / a_k + 2 e d_k + 2 a_k e^2``. Steps do not
    grow, so the sum over k of the first term is at most ``D^2 / a_T``, with D the largest of the d_k:

        regret <= D^2 / (a_T T) + 2 e D + 2 e^2 mean(a)

    Args:
        furthest: D, the largest distance of the participant's models w_1 to w_T from a minimum. It is at most
            ``d_1 + e sum(a)``, since a step along the gradient itself leads no further away.
        error: e, at least 0.
        steps: a_1 to a_T, above 0 and not growing.
        smoothness: beta, the Lipschitz constant of F's gradient.

    Raises:
        ValueError: a step grows, or is above ``1 / (4 beta)``.
    """
    sizes = np.asarray(steps, dtype=np.float64)
    if not len(sizes) or sizes.min() <= 0 or (np.diff(sizes) > 0).any():
        raise ValueError("steps: expected at least one, all above 0 and none above the one before it")
    if 4 * smoothness * sizes[0] > 1 + 1e-12:
        raise ValueError(f"a step of {sizes[0]:g}: expected at most 1 / (4 beta) = {0.25 / smoothness:g}")
    return float(furthest**2 / (sizes[-1] * len(sizes)) + 2 * error * furthest + 2 * error**2 * sizes.mean())


def gradient_error(models: Tensor, smoothness: Sequence[float]) -> NDArray[np.float64]:
    """For each participant the most by which the sum of all gradients differs from the gradient at its own model.

    ``||sum_j (gradient F_j(w^j) - gradient F_j(w^l))|| <= sum_j beta_j ||w^j - w^l||``: the same in every round.

    Args:
        models: shape (m, n), of any round.
        smoothness: beta_j, the Lipschitz constant of the gradient of each F_j.

    Returns:
        Shape (m,).
    """
    distances = torch.cdist(models.double(), models.double(), compute_mode="donot_use_mm_for_euclid_dist")
    errors: NDArray[np.float64] = (distances @ torch.tensor(smoothness, dtype=torch.float64)).numpy()
    return errors


def smoothness_of(inputs: Tensor, examples: int, curvature: float) -> float:
    """The Lipschitz constant of the gradient of a linear model's loss, ``sum_i loss(W x_i + b) / n``.

    Args:
        inputs: the examples of one participant, or all, shape (count, features), without the constant 1 of the bias.
        examples: n, of all participants.
        curvature: the largest second derivative of the loss by the outputs: 1/2 for softmax cross-entropy, and 2 over
            the number of outputs for squared error averaged over them.
    """
    extended = torch.cat([inputs.double(), inputs.new_ones(len(inputs), 1).double()], dim=1)
    return curvature * float(torch.linalg.matrix_norm(extended, 2)) ** 2 / examples if len(inputs) else 0.0


def losses_of(learner: Learner, models: Tensor, examples: Examples) -> Tensor:
    """F of several models, shape (m,), float64.

    Args:
        learner: the network and the loss.
        models: their parameters, shape (m, n); computed with in their own precision.
        examples: all of them.
    """
    total = torch.zeros(len(models), dtype=torch.float64)
    for first in range(0, len(examples), PIECE):
        inputs, targets = examples.gather(torch.arange(first, min(first + PIECE, len(examples))))
        inputs = inputs.to(models.dtype)
        if targets.is_floating_point():
            targets = targets.to(models.dtype)

        def loss(model: Tensor, inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            return learner.loss(learner.network.apply(model, inputs), targets).sum(dtype=torch.float64)

        total += vmap(loss)(models)
    return total / len(examples)


def minimum(learner: Learner, examples: Examples, tolerance: float = 1e-10) -> tuple[Tensor, float]:
    """A minimum of a convex F, by Newton's method in double precision from 0, for up to about a thousand parameters.

    Args:
        learner: the network and the loss.
        examples: all of them.
        tolerance: of the gradient's largest coordinate.

    Returns:
        The parameters, shape (n,), float64, and F there. Of several minima it is the one that Newton's method finds.

    Raises:
        ValueError: the gradient does not get so small: F is not convex, or has no minimum, or not smooth enough.
    """
    inputs, targets = examples.gather(torch.arange(len(examples)))
    inputs = inputs.double()
    targets = targets.double() if targets.is_floating_point() else targets

    def value(at: Tensor) -> Tensor:
        return learner.loss(learner.network.apply(at, inputs), targets).mean()

    at = torch.zeros(learner.network.count, dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        slope = grad(value)(at)
        if float(slope.abs().max()) <= tolerance:
            return at, float(value(at))
        # the Hessian may be singular, as where all scores of classes can be shifted alike
        step = torch.linalg.lstsq(jacrev(grad(value))(at), slope, driver="gelsd").solution
        size, now = 1.0, value(at)
        while size > 1e-4 and value(at - size * step) > now - 1e-4 * size * slope.dot(step):
            size /= 2
        at = at - size * step
    raise ValueError(
        f"no minimum was found: the gradient's largest coordinate is {float(slope.abs().max()):.1e}"
    )
