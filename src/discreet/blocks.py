"""Blocks of which a network can be put together so that it can be read as a list of layers.

A network written as an `nn.Sequential` says in which order its layers follow each other. What branches does not, as
its additions are hidden in a `forward`. These two modules are such branchings, with their branches in the open.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Concatenation", "Residual"]


class Residual(nn.Module):
    """A body and a shortcut around it, added: ``shortcut(x) + body(x)``.

    Attributes:
        body: the layers that learn what is to be added.
        shortcut: what takes the input to the shape of the body's output; None: the input as it is.
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum, of the shape of the body's output: body and shortcut must agree in it."""
        around = inputs if self.shortcut is None else self.shortcut(inputs)
        total: Tensor = around + self.body(inputs)
        return total


class Concatenation(nn.Module):
    """Branches of one input, side by side along dimension 1 (features, channels).

    Attributes:
        branches: in the order in which their outputs stand.
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        if not branches:
            raise ValueError("a concatenation of no branches: expected at least one module")
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape (batch, sum of the branches' features, ...)."""
        return torch.cat([branch(inputs) for branch in self.branches], dim=1)
