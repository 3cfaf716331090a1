"""How large outputs and contributions are, on a probe batch: random inputs, nobody's data, or public ones."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from discreet.network import Network
from discreet.randomness import SERVER, Seeded, SystemRandom
from discreet.schemes.lossless.balance import factors
from discreet.schemes.lossless.bodies import body_of
from discreet.schemes.lossless.noise import Perturbed, uniform
from discreet.schemes.lossless.preparing import Prepared
from discreet.schemes.lossless.structure import Structure, without_last
from discreet.schemes.lossless.terms import Directions, pulled

ProbeKind = Literal["uniform", "normal", "test"]

PROBED = 32
"""Inputs in a probe batch of random ones."""

NEAREST = 2.0**-54
"""To 0, of the numbers that normal ones are made from: half of the smallest above 0."""


def probe(
    randomness: Seeded | SystemRandom, shape: tuple[int, ...], device: torch.device, *, normal: bool = False
) -> Tensor:
    """A probe batch of random inputs: float64, shape (PROBED, *shape).

    Args:
        randomness: of the run.
        shape: of one input.
        device: where it is to be.
        normal: of mean 0 and variance 1, as in a standardised table, and not uniform in [0, 1), as pixels are.
    """
    words = randomness.words(0, SERVER, "probe", PROBED * math.prod(shape))
    found = torch.from_numpy(uniform(words)).view(PROBED, *shape).to(device)
    return torch.special.ndtri(found.clamp(min=NEAREST)) if normal else found


def true_hidden(network: Network, structure: Structure, vector: Tensor, inputs: Tensor) -> Tensor:
    """The inputs of the last layer, in evaluation.

    Args:
        network: the network.
        structure: its structure.
        vector: parameters, float64, shape (n,).
        inputs: float64, shape (B, *shape).

    Returns:
        Float64, shape (B, d).
    """
    module = without_last(network.replica().to(torch.float64), structure.last).eval()
    named = zip(network.layout, network.unflatten(vector).values(), strict=True)
    below = {slot.name: part for slot, part in named if slot.offset < structure.hidden}
    with torch.no_grad():
        hidden: Tensor = functional_call(module, below, (inputs,))
    return hidden


def limits(
    ready: Prepared, payload: Perturbed, inputs: Tensor, randomness: Seeded | SystemRandom, headroom: float
) -> Tensor:
    """The largest numbers that are expected in each segment of a contribution, and some headroom above.

    Targets are not known: the slopes of the loss are taken to be as large as the outputs, and 1 more. Whoever has the
    payload and the probe batch could work the limits out: nothing secret goes into them.

    Args:
        ready: what follows from the task.
        payload: the round's, which lacks them.
        inputs: the probe batch, shape (B, *shape).
        randomness: of the signs of its slopes.
        headroom: by what the largest numbers of the probe batch are multiplied.

    Returns:
        Float64, above 0, shape (segments,); the last is that of the weights, 1.
    """
    layout, learner, structure = ready.layout, ready.learner, ready.structure
    like = payload.vector
    count, inputs = len(inputs), inputs.to(like)[None]
    stack = [part[None] for part in learner.network.unflatten(like).values()]
    below = len(stack) - 1 - structure.bias
    body = body_of(learner.path, learner.network, structure, learner.dimensions)
    sums = like.new_zeros(1, layout.values)
    keys = torch.zeros(1, dtype=torch.int64, device=like.device)
    words = randomness.words(0, SERVER, "probe slopes", count * structure.outputs)
    signs = torch.from_numpy(np.where(words >> np.uint64(63), -1.0, 1.0)).to(like)
    with torch.no_grad():
        hidden, pull = body(stack[:below], inputs, keys)
        outputs = hidden @ stack[below].transpose(1, 2)
        if structure.bias:
            outputs = outputs + stack[-1].unsqueeze(1)
        slope = (outputs.abs() + 1) * signs.view_as(outputs) / count
        shares = like.new_full((1, count), 1 / count)
        directions = Directions.of(payload, ready.curvature, structure.outputs)
        found = pulled(pull, directions, structure.bias, hidden, stack[below], slope, shares, shares[:, 0])
        layout.add(sums, found)
    balanced = layout.balanced(sums.to("cpu", torch.float64), factors(structure, payload.powers))[0]
    return torch.cat([_limits(balanced, layout.segments[:-1], headroom), torch.ones(1, dtype=torch.float64)])


def _limits(values: Tensor, segments: tuple[slice, ...], headroom: float) -> Tensor:
    largest = torch.tensor([float(values[place].abs().max()) for place in segments], dtype=torch.float64)
    usable = largest.isfinite() & (largest > 0)
    # where nothing came through, as below dead neurons, the others tell the size
    others = torch.where(usable, largest, 0.0).max()
    return torch.where(usable, largest, others).clamp(1e-100, 1e200) * headroom
