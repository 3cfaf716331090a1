"""Memory and time of a round with 1,000,000 clients of 60 examples, 1,000 a round; then with 10,000 clients.

    python benchmarks/million.py

Each client's examples are drawn from MNIST with repetition (``data.partition = "resampled"``). The time of a round
must not depend on the number of clients; the peak of memory must stay under 2 GiB.
"""

from __future__ import annotations

import discreet
from discreet.results import peak_memory
from rounds import mnist


def main() -> None:
    data = mnist()
    for clients in (10_000, 1_000_000):
        experiment = discreet.Experiment(
            data=discreet.Data(name="mnist", partition="resampled", clients=clients, examples_per_client=60),
            model=discreet.Model(name="mlp"),
            scheme=discreet.FedAvg(steps=30, batch_size=10, learning_rate=0.215),
            rounds=3,
            fraction=1000 / clients,
            eval_every=3,
            seed=1,
        )
        run = discreet.simulate(experiment, data=data)
        print(
            f"{clients:9,} clients, {run.metrics[0]['participants']:,} a round: "
            f"{run.result['seconds_per_round']:.2f} s a round, accuracy {run.final['accuracy']:.2%}, "
            f"peak so far {peak_memory() / 2**30:.2f} GiB"
        )


if __name__ == "__main__":
    main()
