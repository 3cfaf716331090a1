"""The server's noise of one round: what is secret of it, and what participants are sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import LocalProtocolError
from discreet.randomness import SERVER, Seeded, SystemRandom
from discreet.schemes.base import GlobalModel
from discreet.schemes.lossless.structure import Structure

NoiseKind = Literal["uniform", "powers-of-two"]

DECADES = 1.0
"""Scales are log-uniform from 10^-DECADES to 10^DECADES."""

DOUBLINGS = 3
"""With powers of two, scales are 2^-DOUBLINGS to 2^DOUBLINGS."""


@dataclass(frozen=True, eq=False, repr=False)
class Secret:
    """What only the server knows of a round's noise. It can be neither printed nor stored.

    Attributes:
        scales: r, one for each scale of the structure; number 0 is 1. Float64.
        gamma: one for each group of outputs, float64, shape (m,); empty without additive noise.
    """

    scales: Tensor
    gamma: Tensor

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise LocalProtocolError("the secret of a round's noise is not to be stored or sent")

    def factors(self, structure: Structure) -> Tensor:
        """By what each parameter is multiplied, R: float64, shape (n,)."""
        parts = [self.scales[rule.out] / self.scales[rule.into] for rule in structure.rules]
        shaped = [part.expand(shape) for part, shape in zip(parts, structure.slots, strict=True)]
        return torch.cat([part.reshape(-1) for part in shaped])

    def outputs(self, ratios: Tensor, groups: Tensor) -> Tensor:
        """What the outputs are moved by for each unit of alpha, r = gamma o r^a: float64, shape (n_L,)."""
        if not len(self.gamma):
            return torch.zeros(len(ratios), dtype=torch.float64)
        return self.gamma[groups.cpu()] * ratios.to("cpu", torch.float64)


@dataclass(frozen=True, eq=False)
class Perturbed(GlobalModel):
    """What participants are sent.

    Attributes:
        vector: the perturbed model's parameters, shape (n,).
        ratios: r^a, shape (n_L,); empty without additive noise.
        groups: to which of the m groups each output belongs, int64, shape (n_L,); likewise.
        m: how many groups there are; 0 without additive noise.
        round: counted from 1.
        limits: with sums in fixed point, the largest value of each segment of a contribution; else empty.
        powers: likewise, the exponents that bring its numbers to like sizes.
    """

    ratios: Tensor
    groups: Tensor
    m: int
    round: int
    limits: Tensor
    powers: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Noise:
    """A round's noise before its strength is set; as secret as what becomes of it.

    Attributes:
        scales: r.
        gamma: of a strength that is still to be set, shape (m,).
        ratios, groups: as in `Perturbed`.
    """

    scales: Tensor
    gamma: Tensor
    ratios: Tensor
    groups: Tensor

    def __repr__(self) -> str:
        return "Noise(hidden)"

    def of_strength(self, strength: float) -> Secret:
        """The secret part, with ``gamma * strength``."""
        return Secret(self.scales, self.gamma * strength)


def draw(
    structure: Structure, m: int, kind: NoiseKind, randomness: Seeded | SystemRandom, round: int
) -> Noise:
    """Draw a round's noise, all of it anew.

    Scales are log-uniform in [0.1, 10], or powers of two from 1/8 to 8; r^a is uniform in [0.75, 1.25], its components
    pairwise different; outputs are dealt to groups of equal size, give or take one; gamma is uniform in [0.5, 2] with
    a random sign, up to its strength.

    Args:
        structure: of the network.
        m: groups of outputs; 0 for no additive noise.
        kind: of the scales.
        randomness: `Seeded` in a simulation, where the same round gives the same noise; `SystemRandom` where
            participants must not be able to draw it too. What this draws must then be kept until the round is over.
        round: counted from 1.
    """
    free = structure.scales - 1
    words = randomness.words(round, SERVER, "perturbation", free + 3 * structure.outputs + 2 * m)
    taken = 0

    def take(count: int) -> NDArray[np.uint64]:
        nonlocal taken
        taken += count
        return words[taken - count : taken]

    if kind == "powers-of-two":
        scales = np.exp2(np.floor(uniform(take(free)) * (2 * DOUBLINGS + 1)) - DOUBLINGS)
    else:
        scales = 10 ** (DECADES * (2 * uniform(take(free)) - 1))
    ratios = 0.75 + 0.5 * uniform(take(structure.outputs))
    order, spare = np.argsort(take(structure.outputs), kind="stable"), take(structure.outputs)
    if len(np.unique(ratios)) < len(ratios):
        ratios = 0.75 + 0.5 * (np.argsort(spare, kind="stable") + 0.5) / len(ratios)
    groups = np.empty(structure.outputs, dtype=np.int64)
    groups[order] = np.arange(structure.outputs) % max(m, 1)
    signs = np.where(take(m) >> np.uint64(63), -1.0, 1.0)
    gamma = signs * (0.5 + 1.5 * uniform(take(m)))
    return Noise(
        torch.from_numpy(np.concatenate([[1.0], scales])),
        torch.from_numpy(gamma),
        torch.from_numpy(ratios if m else ratios[:0]),
        torch.from_numpy(groups if m else groups[:0]),
    )


def strength(noise: Noise, structure: Structure, vector: Tensor, hidden: Tensor, rho: float) -> float:
    """By what gamma is multiplied, so that the noise is `rho` times the outputs of a probe batch, in the mean square.

    Args:
        noise: the round's.
        structure: of the network.
        vector: the true model's parameters, float64, shape (n,).
        hidden: the true model's inputs of its last layer on the probe batch, float64, shape (B, d).
        rho: ``rms(alpha r) / rms(y)``. Where the outputs are all 0, they count as 1.
    """
    weight, bias = last_layer(structure, vector)
    outputs = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    alpha = hidden @ noise.scales[structure.into].to(hidden) + float(structure.bias)
    moved = _rms(alpha) * _rms(noise.gamma[noise.groups] * noise.ratios)
    wanted = rho * (_rms(outputs) or 1.0)
    return wanted / moved if moved else rho


def perturb(structure: Structure, vector: Tensor, secret: Secret, ratios: Tensor, groups: Tensor) -> Tensor:
    """The perturbed model's parameters.

    ``W^ = R o W`` below the last layer and ``W^ = R o W + r 1^T`` in it, its bias counting as one more column.

    Args:
        structure: of the network.
        vector: the true model's, float64, shape (n,).
        secret: the round's.
        ratios: r^a, as in `Perturbed`.
        groups: likewise.

    Returns:
        Float64, shape (n,).
    """
    found = vector * secret.factors(structure).to(vector.device)
    for weight, bias, by_weight in _shifts(structure, secret, vector):
        found[bias] += by_weight * vector[weight]
    if len(secret.gamma):
        moved = secret.outputs(ratios, groups).to(vector.device)
        weights, biases = last_layer(structure, found)
        weights += moved[:, None]
        if biases is not None:
            biases += moved
    return found


def preimage(structure: Structure, perturbed: Perturbed, secret: Secret) -> Tensor:
    """The model that some secret makes into this perturbed one; every secret gives one.

    Args:
        structure: of the network.
        perturbed: what participants see.
        secret: any: the server's gives the true model.

    Returns:
        Float64, shape (n,).
    """
    found = perturbed.vector.to(torch.float64, copy=True)
    if len(secret.gamma):
        moved = secret.outputs(perturbed.ratios, perturbed.groups).to(found.device)
        weights, biases = last_layer(structure, found)
        weights -= moved[:, None]
        if biases is not None:
            biases -= moved
    factors = secret.factors(structure).to(found.device)
    shifts = list(_shifts(structure, secret, found))
    for weight, bias, by_weight in shifts:
        found[bias] -= by_weight * found[weight] / factors[weight]
    return found / factors


def last_layer(structure: Structure, vector: Tensor) -> tuple[Tensor, Tensor | None]:
    """Views of the last layer's weight, shape (n_L, d), and bias, shape (n_L,) or None, in a vector of parameters."""
    end = structure.hidden + structure.outputs * structure.width
    weight = vector[structure.hidden : end].view(structure.outputs, structure.width)
    return weight, vector[end:] if structure.bias else None


def pull_shifts_back(structure: Structure, secret: Secret, gradient: Tensor) -> None:
    """Add what biases of BatchNorms owe to their weights (the transposed of what `perturb` does), in place.

    Args:
        structure: of the network.
        secret: the round's.
        gradient: by the perturbed parameters, times `Secret.factors`; by the true ones when this returns.
    """
    for shift in structure.shifts:
        owed = (1 / secret.scales[shift.into] - 1) * shift.ratio
        by_bias = gradient[structure.places[shift.bias]]
        gradient[structure.places[shift.weight]] += owed.to(gradient.device) * by_bias


def _shifts(structure: Structure, secret: Secret, like: Tensor) -> list[tuple[slice, slice, Tensor]]:
    """Of each BatchNorm the places of weight and bias, and by what a weight enters the perturbed bias."""
    found = []
    for shift in structure.shifts:
        out, into = secret.scales[shift.out], secret.scales[shift.into]
        by_weight = out * (1 / into - 1) * shift.ratio
        found.append(
            (structure.places[shift.weight], structure.places[shift.bias], by_weight.to(like.device))
        )
    return found


def uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) from 64-bit words."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _rms(values: Tensor) -> float:
    return math.sqrt(float(values.square().mean()))
