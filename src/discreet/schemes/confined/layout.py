"""Who holds which part of a network whose first layer is split by columns.

The first layer's bias is one more input feature, which is always 1: the first column's in a joint forward pass, where
pre-activations are added up over a row, and each column's own where every participant predicts alone. A column's block
of the first layer has shape (hidden, width), with `width` the widest column's, so that all messages are of one length;
places beyond a column's own features are 0 and stay so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.cohort import Grid
from discreet.cut import Cut


@dataclass(frozen=True, eq=False)
class Layout:
    """Blocks of a network in a grid of participants.

    Attributes:
        cut: the network, cut behind its first layer.
        features: for each column its input features; `cut.features` stands for the constant one.
        pieces: in how many pieces a row's examples are worked on.
        piece: examples of a piece; rows are padded to `pieces` times as many.
    """

    cut: Cut
    features: tuple[NDArray[np.int64], ...]
    pieces: int
    piece: int

    @property
    def padded(self) -> int:
        """Examples of a row with its padding."""
        return self.pieces * self.piece

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self.features)

    @property
    def width(self) -> int:
        """Features of the widest column, the constant one included."""
        return max(len(own) for own in self.features)

    @property
    def block(self) -> int:
        """Length of a column's padded block of the first layer."""
        return self.cut.hidden * self.width

    @property
    def length(self) -> int:
        """Length of the displacement: all blocks, then the upper layers."""
        return self.columns * self.block + self.cut.upper_size

    def own_length(self, column: int) -> int:
        """Parameters that a participant of a column holds."""
        return self.cut.hidden * len(self.features[column]) + self.cut.upper_size

    def parted(self, own: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """A participant's own parameters as its padded block, shape (hidden, width), and its upper layers, flat."""
        held = len(self.features[column])
        block = own.new_zeros(self.cut.hidden, self.width)
        block[:, :held] = own[: self.cut.hidden * held].view(self.cut.hidden, held)
        return block, own[self.cut.hidden * held :]

    def moved(self, own: Tensor, column: int, displacement: Tensor) -> Tensor:
        """A participant's own parameters once they have moved by its part of the displacement."""
        held = len(self.features[column])
        by_block, by_upper = self.displacements(displacement)
        return own + torch.cat([by_block[column][:, :held].flatten(), by_upper])

    def whole(self, own: Tensor) -> Tensor:
        """Parameters as a participant holds them where there is one column, in the network's order: shape (n,)."""
        block, upper = self.parted(own, 0)
        features, bias = self.features[0][: self.cut.features], block[:, self.cut.features :]
        weight = torch.empty_like(block[:, : self.cut.features])
        weight[:, torch.from_numpy(features)] = block[:, : self.cut.features]
        return torch.cat([weight.flatten(), bias.flatten(), upper])

    def displacements(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the blocks, shape (columns, hidden, width), and of the upper layers, flat."""
        size = self.columns * self.block
        return displacement[:size].view(self.columns, self.cut.hidden, self.width), displacement[size:]

    def inputs(self, values: Tensor) -> Tensor:
        """Inputs split by columns.

        Args:
            values: shape (B, features).

        Returns:
            Shape (B, columns, width), 0 where a column has no feature.
        """
        extended = torch.cat(
            [values, values.new_ones(len(values), 1), values.new_zeros(len(values), 1)], dim=1
        )
        return extended[:, self._places().to(values.device)]

    def _places(self) -> Tensor:
        places = np.full((self.columns, self.width), self.cut.features + 1)
        for column, own in enumerate(self.features):
            places[column, : len(own)] = own
        return torch.from_numpy(places)


def layout_of(cut: Cut, grid: Grid, *, joint: bool, longest: int = 512) -> Layout:
    """The layout of a grid.

    Args:
        cut: the network.
        grid: who holds what.
        joint: whether a row's participants add up their pre-activations.
        longest: rows of more examples are worked on in pieces of at most so many.
    """
    features = grid.features or (np.arange(cut.features),)
    constant = np.array([cut.features] if cut.bias else [], dtype=np.int64)
    with_bias = tuple(
        np.concatenate([own, constant]) if column == 0 or not joint else np.asarray(own)
        for column, own in enumerate(features)
    )
    capacity = max(1, grid.capacity)  # a federation may have no examples at all
    pieces = -(-capacity // longest)
    return Layout(cut, with_bias, pieces, -(-capacity // pieces))
