"""How fast masks are made: against the raw speed of AES-256-CTR through `cryptography`, in the same run.

    python benchmarks/masking.py [--length 1660000] [--bits 16] [--neighbours 100] [--threads 2] [--round]

Raw is the key stream alone, thrown away. A client's masked vector is that much key stream, for its neighbours and
itself, added to the vector. Both run on one thread and on `--threads`; they alternate and the ratio is the median over
pairs, so that other load on the machine strikes both alike. `--round` then plays a whole round
for 100 clients in one process, with and without dropouts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from discreet.randomness import SystemRandom
from discreet.secure.expansion import Seed
from discreet.secure.masking import Stage, masked_sum, plan_graph
from discreet.secure.masking.masks import add_masks
from discreet.secure.ring import Ring

PIECE = 1 << 18
"""Bytes at a time, at which the raw key stream is fastest."""

ROUNDS = 15


def raw(total: int, threads: int) -> None:
    """`total` bytes of key stream, split over threads."""

    def stream() -> None:
        encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        zeros, out = bytes(PIECE), bytearray(PIECE)
        for _ in range(total // threads // PIECE):
            encryptor.update_into(zeros, out)

    workers = [threading.Thread(target=stream) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def expansion(length: int, bits: int, neighbours: int, threads: int) -> None:
    ring = Ring(bits)
    seeds = [Seed(os.urandom(32)) for _ in range(neighbours + 1)]
    vector = ring.zeros(length)
    total = len(seeds) * vector.nbytes
    half = len(seeds) // 2
    counts = sorted({1, threads})
    raws: dict[int, list[float]] = {count: [] for count in counts}
    masks: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(ROUNDS):
        for count in counts:
            raws[count].append(total / seconds(raw, total, count) / 1e9)
            masks[count].append(
                total / seconds(add_masks, ring, vector, seeds[:half], seeds[half:], count) / 1e9
            )
    for count in counts:
        pairs = [made / limit for made, limit in zip(masks[count], raws[count], strict=True)]
        print(
            f"{count} threads: raw {statistics.median(raws[count]):5.2f} GB/s (best {max(raws[count]):5.2f}), "
            f"masks {statistics.median(masks[count]):5.2f} (best {max(masks[count]):5.2f}), "
            f"ratio {statistics.median(pairs):.0%} (best against best {max(masks[count]) / max(raws[count]):.0%})"
        )
    print(
        f"a masked vector of {length:,} elements of {bits} bits with {neighbours} neighbours: "
        f"{total / max(masks[threads]) / 1e9:.3f} s at best"
    )


def whole_round(length: int, bits: int, clients: int, threads: int) -> None:
    ring = Ring(bits)
    plan = plan_graph(clients, dropout=0.1, corrupt=0.1)
    rows = np.stack([ring.zeros(length)] * clients)
    rows += np.arange(clients, dtype=ring.dtype)[:, None]
    for degree, threshold in ((plan.degree, plan.threshold), (clients - 1, 2 * clients // 3)):
        for gone in (0, clients // 10):
            start = time.perf_counter()
            total = masked_sum(
                rows,
                bits,
                degree=degree,
                threshold=threshold,
                dropouts={Stage.MASK: range(gone)},
                randomness=SystemRandom(),
                threads=threads,
            )
            spent = time.perf_counter() - start
            expected = sum(range(gone, clients)) % ring.modulus
            if not (total.values == expected).all():
                raise SystemExit("the masked sum is wrong")
            up, down = sum(total.bytes_up.values()), sum(total.bytes_down.values())
            print(
                f"{clients} clients, {degree} neighbours, threshold {threshold}, {gone} dropouts: {spent:.1f} s, "
                f"{up / clients / 1e6:.2f} MB up and {down / clients / 1e3:.1f} kB down a client"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=1_660_000)
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--neighbours", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--round", action="store_true")
    chosen = parser.parse_args()
    expansion(chosen.length, chosen.bits, chosen.neighbours, chosen.threads)
    if chosen.round:
        whole_round(chosen.length, chosen.bits, 100, chosen.threads)


if __name__ == "__main__":
    main()
