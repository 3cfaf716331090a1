"""Ring elements from a 32-byte seed: what stands in for a random vector on the wire.

The seed goes through HKDF-SHA256, bound to the ring and to a context that the parties agree on, and keys AES-256 in
counter mode; the key stream, cut to the ring's words, is the vector. All 256 bits of the seed matter, and another
context or another ring is another, unrelated vector. The vector of a shorter length is the beginning of the longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from discreet.secure.ring import Elements, Ring

SEED_BYTES = 32
"""The length of a seed."""

_PIECE = 1 << 18
"""Bytes of key stream made at a time: small enough to be added while still in the processor's cache, and large enough
that threads seldom wait for each other between two of them. Vectors do not depend on it."""

_ZEROS = memoryview(bytes(_PIECE))
"""A stream cipher gives its key stream by encrypting zeros."""


@dataclass(frozen=True)
class Seed:
    """A vector, given by the seed that it is expanded from.

    Args:
        secret: 32 bytes; used for nothing else under the same context.
        context: what the vector is for: run, round, sender and so on, of any length. Both sides know it.

    Raises:
        ValueError: the seed has another length.
    """

    secret: bytes = field(repr=False)
    context: bytes = b""

    def __post_init__(self) -> None:
        if len(self.secret) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, got {len(self.secret)}")


def expand(ring: Ring, seed: Seed, length: int) -> Elements:
    """The vector that a seed stands for.

    Args:
        ring: where the elements are from.
        seed: the seed and its context.
        length: of the vector, n.

    Returns:
        Shape (n,); to whoever lacks the seed it looks uniform.
    """
    vector = ring.zeros(length)
    accumulate(ring, vector, [seed])
    return vector


def accumulate(ring: Ring, total: Elements, plus: Sequence[Seed], minus: Sequence[Seed] = ()) -> None:
    """Add and subtract the vectors of seeds to a running total in place, without ever holding one whole.

    Many seeds at once are quicker than one after another: a piece of the total then stays in the processor's cache.

    Args:
        ring: where the elements are from.
        total: shape (n,), reduced before and after.
        plus: whose vectors are added.
        minus: whose vectors are subtracted.
    """
    streams = [_stream(ring, seed) for seed in (*plus, *minus)]
    size = _PIECE // (ring.word // 8)
    room = np.empty(min(len(total), size), ring.dtype)
    for start in range(0, len(total), size):
        part = total[start : start + size]
        words = room[: len(part)]
        zeros, bytes_of = _ZEROS[: words.nbytes], words.view(np.uint8).data
        for index, stream in enumerate(streams):
            stream.update_into(zeros, bytes_of)
            change = np.add if index < len(plus) else np.subtract
            change(part, words, out=part)
        # once is enough: what lies above the ring's bits never reaches those below
        if ring.bits < ring.word:
            part &= ring.dtype.type(ring.modulus - 1)


def _stream(ring: Ring, seed: Seed) -> CipherContext:
    # the fields before the context have fixed lengths, so no two of (ring, context) share an info
    info = b"discreet vector 1" + bytes([ring.bits]) + seed.context
    key = HKDF(SHA256(), 32, salt=None, info=info).derive(seed.secret)
    # the key is used for one stream only, which is why a constant nonce will do
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
