"""What lossless perturbation costs: a client's work over a plain gradient's, and the server's over a client's.

python benchmarks/lossless.py [--groups 1 2 10] [--batch 256] [--widths 256] [--repeats 40] [--threads 1]

784-256-10 in float64, one lane, squared error. Plain is the project's own gradient of such a chain. Each kind takes its
turn, again and again, in one run; figures are medians of the ratios of a turn.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from discreet.gradients import lane_gradient
from discreet.losses import squared_error
from discreet.network import network_of
from discreet.randomness import Seeded
from discreet.schemes.lossless.bodies import body_of
from discreet.schemes.lossless.noise import Perturbed, draw, perturb, strength
from discreet.schemes.lossless.preparing import prepared
from discreet.schemes.lossless.probing import probe, true_hidden
from discreet.schemes.lossless.recovery import Removal, recover
from discreet.schemes.lossless.terms import Directions, Terms, terms
from discreet.training import Learner

INPUTS, OUTPUTS = 784, 10
CPU = torch.device("cpu")


def learner(widths: list[int]) -> Learner:
    """A chain of linear layers and ReLUs."""
    sizes = [INPUTS, *widths]
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(sizes):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
    network = network_of(nn.Sequential(*layers, nn.Linear(sizes[-1], OUTPUTS)))
    return Learner(network, squared_error, "layers", 1, CPU, dimensions=1, shape=(INPUTS,))


def kinds(widths: list[int], batch: int, groups: list[int]) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    chosen = learner(widths)
    network = chosen.network
    vector = network.initial(Seeded(0)).double()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, batch, INPUTS, dtype=torch.float64, generator=generator)
    targets = torch.randint(OUTPUTS, (1, batch), generator=generator)
    weights = torch.full((1, batch), 1 / batch, dtype=torch.float64)
    given = (inputs, targets, weights, torch.zeros(1, dtype=torch.int64))
    plain = lane_gradient("layers", network, squared_error, 1)
    stack = [part[None].clone() for part in network.unflatten(vector).values()]
    found: dict[str, Callable[[], object]] = {"plain": lambda: plain(stack, *given)}
    for m in groups:
        found |= one_kind(chosen, vector, m, given)
    return found


def one_kind(
    chosen: Learner, vector: torch.Tensor, m: int, given: tuple[torch.Tensor, ...]
) -> dict[str, Callable[[], object]]:
    """A client's work, the server's recovery, and the server's noise, for m groups."""
    ready = prepared(chosen, m, torch.float64)
    structure = ready.structure
    body = body_of("layers", chosen.network, structure, 1)
    nothing = torch.empty(0)

    def noise() -> tuple[Perturbed, Removal]:
        drawn = draw(structure, m, "uniform", Seeded(0), 1)
        hidden = true_hidden(chosen.network, structure, vector, probe(Seeded(0), (INPUTS,), CPU))
        secret = drawn.of_strength(strength(drawn, structure, vector, hidden, 3.0))
        seen = perturb(structure, vector, secret, drawn.ratios, drawn.groups)
        payload = Perturbed(seen, drawn.ratios, drawn.groups, m, 1, nothing, nothing)
        return payload, Removal.of(ready.layout, secret, drawn.ratios, drawn.groups, ready.curvature)

    payload, removal = noise()
    stack = [part[None].clone() for part in chosen.network.unflatten(payload.vector).values()]
    directions = Directions.of(payload, ready.curvature, OUTPUTS)

    def client() -> Terms:
        return terms(body, squared_error, directions, structure.bias, stack, *given)

    sums = torch.zeros(1, ready.layout.values, dtype=torch.float64)
    ready.layout.add(sums, client())
    total = torch.cat([sums[0], torch.ones(1, dtype=torch.float64)])

    def server() -> object:
        return recover(removal, total)

    return {f"client, m = {m}": client, f"recovery, m = {m}": server, f"noise, m = {m}": noise}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 10])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--widths", type=int, nargs="+", default=[256])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with torch.no_grad():
        timed = kinds(asked.widths, asked.batch, asked.groups)
        times: dict[str, list[float]] = {name: [] for name in timed}
        for turn in range(asked.repeats + 2):
            for name, work in timed.items():
                started = time.perf_counter()
                work()
                if turn >= 2:  # the first turns warm caches up
                    times[name].append(time.perf_counter() - started)
    for name, taken in times.items():
        base = "plain" if name == "plain" or name.startswith("client") else f"client, m = {name.split()[-1]}"
        ratio = statistics.median(one / other for one, other in zip(taken, times[base], strict=True))
        print(f"{name:18s} {1e3 * statistics.median(taken):7.2f} ms  {ratio:6.3f} of {base}")


if __name__ == "__main__":
    main()
