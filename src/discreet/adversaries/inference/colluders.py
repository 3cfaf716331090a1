"""What participants of `cgd` find out about another one when they put together what they see.

They know their own models, data and messages, how far all models have moved, and, where whoever adds up is one of them,
the totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def model_by_displacement(displacement: Tensor) -> Tensor:
    """The best guess of another's model, in the mean square: first models are drawn with mean 0, whoever colludes.

    Args:
        displacement: how far all models have moved, shape (n,).
    """
    return displacement.double()


def model_from_another_time(model: Tensor, then: Tensor, now: Tensor) -> Tensor:
    """A model that was seen once, at any other time: all models move together.

    Args:
        model: another's, as it was, shape (n,).
        then: the displacement then, shape (n,).
        now: the displacement now, shape (n,).
    """
    return model.double() - then.double() + now.double()


def remainder(total: Tensor, own: Iterable[Tensor]) -> Tensor:
    """What is left of a total without the colluders' own contributions: the sum over all others.

    Args:
        total: shape (length,), numbers or integers.
        own: what each colluder has sent, in the same group and shape.
    """
    found = total.double()
    for one in own:
        found = found - one.double()
    return found


def features_of_row(pre_activations: Sequence[Tensor], blocks: Sequence[Tensor]) -> Tensor:
    """A row's features, from its pre-activations in several rounds and the displacements of the first layer.

    ``Z_k - Z_1 = X (D_k - D_1)^T``: the unknown first models drop out. By least squares.

    Args:
        pre_activations: Z of each round, summed over the row's columns, shape (B, hidden).
        blocks: the first layer's displacement D of each round, of the columns that are solved for side by side, shape
            (hidden, width).

    Returns:
        X: float64, shape (B, width).
    """
    first, start = pre_activations[0].double(), blocks[0].double()
    changed = torch.cat([one.double() - first for one in pre_activations[1:]], dim=1)
    moved = torch.cat([one.double() - start for one in blocks[1:]], dim=0)
    found: Tensor = torch.linalg.lstsq(moved, changed.T, driver="gelsd").solution.T
    return found
