"""How an experiment is computed: what its engine leaves open, and where."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable

import torch

from discreet.config import Experiment
from discreet.errors import ConfigError, LocalProtocolError
from discreet.gradients import Path, choose_path, linear_layers
from discreet.network import Network
from discreet.sampling import fixed_cohort
from discreet.schemes.traits import groups_of

CACHE_BYTES = 6_500_000
"""Stacked parameters up to this size measured fastest: they stay in a processor's cache."""

MOST_LANES = 64


def resolve(
    experiment: Experiment, network: Network, dimensions: int, clients: int, stackable: Callable[[], bool]
) -> Experiment:
    """The experiment with every ``auto`` of its engine settled, from the model and the size of the cohort alone.

    Args:
        experiment: what was asked.
        network: the model.
        dimensions: of one input.
        clients: how many there are.
        stackable: tells whether the model and its loss can go through `torch.func.vmap`; asked only if it matters.

    Raises:
        ConfigError: the way of computing gradients that was asked for cannot do this model.
    """
    engine = experiment.engine
    path = choose_path(network, dimensions) if engine.gradients == "auto" else engine.gradients
    if path == "vmap" and not stackable():
        if engine.gradients == "vmap":
            raise ConfigError(
                "engine.gradients", path, "autograd: torch.func.vmap cannot do this model or loss"
            )
        path = "autograd"
    if path == "layers" and linear_layers(network, dimensions) is None:
        raise ConfigError(
            "engine.gradients", path, "vmap or autograd: the model is no chain of Flatten, Linear and ReLU"
        )
    cohort = clients if experiment.scheme.everyone else fixed_cohort(experiment, clients)
    lanes = engine.lanes
    if lanes == "auto":
        in_cache = max(1, CACHE_BYTES // (4 * network.count))
        # at least two stacks a round, so that two workers have something to do on every machine
        stacks = max(2, groups_of(experiment.scheme))  # of clients of one group each
        lanes = 1 if path == "autograd" else min(in_cache, MOST_LANES, max(1, math.ceil(cohort / stacks)))
    workers = engine.workers
    if workers == "auto":
        workers = 1 if engine.device == "cuda" else _processors()
    settled = dataclasses.replace(engine, gradients=path, lanes=lanes, workers=workers)
    return dataclasses.replace(experiment, engine=settled)


def _processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def path_of(experiment: Experiment) -> Path:
    """How gradients are computed, once it is settled."""
    if experiment.engine.gradients == "auto":
        raise LocalProtocolError("engine.gradients was not resolved")
    return experiment.engine.gradients


def device_of(experiment: Experiment) -> torch.device:
    """Where it is computed.

    Raises:
        ConfigError: there is no such device.
    """
    if experiment.engine.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device", "cuda", "cpu: torch sees no CUDA device here")
    return torch.device(experiment.engine.device)
