"""Noise against the laws it claims to follow.

Every reference here is computed anew: sums of exp(-x^2 / (2 s^2)) by floating-point or mpmath arithmetic, Bessel
functions by mpmath. Statistical tests have fixed seeds; with others each would fail once in a million runs though all
is well, by the approximation its statistic has.
"""

import dataclasses
import decimal
import math
import os
from decimal import Decimal

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import ConfigError
from discreet.privacy import tabled
from discreet.privacy.noise import DiscreteGaussian, Gaussian, Skellam
from discreet.privacy.tabled import COLUMNS, PRECISION
from discreet.privacy.words import SeededWords, SystemWords
from discreet.randomness import Seeded

FALSE_ALARM = 1e-6
LAWS = [DiscreteGaussian, Skellam]
SIGMAS = [0.5, 3, 100, 5000]
EVERY = [(kind, sigma) for kind in LAWS for sigma in SIGMAS]


def seeded(seed=0):
    return SeededWords(Seeded(seed), 1, 0)


def reference(kind, sigma):
    """(places, probabilities) out to where less than 1e-20 is left, in floating point."""
    places = np.arange(-math.ceil(10 * sigma) - 20, math.ceil(10 * sigma) + 21)
    if kind is DiscreteGaussian:
        weights = np.exp(-(places**2) / (2.0 * sigma**2))
    else:
        weights = poisson_difference(sigma, places)
    return places, weights / weights.sum()


def poisson_difference(sigma, places):
    """P(A - B = x) for Poisson A, B of mean sigma^2 / 2, by its definition as a sum, for the places x >= 0.

    For a large sigma the sum's terms are wide apart from rounding; there it is taken over a window of B.
    """
    mean = sigma**2 / 2
    spread = 12 * math.sqrt(mean) + 40
    half = np.abs(places)
    if sigma <= 100:
        second = np.arange(0, math.ceil(mean + spread))
        terms = stats.poisson.pmf(second, mean)
        return np.array([(terms * stats.poisson.pmf(second + x, mean)).sum() for x in half])
    # a lattice sum of a smooth function: every 64th term gives the same to far below what is tested
    second = np.arange(math.floor(mean - spread), math.ceil(mean + spread), 64)
    some = np.unique(np.concatenate([half[half % 50 == 0], [half.max()]]))
    log_mean = math.log(mean)
    logs = second * log_mean - mean - log_factorial(second)
    values = [
        np.logaddexp.reduce(logs + (second + x) * log_mean - mean - log_factorial(second + x)) for x in some
    ]
    from scipy.interpolate import CubicSpline

    return np.exp(CubicSpline(some, values)(half))


def log_factorial(numbers):
    from scipy.special import gammaln

    return gammaln(numbers + 1.0)
