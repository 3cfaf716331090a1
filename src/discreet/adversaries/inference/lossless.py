"""How a participant takes the noise off a perturbed model (`discreet.schemes.lossless`).

Four ways to gamma, the m numbers that hide the predictions, from what a participant is sent; each gives an `Estimate`
that predicts for any inputs. And what needs no attack at all: within a group, differences of predictions are in clear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.adversaries.inference.perturbed import Disguised, Estimate, rescaling
from discreet.cohort import Examples
from discreet.losses import Loss
from discreet.schemes.lossless.noise import last_layer
from discreet.schemes.lossless.quadratic import curvature

REPEATS = 20
"""A fit that takes its own results for granted is repeated at most so often."""


def aimed_at(loss: Loss, targets: Tensor, outputs: int) -> Tensor | None:
    """The outputs at which a quadratic loss is smallest, the shortest where there are many.

    Args:
        loss: of one example.
        targets: shape (B, ...).
        outputs: n_L.

    Returns:
        Float64, shape (B, n_L); None if the loss is not quadratic in the outputs.
    """
    curved = curvature(loss, outputs)
    if curved is None:
        return None
    wanted = targets.double() if targets.is_floating_point() else targets
    start = torch.zeros(len(targets), outputs, dtype=torch.float64, device=targets.device, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss(start, wanted).sum(), start)
    found: Tensor = -slope @ torch.linalg.pinv(curved).to(slope)
    return found


def regression(disguised: Disguised, examples: Examples, loss: Loss) -> Estimate | None:
    """Least squares of ``yhat - ybar`` on ``alpha r^a``, over examples whose labels one knows: one's own.

    A trained model's true outputs lie about the labels, and its errors have nothing to do with alpha.

    Args:
        disguised: the model.
        examples: the participant's own, at least one.
        loss: that the model is trained with.

    Returns:
        None if the loss is not quadratic: then there is no additive noise to take off.
    """
    inputs, targets = examples.gather(torch.arange(len(examples), device=examples.targets.device))
    wanted = aimed_at(loss, targets, disguised.structure.outputs)
    if wanted is None:
        return None
    noisy, alpha = disguised.run(inputs)
    return _fitted(disguised, noisy - wanted, alpha)


def without_labels(disguised: Disguised, inputs: Tensor, loss: Loss, *, classes: bool) -> Estimate | None:
    """The same without labels: from their mean, then from the classes that the de-noised model itself predicts.

    Args:
        disguised: the model.
        inputs: any that resemble the training data, shape (B, ...).
        loss: that the model is trained with.
        classes: whether the targets are class numbers; values are taken to be 0 in the mean.

    Returns:
        None if the loss is not quadratic.
    """
    outputs = disguised.structure.outputs
    every = torch.arange(outputs) if classes else torch.zeros(1, outputs, dtype=torch.float64)
    by_class = aimed_at(loss, every.to(inputs.device), outputs)
    if by_class is None:
        return None
    noisy, alpha = disguised.run(inputs)
    found = _fitted(disguised, noisy - by_class.mean(0), alpha)
    if not classes:
        return found
    labels: Tensor | None = None
    for _ in range(REPEATS):
        now = (noisy - torch.outer(alpha, found.shift)).argmax(1)
        if labels is not None and torch.equal(now, labels):
            break
        labels = now
        found = _fitted(disguised, noisy - by_class[labels], alpha)
    return found


def from_weights(disguised: Disguised) -> Estimate:
    """From the last layer alone, without any data: its true weights are about 0 in the mean, so its mean is r.

    ``What_ij = r_i + W_ij / r_j``: columns of neurons with a large scale say most, and are seen by their small spread.
    """
    columns = _columns(disguised)
    gamma, weights = columns.new_zeros(disguised.payload.m), columns.new_ones(columns.shape[1])
    ratios, groups = disguised.ratios, disguised.payload.groups
    for _ in range(REPEATS if len(gamma) else 0):
        mean = columns @ weights / weights.sum()
        gamma = disguised.by_group(mean * ratios) / disguised.by_group(ratios.square())
        weights = _weights((columns - (gamma[groups] * ratios)[:, None]).square().mean(0))
    return Estimate(disguised, gamma)


def two_rounds(disguised: Disguised, other: Disguised) -> Estimate:
    """From two rounds' models alone: the true weights hardly move between them, and both noises are fresh.

    The hidden layers tell by what factor q_j = r'_j / r_j each scale has changed. Then ``What_ij - q_j What'_ij`` is
    ``r_i - q_j r'_i``, up to a step of training: linear in both rounds' gamma. Neurons that training has left alone give
    them exactly. Without a hidden layer all q_j are 1, and only a difference is to be had.

    Args:
        disguised: the model of a round, of which the noise is estimated.
        other: that of a round soon before or after it.
    """
    structure = disguised.structure
    change = rescaling(structure, disguised.vector, other.vector)[structure.into].to(other.vector.device)
    first, second = _columns(disguised), _columns(other)
    if structure.bias:
        change = torch.cat([change, change.new_ones(1)])
    wanted = first - change * second
    if not disguised.payload.m:
        return Estimate(disguised, wanted.new_empty(0))
    # one column for each number of either gamma; the two partitions into groups differ
    ours, theirs = _indicators(disguised), _indicators(other)
    outputs, width = wanted.shape
    design = torch.cat(
        [ours[:, None].expand(outputs, width, -1), -change[None, :, None] * theirs[:, None]], dim=2
    )
    weights = change.new_ones(width)
    for _ in range(REPEATS):
        root = weights.sqrt()[None, :]
        both = torch.linalg.lstsq(
            (design * root[..., None]).reshape(-1, design.shape[2]), (wanted * root).reshape(-1, 1)
        ).solution[:, 0]
        weights = _weights((wanted - design @ both).square().mean(0))
    return Estimate(disguised, both[: disguised.payload.m])


def by_true_outputs(disguised: Disguised, inputs: Tensor, outputs: Tensor) -> Estimate:
    """The noise itself, from the true model's outputs, shape (B, n_L): no attack, but what attacks are judged by."""
    noisy, alpha = disguised.run(inputs)
    return _fitted(disguised, noisy - outputs.double(), alpha)


def in_clear(disguised: Disguised, inputs: Tensor) -> Tensor:
    """What is exact for every input, without any attack: ``y_i / r^a_i - y_k / r^a_k`` for k the first of i's group.

    Args:
        disguised: the model.
        inputs: shape (B, ...).

    Returns:
        Float64, shape (B, n_L); 0 for the first of each group. n_L - m dimensions of each prediction are known so.
    """
    return projected(disguised, disguised.as_it_comes(inputs))


def projected(disguised: Disguised, outputs: Tensor) -> Tensor:
    """``y_i / r^a_i - y_k / r^a_k`` of any outputs, shape (B, n_L), for k the first of i's group."""
    if not disguised.payload.m:
        return outputs
    scaled = outputs / disguised.ratios
    groups = disguised.payload.groups
    first = torch.stack([(groups == group).nonzero()[0, 0] for group in groups])
    return scaled - scaled[:, first]


def _fitted(disguised: Disguised, moved: Tensor, alpha: Tensor) -> Estimate:
    """Least squares of how outputs are moved, shape (B, n_L), on alpha r^a: one gamma a group."""
    if not disguised.payload.m:
        return Estimate(disguised, alpha.new_empty(0))
    ratios = disguised.ratios
    along = disguised.by_group((alpha @ moved) * ratios)
    return Estimate(disguised, along / (disguised.by_group(ratios.square()) * alpha.square().sum()))


def _columns(disguised: Disguised) -> Tensor:
    """The last layer as it was sent, its bias as one more column: shape (n_L, d or d + 1)."""
    weight, bias = last_layer(disguised.structure, disguised.vector)
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def _indicators(disguised: Disguised) -> Tensor:
    """r^a in the column of each output's group, else 0: shape (n_L, m)."""
    chosen = torch.nn.functional.one_hot(disguised.payload.groups, disguised.payload.m).double()
    return chosen * disguised.ratios[:, None]


def _weights(spreads: Tensor) -> Tensor:
    """Weights of columns by their mean squares; none so large that few columns decide everything."""
    floor = torch.quantile(spreads, 0.05).clamp(min=1e-300)
    return floor / torch.maximum(spreads, floor)
