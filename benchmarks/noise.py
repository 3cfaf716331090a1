"""How long 1.6 million draws of noise take beside `torch.randn` of that size, one after the other in the same run.

python benchmarks/noise.py [--draws 1600000] [--repeats 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from discreet.privacy.noise import DiscreteGaussian, Gaussian, Skellam
from discreet.privacy.words import SeededWords, SystemWords
from discreet.randomness import Seeded

LAWS = (
    *(DiscreteGaussian(sigma) for sigma in (0.5, 3.0, 100.0, 5000.0, 1e6)),
    *(Skellam(sigma) for sigma in (3.0, 100.0, 5000.0)),
    Gaussian(1.0),
)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_600_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.draws:,} draws, medians of {options.repeats} alternating repeats, one thread")
    print(f"{'law':32} {'words':8} {'table':>8} {'draws':>9} {'randn':>9} {'ratio':>6}")
    for law in LAWS:
        table = 0.0 if isinstance(law, Gaussian) else seconds(lambda law=law: law.table)
        for source in (SeededWords(Seeded(0), 1, 0), SystemWords()):
            ours, theirs = [], []
            for _ in range(options.repeats):
                ours.append(seconds(lambda law=law, source=source: law.sample(source, options.draws)))
                theirs.append(seconds(lambda: torch.randn(options.draws)))
            mine, peer = statistics.median(ours), statistics.median(theirs)
            name = "seeded" if isinstance(source, SeededWords) else "system"
            print(
                f"{law!s:32} {name:8} {1e3 * table:5.0f} ms {1e3 * mine:6.1f} ms {1e3 * peer:6.1f} ms {mine / peer:6.2f}"
            )


if __name__ == "__main__":
    main()
