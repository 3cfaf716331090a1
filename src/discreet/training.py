"""Local training of a stacked cohort."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples to train or test on: one shared array, of which clients hold indices.

    Attributes:
        inputs: shape (count, ...). ``uint8`` means pixels, which reach the model as value / 255 in float32;
            any other type reaches it as it is.
        targets: int64 class numbers of shape (count,), or float32 values of shape (count, outputs).
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs, as the model takes them, and targets at `indices` (int64, any shape)."""
        inputs = self.inputs[indices]
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(torch.float32).mul_(1 / 255)
        return inputs, self.targets[indices]
