"""What CGD costs against one centralized model: time an iteration and memory; needs MNIST.

python benchmarks/confined.py [--rows 1000] [--columns 112] [--repeats 3] [--iterations 3] [--threads 2] [--shared 100]

784-256-10, full batches. Each kind takes its turn, again and again, in one run; figures are medians of the ratios of
a turn. Centralized is written as one writes it for speed: inputs held as floating-point numbers, gradients by hand.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from discreet.config import Data, Engine, Experiment, Model
from discreet.dealing import load_data
from discreet.preparation import prepare
from discreet.results import peak_memory
from discreet.rounds import play_round
from discreet.sampling import attend
from discreet.schemes import ConfinedGradientDescent
from discreet.simulation import _map
from discreet.sums import answer
from discreet.tally import Tally


def centralized(threads: int) -> Callable[[], None]:
    """One full-batch iteration of one model."""
    data = load_data(Experiment(data=Data(name="mnist")))
    inputs = data.train.inputs.flatten(1).float() / 255
    targets = data.train.targets
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(784, 256, generator=generator) * 0.01
    second = torch.randn(256, 10, generator=generator) * 0.01
    bias, above = torch.zeros(256), torch.zeros(10)
    truth = torch.nn.functional.one_hot(targets, 10).float()

    def iteration() -> None:
        torch.set_num_threads(threads)
        active = torch.addmm(bias, inputs, first).relu_()
        delta = torch.addmm(above, active, second).softmax(1).sub_(truth).div_(len(inputs))
        below = (delta @ second.T).mul_(active > 0)
        second.addmm_(active.T, delta, alpha=-0.5)
        above.sub_(delta.sum(0), alpha=0.5)
        first.addmm_(inputs.T, below, alpha=-0.5)
        bias.sub_(below.sum(0), alpha=0.5)

    return iteration


def confined(rows: int, columns: int, threads: int, secure: str = "none") -> Callable[[], None]:
    """One iteration of CGD."""
    split = {"partition": "grid", "rows": rows, "columns": columns} if columns else {"clients": rows}
    federation = prepare(
        Experiment(
            data=Data(name="mnist", **split),
            model=Model(options={"widths": [256]}),
            scheme=ConfinedGradientDescent(),
            secure=secure,
            share_holders=3,
            engine=Engine(workers=threads),
            seed=1,
        )
    )
    scheme, task = federation.scheme, federation.task
    state, number = scheme.init(task), 0
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def iteration() -> None:
        nonlocal state, number
        torch.set_num_threads(1)
        number += 1
        ids = attend(federation.experiment, federation.partition.clients, number)
        playing = play_round(scheme, task, state, number)
        try:
            ask = next(playing)
            while True:
                ask = playing.send(
                    answer(federation, ask, ids, {}, Tally(), lambda *job: _map(pool, threads + 1, *job))
                )
        except StopIteration as end:
            state = end.value

    return iteration


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=112)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--shared", type=int, default=100, help="rows with additive sharing among 3; 0 for none"
    )
    chosen = parser.parse_args()
    kinds = {
        "centralized": centralized(chosen.threads),
        f"{chosen.rows} rows": confined(chosen.rows, 0, chosen.threads),
        f"{chosen.rows} x {chosen.columns}": confined(chosen.rows, chosen.columns, chosen.threads),
    }
    if chosen.shared:
        kinds[f"{chosen.shared} rows"] = confined(chosen.shared, 0, chosen.threads)
        kinds[f"{chosen.shared} shared"] = confined(chosen.shared, 0, chosen.threads, "additive")
    for name, iteration in kinds.items():
        started = time.perf_counter()
        iteration()  # what is kept from round to round is worked out
        print(f"{name:12s} first iteration {time.perf_counter() - started:.1f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(chosen.repeats):
        for name, iteration in kinds.items():
            started = time.perf_counter()
            for _ in range(chosen.iterations):
                iteration()
            times[name].append((time.perf_counter() - started) / chosen.iterations)
    base = np.array(times["centralized"])
    for name, taken in times.items():
        print(
            f"{name:12s} {statistics.median(taken):.3f} s an iteration, {np.median(taken / base):.2f} of centralized"
        )
    print(f"peak memory {peak_memory() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
