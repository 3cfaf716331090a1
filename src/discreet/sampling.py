"""Which clients take part in a round, and which of them fall silent before it is over."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet.config import Experiment
from discreet.privacy.releases import FixedSize, Poisson, Sampling
from discreet.randomness import SERVER, Seeded
from discreet.secure.masking import STAGES, Stage


@dataclass(frozen=True, eq=False)
class Attendance:
    """Who was drawn for a round, and how far they come.

    Attributes:
        drawn: shape (K,), the clients' numbers in rising order.
        steps: shape (K,), of how many of `STAGES` a client sends its message, 0 to 4: the first ones.
    """

    drawn: NDArray[np.int64]
    steps: NDArray[np.int64]

    @property
    def sending(self) -> NDArray[np.int64]:
        """The clients whose contributions arrive, in rising order."""
        return self.drawn[self.steps > STAGES.index(Stage.MASK)]

    def dealt(self, groups: NDArray[np.int64], count: int) -> list[Attendance]:
        """The same clients in `count` parts; `groups`, shape (K,), says who is in which."""
        return [Attendance(self.drawn[groups == one], self.steps[groups == one]) for one in range(count)]

    @property
    def lost(self) -> int:
        """How many clients' contributions do not arrive."""
        return len(self.drawn) - len(self.sending)

    def silent(self, stage: Stage) -> list[int]:
        """The clients that send nothing from this stage on, having sent all before it."""
        return [int(client) for client in self.drawn[self.steps == STAGES.index(stage)]]


def attend(experiment: Experiment, clients: int, round: int) -> Attendance:
    """Draw the clients of a round, and for each on its own whether and when it falls silent.

    The draws depend on the seed, the round and the client alone; those of one step not on the rates of the others.
    """
    drawn = sample(experiment, clients, round)
    rates = np.array([getattr(experiment.dropouts, stage) for stage in STAGES])
    steps = np.full(len(drawn), len(STAGES))
    if rates.any():
        streams = Seeded(experiment.seed)
        for place, client in enumerate(drawn):
            silent = streams.stream(round, int(client), "dropouts").random(len(STAGES)) < rates
            if silent.any():
                steps[place] = silent.argmax()
    return Attendance(drawn, steps)


def sample(experiment: Experiment, clients: int, round: int) -> NDArray[np.int64]:
    """The clients of a round, in rising order; its cost grows with their number and not with `clients`."""
    stream = Seeded(experiment.seed).stream(round, SERVER, "sampling")
    if experiment.scheme.everyone:
        some = min(getattr(experiment.scheme, "trained", 0), clients) or clients
        return np.unique(np.linspace(0, clients - 1, some).round().astype(np.int64))
    if experiment.sampling == "poisson":
        # a binomial number of clients, drawn without repetition, is each client on its own with that probability
        count = int(stream.binomial(clients, experiment.fraction))
    else:
        count = fixed_cohort(experiment, clients)
    if count == clients:
        return np.arange(clients)
    return np.sort(stream.choice(clients, count, replace=False, shuffle=False)).astype(np.int64)


def grouped(
    experiment: Experiment, there: Attendance, clients: int, round: int, count: int
) -> list[Attendance]:
    """The clients of a round in `count` groups, by a draw that everybody can repeat.

    Each is in one group, so that one client's data has a part in one sum. Cohorts of fixed size are dealt evenly. Under
    Poisson sampling all clients are, whether they were drawn or not: who else is in the round must not change anybody's
    group, or one client more would change every sum.

    Args:
        experiment: what runs.
        there: who was drawn.
        clients: how many there are.
        round: counted from 1.
        count: of the groups; some may be empty.
    """
    if count == 1:
        return [there]
    everyone = how_sampled(experiment, clients)
    dealt = clients if isinstance(everyone, Poisson) else len(there.drawn)
    places = Seeded(experiment.seed).stream(round, SERVER, "groups").permutation(dealt) % count
    return there.dealt(places[there.drawn] if isinstance(everyone, Poisson) else places, count)


def fixed_cohort(experiment: Experiment, clients: int) -> int:
    """How many clients a round of fixed size draws: the nearest whole number, a half going up, and at least one."""
    return max(1, math.floor(experiment.fraction * clients + 0.5))


def how_sampled(experiment: Experiment, clients: int) -> Sampling:
    """How the experiment samples its clients, as the accountant takes it."""
    if experiment.scheme.everyone:
        return FixedSize(clients, clients)
    if experiment.sampling == "poisson":
        return Poisson(experiment.fraction)
    return FixedSize(fixed_cohort(experiment, clients), clients)
