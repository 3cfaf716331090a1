"""How far the server moves its model in a round."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.checked import STRICT, plain


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServerStep:
    """The server's step size: constant, or halved again and again.

    Attributes:
        server_learning_rate: step size of the first round, above 0.
        server_half_life: rounds after which it is half as large, above 0; None for a constant one.
    """

    server_learning_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    server_half_life: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def step_size(self, round: int) -> float:
        """The step size of a round, counted from 1: ``server_learning_rate * 2^-((round - 1) / server_half_life)``."""
        if self.server_half_life is None:
            return self.server_learning_rate
        return self.server_learning_rate * math.exp2((1 - round) / self.server_half_life)


def moved(vector: Tensor, direction: Tensor, step_size: float) -> Tensor:
    """``vector + step_size * direction``, computed in float64 and rounded once."""
    step = direction.to(vector.device, torch.float64) * step_size
    return (vector.to(torch.float64) + step).to(vector.dtype)
