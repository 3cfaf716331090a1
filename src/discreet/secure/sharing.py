"""Additive secret sharing over Z_2^b: Shr, local addition, Rec.

A vector x is split into s shares that add up to it. The first s - 1 are uniform and independent, so they are sent as
32-byte seeds; the last, x minus all others, must be sent in full. Parties add the shares that they hold, whoever they
come from, and the sum of the parties' sums is the sum of the secrets.

**Guarantees.** Any s - 1 shares of a vector are jointly uniform whatever the vector is: they tell nothing about it
(up to the strength of AES-256 and HKDF-SHA256 where seeds stand for shares). All s shares determine it, as does the
sum that Rec returns if it is of one secret alone. Nothing here detects a party that lies about its sum.

Source: Zhang, Bai, Li, Nepal, Ko, arXiv 2104.13050, appendix A (there for Z_2^32).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from discreet.randomness import Seeded, SystemRandom
from discreet.secure import packing
from discreet.secure.expansion import SEED_BYTES, Seed, accumulate, expand
from discreet.secure.ring import Elements, Ring


@dataclass(frozen=True, eq=False)
class ExplicitShare:
    """The share that is sent in full.

    Args:
        elements: shape (n,); secret.
    """

    elements: Elements = field(repr=False)


Share = Seed | ExplicitShare
"""A uniform share is its seed."""


def split(
    ring: Ring,
    secret: Elements,
    shares: int,
    randomness: Seeded | SystemRandom,
    *,
    round: int,
    client: int,
    context: bytes = b"",
) -> tuple[Share, ...]:
    """Shr: shares that add up to a vector.

    Args:
        ring: where the elements are from.
        secret: shape (n,), reduced.
        shares: how many, at least 2.
        randomness: `SystemRandom` for a deployment, `Seeded` for a simulation, in which nothing is secret.
        round: of the draw; only `Seeded` looks at it.
        client: whose secret it is; only `Seeded` looks at it.
        context: binds the seeds to a run, a round and a sender.

    Returns:
        `shares` - 1 seeds, and the explicit share last.

    Raises:
        ValueError: fewer than 2 shares, or elements outside the ring.
    """
    if shares < 2:
        raise ValueError(f"a secret is split into at least 2 shares, got {shares}")
    if secret.ndim != 1 or not ring.contains(secret):
        raise ValueError(f"expected a vector of {ring.dtype} below 2^{ring.bits}")
    words = randomness.words(round, client, "additive shares", (shares - 1) * SEED_BYTES // 8)
    material = words.astype("<u8").tobytes()
    seeds = [
        Seed(material[start : start + SEED_BYTES], context) for start in range(0, len(material), SEED_BYTES)
    ]
    last = secret.copy()
    accumulate(ring, last, plus=(), minus=seeds)
    return (*seeds, ExplicitShare(last))


def elements(ring: Ring, share: Share, length: int) -> Elements:
    """The vector that a share is.

    Raises:
        ValueError: an explicit share has another length, or elements outside the ring.
    """
    match share:
        case Seed():
            return expand(ring, share, length)
        case ExplicitShare(vector):
            _check(ring, vector, length)
            return vector


def add(ring: Ring, held: Iterable[Share], length: int) -> Elements:
    """Local addition: the sum of the shares that one party holds.

    Args:
        ring: where the elements are from.
        held: shares of any secrets, one or more of each secret that the sum is to contain.
        length: of the vectors.

    Returns:
        Shape (length,); as uniform as the shares are.

    Raises:
        ValueError: an explicit share does not fit.
    """
    total = ring.zeros(length)
    seeds = []
    for share in held:
        match share:
            case Seed():
                seeds.append(share)
            case ExplicitShare(vector):
                _check(ring, vector, length)
                ring.add(total, vector, out=total)
    accumulate(ring, total, seeds)
    return total


def reconstruct(ring: Ring, sums: Sequence[Elements]) -> Elements:
    """Rec: the sum of the secrets, from what every party added up.

    Args:
        ring: where the elements are from.
        sums: one vector a party, all of them; shape (n,) each.

    Raises:
        ValueError: there is none, or one has another length than the first or elements outside the ring.
    """
    if not sums:
        raise ValueError("nothing to reconstruct from: expected one sum a party")
    total = ring.zeros(len(sums[0]))
    for each in sums:
        _check(ring, each, len(total))
        ring.add(total, each, out=total)
    return total


def to_bytes(ring: Ring, share: Share) -> bytes:
    """A share as it is sent: a byte 0 and the seed, or a byte 1 and the packed elements."""
    match share:
        case Seed(secret):
            return b"\0" + secret
        case ExplicitShare(vector):
            return b"\1" + packing.pack(ring, vector).tobytes()


def from_bytes(ring: Ring, body: bytes, length: int, context: bytes = b"") -> Share:
    """The share in `body`, the inverse of `to_bytes`.

    Args:
        ring: where the elements are from.
        body: what was received.
        length: of the vector that it must stand for.
        context: what the share must be for.

    Raises:
        ValueError: it is no share of such a vector; the message says why.
    """
    match body[:1]:
        case b"\0":
            return Seed(body[1:], context)
        case b"\1":
            return ExplicitShare(packing.unpack(ring, np.frombuffer(body, np.uint8, offset=1), length))
        case kind:
            raise ValueError(f"a share starts with a byte 0 or 1, got {kind!r}")


def _check(ring: Ring, vector: Elements, length: int) -> None:
    if vector.shape != (length,) or not ring.contains(vector):
        raise ValueError(
            f"expected {length} elements of {ring.dtype} below 2^{ring.bits}, "
            f"got {vector.dtype} of shape {vector.shape}"
        )
