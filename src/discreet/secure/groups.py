"""The groups that contributions are summed in, and how their elements look on the wire.

A participant's contribution is a vector of group elements; the sum over participants is all that leaves a round.

| group | elements | on the wire | total |
|---|---|---|---|
| `Reals(dtype)` | floating-point numbers | as they are, 4 or 8 bytes each | float64, added client after client |
| `Signs()` | votes -1 and +1 | 1 bit each, 8 to a byte | int32 counts, exact |
| `Ring(bits)` | integers modulo 2^bits | `bits` bits each | int64, lifted to the representative nearest to 0 |

Floating-point totals depend on the order of addition, so `accumulate` adds one client at a time in the order given:
how clients were cut into chunks then changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.secure.packing import pack, packed_bytes, unpack
from discreet.secure.ring import Ring


@dataclass(frozen=True)
class Reals:
    """Real numbers in floating point.

    Args:
        dtype: ``torch.float32`` or ``torch.float64``.
    """

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Signs:
    """Votes -1 or +1, of which the sum of integers is taken."""


Group = Reals | Signs | Ring

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def wire_bytes(group: Group, length: int) -> int:
    """How many bytes the body of one participant's message of `length` elements takes."""
    match group:
        case Reals(dtype):
            return length * dtype.itemsize
        case Signs():
            return (length + 7) // 8
        case Ring(bits):
            return packed_bytes(length, bits)


def encode(group: Group, elements: Tensor) -> NDArray[np.uint8]:
    """Group elements as the bytes that are sent.

    Args:
        group: the group.
        elements: shape (K, length), one participant a row.

    Returns:
        Shape (K, `wire_bytes(group, length)`). The bits of votes lie in little-endian order, 1 for +1; the spare
        bits of the last byte are 0.
    """
    match group:
        case Reals(dtype):
            return elements.to("cpu", dtype).contiguous().numpy().view(np.uint8)
        case Signs():
            return np.packbits((elements > 0).cpu().numpy(), axis=1, bitorder="little")
        case Ring():
            return pack(group, group.reduce(elements.cpu().numpy()))


def decode(group: Group, body: NDArray[np.uint8], length: int) -> Tensor:
    """The elements in `body`, the inverse of `encode`.

    Args:
        group: the group.
        body: shape (K, `wire_bytes(group, length)`).
        length: elements of one participant.

    Returns:
        Shape (K, length): floating point for `Reals`, int8 of -1 and +1 for `Signs`, int64 for `Ring`.

    Raises:
        ValueError: `body` has another width than `length` elements take.
    """
    if body.ndim != 2 or body.shape[1] != wire_bytes(group, length):
        raise ValueError(f"expected rows of {wire_bytes(group, length)} bytes, got shape {body.shape}")
    match group:
        case Reals(dtype):
            # a message's own bytes are read-only, which torch warns about
            numbers = (body if body.flags.writeable else body.copy()).view(_NUMPY[dtype])
            return torch.from_numpy(numbers)
        case Signs():
            bits = np.unpackbits(body, axis=1, count=length, bitorder="little").view(np.int8)
            bits += bits
            bits -= 1
            return torch.from_numpy(bits)
        case Ring():
            return torch.from_numpy(unpack(group, body, length).astype(np.int64))


def zeros(group: Group, shape: tuple[int, ...]) -> Tensor:
    """The neutral total of the given shape."""
    match group:
        case Reals():
            return torch.zeros(shape, dtype=torch.float64)
        case Signs():
            return torch.zeros(shape, dtype=torch.int32)
        case Ring():
            return torch.zeros(shape, dtype=torch.int64)


def accumulate(group: Group, total: Tensor, elements: Tensor) -> None:
    """Add participants to a running total, in place and in their order.

    Args:
        group: the group.
        total: shape (length,), from `zeros`.
        elements: shape (K, length), as `decode` returns them.
    """
    match group:
        case Reals():
            for row in elements:
                total += row
        case Signs():
            total += elements.sum(0, dtype=torch.int32)
        case Ring():
            total += elements.sum(0)  # wraps modulo 2^64, of which 2^bits is a divisor


def lifted(group: Group, total: Tensor) -> Tensor:
    """A finished total as numbers: those of a `Ring` as the representatives nearest to 0, others as they are."""
    if isinstance(group, Ring):
        return torch.from_numpy(group.lift(group.reduce(total.numpy())))
    return total
