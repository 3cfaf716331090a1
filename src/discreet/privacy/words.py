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

from discreet.randomness import Seeded, SystemRandom

_ZEROS = memoryview(bytes(1 << 16))
"""What a stream cipher is given to encrypt for its key stream, a piece at a time."""


class Words(Protocol):
    """A stream of independent uniform 64-bit words."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of the stream, in an array of their own; no word is given out twice."""
        ...


class SeededWords:
    """A stream that is a function of (seed, round, client, purpose); **not for secrets**.

    It is the key stream of AES-128 in counter mode, under the key that `Seeded` derives from the four.

    Args:
        randomness: the simulation's seed.
        round: counted from 1.
        client: the client's number, or `randomness.SERVER`.
        purpose: another purpose is another stream.
    """

    def __init__(self, randomness: Seeded, round: int, client: int, purpose: str = "noise") -> None:
        self._stream = _key_stream(randomness.key(round, client, purpose).to_bytes(16, "little"))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        return _next_words(self._stream, count)


class SystemWords:
    """The key stream of AES-256 in counter mode, under a key from the operating system's cryptographic generator.

    The stream is made on the fly, far faster than the operating system would. A process that was forked off takes a
    new key, so that it never repeats its parent's noise.
    """

    def __init__(self) -> None:
        self._process, self._stream = os.getpid(), _key_stream(os.urandom(32))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        if self._process != os.getpid():
            self._process, self._stream = os.getpid(), _key_stream(os.urandom(32))
        return _next_words(self._stream, count)


def words_of(source: Seeded | SystemRandom, round: int, client: int) -> SeededWords | SystemWords:
    """The words that a client draws its noise of a round from; only `Seeded` looks at which round and client."""
    return SeededWords(source, round, client) if isinstance(source, Seeded) else SystemWords()


def _key_stream(key: bytes) -> CipherContext:
    # a key is used for one stream only, which is why a constant nonce will do
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _next_words(stream: CipherContext, count: int) -> NDArray[np.uint64]:
    words = np.empty(count, np.dtype("<u8"))
    room = words.view(np.uint8).data
    for start in range(0, len(room), len(_ZEROS)):
        part = room[start : start + len(_ZEROS)]
        stream.update_into(_ZEROS[: len(part)], part)
    return words
