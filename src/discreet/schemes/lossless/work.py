"""What a cohort of participants contributes to a round."""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.cohort import Cohort
from discreet.randomness import Keyed, Seeded
from discreet.schemes.base import Contribution
from discreet.schemes.lossless.bodies import body_of
from discreet.schemes.lossless.layout import Integers
from discreet.schemes.lossless.noise import Perturbed
from discreet.schemes.lossless.preparing import Prepared
from discreet.schemes.lossless.terms import Directions, terms
from discreet.training import Trained, mean_gradients, means


def contributed(
    ready: Prepared, payload: Perturbed, cohort: Cohort, randomness: Seeded | Keyed, batch_size: int
) -> Trained:
    """Each participant's mean gradient of the perturbed model, and noise terms.

    Args:
        ready: what follows from the task.
        payload: the round's.
        cohort: K participants.
        randomness: streams of the run.
        batch_size: examples drawn by each; 0 for all that it has.

    Returns:
        Contributions without their weights in `changes`, shape (K, layout.values); losses of the perturbed model.
    """
    learner, structure = ready.learner, ready.structure
    if not payload.m:
        return mean_gradients(learner, payload.vector, cohort, randomness, batch_size)
    body = body_of(learner.path, learner.network, structure, learner.dimensions)
    directions = Directions.of(payload, ready.curvature, structure.outputs)

    def add(
        sums: Tensor, stack: list[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor, keys: Tensor
    ) -> Tensor:
        found = terms(body, learner.loss, directions, structure.bias, stack, inputs, targets, weights, keys)
        ready.layout.add(sums, found)
        return found.losses

    return means(learner, add, ready.layout.values, payload.vector, cohort, randomness, batch_size)


def as_integers(integers: Integers, found: Trained, cohort: Cohort, capacity: int) -> Contribution:
    """Contributions in fixed point, weighted; who has nothing to add adds zeros: it is not seen who that is.

    Args:
        integers: how numbers become integers.
        found: of the cohort.
        cohort: K participants.
        capacity: the most examples that any participant holds: their weights are shares of it.
    """
    share = torch.from_numpy(cohort.sizes / max(1, capacity))[:, None]
    values = torch.cat([found.changes.to("cpu", torch.float64) * share, share], dim=1)
    usable = found.accepted.cpu()
    elements, saturated = integers.encoded(torch.where(usable[:, None], values, 0.0))
    return Contribution(
        torch.from_numpy(elements),
        torch.ones_like(usable),
        found.losses,
        withheld=~usable,
        saturated=torch.from_numpy(saturated),
    )
