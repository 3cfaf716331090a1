"""Examples, and the participants who hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples to train or test on: one shared array, of which clients hold indices.

    Attributes:
        inputs: shape (count, ...). ``uint8`` means pixels, which reach the model as value * (1 / 255) in float32;
            any other type reaches it as it is.
        targets: int64 class numbers of shape (count,), or float32 values of shape (count, outputs). ``uint8`` means
            pixels here too; see `reconstructing`.
    """

    inputs: Tensor
    targets: Tensor

    @classmethod
    def reconstructing(cls, inputs: Tensor) -> Examples:
        """Examples whose targets are their own flattened inputs; both lie in the same memory."""
        inputs = inputs.contiguous()
        return cls(inputs, inputs.flatten(1))

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def reconstructs(self) -> bool:
        """Whether the targets are the inputs, and lie in the same memory."""
        return len(self) > 0 and self.targets.data_ptr() == self.inputs.data_ptr()

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs, as the model takes them, and the targets at `indices`.

        Args:
            indices: int64, any shape; it becomes the leading shape of both results.
        """
        flat = indices.reshape(-1)
        # index_select is several times faster than indexing with a tensor
        inputs = self.inputs.index_select(0, flat)
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(torch.float32).mul_(1 / 255)
        # a copy: a model may change its inputs in place
        targets = inputs.flatten(1).clone() if self.reconstructs else self.targets.index_select(0, flat)
        return (
            inputs.view(*indices.shape, *self.inputs.shape[1:]),
            targets.view(*indices.shape, *self.targets.shape[1:]),
        )

    def to(self, device: torch.device) -> Examples:
        """The same examples on a device."""
        inputs = self.inputs.to(device)
        if self.reconstructs:
            return Examples.reconstructing(inputs)
        return Examples(inputs, self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Grid:
    """Who holds how much of what: public numbers, no data.

    Participant ``row * columns + column`` holds the features of its column of the examples of its row.

    Attributes:
        sizes: shape (rows,), examples of each row.
        features: for each column, which input features it holds; None where there are no columns, and every
            participant holds all features.
    """

    sizes: NDArray[np.int64]
    features: tuple[NDArray[np.int64], ...] | None = None

    @property
    def rows(self) -> int:
        """How many rows there are (m^h)."""
        return len(self.sizes)

    @property
    def columns(self) -> int:
        """How many columns there are (m^v)."""
        return 1 if self.features is None else len(self.features)

    @property
    def participants(self) -> int:
        """How many there are (m)."""
        return self.rows * self.columns

    @property
    def examples(self) -> int:
        """How many examples all participants hold together (n)."""
        return int(self.sizes.sum())

    @property
    def capacity(self) -> int:
        """The most examples that a row holds."""
        return int(self.sizes.max())


@dataclass(frozen=True, eq=False)
class Cohort:
    """K participants side by side; a simulation passes many, a deployed site passes itself.

    Attributes:
        ids: shape (K,), the participants' numbers.
        examples: one shared array of examples (at a site: its own).
        indices: for each participant, which of the examples it holds.
        round: the round that is played, counted from 1.
        capacity: the most examples that any participant of the federation holds (a public number).
        row, column: shape (K,), the place of each participant in a grid; without one, column is all 0.
        features: for each participant, which input features it holds; None where it holds all.
        participants: how many take part in the round, all stacks and sites together; None for just these.
        kept: for each participant, the private state that it kept from earlier rounds, or None.
        accomplices: the malicious participants of the round, all stacks together, where they agree on one update.
    """

    ids: NDArray[np.int64]
    examples: Examples
    indices: tuple[NDArray[np.integer[Any]], ...]
    round: int
    capacity: int
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    kept: tuple[Tensor | None, ...]
    features: tuple[NDArray[np.integer[Any]], ...] | None = None
    participants: int | None = None
    accomplices: Cohort | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Shape (K,): how many examples each participant holds."""
        return np.array([len(rows) for rows in self.indices], dtype=np.int64)

    @property
    def visible(self) -> Tensor | None:
        """Shape (K, *input): 1 where a participant holds an input feature, else 0; None where all hold all."""
        if self.features is None:
            return None
        shape = self.examples.inputs.shape[1:]
        return torch.stack([seen(features, shape) for features in self.features])

    def select(self, places: slice) -> Cohort:
        """The participants at some places of this cohort."""
        return replace(
            self,
            ids=self.ids[places],
            indices=self.indices[places],
            row=self.row[places],
            column=self.column[places],
            kept=self.kept[places],
            features=None if self.features is None else self.features[places],
        )

    def chunks(self, size: int) -> Iterator[Cohort]:
        """The cohort in pieces of at most `size` participants, in order."""
        for start in range(0, len(self), size):
            yield self.select(slice(start, start + size))


def seen(features: NDArray[np.integer[Any]], shape: torch.Size) -> Tensor:
    """Of inputs of some shape, 1 for these features, counted in the order of their places, else 0; uint8."""
    mask = torch.zeros(shape, dtype=torch.uint8)
    mask.view(-1)[torch.from_numpy(np.asarray(features, dtype=np.int64))] = 1
    return mask
