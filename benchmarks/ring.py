"""How fast vectors modulo 2^b are packed for the wire, and seeds expanded and added, beside what the machine can do.

python benchmarks/ring.py [--length 1660000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from discreet.secure.expansion import Seed, accumulate
from discreet.secure.packing import pack, unpack
from discreet.secure.ring import Ring

PACKED = (1, 2, 4, 5, 8, 12, 14, 15, 16, 17, 20, 22, 24, 31, 32, 33, 48, 63, 64)
PIECE = 1 << 16


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1_660_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    length, repeats = options.length, options.repeats
    print(f"packing {length:,} elements; GB/s of elements in memory, medians of {repeats}")
    for bits in PACKED:
        ring = Ring(bits)
        elements = ring.reduce(np.random.default_rng(0).integers(0, 2**64, length, dtype=np.uint64))
        body = pack(ring, elements)
        rates = [
            elements.nbytes / 1e9 / seconds(work, repeats)
            for work in (
                lambda ring=ring, elements=elements: pack(ring, elements),
                lambda ring=ring, body=body: unpack(ring, body, length),
                lambda elements=elements: elements.copy(),
            )
        ]
        print("{:3} bits: pack {:5.2f}  unpack {:5.2f}  copy {:6.2f}".format(bits, *rates))

    print("expanding 100 seeds and adding them, beside the key stream alone; GB/s")
    zeros, room = bytes(PIECE), bytearray(PIECE)
    for bits in (15, 16, 32):
        ring = Ring(bits)
        total = ring.zeros(length)
        seeds = [Seed(os.urandom(32)) for _ in range(100)]
        stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        amount = 100 * total.nbytes

        def raw(stream=stream, amount=amount):
            for _ in range(amount // PIECE):
                stream.update_into(zeros, room)

        pairs = [
            (
                seconds(lambda ring=ring, total=total, seeds=seeds: accumulate(ring, total, seeds), 1),
                seconds(raw, 1),
            )
            for _ in range(repeats)
        ]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{bits:3} bits: {amount / ours / 1e9:5.2f} of {amount / theirs / 1e9:5.2f}: {theirs / ours:4.0%}"
        )


if __name__ == "__main__":
    main()
