"""exp(-z) I_n(z), the probabilities of a Skellam law, to more digits than floating point has.

I_n is the modified Bessel function of the first kind. For small z all orders come at once from the recurrence

    I_{n-1}(z) = I_{n+1}(z) + (2n / z) I_n(z),

run downwards (Miller's algorithm), in which errors shrink, and scaled by exp(z) = I_0(z) + 2 (I_1(z) + I_2(z) + ...).
For large z single orders come from the uniform expansion

    exp(-z) I_n(z) = exp(R - z - n asinh(n / z)) / sqrt(2 pi R) * sum over k of u_k(n / R) / n^k,   R = sqrt(n^2 + z^2),

of which 12 terms are taken: for z > 2^14 and n < z / 8 the first one left out is below 2^-150.

Source: NIST Digital Library of Mathematical Functions, 10.29.1, 10.35.5, 10.41.3, 10.41.9.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_TERMS = 12
_FLOAT_TERMS = 4


def small_orders(z: Decimal, count: int) -> list[Decimal]:
    """exp(-z) I_n(z) for n from 0 to `count` - 1, in the current decimal context.

    Args:
        z: positive.
        count: the recurrence starts here, so the last orders are inexact: they must be far out in the tail.
    """
    descending = [Decimal(0), Decimal(1)]
    for order in range(count - 1, 0, -1):
        descending.append(descending[-2] + 2 * order / z * descending[-1])
    ascending = descending[:0:-1]
    total = ascending[0] + 2 * sum(ascending[1:])
    return [value / total for value in ascending]


@dataclass(frozen=True)
class Expansion:
    """exp(-z) I_n(z) for one z > 2^14 and any n from 0 to z / 8; made by `expand`.

    Args:
        z: the argument.
        pi: to the precision wanted.
        rows: the polynomials u_k, see `_coefficients`.
    """

    z: Decimal
    pi: Decimal
    rows: tuple[tuple[Decimal, ...], ...]

    def at(self, order: int) -> Decimal:
        """exp(-z) I_n(z) for n = `order`, in the current decimal context."""
        root = (self.z * self.z + order * order).sqrt()
        exponent = root - self.z - order * ((order + root) / self.z).ln()
        square = (order / root) ** 2
        series = Decimal(0)
        for row in reversed(self.rows):
            value = Decimal(0)
            for coefficient in reversed(row):
                value = value * square + coefficient
            series = series / root + value
        return exponent.exp() / (2 * self.pi * root).sqrt() * series

    def many(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same in floating point, for many orders; the relative error is below 2^-41."""
        z = float(self.z)
        root = np.hypot(orders, z)
        square = (orders / root) ** 2
        series = np.zeros_like(root)
        for row in reversed(self.rows[:_FLOAT_TERMS]):
            series = series / root + np.polyval([float(value) for value in reversed(row)], square)
        # R - z would lose its digits where n is small beside z
        exponent = orders * orders / (root + z) - orders * np.arcsinh(orders / z)
        return np.asarray(np.exp(exponent) / np.sqrt(2 * np.pi * root) * series, dtype=np.float64)


def expand(z: Decimal, context: decimal.Context) -> Expansion:
    """The expansion for one z, in a context's precision."""
    rows = tuple(
        tuple(context.divide(Decimal(value.numerator), Decimal(value.denominator)) for value in row)
        for row in _coefficients(_TERMS)
    )
    return Expansion(z, pi_of(context), rows)


def _coefficients(terms: int) -> list[list[Fraction]]:
    """u_k(t) = t^k (a_0 + a_1 t^2 + ... + a_k t^2k): the row of a's for each k below `terms`.

    u_{k+1}(t) = t^2 (1 - t^2) u_k'(t) / 2 + (integral from 0 to t of (1 - 5 s^2) u_k(s) ds) / 8.
    """
    rows = [[Fraction(1)]]
    for k in range(terms - 1):
        row = [Fraction(0)] * (k + 2)
        for j, value in enumerate(rows[-1]):
            power = k + 2 * j
            row[j] += value * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            row[j + 1] -= value * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        rows.append(row)
    return rows


def pi_of(context: decimal.Context) -> Decimal:
    """Pi in a context's precision, by Machin's formula 16 arctan(1/5) - 4 arctan(1/239)."""
    scale = 10 ** (context.prec + 10)
    return context.divide(Decimal(16 * _arccot(5, scale) - 4 * _arccot(239, scale)), Decimal(scale))


def _arccot(of: int, scale: int) -> int:
    power = total = scale // of
    index = 1
    while power:
        power //= -of * of
        index += 2
        total += power // index
    return total
