"""Step rules: functions of the total's history alone, so that of CGD every confined model takes the same step.

All of them move the displacement that all models have in common; their differences stay as they were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from discreet.checked import STRICT, plain
from discreet.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Displacement:
    """What CGD's participants have in common; it holds no model.

    Attributes:
        displacement: how far every confined model has moved since it was drawn.
        mean: moving average of the totals, for the rules that take one; else empty.
        square: moving average of their squares, likewise.
        total_norm: L2 norm of the last total, shape ().
        history: the displacements before this one, newest first, for participants who lag behind.
    """

    displacement: Tensor
    mean: Tensor
    square: Tensor
    total_norm: Tensor
    history: Tensor


@plain("scheme.")
@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class CommonStep:
    """How the total of a round moves the models.

    Attributes:
        learning_rate: step size, above 0 (alpha).
        decay: mu in ``alpha / (k + mu T)^2`` (arXiv 2104.13050, theorem 1), with T the `horizon`; 0 for a fixed step.
        horizon: T, rounds that the decaying step is planned for; needed with `decay`.
        optimizer: ``sgd``: against the total; ``momentum``: against its moving sum; ``rmsprop``, ``adam``: divided by
            the root of the moving average of its squares.
        momentum: for ``momentum``, and the first moving average of ``adam``; in [0, 1).
        square_average: share that the moving average of squares keeps each round, for ``rmsprop`` and ``adam``.
        floor: what is added to the root of the squares, above 0.
    """

    learning_rate: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    horizon: int | None = Field(default=None, ge=1)
    optimizer: Literal["sgd", "momentum", "rmsprop", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    square_average: float = Field(default=0.99, ge=0, lt=1)
    floor: float = Field(default=1e-8, gt=0, allow_inf_nan=False)

    def __post_init__(self) -> None:
        if self.decay and self.horizon is None:
            raise ConfigError("scheme.horizon", None, "the number of rounds that scheme.decay is planned for")

    def step_size(self, round: int) -> float:
        """The step of a round, counted from 1."""
        if not self.decay:
            return self.learning_rate
        return self.learning_rate / (round + self.decay * (self.horizon or 0)) ** 2

    def start(
        self, length: int, device: torch.device, remembered: int = 0, dtype: torch.dtype = torch.float32
    ) -> Displacement:
        """Nothing has moved yet; so many earlier displacements will be remembered."""

        def zeros(wanted: bool) -> Tensor:
            return torch.zeros(length if wanted else 0, device=device, dtype=dtype)

        return Displacement(
            zeros(True),
            zeros(self.optimizer in ("momentum", "adam")),
            zeros(self.optimizer in ("rmsprop", "adam")),
            torch.zeros((), device=device, dtype=dtype),
            torch.zeros(remembered, length, device=device, dtype=dtype),
        )

    def moved(self, state: Displacement, total: Tensor, round: int) -> Displacement:
        """The displacement after a round.

        Args:
            state: before it.
            total: the sum of gradients, shape (length,); taken in the displacement's type.
            round: counted from 1.
        """
        total = total.to(state.displacement)
        mean, square, direction = state.mean, state.square, total
        match self.optimizer:
            case "momentum":
                mean = direction = self.momentum * mean + total
            case "rmsprop":
                square = torch.lerp(total.square(), square, self.square_average)
                direction = total / (square.sqrt() + self.floor)
            case "adam":
                mean = torch.lerp(total, mean, self.momentum)
                square = torch.lerp(total.square(), square, self.square_average)
                root = (square / (1 - self.square_average**round)).sqrt() + self.floor
                direction = mean / (1 - self.momentum**round) / root
        return Displacement(
            state.displacement - self.step_size(round) * direction,
            mean,
            square,
            total.norm(),
            torch.cat([state.displacement.unsqueeze(0), state.history])[: len(state.history)],
        )
