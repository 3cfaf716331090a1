"""How long a FedAvg round takes, against loops over the clients in plain PyTorch; all in one run, alternating.

    python benchmarks/rounds.py mlp      # 784-200-10: a loop with gradients by hand, and one with autograd
    python benchmarks/rounds.py cnn      # the CNN of 1.66 million parameters: a loop with autograd

The setting is that of arXiv 2010.07808: MNIST, 1,000 clients of 60 examples, 100 a round, 30 steps of batch 10, SGD
with learning rate 0.215. Without MNIST at hand, random images are used: the work is the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import discreet
from discreet import preparation
from discreet.cohort import Examples
from discreet.data.dataset import Dataset
from discreet.errors import DataError
from discreet.sampling import sample
from discreet.simulation import simulate

STEPS, BATCH, RATE, CLIENTS = 30, 10, 0.215, 1000


def mnist() -> Dataset:
    try:
        return discreet.load("mnist")
    except DataError:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8, generator=generator)
        examples = Examples(images, torch.randint(0, 10, (60_000,), generator=generator))
        return Dataset("random images", "image", examples, examples, tuple("0123456789"))


def experiment(model: str, cohort: int, threads: int) -> discreet.Experiment:
    return discreet.Experiment(
        data=discreet.Data(name="mnist", clients=CLIENTS),
        model=discreet.Model(name=model),
        scheme=discreet.FedAvg(steps=STEPS, batch_size=BATCH, learning_rate=RATE),
        rounds=1,
        fraction=cohort / CLIENTS,
        seed=1,
        eval_every=10_000,
        engine=discreet.Engine(workers=threads),
    )


def cohort_batches(images: Tensor, labels: Tensor, cohort: int) -> list[list[tuple[Tensor, Tensor]]]:
    """For each client of a round its batches, gathered beforehand: the loops below get them for free."""
    chosen = np.random.default_rng(1)
    found = []
    for _ in range(cohort):
        own = chosen.choice(len(images), 60, replace=False)
        order = np.concatenate([chosen.permutation(own) for _ in range(5)]).reshape(STEPS, BATCH)
        found.append([(images[torch.from_numpy(rows)], labels[torch.from_numpy(rows)]) for rows in order])
    return found


def loop_by_hand(start: list[Tensor], cohort: list[list[tuple[Tensor, Tensor]]]) -> list[Tensor]:
    """One round: client after client, gradients derived by hand, buffers reused, updates fused into the product."""
    sums = [torch.zeros_like(value) for value in start]
    first, first_bias, second, second_bias = (value.clone() for value in start)
    places = torch.arange(BATCH)
    with torch.no_grad():
        for batches in cohort:
            for own, value in zip((first, first_bias, second, second_bias), start, strict=True):
                own.copy_(value)
            for images, labels in batches:
                hidden = torch.addmm(first_bias, images, first.t()).relu_()
                delta = torch.addmm(second_bias, hidden, second.t()).softmax(1)
                delta[places, labels] -= 1
                delta /= BATCH
                below = (delta @ second).mul_(hidden > 0)
                second.addmm_(delta.t(), hidden, alpha=-RATE)
                second_bias.sub_(delta.sum(0), alpha=RATE)
                first.addmm_(below.t(), images, alpha=-RATE)
                first_bias.sub_(below.sum(0), alpha=RATE)
            for total, own, value in zip(sums, (first, first_bias, second, second_bias), start, strict=True):
                total += own - value
    return [value + total / len(cohort) for value, total in zip(start, sums, strict=True)]


def loop_plainly(start: list[Tensor], cohort: list[list[tuple[Tensor, Tensor]]]) -> list[Tensor]:
    """The same as one writes it first: gradients by hand, written down and then subtracted."""
    sums = [torch.zeros_like(value) for value in start]
    places = torch.arange(BATCH)
    with torch.no_grad():
        for batches in cohort:
            first, first_bias, second, second_bias = (value.clone() for value in start)
            for images, labels in batches:
                before = images @ first.t() + first_bias
                hidden = before.relu()
                delta = (hidden @ second.t() + second_bias).softmax(1)
                delta[places, labels] -= 1
                delta /= BATCH
                below = (delta @ second) * (before > 0)
                second -= RATE * (delta.t() @ hidden)
                second_bias -= RATE * delta.sum(0)
                first -= RATE * (below.t() @ images)
                first_bias -= RATE * below.sum(0)
            for total, own, value in zip(sums, (first, first_bias, second, second_bias), start, strict=True):
                total += own - value
    return [value + total / len(cohort) for value, total in zip(start, sums, strict=True)]


def loop_with_autograd(
    module: nn.Module, start: list[Tensor], cohort: list[list[tuple[Tensor, Tensor]]]
) -> list[Tensor]:
    """One round: client after client, autograd and torch.optim.SGD."""
    sums = [torch.zeros_like(value) for value in start]
    parameters = list(module.parameters())
    for batches in cohort:
        with torch.no_grad():
            for own, value in zip(parameters, start, strict=True):
                own.copy_(value)
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for total, own, value in zip(sums, parameters, start, strict=True):
                total += own - value
    return [value + total / len(cohort) for value, total in zip(start, sums, strict=True)]


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=["mlp", "cnn"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cohort", type=int, default=100, help="clients a round")
    parser.add_argument("--repeats", type=int, default=0, help="rounds of each contender (mlp 15, cnn 3)")
    chosen = parser.parse_args()
    repeats = chosen.repeats or {"mlp": 15, "cnn": 3}[chosen.model]
    torch.set_num_threads(chosen.threads)
    data = mnist()
    federation = preparation.prepare(experiment(chosen.model, chosen.cohort, chosen.threads), data)
    module = federation.task.learner.network.to_module(federation.task.initial()).train()
    start = [parameter.detach().clone() for parameter in module.parameters()]
    images = data.train.inputs.to(torch.float32) / 255
    cohort = cohort_batches(
        images if chosen.model == "cnn" else images.flatten(1), data.train.targets, chosen.cohort
    )
    contenders: dict[str, Callable[[], float]] = {
        "discreet": lambda: simulate(
            experiment(chosen.model, chosen.cohort, chosen.threads), data=data
        ).result["seconds_per_round"],
        "loop, autograd": lambda: seconds(lambda: loop_with_autograd(module, start, cohort)),
    }
    if chosen.model == "mlp":
        contenders["loop, by hand"] = lambda: seconds(lambda: loop_plainly(start, cohort))
        contenders["loop, by hand, fused"] = lambda: seconds(lambda: loop_by_hand(start, cohort))
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, contender in contenders.items():
            taken = contender()
            if repeat:  # the first time warms up
                found[name].append(taken)
    assert len(sample(federation.experiment, CLIENTS, 1)) == len(cohort)
    engine = federation.experiment.engine
    print(
        f"{chosen.model}, {federation.task.parameters:,} parameters, {chosen.cohort} clients, {chosen.threads} threads, median of {repeats}"
    )
    print(
        f"path {engine.gradients}, {engine.lanes} lanes, {engine.workers} workers of {engine.threads} thread(s)"
    )
    for name, values in found.items():
        ratios = [own / other for own, other in zip(found["discreet"], values, strict=True)]
        print(
            f"{name:22s} {statistics.median(values):8.3f} s a round  [{min(values):.3f} .. {max(values):.3f}]"
            f"   discreet / it: {statistics.median(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
