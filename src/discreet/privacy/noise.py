"""Noise to add to a sum: the continuous and the discrete Gaussian, and Skellam.

| law | values | sums of independent draws | to be used |
|---|---|---|---|
| `Gaussian` | float64 | Gaussian | in simulations: floating-point noise leaks through its low bits (Mironov 2012) |
| `DiscreteGaussian` | integers | not quite discrete Gaussian | with sums modulo 2^b, for a deployment as well |
| `Skellam` | integers | Skellam, exactly | likewise |

All of them are drawn from a stream of uniform words that the caller names: `words.SeededWords` in a simulation,
`words.SystemWords` in a deployment. The integers are exact, in the sense of `discreet.privacy.tabled`: the total
variation distance from the law is at most 2^-120 a draw.

Sources: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", 2020 (the law); Agarwal, Kairouz,
Liu, "The Skellam mechanism for differentially private federated learning", 2021; Mironov, "On significance of the
least significant bits for differential privacy", 2012.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from discreet.errors import ConfigError
from discreet.privacy import bessel
from discreet.privacy.tabled import PRECISION, RESOLUTION, Table, tabulate
from discreet.privacy.words import Words

SMALLEST, LARGEST = 0.3, 1e6
"""The deviations that integer noise is drawn for."""

_PIECE = 1 << 15


@dataclass(frozen=True)
class Gaussian:
    """The continuous Gaussian of mean 0, in floating point.

    Args:
        sigma: standard deviation, positive.

    Raises:
        ConfigError: `sigma` is out of range.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ConfigError("sigma", self.sigma, "a positive number")

    @property
    def variance(self) -> float:
        """The square of `sigma`."""
        return self.sigma**2

    def density(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability density at many values."""
        return np.asarray(np.exp(-((values / self.sigma) ** 2) / 2) / (self.sigma * math.sqrt(2 * math.pi)))

    def sample(self, source: Words, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Independent draws, by the method of Box and Muller: two of them from each word.

        40 bits of a word give the radius and 24 the angle, so a draw takes some 2^64 values and no draw is larger
        than 7.5 sigma in size; of true ones as many would be once in 10^13. `torch.randn` has fewer bits for both.
        """
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        pairs = (count + 1) // 2
        words = source.words(pairs)
        values = np.empty((2, pairs))
        cosines, sines = torch.from_numpy(values)
        for start in range(0, pairs, _PIECE):
            part = slice(start, start + _PIECE)
            # signed integers become floating point several times as fast as unsigned ones, torch's logarithms and
            # cosines of many numbers are as much faster than numpy's
            uniform = (words[part] >> 24).view(np.int64).astype(np.float64)
            uniform += 1
            uniform *= 2.0**-40
            radius = torch.from_numpy(uniform).log_().mul_(-2 * self.sigma**2).sqrt_()
            turn = (words[part] & 0xFFFFFF).view(np.int64).astype(np.float32)
            turn *= np.float32(math.pi * 2.0**-23)
            angle = torch.from_numpy(turn)
            torch.mul(radius, angle.cos(), out=cosines[part])
            torch.mul(radius, angle.sin_(), out=sines[part])
        return values.reshape(-1)[:count].reshape(shape)


@dataclass(frozen=True)
class DiscreteGaussian:
    """The discrete Gaussian N_Z(0, sigma^2): p(x) proportional to exp(-x^2 / (2 sigma^2)) on the integers.

    Args:
        sigma: 0.3 to 1e6; about the standard deviation, see `variance`.

    Raises:
        ConfigError: `sigma` is out of range.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check(self.sigma)

    @cached_property
    def variance(self) -> float:
        """The law's variance: a little below sigma^2, and the same to double precision from sigma = 2 on."""
        if self.sigma > 10:
            return self.sigma**2
        places = np.arange(-400, 401)
        return math.fsum(places**2 * self.density(places))

    @cached_property
    def table(self) -> Table:
        """What draws use, made when it is first asked for."""
        return tabulate(self)

    def sample(self, source: Words, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Independent draws; `table.draw` gives the same numbers in 32-bit words."""
        return _sample(self.table, source, shape)

    def density(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of many integers."""
        squares = np.square(places, dtype=np.float64)
        return np.asarray(np.exp(squares / (-2 * self.sigma**2)) / float(self._normalizer))

    def mass(self, place: int) -> Decimal:
        """The probability of one integer, to 75 digits or more."""
        with decimal.localcontext(PRECISION):
            return (-(Decimal(place) ** 2) / (2 * Decimal(self.sigma) ** 2)).exp() / self._normalizer

    @cached_property
    def _normalizer(self) -> Decimal:
        """The sum of exp(-x^2 / (2 sigma^2)), by Poisson's summation formula: quick for every sigma allowed."""
        with decimal.localcontext(PRECISION) as context:
            pi, sigma = bessel.pi_of(context), Decimal(self.sigma)
            total, frequency = Decimal(1), 0
            while True:
                frequency += 1
                term = 2 * (-2 * (pi * sigma * frequency) ** 2).exp()
                if total + term == total:
                    return sigma * (2 * pi).sqrt() * total
                total += term


@dataclass(frozen=True)
class Skellam:
    """The difference of two Poisson variables of mean sigma^2 / 2 each: p(x) = exp(-sigma^2) I_x(sigma^2).

    The sum of independent Skellam variables is a Skellam variable, with the sum of their variances.

    Args:
        sigma: 0.3 to 1e6, the standard deviation.

    Raises:
        ConfigError: `sigma` is out of range.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check(self.sigma)

    @property
    def variance(self) -> float:
        """The square of `sigma`."""
        return self.sigma**2

    @cached_property
    def table(self) -> Table:
        """What draws use, made when it is first asked for."""
        return tabulate(self)

    def sample(self, source: Words, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Independent draws; `table.draw` gives the same numbers in 32-bit words."""
        return _sample(self.table, source, shape)

    def density(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of many integers; those below 1e-100 may be given as 0."""
        if self._small:
            return self._small_density[np.minimum(np.abs(places), len(self._small))]
        return self._large.many(np.abs(places).astype(np.float64))

    def mass(self, place: int) -> Decimal:
        """The probability of one integer that is no more than 25 sigma from 0, to 40 digits or more."""
        if self._small:
            return self._small[abs(place)] if abs(place) < len(self._small) else Decimal(0)
        with decimal.localcontext(PRECISION):
            return self._large.at(abs(place))

    @cached_property
    def _large(self) -> bessel.Expansion:
        """Where masses come from beyond that."""
        with decimal.localcontext(PRECISION) as context:
            return bessel.expand(Decimal(self.sigma) ** 2, context)

    @cached_property
    def _small(self) -> list[Decimal]:
        """The masses of 0, 1, 2 and so on where integers are tabulated one by one; else nothing."""
        if self.sigma > RESOLUTION:
            return []
        with decimal.localcontext(PRECISION):
            return bessel.small_orders(Decimal(self.sigma) ** 2, 80 + math.ceil(25 * self.sigma))

    @cached_property
    def _small_density(self) -> NDArray[np.float64]:
        """The same in floating point, and a 0 for whatever lies beyond."""
        return np.array([float(mass) for mass in self._small] + [0.0])


def _check(sigma: float) -> None:
    if not SMALLEST <= sigma <= LARGEST:
        raise ConfigError("sigma", sigma, f"a number from {SMALLEST:g} to {LARGEST:g} for integer noise")


def _sample(table: Table, source: Words, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
    values = np.empty(shape, np.int64)
    table.fill(source, values.reshape(-1))
    return values
