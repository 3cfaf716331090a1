"""A network as a list of layers: which scale each neuron or channel has, and where the last layer lies.

A *scale* is a number of one neuron or channel, shared by all places of a picture. Layers with parameters give their
outputs new scales; all others pass on those of their inputs. What is added up must have the same: the branches of a
`Residual` share theirs. The inputs have the scale 1, which is number 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Rule:
    """How one parameter is scaled: ``element * r[out] / r[into]``.

    Attributes:
        name: of the parameter.
        out: numbers of scales, of a shape that broadcasts to the parameter's; 0 everywhere where it is not scaled.
        into: likewise.
    """

    name: str
    out: Tensor
    into: Tensor


@dataclass(frozen=True, eq=False)
class Shift:
    """What a BatchNorm's stored mean adds to its scaled bias, so that the mean itself can stay as it is.

    ``bias^ = r[out] * bias + r[out] * (1 / r[into] - 1) * ratio * weight``.

    Attributes:
        weight, bias: names of the parameters.
        out, into: numbers of the channels' scales, shape (channels,).
        ratio: stored mean over stored standard deviation, float64, shape (channels,).
    """

    weight: str
    bias: str
    out: Tensor
    into: Tensor
    ratio: Tensor


@dataclass(frozen=True, eq=False)
class Structure:
    """A network that can be perturbed.

    Attributes:
        scales: how many scales there are, that of the inputs (number 0, always 1) included.
        rules: one for each parameter, in the order of the network's layout.
        shifts: of BatchNorms.
        last: name of the last linear layer; may be empty.
        hidden: parameters below the last layer, which come first in the vector (H).
        width: inputs of the last layer (d).
        outputs: of the network (n_L).
        bias: whether the last layer has one.
        into: numbers of the scales of the last layer's inputs, shape (d,).
        shape: of one input.
        slots: shapes of the parameters, in the order of the rules.
    """

    scales: int
    rules: tuple[Rule, ...]
    shifts: tuple[Shift, ...]
    last: str
    hidden: int
    width: int
    outputs: int
    bias: bool
    into: Tensor
    shape: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """n, the parameters of the network."""
        return self.hidden + self.outputs * (self.width + self.bias)

    @cached_property
    def places(self) -> Mapping[str, slice]:
        """Where each parameter lies in the vector."""
        found, start = {}, 0
        for rule, shape in zip(self.rules, self.slots, strict=True):
            found[rule.name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return found


def without_last(module: nn.Module, name: str) -> nn.Module:
    """The module, changed in place, with nothing in the place of its last layer: it puts out that layer's inputs."""
    if not name:
        return nn.Identity()
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, nn.Identity())
    return module
