"""What an adversary that does nothing adds to a round: runs with and without one, by turns.

    python benchmarks/adversary.py [--turns 9] [--cohort 100]

MNIST (random images without it), 784-200-10, 1,000 clients, 30 steps of batch 10; a tenth of the clients is malicious.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import discreet
from discreet.adversaries.settings import Adversary
from discreet.simulation import simulate
from rounds import experiment, mnist

SCHEMES = ("fedavg", "signfed", "dp-signfed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    data = mnist()
    for name in SCHEMES:
        plan = experiment("mlp", asked.cohort, asked.threads)
        if name != "fedavg":
            kind = discreet.SCHEMES[name]
            privacy = discreet.Privacy(noise_multiplier=1.0) if kind.private else None
            scheme = kind(steps=30, batch_size=10, learning_rate=0.215)
            plan = replace(plan, scheme=scheme, privacy=privacy, secure="none")
        idle = replace(plan, adversary=Adversary(attack="none", fraction=0.1))
        ratios = []
        for _ in range(asked.turns):
            honest, watched = (simulate(one, data=data).result["seconds_per_round"] for one in (plan, idle))
            ratios.append(watched / honest)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}: {statistics.median(ratios):.2f} of a round without it (median; {spread})", flush=True)


if __name__ == "__main__":
    main()
