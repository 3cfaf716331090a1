"""Accuracy of the presets against what they have to reach; needs MNIST and Fashion-MNIST.

python benchmarks/accuracy.py [preset ...]
"""

from __future__ import annotations

import argparse

import discreet
from discreet.config import load

WANTED = {
    "mnist-fedavg": (100, "final", 0.950),
    "mnist-signfed": (100, "final", 0.930),
    "fashion-mnist-fedavg": (50, "final", 0.830),
    "fashion-mnist-signfed": (50, "final", 0.800),
    "mnist-dp-fedavg": (200, "best", 0.935),
    "mnist-dp-signfed": (200, "best", 0.910),
    "fashion-mnist-dp-fedavg": (200, "best", 0.830),
    "fashion-mnist-dp-signfed": (200, "best", 0.780),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="*", help=", ".join(WANTED))
    for preset in parser.parse_args().presets or WANTED:
        rounds, which, wanted = WANTED[preset]
        run = discreet.simulate(load(preset, [f"rounds={rounds}", "eval_every=5"]))
        accuracy = run.result[which]["accuracy"]
        verdict = "reached" if accuracy >= wanted else "MISSED"
        epsilon = f", epsilon {run.result['privacy']['epsilon']:.3g}" if run.result["privacy"] else ""
        print(
            f"{preset:24s} {which} of {rounds} rounds: {accuracy:.2%}, wanted {wanted:.1%}: {verdict}; "
            f"{run.result['bits_per_parameter']:.4g} bits a parameter{epsilon}, "
            f"{run.result['seconds_per_round']:.2f} s a round",
            flush=True,
        )


if __name__ == "__main__":
    main()
