"""Which clients take part in a round."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from discreet.config import Experiment
from discreet.privacy.releases import FixedSize, Poisson, Sampling
from discreet.randomness import SERVER, Seeded


def sample(experiment: Experiment, clients: int, round: int) -> NDArray[np.int64]:
    """The clients of a round, in rising order; its cost grows with their number and not with `clients`."""
    stream = Seeded(experiment.seed).stream(round, SERVER, "sampling")
    if experiment.scheme.everyone:
        count = clients
    elif experiment.sampling == "poisson":
        # a binomial number of clients, drawn without repetition, is each client on its own with that probability
        count = int(stream.binomial(clients, experiment.fraction))
    else:
        count = fixed_cohort(experiment, clients)
    if count == clients:
        return np.arange(clients)
    return np.sort(stream.choice(clients, count, replace=False, shuffle=False)).astype(np.int64)


def fixed_cohort(experiment: Experiment, clients: int) -> int:
    """How many clients a round of fixed size draws: the nearest whole number, a half going up, and at least one."""
    return max(1, math.floor(experiment.fraction * clients + 0.5))


def how_sampled(experiment: Experiment, clients: int) -> Sampling:
    """The experiment's sampling, as the accountant takes it."""
    if experiment.sampling == "poisson":
        return Poisson(experiment.fraction)
    return FixedSize(fixed_cohort(experiment, clients), clients)
