"""Where confined models start: each participant draws its own, and nobody else ever sees it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.checked import STRICT, plain
from discreet.errors import ConfigError
from discreet.randomness import Keyed, Seeded


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConfinedStart:
    """``w_1^l = delta^l * Rand^l``, drawn by each participant alone (arXiv 2104.13050, equation 11).

    Attributes:
        initial_scale: delta: one value above 0, or a list with one for each participant.
        initial_range: ``[low, high]`` instead, 0 < low <= high: each participant draws its own delta uniformly.
        initial: Rand: ``gaussian``, standard normal; ``uniform``, between -1 and 1.
    """

    initial_scale: float | list[float] = 0.01
    initial_range: list[float] | None = None
    initial: Literal["gaussian", "uniform"] = "gaussian"

    def __post_init__(self) -> None:
        scales = self.initial_scale if isinstance(self.initial_scale, list) else [self.initial_scale]
        if not scales or not all(0 < scale < np.inf for scale in scales):
            raise ConfigError(
                "scheme.initial_scale", self.initial_scale, "above 0, or a list of such numbers"
            )
        if self.initial_range is not None:
            low, high = self.initial_range if len(self.initial_range) == 2 else (0.0, 0.0)
            if not 0 < low <= high < np.inf:
                raise ConfigError(
                    "scheme.initial_range", self.initial_range, "[low, high] with 0 < low <= high"
                )

    def draw(
        self, randomness: Seeded | Keyed, participant: int, length: int, purpose: str = "confined model"
    ) -> Tensor:
        """A participant's first confined model.

        Args:
            randomness: the participant's own.
            participant: its number.
            length: how many parameters it holds.
            purpose: of the stream that is drawn from.

        Returns:
            Shape (length,), float32.
        """
        stream = randomness.stream(0, participant, purpose)
        if self.initial_range is not None:
            low, high = self.initial_range
            scale = stream.uniform(low, high)
        elif isinstance(self.initial_scale, list):
            scale = self.initial_scale[participant]
        else:
            scale = self.initial_scale
        if self.initial == "gaussian":
            values = stream.standard_normal(length, dtype=np.float32)
        else:
            values = stream.random(length, dtype=np.float32) * np.float32(2) - np.float32(1)
        return torch.from_numpy(values * np.float32(scale))
