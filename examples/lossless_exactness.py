"""How exact lossless perturbation is: error of one recovered gradient against rho, and training beside a plain loop.

python examples/lossless_exactness.py [--data mnist] [--m 1 2 10] [--repeats 5] [--rounds 200] [--plot FILE]

1. One gradient, of 784-64-10 on the examples of one client: relative error (L2 norms) of what the server recovers, against
   autograd's gradient of the true model in float64, for noise `rho` times the outputs, in float64 and in float32. The slope
   is that of the error's logarithm by rho's, from rho = 10 on: rounding errors grow as rho^2.
2. Training: `--rounds` rounds of the scheme, and the same by a loop that is written out below: autograd in float64 on the
   true model, the same batches, clients weighted by their examples. What is printed is the largest difference of any
   parameter, and of test examples that are told right.

Figures of the first part are medians over `--repeats` rounds, each with noise of its own.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from discreet.batches import draw_batches
from discreet.config import Data, Experiment, Model
from discreet.losses import squared_error
from discreet.optimizers import LocalTraining
from discreet.preparation import Federation, prepare
from discreet.schemes import Lossless
from discreet.schemes.fedavg import weighted
from discreet.schemes.lossless.noise import Perturbed, draw, perturb, strength
from discreet.schemes.lossless.preparing import Prepared, prepared
from discreet.schemes.lossless.probing import probe, true_hidden
from discreet.schemes.lossless.recovery import Removal, recover
from discreet.schemes.lossless.work import contributed
from discreet.simulation import simulate

RHOS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
STEEP, USABLE = 10.0, 0.1
"""From which rho on the slope is measured, and up to which error: beyond, no digit is left that could go."""

Precision = Literal["float64", "float32"]
DTYPES: dict[Precision, torch.dtype] = {"float64": torch.float64, "float32": torch.float32}
NETWORKS = {
    "mlp": Model(name="mlp", loss="squared-error", options={"widths": [64]}),
    "cnn": Model(name="cnn", loss="squared-error", options={"channels": [4, 8], "widths": [32]}),
}


@dataclass(frozen=True)
class Law:
    """Errors of one recovered gradient.

    Attributes:
        precision: of what clients compute and send.
        m: groups of outputs with a secret of their own.
        errors: relative, one for each rho.
        slope: of log(error) by log(rho).
    """

    precision: Precision
    m: int
    errors: tuple[float, ...]
    slope: float


@dataclass(frozen=True)
class Beside:
    """A run of the scheme, and the same training by a plain loop.

    Attributes:
        largest: difference of any parameter after the last round.
        size: of the largest parameter.
        right: test examples that the scheme's model and the loop's model tell right.
        differing: test examples to which the two give different answers.
    """

    largest: float
    size: float
    right: tuple[int, int]
    differing: int


# ---- one gradient


def law(fed: Federation, precision: Precision, m: int, rhos: Sequence[float], repeats: int) -> Law:
    """Errors of the gradient that is recovered from the first client that holds anything."""
    ready = prepared(fed.task.learner, m, DTYPES[precision])
    vector = fed.task.initial().double()
    client = int(np.flatnonzero(fed.partition.sizes)[0])
    rows = torch.from_numpy(np.asarray(fed.partition.indices(client)))
    wanted = true_gradient(fed, vector, *fed.train.gather(rows))
    errors = []
    for rho in rhos:
        found = [recovered(fed, ready, vector, client, rho, round) for round in range(1, repeats + 1)]
        errors.append(statistics.median(float((one - wanted).norm() / wanted.norm()) for one in found))
    return Law(precision, m, tuple(errors), slope_of(rhos, errors))


def recovered(
    fed: Federation, ready: Prepared, vector: Tensor, client: int, rho: float, round: int
) -> Tensor:
    """What the server gets back of one client's gradient; as `Lossless` does it, which refuses much noise in float32."""
    learner, randomness, structure = fed.task.learner, fed.task.randomness, ready.structure
    dtype, m = next(ready.learner.network.module.parameters()).dtype, ready.layout.m
    noise = draw(structure, m, "uniform", randomness, round)
    noise = replace(noise, ratios=noise.ratios.to(dtype))
    hidden = true_hidden(
        learner.network, structure, vector, probe(randomness, structure.shape, learner.device)
    )
    secret = noise.of_strength(strength(noise, structure, vector, hidden, rho))
    seen = perturb(structure, vector, secret, noise.ratios, noise.groups).to(dtype)
    nothing = torch.empty(0)
    payload = Perturbed(seen, noise.ratios, noise.groups, m, round, nothing, nothing)
    cohort = fed.cohort(np.array([client]), round, {})
    sent = weighted(contributed(ready, payload, cohort, randomness, 0), cohort)
    removal = Removal.of(ready.layout, secret, noise.ratios, noise.groups, ready.curvature)
    return recover(removal, sent.elements[0].double()).gradient


def true_gradient(fed: Federation, vector: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Autograd's, of the true model's mean loss, float64, shape (n,)."""
    module = fed.task.learner.network.to_module(vector).double()
    loss = squared_error(module(inputs.double()), targets).mean()
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(module.parameters()))])


def slope_of(rhos: Sequence[float], errors: Sequence[float]) -> float:
    """Of log(error) by log(rho), by least squares."""
    steep = [(rho, error) for rho, error in zip(rhos, errors, strict=True) if rho >= STEEP and error < USABLE]
    return float(np.polyfit(*np.log(np.array(steep).T), 1)[0])


# ---- training


def experiment(
    data: str,
    model: str,
    *,
    clients: int = 4,
    batch: int = 32,
    rounds: int = 200,
    m: int = 1,
    learning_rate: float = 0.3,
) -> Experiment:
    """Clients that hold unequal shares, and draw batches."""
    return Experiment(
        data=Data(name=data, partition="lognormal", sigma=0.5, clients=clients),
        model=NETWORKS[model],
        scheme=Lossless(m=m, batch_size=batch, learning_rate=learning_rate),
        rounds=rounds,
        eval_every=rounds,
        seed=1,
    )


def beside(chosen: Experiment, data_dir: Path | None = None) -> Beside:
    """Train both ways, and compare."""
    run = simulate(chosen, data_dir=data_dir)
    fed = prepare(chosen, data_dir=data_dir)
    ours, theirs = run.vector, plain(fed)
    mine, other = answers(fed, ours), answers(fed, theirs)
    right = [int((one == fed.test.targets).sum()) for one in (mine, other)]
    return Beside(
        float((ours - theirs).abs().max()),
        float(theirs.abs().max()),
        (right[0], right[1]),
        int((mine != other).sum()),
    )


def plain(fed: Federation) -> Tensor:
    """The plain loop: the mean gradient of all clients' batches by autograd, and a step against it; float64, (n,)."""
    scheme, task = fed.scheme, fed.task
    everyone = np.arange(fed.partition.clients)
    sizes = torch.from_numpy(fed.partition.sizes).double()
    module = task.learner.network.to_module(task.initial()).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=scheme.learning_rate)
    for round in range(1, fed.experiment.rounds + 1):
        cohort = fed.cohort(everyone, round, {})
        drawn = draw_batches(
            LocalTraining(steps=1, batch_size=scheme.batch_size), cohort, len(everyone), task.randomness
        )
        optimizer.zero_grad()
        for client in everyone:
            rows = drawn.indices[client, 0][drawn.weights[client, 0] > 0]
            inputs, targets = fed.train.gather(rows)
            loss = squared_error(module(inputs.double()), targets).mean()
            torch.autograd.backward(loss * sizes[client] / sizes.sum())
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in module.parameters()])


def answers(fed: Federation, vector: Tensor) -> Tensor:
    """The classes that a model tells of the test examples, in float64, shape (count,)."""
    network, found = fed.task.learner.network, []
    with torch.no_grad():
        for start in range(0, len(fed.test), 1000):
            rows = torch.arange(start, min(start + 1000, len(fed.test)))
            found.append(network.apply(vector, fed.test.gather(rows)[0]).argmax(1))
    return torch.cat(found)


# ---- the figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist", choices=["mnist", "digits"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--m", type=int, nargs="+", default=[1, 2, 10])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--plot", type=Path, help="file to write the first part's figure to")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    # a client of some 150 examples
    fed = prepare(
        experiment(asked.data, "mlp", clients=400 if asked.data == "mnist" else 10), data_dir=asked.data_dir
    )
    print(f"{'precision':9} {'m':>3} " + " ".join(f"{f'rho {rho:g}':>9}" for rho in RHOS) + "  slope")
    laws = []
    for precision in DTYPES:
        for m in asked.m:
            one = law(fed, precision, m, RHOS, asked.repeats)
            laws.append(one)
            errors = " ".join(f"{error:9.1e}" for error in one.errors)
            print(f"{precision:9} {m:3} {errors}  {one.slope:5.2f}", flush=True)
    if asked.plot:
        plot(laws, asked.plot)
    print(
        f"\n{'network':7} {'m':>3} {'rounds':>6}  largest difference of a parameter   right answers   different"
    )
    for model in NETWORKS:
        for m in asked.m:
            chosen = experiment(asked.data, model, batch=asked.batch, rounds=asked.rounds, m=m)
            both = beside(chosen, asked.data_dir)
            print(
                f"{model:7} {m:3} {asked.rounds:6}  {both.largest:8.1e} of up to {both.size:.2f}"
                f"{both.right[0]:20} and {both.right[1]}{both.differing:12}",
                flush=True,
            )


def plot(laws: Sequence[Law], path: Path) -> None:
    """Errors by rho, and lines of slope 2."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for one in laws:
        style = "-o" if one.precision == "float64" else "--s"
        axes.plot(RHOS, one.errors, style, label=f"{one.precision}, m = {one.m}")
    for name, dtype in DTYPES.items():
        epsilon = torch.finfo(dtype).eps
        square = [epsilon * rho**2 for rho in RHOS]
        axes.plot(RHOS, square, ":", color="grey", label="eps rho²" if name == "float64" else None)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="rho: noise on the outputs, in outputs",
        ylabel="relative error of the recovered gradient",
    )
    axes.legend(fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
