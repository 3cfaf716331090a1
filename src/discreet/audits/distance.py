"""How far a guess is off, as audits tell it."""

from __future__ import annotations

from torch import Tensor


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The distance of two tensors of one shape over the size of the wanted one; the distance itself where that is 0."""
    truth = wanted.double()
    distance, size = float((found.to(truth) - truth).norm()), float(truth.norm())
    return distance / size if size else distance
