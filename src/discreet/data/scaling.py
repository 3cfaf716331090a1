"""Values scaled to mean 0 and deviation 1, by figures of the train rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scaling:
    """What takes columns of values to mean 0 and deviation 1, and back: ``scaled = (value - mean) / spread``.

    Attributes:
        mean: of each column over the train rows, in its own unit.
        spread: the standard deviation of each column over the train rows, in its own unit; 1 for a constant column.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __str__(self) -> str:
        """One line, with the figures of the first columns."""
        shown = [
            f"{spread:.6g} (mean {mean:.6g})" for mean, spread in zip(self.mean, self.spread, strict=True)
        ]
        return f"1 stands for {', '.join(shown[:4])}{', ...' if len(shown) > 4 else ''}"

    def restored(self, scaled: NDArray[np.floating]) -> NDArray[np.float64]:
        """Scaled values, shape (..., columns), in their own units again, as float64.

        Of outputs of a model that was trained on scaled targets, these are its predictions.
        """
        values: NDArray[np.float64] = scaled.astype(np.float64) * np.array(self.spread) + np.array(self.mean)
        return values


def standardised(
    train: NDArray[np.float64], test: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], Scaling]:
    """Train and test rows scaled so that each column of the train rows has mean 0 and standard deviation 1.

    Args:
        train: shape (rows, columns), at least one row; a constant column becomes 0.
        test: shape (any, columns); it has no part in the figures.

    Returns:
        The two, in new memory, and the figures they were scaled by.
    """
    mean, spread = train.mean(axis=0), train.std(axis=0)
    # Rounding leaves a constant column a tiny spread, by which nothing must be divided.
    constant = spread <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    spread = np.where(constant, 1.0, spread)
    scaled = (train - mean) / spread
    scaled[:, constant] = 0.0
    return scaled, (test - mean) / spread, Scaling(tuple(mean.tolist()), tuple(spread.tolist()))
