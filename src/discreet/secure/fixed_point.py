"""Real numbers as integers modulo 2^b, such that the sum over all parties cannot wrap.

A value x becomes the integer nearest to scale * x. One party's integers stay within +-`largest`, and

    parties * largest + reserve <= 2^(bits-1) - 1,

so that the centred lift of the sum is the sum of the integers. What exceeds `largest` is set to it and *counted*;
nothing ever wraps in silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discreet.errors import ConfigError
from discreet.secure.ring import Elements, Ring


class Encoded(NamedTuple):
    """Values in fixed point, and how many did not fit."""

    elements: Elements
    """Same shape as the values."""
    saturated: NDArray[np.int64]
    """How many values of each vector were cut to the largest that fits; the shape of the values but their last."""


@dataclass(frozen=True)
class FixedPoint:
    """How values become ring elements.

    Args:
        scale: integers to a unit; the best is a power of two, by which multiplication is exact.
        bits: of the ring, 2 to 64.
        parties: how many are summed at most, at least 1.
        reserve: how far, in integers, whatever else is added to the sum may move it: noise, for instance.

    Raises:
        ConfigError: a value is out of its range, or more parties than `max_parties` are asked for.
    """

    scale: float
    bits: int
    parties: int
    reserve: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError("scale", self.scale, "a positive number")
        if not 2 <= self.bits <= 64:
            raise ConfigError("modulus_bits", self.bits, "2 to 64 bits for fixed point")
        if self.parties < 1:
            raise ConfigError("parties", self.parties, "at least 1")
        if self.reserve < 0:
            raise ConfigError("reserve", self.reserve, "0 or more")
        if self.largest < 1:
            most = max_parties(1.0, 0.5, self.bits, self.reserve)
            raise ConfigError("parties", self.parties, f"at most {most}, as many as {self.bits} bits can sum")

    @classmethod
    def for_range(
        cls, limit: float, error: float, parties: int, bits: int | None = None, reserve: float = 0.0
    ) -> FixedPoint:
        """The coarsest power-of-two scale that keeps a rounding error, in the ring asked for or the smallest.

        Args:
            limit: no value is larger in size.
            error: the largest rounding error of one value that is allowed (to nearest; rounding without bias errs by
                less than twice that).
            parties: how many are summed at most.
            bits: of the ring; the smallest that will do if None.
            reserve: how far something else, such as noise, may move the sum; in units of the values.

        Raises:
            ConfigError: the range does not fit in `bits` (or in 64) for so many parties.
        """
        scale = _scale(error)
        kept = math.ceil(Fraction(reserve) * Fraction(scale))
        largest = _largest_of(limit, scale)
        needed = (parties * largest + kept).bit_length() + 1
        if needed > (64 if bits is None else bits):
            room = 64 if bits is None else bits
            most = max_parties(limit, error, room, kept)
            expected = f"at most {most} for values up to {limit:g} within {error:g} in {room} bits"
            raise ConfigError("parties", parties, expected)
        return cls(scale, needed if bits is None else bits, parties, kept)

    @property
    def ring(self) -> Ring:
        """Where the sums are taken."""
        return Ring(self.bits)

    @property
    def largest(self) -> int:
        """The largest integer that one party may contribute."""
        return ((1 << (self.bits - 1)) - 1 - self.reserve) // self.parties

    @property
    def limit(self) -> float:
        """The largest value that is not cut."""
        return self.largest / self.scale

    @property
    def error(self) -> float:
        """The largest rounding error of one value, rounded to nearest."""
        return 0.5 / self.scale

    def encode(self, values: NDArray[np.floating[Any]]) -> Encoded:
        """Values rounded to nearest, halves to even.

        Args:
            values: finite, shape (..., n).

        Raises:
            ValueError: a value is NaN or infinite; the message names its place.
        """
        return self._encoded(np.rint(self._scaled(values)))

    def encode_unbiased(self, values: NDArray[np.floating[Any]], words: NDArray[np.uint64]) -> Encoded:
        """Values rounded up or down at random, so that the expectation is the value.

        A scaled value y becomes floor(y) + 1 with probability y - floor(y), to within 2^-53.

        Args:
            values: finite, shape (..., n).
            words: uniform 64-bit words, one for each value, in the same shape.

        Raises:
            ValueError: a value is NaN or infinite, or the shapes differ.
        """
        if words.shape != values.shape:
            raise ValueError(f"values of shape {values.shape} need as many words, got shape {words.shape}")
        scaled = self._scaled(values)
        below = np.floor(scaled)
        scaled -= below
        below += (words >> 11) * 2.0**-53 < scaled
        return self._encoded(below)

    def decode(self, total: Elements) -> NDArray[np.float64]:
        """The sum of values that a sum of at most `parties` encoded vectors stands for; the same shape."""
        return self.ring.lift(total) / self.scale

    def _scaled(self, values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        finite = np.isfinite(values)
        if not finite.all():
            place = tuple(int(index) for index in np.argwhere(~finite)[0])
            raise ValueError(f"the value at {place} is {values[place]}, which has no fixed point")
        with np.errstate(over="ignore"):  # what overflows is cut, and counted, like all that is too large
            return values.astype(np.float64) * self.scale

    def _encoded(self, rounded: NDArray[np.float64]) -> Encoded:
        edge = _float_at_most(self.largest)
        outside = np.abs(rounded) > edge
        saturated = np.count_nonzero(outside, axis=-1)
        np.clip(rounded, -edge, edge, out=rounded)
        integers = rounded.astype(np.int64)
        if np.any(saturated):
            integers[outside] = np.where(rounded[outside] > 0, self.largest, -self.largest)
        return Encoded(self.ring.reduce(integers), np.asarray(saturated, dtype=np.int64))


def max_parties(limit: float, error: float, bits: int, reserve: int = 0) -> int:
    """How many parties' values can be summed modulo 2^bits without wrapping; 0 if not even one's.

    Args:
        limit: no value is larger in size.
        error: the largest rounding error of one value, which sets the scale as in `FixedPoint.for_range`.
        bits: of the ring, 2 to 64.
        reserve: integers kept free, as in `FixedPoint`.
    """
    return max(0, (1 << (bits - 1)) - 1 - reserve) // _largest_of(limit, _scale(error))


def _scale(error: float) -> float:
    """The smallest power of two that keeps half a step within `error`."""
    if not 1e-300 <= error <= 1e300:
        raise ConfigError("error", error, "a positive number")
    # 2^(exponent - 1) <= error < 2^exponent, so half a step of 2^exponent is within the error and one of twice that
    # is not
    exponent = math.frexp(error)[1]
    return math.ldexp(1.0, -exponent)


def _largest_of(limit: float, scale: float) -> int:
    if not (math.isfinite(limit) and limit > 0):
        raise ConfigError("limit", limit, "a positive number")
    return max(1, math.ceil(Fraction(limit) * Fraction(scale)))


def _float_at_most(integer: int) -> float:
    """The largest floating-point number that is no larger than a positive integer."""
    number = float(integer)
    return math.nextafter(number, 0.0) if number > integer else number
