"""Brings the numbers of a contribution to like sizes before they become integers, which all have the same step.

The gradients by a perturbed weight are as many times smaller as the weight is larger: by ``r_i / r_j``, which spans four
decades. The rows and columns of the perturbed weights themselves tell those factors roughly, and everybody sees them.
They are sent along, as powers of two, so that all parties use the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.schemes.lossless.structure import Rule, Structure

LARGEST = 30
"""Of the exponents."""


def exponents(structure: Structure, vector: Tensor) -> Tensor:
    """Exponents of two for the rows and columns of the hidden layers' weights.

    Args:
        structure: of the network.
        vector: the perturbed model's parameters, shape (n,): what participants see, and nothing else.

    Returns:
        Int8, shape (exponents,): for each weight of two dimensions or more those of its rows, then those of its columns.
    """
    found = []
    for rule, shape in _weights(structure):
        weight = vector[structure.places[rule.name]].view(shape).to("cpu", torch.float64)
        found.append(_exponents(weight.flatten(1).square().mean(1)))
        if _by_columns(rule):
            found.append(_exponents(weight.transpose(0, 1).flatten(1).square().mean(1)))
    return torch.cat([torch.empty(0, dtype=torch.int8), *found])


def count(structure: Structure) -> int:
    """How many exponents there are."""
    return sum(shape[0] + (shape[1] if _by_columns(rule) else 0) for rule, shape in _weights(structure))


def factors(structure: Structure, powers: Tensor) -> Tensor:
    """By what gradients by the hidden layers are multiplied, exactly: float64, shape (H,).

    Args:
        structure: of the network.
        powers: what `exponents` gave.
    """
    found = torch.ones(structure.hidden, dtype=torch.float64)
    start = 0

    def take(count: int) -> Tensor:
        nonlocal start
        start += count
        return torch.exp2(powers[start - count : start].to(torch.float64))

    for rule, shape in _weights(structure):
        rows = take(shape[0])
        tail = (1,) * (len(shape) - 1)
        both = rows.view(-1, *tail)
        if _by_columns(rule):
            both = both * take(shape[1]).view(1, -1, *tail[1:])
        found[structure.places[rule.name]] = both.expand(shape).reshape(-1)
        bias = structure.places.get(f"{rule.name.removesuffix('weight')}bias")
        if bias is not None:
            found[bias] = rows
    return found


def _weights(structure: Structure) -> list[tuple[Rule, tuple[int, ...]]]:
    """The hidden layers' parameters of two dimensions or more."""
    hidden = len(structure.rules) - 1 - structure.bias
    pairs = zip(structure.rules[:hidden], structure.slots[:hidden], strict=True)
    return [(rule, shape) for rule, shape in pairs if len(shape) > 1]


def _by_columns(rule: Rule) -> bool:
    """Whether all rows have the same inputs, as they have not in a convolution of groups."""
    return rule.into.shape[0] == 1


def _exponents(squares: Tensor) -> Tensor:
    """Of each mean square's root, in the root of all."""
    usable = squares.isfinite() & (squares > 0)
    whole = squares[usable].mean() if bool(usable.any()) else squares.new_ones(())
    ratio = torch.where(usable, squares, whole) / whole
    return (ratio.log2() / 2).round().clamp(-LARGEST, LARGEST).to(torch.int8)
