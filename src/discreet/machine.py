"""What a client's part in a round takes on this machine, measured on a slice of the work and scaled up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from discreet.privacy.noise import DiscreteGaussian, Skellam
from discreet.privacy.words import SystemWords
from discreet.secure.expansion import SEED_BYTES, Seed
from discreet.secure.masking.masks import add_masks
from discreet.secure.ring import Ring

SECONDS = 0.15
"""How long each measurement goes on, at least."""

SLICE = 1 << 18
"""Coordinates of a vector that are worked on at a time, at most."""

SEEDS = 16
"""Masks that are added at a time, at most."""


def seconds_for_masks(parameters: int, bits: int, neighbours: int) -> float:
    """Seconds that one client takes to expand its masks and add them to its vector, on one thread.

    Args:
        parameters: length of the vector.
        bits: of the modulus.
        neighbours: clients with whom it has a mask in common; one more hides it from the server.
    """
    ring, length = Ring(bits), min(parameters, SLICE)
    total = ring.zeros(length)
    masks = neighbours + 1
    seeds = [Seed(os.urandom(SEED_BYTES)) for _ in range(min(masks, SEEDS))]
    half = len(seeds) // 2
    once = _seconds(lambda: add_masks(ring, total, seeds[:half], seeds[half:]))
    return once * (parameters / length) * (masks / len(seeds))


def seconds_for_noise(parameters: int, noise: DiscreteGaussian | Skellam) -> float:
    """Seconds that one client takes for its share of noise: the table of the distribution, and a draw a coordinate.

    Args:
        parameters: coordinates.
        noise: of the share; fresh, so that its table is not made yet.
    """
    words, length = SystemWords(), min(parameters, SLICE)
    start = time.perf_counter()
    noise.table  # noqa: B018  made when it is first asked for
    table = time.perf_counter() - start
    return table + _seconds(lambda: noise.sample(words, length)) * (parameters / length)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest time that some work took of as many tries as fit in `SECONDS`: what else ran only adds to it."""
    best, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best
