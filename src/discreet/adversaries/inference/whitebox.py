"""White-box membership inference on a view of several rounds: by gradients, losses and last layers of single examples.

After Nasr, Shokri and Houmansadr 2019 (arXiv 1812.00910), passive: the attacker looks at the models of several rounds
from within, as a participant sees them (*local*) or as the server does (*global*, with each client's own contribution
where sums are in the clear). As in the paper it knows for some candidates whether they are members, and learns from them.

Kept of theirs: the features (loss, confidence, size of the example's gradient, of its last layer's as well, over the
rounds), the two passive attackers, and known members and others to learn from. Not kept: their attack model of
convolutional and fully connected encoders over whole gradients and activations, which is a logistic regression on
summaries here; the active attackers, who change what is trained; the unsupervised one. Of ours: how far an example's
gradient points along what a round did to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from discreet.adversaries.inference.likelihood import confidences, learner_predict
from discreet.adversaries.inference.membership import losses_of
from discreet.cohort import Examples
from discreet.training import Learner

NUMBERS = 1 << 24
"""Single gradients of so many numbers in all are held at once."""

FAINT, FAR = 1e-12, 8.0
"""Logarithms are of numbers no smaller than the one; features are cut at so many deviations as the other."""


@dataclass(frozen=True, eq=False)
class Sighting:
    """A model in the hands of the attacker, and where it was then moved.

    Attributes:
        vector: its parameters, shape (n,).
        moves: shape (J, n): what clients contributed, or what the round did; J may be 0.
    """

    vector: Tensor
    moves: Tensor


def features(learner: Learner, sightings: Sequence[Sighting], examples: Examples) -> Tensor:
    """What the attacker measures of each example, in all rounds.

    Args:
        learner: model, loss and how gradients are computed.
        sightings: at least one; all with moves, or none.
        examples: B of them.

    Returns:
        Float64, shape (B, F): of each measurement the mean over the rounds, and the last minus the first.
    """
    rounds = torch.stack([_measured(learner, one, examples) for one in sightings])
    found = [rounds.mean(0)]
    if len(sightings) > 1:
        found.append(rounds[-1] - rounds[0])
    return torch.cat(found, dim=1)


def _measured(learner: Learner, sighting: Sighting, examples: Examples) -> Tensor:
    """Shape (B, measurements), at one model."""
    predict = learner_predict(learner, sighting.vector)
    losses = losses_of(predict, learner.loss, examples).nan_to_num()
    sure = confidences(predict, learner.loss, examples)
    columns = [losses.clamp(min=FAINT).log(), sure, *_gradients(learner, sighting, examples).unbind(1)]
    return torch.stack(columns, dim=1)


def _gradients(learner: Learner, sighting: Sighting, examples: Examples) -> Tensor:
    """Of each example's gradient: its size, its last layer's, and the extreme cosines of its opposite with the moves."""
    network = learner.network
    gradient = learner.gradient(examples.inputs.dim() - 1)
    moves = torch.nn.functional.normalize(sighting.moves.float(), dim=1)
    last = [place for place, slot in enumerate(network.layout) if len(slot.shape) > 1][-1:] or [-1]
    found = [torch.empty(0, 4 if len(moves) else 2, dtype=torch.float64)]
    size = max(1, NUMBERS // network.count)
    parts = network.unflatten(sighting.vector.float()).values()
    for places in torch.split(torch.arange(len(examples), device=examples.targets.device), size):
        inputs, targets = examples.gather(places)
        count = len(places)
        stack = [part.expand(count, *part.shape) for part in parts]
        weights = torch.ones(count, 1, device=targets.device)
        keys = torch.zeros(count, dtype=torch.int64, device=targets.device)
        with torch.no_grad():
            single, _ = gradient(stack, inputs.unsqueeze(1), targets.unsqueeze(1), weights, keys)
            whole = torch.cat([part.flatten(1) for part in single], dim=1)
            sizes = whole.norm(dim=1, keepdim=True)
            columns = [sizes, single[last[0]].flatten(1).norm(dim=1, keepdim=True)]
            columns = [column.double().clamp(min=FAINT).log() for column in columns]
            if len(moves):
                along = -(whole @ moves.T) / sizes.clamp(min=FAINT)
                columns += [along.amax(1, keepdim=True), along.amin(1, keepdim=True)]
        found.append(torch.cat([column.double().cpu() for column in columns], dim=1))
    return torch.cat(found).nan_to_num()


def learnt(members: Tensor, others: Tensor, unknown: Tensor) -> Tensor:
    """Scores of candidates, by a model of what tells members from others.

    Args:
        members: features of known members, shape (M, F), M at least 1.
        others: features of known others, shape (N, F), N at least 1.
        unknown: of the candidates, shape (B, F).

    Returns:
        Float64, shape (B,): the higher, the more an example looks like a member.
    """
    known = torch.cat([members, others]).double()
    mean, deviation = known.mean(0), known.std(0, correction=0)
    usable = deviation > FAINT * (1 + mean.abs())
    if not usable.any():
        return torch.zeros(len(unknown), dtype=torch.float64)

    def scaled(values: Tensor) -> Tensor:
        plain = ((values.double() - mean) / torch.where(usable, deviation, 1.0))[:, usable].clamp(-FAR, FAR)
        return torch.cat([plain, plain.square() - 1], dim=1)

    truth = [1] * len(members) + [0] * len(others)
    model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=5000)
    model.fit(scaled(known).numpy(), truth)
    return torch.from_numpy(model.decision_function(scaled(unknown).numpy()))
