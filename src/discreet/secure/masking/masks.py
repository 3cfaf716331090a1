"""Adding the masks of many seeds on several threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from discreet.errors import ConfigError
from discreet.secure.expansion import Seed, accumulate
from discreet.secure.ring import Elements, Ring

_WORTH_A_THREAD = 1 << 22
"""Bytes of key stream for which starting a thread pays: about a millisecond's work."""


def add_masks(
    ring: Ring, total: Elements, plus: Sequence[Seed], minus: Sequence[Seed], threads: int = 1
) -> None:
    """Add and subtract the vectors of seeds to a running total in place.

    The seeds are dealt out to the threads, each of which has a running total of its own; addition in a ring is exact,
    so that the result does not depend on their number. Both the cipher and the addition run without the
    interpreter's lock.

    Args:
        ring: where the elements are from.
        total: shape (n,), reduced before and after.
        plus: whose vectors are added.
        minus: whose vectors are subtracted.
        threads: at most this many, at least 1; each takes the memory of one more vector.

    Raises:
        ConfigError: fewer than 1 thread.
    """
    if threads < 1:
        raise ConfigError("threads", threads, "at least 1")
    work = (len(plus) + len(minus)) * total.nbytes
    used = max(1, min(threads, len(plus) + len(minus), work // _WORTH_A_THREAD))
    if used == 1:
        accumulate(ring, total, plus, minus)
        return
    totals = [total, *(ring.zeros(total.shape) for _ in range(used - 1))]
    # dealt from opposite ends, so that every thread gets equally many
    shares = [(plus[at::used], minus[used - 1 - at :: used]) for at in range(used)]
    with ThreadPoolExecutor(used) as pool:
        list(pool.map(lambda each, share: accumulate(ring, each, *share), totals, shares))
    for partial in totals[1:]:
        ring.add(total, partial, out=total)
