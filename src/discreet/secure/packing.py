"""How elements of Z_2^b look on the wire: b-bit words, one after another, as a stream of bits in little-endian order.

Bit i of the stream is bit i mod 8 of byte i // 8; element k takes the bits from k*b to (k+1)*b - 1, its lowest
first. The last byte's spare bits are 0. This module takes the machine's own words to be little-endian, as those of
the machines that torch is built for are.

Packing works on whole arrays in two stages, on pieces small enough to stay in the processor's cache:

1. *Squeezing*: neighbouring words are pushed together within one word of twice the size, and so on until a 64-bit
   lane holds more than 32 bits. This runs over contiguous memory.
2. *Joining*: 8 / gcd(c, 8) lanes of c bits, 32 < c <= 64, fill whole bytes: such a block is put together in 64-bit
   words, which are stored where they belong in the stream whatever their alignment.

Unpacking runs the same stages backwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.secure.ring import WORDS, Elements, Ring

_PIECE = 1 << 16
"""Elements worked on at a time; a multiple of 64, so that the bits of a piece end on a whole 64-bit word."""


class _Squeeze(NamedTuple):
    """Pairs of words of `word` bits, of which the low `held` count, become words of twice the size."""

    stored: int
    """The size in which the words arrive: more than `word` if they are to be narrowed first."""
    word: int
    held: int


def packed_bytes(length: int, bits: int) -> int:
    """How many bytes `length` elements of `bits` bits take."""
    return (length * bits + 7) // 8


def pack(ring: Ring, elements: Elements) -> NDArray[np.uint8]:
    """Elements as the bytes that are sent.

    Args:
        ring: where the elements are from.
        elements: reduced, shape (n,) or (K, n); every row starts on a byte of its own.

    Returns:
        Shape (`packed_bytes(n, bits)`,) or (K, `packed_bytes(n, bits)`).

    Raises:
        TypeError: the elements are not in the ring's word.
        ValueError: the array has no dimension or more than two.
    """
    if elements.dtype != ring.dtype:
        raise TypeError(f"elements modulo 2^{ring.bits} are {ring.dtype}, got {elements.dtype}")
    if elements.ndim not in (1, 2):
        raise ValueError(f"expected elements of shape (n,) or (K, n), got {elements.shape}")
    rows = elements[None] if elements.ndim == 1 else elements
    length = rows.shape[1]
    body = np.empty((len(rows), packed_bytes(length, ring.bits)), np.uint8)
    for some, place, bytes_of in _pieces(rows.shape, ring.bits):
        piece = rows[some, place]
        padded = np.zeros((piece.shape[0], _whole(piece.shape[1])), ring.dtype)
        padded[:, : piece.shape[1]] = piece
        stream = _join(_squeeze(padded.reshape(-1), ring.bits), _lane_bits(ring.bits))
        body[some, bytes_of] = stream.reshape(len(piece), -1)[:, : bytes_of.stop - bytes_of.start]
    return body[0] if elements.ndim == 1 else body


def unpack(ring: Ring, body: NDArray[np.uint8], length: int) -> Elements:
    """The elements in `body`, the inverse of `pack`.

    Args:
        ring: where the elements are from.
        body: shape (`packed_bytes(length, bits)`,) or (K, the same).
        length: elements in a row.

    Returns:
        Shape (length,) or (K, length); reduced whatever the bytes are.

    Raises:
        ValueError: `body` has another width than `length` elements take, or spare bits that are not 0.
    """
    width = packed_bytes(length, ring.bits)
    if body.dtype != np.uint8 or body.ndim not in (1, 2) or body.shape[-1] != width:
        raise ValueError(
            f"{length} elements of {ring.bits} bits take rows of {width} bytes (uint8), "
            f"got {body.dtype} of shape {body.shape}"
        )
    rows = body[None] if body.ndim == 1 else body
    used = length * ring.bits % 8
    if used and (rows[:, -1] >> used).any():
        raise ValueError(f"the {8 - used} spare bits after {length} elements of {ring.bits} bits must be 0")
    elements = np.empty((len(rows), length), ring.dtype)
    for some, place, bytes_of in _pieces(elements.shape, ring.bits):
        piece = rows[some, bytes_of]
        whole = _whole(place.stop - place.start)
        stream = np.zeros(len(piece) * whole * ring.bits // 8 + 8, np.uint8)
        stream[:-8].reshape(len(piece), -1)[:, : piece.shape[1]] = piece
        words = _spread(_part(stream, _lane_bits(ring.bits)), ring.bits)
        elements[some, place] = words.reshape(len(piece), -1)[:, : place.stop - place.start]
    return elements[0] if body.ndim == 1 else elements


def _whole(length: int) -> int:
    return -(-length // 64) * 64


def _pieces(shape: tuple[int, ...], bits: int) -> Iterator[tuple[slice, slice, slice]]:
    """Rows, places within a row, and the bytes of those places: many short rows at once, or a part of a long one."""
    count, length = shape
    together = max(1, _PIECE // max(1, _whole(length)))
    for row in range(0, count, together):
        for start in range(0, length, _PIECE):
            stop = min(length, start + _PIECE)
            bytes_of = slice(start * bits // 8, packed_bytes(stop, bits))
            yield slice(row, min(count, row + together)), slice(start, stop), bytes_of


def _steps(bits: int) -> list[_Squeeze]:
    steps: list[_Squeeze] = []
    stored, held = Ring(bits).word, bits
    while held <= 32:
        word = min(stored, Ring(held).word)
        steps.append(_Squeeze(stored, word, held))
        stored, held = 2 * word, 2 * held
    return steps


def _lane_bits(bits: int) -> int:
    """How many bits of a 64-bit lane are in use after squeezing: more than 32."""
    while bits <= 32:
        bits *= 2
    return bits


def _squeeze(words: NDArray[Any], bits: int) -> NDArray[np.uint64]:
    for stored, word, held in _steps(bits):
        if word < stored:
            words = words.astype(WORDS[word])
        words = words.view(WORDS[2 * word])
        if held < word:
            upper = words >> (word - held)
            upper &= ((1 << held) - 1) << held
            words &= (1 << held) - 1
            words |= upper
    return words


def _spread(lanes: NDArray[np.uint64], bits: int) -> NDArray[Any]:
    words: NDArray[Any] = lanes
    for stored, word, held in reversed(_steps(bits)):
        if held < word:
            upper = words << (word - held)
            upper &= ((1 << held) - 1) << word
            words &= (1 << held) - 1
            words |= upper
        words = words.view(WORDS[word])
        if word < stored:
            words = words.astype(WORDS[stored])
    return words


def _join(lanes: NDArray[np.uint64], used: int) -> NDArray[np.uint8]:
    """Lanes of `used` bits, their other bits 0, as one stream of bits."""
    if used == 64:
        return lanes.view(np.uint8)
    block, size = _block(used)
    count = len(lanes) // block
    columns = [np.ascontiguousarray(lanes[lane::block]) for lane in range(block)]
    stream = np.empty(count * size + 8, np.uint8)
    # The last word of a block reaches into the next block. Going backwards, that block's first word comes later
    # and covers it again; where one word is a whole block, copying in ascending order does.
    for index in reversed(range(-(-size // 8))):
        lane, below = divmod(64 * index, used)
        word = columns[lane] >> below
        filled = used - below
        while filled < 64 and lane + 1 < block:
            lane += 1
            word |= columns[lane] << filled
            filled += used
        _words_at(stream, count, 8 * index, size)[...] = word
    return stream[: count * size]


def _part(stream: NDArray[np.uint8], used: int) -> NDArray[np.uint64]:
    """The inverse of `_join`; the stream must have 8 bytes to spare at its end."""
    if used == 64:
        return stream[:-8].view(np.uint64)
    block, size = _block(used)
    count = (len(stream) - 8) // size
    lanes = np.empty(count * block, np.uint64)
    for lane in range(block):
        start, below = divmod(lane * used, 8)
        word = _words_at(stream, count, start, size).copy()
        word >>= below
        if below + used > 64:
            word |= _words_at(stream, count, start + 8, size).copy() << (64 - below)
        word &= (1 << used) - 1
        lanes[lane::block] = word
    return lanes


def _block(used: int) -> tuple[int, int]:
    """How many lanes of `used` bits fill whole bytes, and how many bytes."""
    lanes = 8 // math.gcd(used, 8)
    return lanes, lanes * used // 8


def _words_at(stream: NDArray[np.uint8], count: int, offset: int, stride: int) -> NDArray[np.uint64]:
    """The 8 bytes from `offset` on, from `offset + stride` on and so forth, as 64-bit words wherever they lie."""
    return np.ndarray((count,), np.uint64, stream, offset, (stride,))
