"""A loop that is compiled where Numba is installed: the first layer's gradients under heads of participants' own.

Written as products of matrices they are many small ones, which cost more to set up than to work out. As one loop the
numbers between two products stay in the nearest cache, and what is 0 in the inputs costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_OUTPUTS = 32
"""Of a head: the loop over them is written out, and for more of them a product of matrices is as good."""

WIDEST = 64
"""Features of a column: above, products of matrices are as good."""

WORTH_COMPILING = 1 << 19
"""Examples times columns: with fewer, a run is over before the loop is compiled, which takes a second or two."""

TOGETHER = 16
"""Columns whose gradients are taken over at once: neighbours in memory."""

AddBlocks = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor], None]
"""Adds a piece's gradients of the first layer:

Args:
    inputs: shape (B, columns, width).
    by_outputs: shape (B, outputs, columns).
    weight: of the heads, shape (outputs, columns, hidden).
    passed: 1 where the first layer's outputs are passed on and 0 elsewhere, shape (B, hidden); None for everywhere.
    blocks_sum: shape (columns, width, hidden).

All are contiguous, of float32, on the CPU.
"""


def compiled(inputs: Tensor, outputs: int, hidden: int, device: torch.device) -> AddBlocks | None:
    """The loop; None where it would not pay, or where Numba (the extra ``fast``) is not installed or does not start.

    Args:
        inputs: of all pieces, shape (P, B, columns, width).
        outputs: of a head.
        hidden: outputs of the first layer.
        device: where the work is done.
    """
    small = outputs <= MOST_OUTPUTS and inputs.shape[3] <= WIDEST
    if device.type != "cpu" or not small or inputs[..., 0].numel() < WORTH_COMPILING:
        return None
    numba = _numba()
    if numba is None:
        return None
    loop = _loop(numba, outputs, hidden)

    def add_blocks(
        inputs: Tensor, by_outputs: Tensor, weight: Tensor, passed: Tensor | None, blocks_sum: Tensor
    ) -> None:
        mask = None if passed is None else passed.numpy()
        loop(inputs.numpy(), by_outputs.numpy(), weight.numpy(), mask, blocks_sum.numpy())

    return add_blocks


@lru_cache
def _numba() -> Any:
    """The module; None, with a warning, where it refuses to start, as beside a NumPy that is too new for it."""
    try:
        return importlib.import_module("numba")
    except ModuleNotFoundError as error:
        if error.name == "numba":
            return None
        cause = error.msg
    except ImportError as error:
        cause = error.msg
    warnings.warn(f"goes on without Numba, more slowly: it does not start ({cause})", stacklevel=2)
    return None


@lru_cache
def _loop(numba: Any, outputs: int, hidden: int) -> Callable[..., None]:
    """Compiled at its first call, in a second or two; sizes are constants, so that it uses vector registers."""
    # no promise of finite numbers: what diverges must be seen to diverge
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "reassoc"}, "error_model": "numpy"}

    @numba.njit(**options)
    def below_head(below, gradient, weight, mask):  # type: ignore[no-untyped-def]
        for unit in range(hidden):
            total = np.float32(0)
            for output in range(outputs):
                total += gradient[output] * weight[output * hidden + unit]
            below[unit] = total if mask is None else total * mask[unit]

    @numba.njit(**options)
    def add(into, factor, below):  # type: ignore[no-untyped-def]
        for unit in range(hidden):
            into[unit] += factor * below[unit]

    @numba.njit(**options)
    def loop(inputs, by_outputs, weight, passed, blocks_sum):  # type: ignore[no-untyped-def]
        examples, columns, width = inputs.shape
        turned = np.empty((TOGETHER, examples, outputs), np.float32)
        own, below = np.empty(outputs * hidden, np.float32), np.empty(hidden, np.float32)
        for first in range(0, columns, TOGETHER):
            some = min(TOGETHER, columns - first)
            for example in range(examples):
                for output in range(outputs):
                    for place in range(some):
                        turned[place, example, output] = by_outputs[example, output, first + place]
            for place in range(some):
                column = first + place
                for output in range(outputs):
                    own[output * hidden : (output + 1) * hidden] = weight[output, column]
                for example in range(examples):
                    known = False
                    for feature in range(width):
                        value = inputs[example, column, feature]
                        if value != 0:
                            if not known:
                                mask = None if passed is None else passed[example]
                                below_head(below, turned[place, example], own, mask)
                                known = True
                            add(blocks_sum[column, feature], value, below)

    found: Callable[..., None] = loop
    return found
