"""How long a client's local step takes on each path and at each number of lanes: what the automatic choice rests on.

python benchmarks/paths.py [mlp|text|cnn|small-cnn ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from discreet import losses, models
from discreet.cohort import Cohort, Examples
from discreet.gradients import choose_path, linear_layers
from discreet.optimizers import LocalTraining
from discreet.randomness import Seeded
from discreet.training import Learner, train

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "small-cnn": (1, 8, 8), "text": (256,)}
OPTIONS = {"small-cnn": {"channels": [8, 16], "widths": [32]}}
PLAN = LocalTraining(steps=10, batch_size=10, learning_rate=0.1)


def setting(name: str) -> tuple[Learner, Cohort, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    texts = name == "text"
    shape = (4000, *SHAPES[name])
    inputs = (
        torch.randint(0, 10_000, shape, dtype=torch.int32, generator=generator)
        if texts
        else torch.rand(shape, generator=generator)
    )
    examples = Examples(inputs, torch.randint(0, 10, (len(inputs),), generator=generator))
    network = models.build(
        name.removeprefix("small-"),
        shape=SHAPES[name],
        outputs=10,
        vocabulary=10_000 if texts else None,
        options=OPTIONS.get(name, {}),
        randomness=Seeded(0),
        probe=inputs[:2],
        classes=True,
    )
    clients = 50
    ids = np.arange(clients)
    cohort = Cohort(
        ids=ids,
        examples=examples,
        indices=tuple(np.arange(60 * client, 60 * client + 60) for client in ids),
        round=1,
        capacity=60,
        row=ids,
        column=np.zeros_like(ids),
        kept=(None,) * clients,
    )
    learner = Learner(network, losses.find("auto", classes=True), "vmap", 1, torch.device("cpu"))
    return learner, cohort, network.initial(Seeded(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(SHAPES))
    names = parser.parse_args().names or list(SHAPES)
    torch.set_num_threads(1)
    for name in names:
        learner, cohort, vector = setting(name)
        dimensions = len(SHAPES[name])
        chosen = choose_path(learner.network, dimensions)
        print(f"{name}, {learner.network.count:,} parameters: {chosen} is chosen")
        for path in ("layers", "vmap", "autograd"):
            if path == "layers" and linear_layers(learner.network, dimensions) is None:
                continue
            for lanes in (1, 2, 5, 10, 25, 50) if path != "autograd" else (1,):
                count = max(lanes, 4)
                part = cohort.select(slice(0, count))
                one = replace(learner, path=path, lanes=lanes)
                taken = []
                for _ in range(4):
                    begin = time.perf_counter()
                    train(one, PLAN, vector, part, Seeded(0))
                    taken.append((time.perf_counter() - begin) / count / (PLAN.steps or 1))
                print(
                    f"  {path:9s} {lanes:3d} lanes  {1e3 * statistics.median(taken[1:]):8.3f} ms a client's step"
                )


if __name__ == "__main__":
    main()
