"""Uniform 64-bit words for drawing noise: two types of source that cannot be confused.

`SeededWords` repeats bit for bit and belongs in simulations; `SystemWords` cannot be repeated, and is what a
deployment draws its noise from. Neither is a default for the other: whoever draws noise says which.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from discreet.randomness import Seeded


class Words(Protocol):
    """A stream of independent uniform 64-bit words."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of the stream, in an array of their own; no word is given out twice."""
        ...


class SeededWords:
    """A stream that is a function of (seed, round, client, purpose); **not for secrets**.

    Args:
        randomness: the simulation's seed.
        round: counted from 1.
        client: the client's number, or `randomness.SERVER`.
        purpose: another purpose is another stream.
    """

    def __init__(self, randomness: Seeded, round: int, client: int, purpose: str = "noise") -> None:
        self._bits = np.random.Philox(key=randomness.key(round, client, purpose))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


class SystemWords:
    """The key stream of AES-256 in counter mode, under a key from the operating system's cryptographic generator.

    The stream is made on the fly, far faster than the operating system would. A process that was forked off takes a
    new key, so that it never repeats its parent's noise.
    """

    def __init__(self) -> None:
        self._process, self._stream = os.getpid(), _fresh_stream()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        if self._process != os.getpid():
            self._process, self._stream = os.getpid(), _fresh_stream()
        words = np.empty(count, np.uint64)
        if count:
            self._stream.update_into(bytes(8 * count), words.view(np.uint8).data)
        return words


def _fresh_stream() -> CipherContext:
    # the key is used for one stream only, which is why a constant nonce will do
    return Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
