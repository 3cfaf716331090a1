"""How a client trains in a round: which optimizer, with what settings, for how many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.checked import STRICT, plain
from discreet.errors import ConfigError

OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}
"""The elementwise optimizers of torch: stacked parameters are then stepped as each lane alone would be."""


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class LocalTraining:
    """How each client trains in a round: a number of steps, or of epochs, of an optimizer.

    Attributes:
        steps: gradient steps a round (T_gd in arXiv 2010.07808), the same for every client.
        epochs: passes over a client's data, instead of `steps`. One of the two; 1 epoch if neither is given.
        batch_size: examples a step; 0 for all of a client's examples (memory then grows with the largest client's).
        optimizer: a name in `OPTIMIZERS`.
        learning_rate: the optimizer's, above 0.
        momentum: for ``sgd`` and ``rmsprop``, in [0, 1).
        weight_decay: L2 penalty, at least 0.
        optimizer_options: other keywords of the optimizer, as ``{"betas": [0.9, 0.99]}``.
    """

    steps: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=10, ge=0)
    optimizer: str = "sgd"
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    optimizer_options: dict[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError("scheme.epochs", self.epochs, "either steps or epochs, not both")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                "scheme.optimizer", self.optimizer, "an elementwise optimizer: " + ", ".join(OPTIMIZERS)
            )
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ConfigError("scheme.momentum", self.momentum, "0 unless the optimizer is sgd or rmsprop")
        if self.weight_decay and self.optimizer == "rprop":
            raise ConfigError("scheme.weight_decay", self.weight_decay, "0: rprop takes none")
        if not self.optimizer_options:
            return
        for name in ("lr", "momentum", "weight_decay"):
            if name in self.optimizer_options:
                key = "learning_rate" if name == "lr" else name
                raise ConfigError(
                    "scheme.optimizer_options", self.optimizer_options, f"no {name}: use scheme.{key}"
                )
        try:
            self.make_optimizer([torch.zeros(1)])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "scheme.optimizer_options", self.optimizer_options, f"keywords of {self.optimizer} ({error})"
            ) from None

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer of `parameters`."""
        options: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer in ("sgd", "rmsprop"):
            options["momentum"] = self.momentum
        if self.optimizer == "rprop":
            options.pop("weight_decay")
        return OPTIMIZERS[self.optimizer](parameters, **(options | self.optimizer_options))

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step is no more than ``w -= lr * (gradient + weight_decay * w)``."""
        return self.optimizer == "sgd" and not self.momentum and not self.optimizer_options

    def steps_for(self, size: int, batch_size: int) -> int:
        """How many steps a client with `size` examples takes."""
        if size == 0:
            return 0
        return self.steps or (self.epochs or 1) * -(-size // batch_size)
