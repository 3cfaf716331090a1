"""CGD's numbers as integers modulo 2^32, which secure sums need (arXiv 2104.13050, appendix A)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.cohort import Cohort, Grid
from discreet.errors import ConfigError
from discreet.randomness import Keyed, Seeded
from discreet.schemes.base import Phase
from discreet.secure.fixed_point import FixedPoint

BITS = 32
"""Of the integers that gradients are shared in."""

COARSEST = 1 << 8
"""Fewer integers to a unit are no fixed point to train with."""

_ROOM = (1 << (BITS - 1)) - 1


@dataclass(frozen=True)
class Fixed:
    """How a grid's participants write their numbers as integers, each phase at one scale.

    Attributes:
        grid: who holds what.
        largest_gradient: the largest coordinate of one example's gradient that is not cut.
        largest_activation: the largest share of a pre-activation that is not cut.
    """

    grid: Grid
    largest_gradient: float
    largest_activation: float

    def scale(self, phase: str) -> float:
        """Integers to a unit in a phase: the finest power of two at which the largest values cannot wrap.

        Raises:
            ConfigError: so many participants are added up that there is no room for any of them.
        """
        grid = self.grid
        if phase == "gradient":
            # a block is added up over its column, that is over the rows
            parties, limit = grid.rows, self.largest_gradient * max(1, grid.capacity) / max(1, grid.examples)
        else:
            parties, limit = grid.columns, self.largest_activation
        if _ROOM // grid.participants < 1:
            raise ConfigError(
                "data.clients", grid.participants, f"fewer: their sum has no room in {BITS} bits"
            )
        scale = 2.0 ** math.floor(math.log2(_ROOM / parties / limit))
        if scale < COARSEST:
            key = "largest_gradient" if phase == "gradient" else "largest_activation"
            raise ConfigError(
                f"scheme.{key}",
                getattr(self, key),
                f"a smaller one: a step of fixed point would be {1 / scale:g}",
            )
        return scale

    def encode(
        self, phase: Phase, values: Tensor, cohort: Cohort, randomness: Seeded | Keyed
    ) -> tuple[Tensor, Tensor]:
        """Numbers rounded up or down at random, without bias.

        Args:
            phase: which sum they go into.
            values: finite, shape (K, length), on the CPU.
            cohort: whose they are.
            randomness: each participant's for its own rounding.

        Returns:
            Integers, int64 of shape (K, length), and how many of each participant's numbers were cut, shape (K,).
        """
        numbers = values.numpy()
        words = np.stack(
            [
                randomness.words(cohort.round, one, f"rounding {phase.name}", phase.length)
                for one in cohort.ids.tolist()
            ]
        )
        integers: NDArray[np.int64] = np.empty(numbers.shape, dtype=np.int64)
        saturated = np.zeros(len(numbers), dtype=np.int64)
        for places, fixed in self._parts(phase):
            encoded = fixed.encode_unbiased(numbers[:, places], words[:, places])
            integers[:, places] = fixed.ring.lift(encoded.elements)
            saturated += encoded.saturated
        return torch.from_numpy(integers), torch.from_numpy(saturated)

    def decode(self, phase: str, total: Tensor) -> Tensor:
        """What a total stands for, in float64."""
        return total.to(torch.float64) / self.scale(phase)

    def _parts(self, phase: Phase) -> list[tuple[slice, FixedPoint]]:
        """All elements at one scale, each part with the parties it is summed over.

        Upper layers are added up over everybody; each participant's part of them is one `columns`-th.
        """
        scale, own = self.scale(phase.name), phase.length - phase.common
        parties = self.grid.columns if phase.scope == "row" else self.grid.rows
        parts = [(slice(0, own), FixedPoint(scale, BITS, parties))]
        if phase.common:
            parts.append((slice(own, phase.length), FixedPoint(scale, BITS, self.grid.participants)))
        return parts
