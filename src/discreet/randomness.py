"""Where random numbers come from: three types that cannot be confused.

`Seeded` is for simulations: every stream is a pure function of (seed, round, client, purpose), so that a run
can be repeated bit for bit whatever the order in which clients are worked on. `Keyed` has the same streams under a
secret key, for what a party of a deployment draws again and nobody else can. `SystemRandom` is for secrets in a
deployment: it reads the operating system's cryptographic generator and cannot be seeded.

None is a default for another: a function that needs random numbers names the type it takes.
"""

from __future__ import annotations

import hashlib
import os
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SERVER = -1
"""The client number under which the server draws its own random numbers."""


KEY_BYTES = 32
"""Of the key of `Keyed` streams."""


class _Streams(ABC):
    """Streams that are functions of (round, client, purpose), each under a key of its own."""

    @abstractmethod
    def key(self, round: int, client: int, purpose: str) -> int:
        """A 128-bit key; different arguments give independent ones."""

    def stream(self, round: int, client: int, purpose: str) -> np.random.Generator:
        """The stream of one client (or `SERVER`) in one round for one purpose.

        Args:
            round: counted from 1; 0 for what happens before the first round.
            client: the client's number, or `SERVER`.
            purpose: what the numbers are for, as ``"batches"``; another purpose is another stream.
        """
        return np.random.Generator(np.random.Philox(key=self.key(round, client, purpose)))

    def torch_seed(self, round: int, client: int, purpose: str) -> int:
        """A 63-bit seed for code that only takes one, as `torch.manual_seed` does."""
        return self.key(round, client, purpose) >> 65

    def words(self, round: int, client: int, purpose: str, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words of the stream."""
        bits = np.random.Philox(key=self.key(round, client, purpose))
        return np.asarray(bits.random_raw(count), dtype=np.uint64)


@dataclass(frozen=True)
class Seeded(_Streams):
    """Streams of random numbers that repeat; **not for secrets**.

    Args:
        seed: any integer that fits in 64 bits, signed.
    """

    seed: int

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits, got {self.seed}")

    def key(self, round: int, client: int, purpose: str) -> int:
        """A 128-bit key for (seed, round, client, purpose), by BLAKE2b.

        Different arguments give independent keys: two seeds share no stream, nor do two clients.
        """
        message = struct.pack("<qqq", self.seed, round, client) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(message, digest_size=16, person=b"discreet").digest(), "little")


@dataclass(frozen=True)
class Keyed(_Streams):
    """Streams that repeat for whoever has a secret key, and for nobody else.

    For what a party draws again after it was interrupted: batches, coins, its first confined model. The key hides one
    stream from another and from everybody else; noise, masks and keys are from `SystemRandom` all the same.

    Args:
        secret: `KEY_BYTES` bytes that the party alone knows.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(self.secret)}")

    def key(self, round: int, client: int, purpose: str) -> int:
        """A 128-bit key for (round, client, purpose), by BLAKE2b under the secret key."""
        message = struct.pack("<qq", round, client) + purpose.encode()
        digest = hashlib.blake2b(message, digest_size=16, key=self.secret, person=b"discreet keyed")
        return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class SystemRandom:
    """The operating system's cryptographic generator; cannot be seeded or repeated."""

    def words(self, round: int, client: int, purpose: str, count: int) -> NDArray[np.uint64]:
        """`count` fresh uniform 64-bit words; the other arguments are ignored, so that both types fit."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
