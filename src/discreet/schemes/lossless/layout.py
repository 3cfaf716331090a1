"""What stands where in a contribution, and how it becomes integers where the sum must be modular."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import ConfigError
from discreet.schemes.lossless.balance import factors
from discreet.schemes.lossless.structure import Structure
from discreet.schemes.lossless.terms import Terms
from discreet.secure.fixed_point import FixedPoint

BITS = 64
"""Of the integers that contributions are summed in: 2^-63 of the largest sum is finer than float64 where it matters."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The order of a contribution's numbers.

    With additive noise (m groups): for each of m + 2 terms the hidden layers; the last layer; the mean of alpha times
    its inputs; the mean of alpha. Without: the gradient. In both cases the participant's weight comes last.

    Attributes:
        structure: of the network.
        m: groups of outputs; 0 without additive noise.
    """

    structure: Structure
    m: int

    @property
    def terms(self) -> int:
        """How often the hidden layers are in it (T)."""
        return self.m + 2 if self.m else 1

    @property
    def gradient(self) -> int:
        """Numbers that stand for the last layer."""
        return self.structure.count - self.structure.hidden

    @property
    def values(self) -> int:
        """Numbers before the weight."""
        extra = self.structure.width + 1 if self.m else 0
        return self.terms * self.structure.hidden + self.gradient + extra

    @property
    def length(self) -> int:
        """Numbers in all."""
        return self.values + 1

    @cached_property
    def segments(self) -> tuple[slice, ...]:
        """Parts whose numbers are of like size, up to the weight, which is the last."""
        sizes = [math.prod(shape) for shape in self.structure.slots]
        below = sizes[: len(sizes) - 1 - self.structure.bias]
        parts = below * self.terms + sizes[len(below) :]
        parts += [self.structure.width, 1] if self.m else []
        ends = np.cumsum([*parts, 1]).tolist()
        return tuple(slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))

    def balanced(self, values: Tensor, balance: Tensor) -> Tensor:
        """Contributions, shape (K, length or values), with all terms of the hidden layers multiplied by `balance`."""
        found = values.clone()
        terms = found[:, : self.terms * self.structure.hidden]
        terms.view(len(values), self.terms, self.structure.hidden).mul_(balance)
        return found

    def add(self, sums: Tensor, found: Terms) -> None:
        """Add terms of a batch to sums, of which the weight is left out: in place, shape (L, values)."""
        hidden, lanes = self.structure.hidden, len(sums)
        stacked = sums[:, : self.terms * hidden].view(lanes, self.terms, hidden)
        start = 0
        for one in found.hidden:
            flat = one[:, : self.terms].flatten(2)
            stacked[:, :, start : start + flat.shape[2]] += flat
            start += flat.shape[2]
        last = [found.weight.flatten(1), *([found.bias] if self.structure.bias else [])]
        last += [found.mixed, found.alpha.unsqueeze(1)] if self.m else []
        place = self.terms * hidden
        for part in last:
            sums[:, place : place + part.shape[1]] += part
            place += part.shape[1]


@dataclass(frozen=True, eq=False)
class Integers:
    """How contributions become integers.

    Attributes:
        layout: of the contributions.
        fixed: of each segment.
        balance: by what the hidden layers' numbers are multiplied first, shape (H,).
    """

    layout: Layout
    fixed: tuple[FixedPoint, ...]
    balance: Tensor

    @classmethod
    def of(cls, layout: Layout, limits: Tensor, powers: Tensor, parties: int) -> Integers:
        """The finest in which so many parties' numbers can be added up.

        Args:
            layout: of the contributions.
            limits: no party's number in a segment is larger, or it is cut; shape (segments,), above 0.
            powers: exponents that bring numbers to like sizes; see `discreet.schemes.lossless.balance`.
            parties: how many are summed at most.

        Raises:
            ConfigError: there are too many for any.
        """
        room = ((1 << (BITS - 1)) - 1) // parties
        if room < 1 << 32:
            raise ConfigError("data.clients", parties, f"fewer: their sum has no room in {BITS} bits")
        # limit <= 2^exponent
        steps = [room.bit_length() - 1 - math.frexp(limit)[1] for limit in limits.tolist()]
        fixed = tuple(FixedPoint(math.ldexp(1.0, step), BITS, parties) for step in steps)
        return cls(layout, fixed, factors(layout.structure, powers))

    def encoded(self, values: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Contributions as integers, rounded to nearest, and how many numbers of each were cut.

        Args:
            values: finite, float64, shape (K, length).
        """
        balanced = self.layout.balanced(values, self.balance).numpy()
        integers, saturated = np.empty(balanced.shape, dtype=np.int64), np.zeros(len(balanced), np.int64)
        for place, one in zip(self.layout.segments, self.fixed, strict=True):
            made = one.encode(balanced[:, place])
            integers[:, place] = one.ring.lift(made.elements)
            saturated += made.saturated
        return integers, saturated

    def rounding(self) -> Tensor:
        """Root mean squares of what rounding to integers adds to a decoded sum of all parties, shape (length,)."""
        found = torch.empty(self.layout.length, dtype=torch.float64, device=self.balance.device)
        for place, one in zip(self.layout.segments, self.fixed, strict=True):
            found[place] = math.sqrt(one.parties / 12) / one.scale
        return self.layout.balanced(found[None], 1 / self.balance)[0]

    def decoded(self, total: Tensor) -> Tensor:
        """A sum of integers as the sum of numbers that it stands for: float64, shape (length,)."""
        found = total.to(torch.float64)
        for place, one in zip(self.layout.segments, self.fixed, strict=True):
            found[place] /= one.scale
        return self.layout.balanced(found[None], 1 / self.balance)[0]
