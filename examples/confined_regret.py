"""What confined models lose against the best model, on convex problems, beside what theory says.

python examples/confined_regret.py [--clients 10] [--rounds 50 200 800] [--plot regret.png]

Two problems: least squares on scikit-learn's diabetes data, and softmax regression on its digits, shrunk to 2 x 4
pixels so that classes overlap and there is a best model, not too far away. Regret is in the units of the loss (variances of the target;
nats): the mean over the rounds of F(model) - F(best model), F being the loss on all training examples.

`theorem 1` has all its constants set to 1: it shows how the regret should go with delta and T, and bounds nothing.
`sure bound` holds: it has all constants (`discreet.schemes.confined.theory`), and is wide.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor

from discreet.cohort import Examples
from discreet.config import Data, Experiment, Model
from discreet.data.dataset import Dataset
from discreet.preparation import Federation, prepare
from discreet.rounds import play_round
from discreet.schemes import ConfinedGradientDescent
from discreet.schemes.confined import theory

DELTAS = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Problem:
    """A convex problem.

    Attributes:
        data: its training examples.
        curvature: the largest second derivative of the loss by the outputs.
    """

    data: Dataset
    curvature: float


@dataclass(frozen=True)
class Measured:
    """Regrets of one run, in the units of the loss.

    Attributes:
        regrets: of each participant, shape (m,).
        theorem: theorem 1's expression at the largest epsilon.
        sure: the bound with all constants, of each participant, shape (m,).
    """

    regrets: NDArray[np.float64]
    theorem: float
    sure: NDArray[np.float64]


def diabetes() -> Problem:
    """442 patients, 10 figures each; inputs and target scaled to variance 1."""
    inputs, targets = load_diabetes(return_X_y=True)
    scaled = torch.from_numpy((targets - targets.mean()) / targets.std()).float()
    values = torch.from_numpy(inputs / inputs.std(0)).float()
    return Problem(_dataset("diabetes", Examples(values, scaled[:, None]), None), 2.0)


def digits() -> Problem:
    """1,797 digits of 2 x 4 pixels, each scaled to mean 0 and variance 1."""
    images, targets = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).float().view(-1, 2, 4, 4, 2).mean((2, 4)).flatten(1)
    examples = Examples((pixels - pixels.mean(0)) / pixels.std(0), torch.from_numpy(targets))
    return Problem(_dataset("digits", examples, tuple("0123456789")), 0.5)


def _dataset(name: str, examples: Examples, classes: tuple[str, ...] | None) -> Dataset:
    none = torch.arange(0)
    return Dataset(name, "table", examples, Examples(examples.inputs[none], examples.targets[none]), classes)


def federation(problem: Problem, clients: int, delta: float, share: float) -> Federation:
    """Participants who hold as much each, and the step size: a share of the largest that is sure to be safe."""
    examples = problem.data.train
    smoothness = theory.smoothness_of(examples.inputs, len(examples), problem.curvature)
    scheme = ConfinedGradientDescent(initial_scale=delta, learning_rate=share * 0.25 / smoothness)
    experiment = Experiment(
        data=Data(clients=clients), model=Model(name="linear"), scheme=scheme, seed=1, secure="none"
    )
    return prepare(experiment, problem.data)


def models(fed: Federation, rounds: int) -> Iterator[Tensor]:
    """All confined models as they are before each round, shape (m, n)."""
    scheme, task, clients = fed.scheme, fed.task, fed.partition.clients
    state = scheme.init(task)
    starts = torch.stack([scheme.confined(task, state, client) for client in range(clients)])
    first = starts[0].clone()
    for number in range(1, rounds + 1):
        # every model has moved by the same as the first
        yield starts + (scheme.confined(task, state, 0) - first)
        playing = play_round(scheme, task, state, number)
        ask = next(playing)
        cohort = fed.cohort(np.arange(clients), number, {})
        total, _ = scheme.subtotal(task, ask.phase, ask.payload, ask.received, cohort, map)
        try:
            playing.send(total)
        except StopIteration as end:
            state = end.value


def minimum(problem: Problem) -> tuple[Tensor, float]:
    """The best model, and its loss."""
    return theory.minimum(federation(problem, 1, 1.0, 1.0).task.learner, problem.data.train)


def measure(
    problem: Problem,
    minimum: tuple[Tensor, float],
    clients: int,
    delta: float,
    rounds: list[int],
    share: float = 1.0,
) -> list[Measured]:
    """Regrets after each number of rounds."""
    fed = federation(problem, clients, delta, share)
    learner, examples = fed.task.learner, fed.train
    best, least = minimum
    losses, distances, starts = [], [], torch.empty(0)
    for number, now in enumerate(models(fed, max(rounds))):
        starts = now if number == 0 else starts
        losses.append(theory.losses_of(learner, now, examples))
        distances.append((now.double() - best).norm(dim=1))
    parts = [
        theory.smoothness_of(
            examples.inputs[torch.from_numpy(np.asarray(fed.partition.indices(client)))],
            len(examples),
            problem.curvature,
        )
        for client in range(clients)
    ]
    whole = theory.smoothness_of(examples.inputs, len(examples), problem.curvature)
    spread = theory.spread_of(lambda client: starts[client], range(clients))
    errors = theory.gradient_error(starts, parts)
    return [
        Measured(
            torch.stack(losses[:count]).mean(0).numpy() - least,
            theory.theorem_bound(spread.epsilon, count, fed.scheme.decay),
            np.array(
                [
                    theory.sure_bound(furthest, error, [fed.scheme.learning_rate] * count, whole)
                    for furthest, error in zip(
                        torch.stack(distances[:count]).amax(0).tolist(), errors, strict=True
                    )
                ]
            ),
        )
        for count in rounds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, nargs="+", default=[50, 200, 800])
    parser.add_argument("--plot", type=Path, help="file to write a figure to")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    print(
        f"{'problem':9} {'delta':>6} {'T':>5} {'mean':>9} {'worst':>9} {'theorem 1':>10} {'sure bound':>11}"
    )
    curves = {}
    for name, problem in (("diabetes", diabetes()), ("digits", digits())):
        best = minimum(problem)
        for delta in DELTAS:
            found = measure(problem, best, asked.clients, delta, asked.rounds)
            curves[name, delta] = found
            for count, one in zip(asked.rounds, found, strict=True):
                print(
                    f"{name:9} {delta:6g} {count:5} {one.regrets.mean():9.4f} {one.regrets.max():9.4f} "
                    f"{one.theorem:10.3f} {one.sure.max():11.3f}"
                )
    if asked.plot:
        plot(curves, asked.rounds, asked.plot)


def plot(curves: dict[tuple[str, float], list[Measured]], rounds: list[int], path: Path) -> None:
    """The worst participant's regret, and both figures of theory, by T."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _ in curves))
    figure = Figure(figsize=(4.2 * len(DELTAS), 3.6 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), len(DELTAS), squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for place, delta in zip(row, DELTAS, strict=True):
            found = curves[name, delta]
            place.plot(rounds, [one.regrets.max() for one in found], "-o", label="worst regret")
            place.plot(rounds, [one.theorem for one in found], "--s", label="theorem 1, constants 1")
            place.plot(rounds, [one.sure.max() for one in found], ":^", label="sure bound")
            place.set(xscale="log", yscale="log", title=f"{name}, delta {delta:g}", xlabel="rounds T")
            place.set_xticks(rounds, [str(count) for count in rounds])
            place.minorticks_off()
    axes[0][0].legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
