"""Vectors over Z_2^b, the integers modulo 2^b, for b = 1 to 64.

Elements are numpy arrays of the smallest unsigned word that holds b bits, always reduced: every operation here
takes reduced elements and returns reduced elements. Signed integers go in by `Ring.reduce` and come out by
`Ring.lift`, which is their inverse as long as they stay within [-2^(b-1), 2^(b-1)). How elements look on the wire
is in `discreet.secure.packing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import ConfigError

Elements = NDArray[np.unsignedinteger[Any]]
"""Reduced elements of a ring, in its own word."""

WORDS: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
"""Unsigned machine words by their bits."""
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@dataclass(frozen=True)
class Ring:
    """The integers modulo 2^bits.

    Args:
        bits: 1 to 64.

    Raises:
        ConfigError: `bits` is out of range.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise ConfigError("modulus_bits", self.bits, "a number of bits from 1 to 64")

    @property
    def modulus(self) -> int:
        """2^bits."""
        return 1 << self.bits

    @property
    def word(self) -> int:
        """Bits of the machine word that holds an element: 8, 16, 32 or 64."""
        return next(word for word in WORDS if word >= self.bits)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type of an array of elements."""
        return np.dtype(WORDS[self.word])

    def zeros(self, shape: int | tuple[int, ...]) -> Elements:
        """The neutral element in every place."""
        return np.zeros(shape, self.dtype)

    def contains(self, elements: NDArray[Any]) -> bool:
        """Whether an array has this ring's type and only reduced elements; what a peer sends must be asked."""
        if elements.dtype != self.dtype:
            return False
        return self.bits == self.word or elements.size == 0 or int(elements.max()) < self.modulus

    def reduce(self, integers: NDArray[np.integer[Any]]) -> Elements:
        """Integers modulo 2^bits.

        Args:
            integers: any shape and any integer type, signed or not.

        Returns:
            A new array of the same shape.

        Raises:
            TypeError: the array is not of integers.
        """
        if not np.issubdtype(integers.dtype, np.integer):
            raise TypeError(f"a ring takes integers, got an array of {integers.dtype}")
        # a conversion between integer types keeps the low bits, in two's complement
        return self._trim(integers.astype(self.dtype))

    def lift(self, elements: Elements) -> NDArray[np.int64]:
        """The representatives nearest to zero, in [-2^(bits-1), 2^(bits-1)).

        Args:
            elements: any shape.

        Returns:
            A new array of the same shape.
        """
        self._check(elements)
        spare = self.word - self.bits
        if spare == 0:
            return elements.view(_SIGNED[self.word]).astype(np.int64)
        # moved to the top of the word, the element's own top bit is the sign, which the way back spreads
        raised = np.left_shift(elements, self.dtype.type(spare)).view(_SIGNED[self.word])
        raised >>= _SIGNED[self.word](spare)
        return raised.astype(np.int64)

    def add(self, left: Elements, right: Elements, out: Elements | None = None) -> Elements:
        """Left + right, element by element.

        Args:
            left: any shape.
            right: a shape that broadcasts with it.
            out: where to put the result, possibly `left` or `right` themselves; a new array if None.
        """
        self._check(left, right)
        return self._trim(np.add(left, right, out=out))

    def subtract(self, left: Elements, right: Elements, out: Elements | None = None) -> Elements:
        """Left - right, element by element; the arguments are those of `add`."""
        self._check(left, right)
        return self._trim(np.subtract(left, right, out=out))

    def total(self, elements: Elements) -> Elements:
        """The sum of many vectors.

        Args:
            elements: shape (K, ...), one vector a row; K may be 0.

        Returns:
            Shape (...).
        """
        self._check(elements)
        # sums wrap modulo 2^word, of which 2^bits is a divisor: reducing once at the end is enough
        return self._trim(np.asarray(elements.sum(axis=0, dtype=self.dtype)))

    def _trim(self, words: Elements) -> Elements:
        if self.bits < self.word:
            words &= self.dtype.type(self.modulus - 1)
        return words

    def _check(self, *arrays: Elements) -> None:
        for array in arrays:
            if array.dtype != self.dtype:
                raise TypeError(f"elements modulo 2^{self.bits} are {self.dtype}, got {array.dtype}")
