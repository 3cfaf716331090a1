"""What is asked of a plan, and the experiment that it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from discreet.config import Data, Experiment, Model, Privacy
from discreet.errors import ConfigError
from discreet.schemes import DPSignFed
from discreet.schemes.traits import RecordLevel

MOST_ROUNDS = 1_000_000
"""Where a budget is given and no number of rounds: at most so many are looked for."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is asked of a plan beside, or instead of, an experiment; None where nothing is.

    Attributes:
        clients: N.
        cohort: clients a round, on average under Poisson sampling.
        fraction: the same as a share of N, in (0, 1].
        rounds: how many; without an experiment left out, as many as the budget allows with the given noise.
        parameters: of the model, where no model is named.
        model: a model's name, as in `discreet.config.Model`.
        data: a data set's name, for the shape of the model's inputs.
        epsilon: the budget; left out, what the given noise costs.
        noise_multiplier: of the sum; left out, the smallest that keeps the budget.
        delta: in (0, 1).
        sampling: ``poisson`` or ``fixed``.
        accountant: whose epsilon is promised: ``rdp``, ``pld`` or ``best``.
        dropout: the largest share of a cohort that may drop out of a round, in [0, 1).
        dishonest: clients of a cohort who are assumed to add no noise.

    Raises:
        ConfigError: a value is out of range; the key is the attribute's name.
    """

    clients: int | None = None
    cohort: int | None = None
    fraction: float | None = None
    rounds: int | None = None
    parameters: int | None = None
    model: str | None = None
    data: str | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    sampling: Literal["poisson", "fixed"] | None = None
    accountant: Literal["rdp", "pld", "best"] | None = None
    dropout: float | None = None
    dishonest: int | None = None

    def __post_init__(self) -> None:
        for name, (fits, expected) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise ConfigError(name, value, expected)
        if self.parameters is not None and self.model is not None:
            raise ConfigError(
                "parameters", self.parameters, f"nothing beside model = {self.model!r}, which has its own"
            )
        if self.parameters is not None and self.data is not None:
            raise ConfigError(
                "data", self.data, "nothing beside parameters: it is for the shape of a model's inputs"
            )


def _one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in names, "one of " + ", ".join(names)


def _positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "clients": (lambda value: value >= 1, "at least 1"),
    "cohort": (lambda value: value >= 1, "at least 1"),
    "fraction": (lambda value: 0 < value <= 1, "a share of the clients, above 0 and at most 1"),
    "rounds": (lambda value: value >= 1, "at least 1"),
    "parameters": (lambda value: value >= 1, "the number of the model's parameters, at least 1"),
    "epsilon": (_positive, "a number above 0"),
    "noise_multiplier": (_positive, "a number above 0"),
    "delta": (lambda value: 0 < value < 1, "a number above 0 and below 1"),
    "sampling": _one_of("poisson", "fixed"),
    "accountant": _one_of("rdp", "pld", "best"),
    "dropout": (lambda value: 0 <= value < 1, "a share of the cohort, at least 0 and below 1"),
    "dishonest": (lambda value: value >= 0, "a number of clients, at least 0"),
}
"""What each wish may be, and how to say so."""


PRIVATE = ("epsilon", "noise_multiplier", "delta", "accountant", "dropout", "dishonest")
"""The wishes that are about a promise."""


def promises_nothing(asked: Wishes, experiment: Experiment | None) -> bool:
    """Whether there is nothing to plan but messages: an experiment without a promise, of which none is wished for."""
    if experiment is None or experiment.scheme.private:
        return False
    return all(getattr(asked, name) is None for name in PRIVATE)


def as_experiment(asked: Wishes, experiment: Experiment | None) -> Experiment:
    """The experiment that wishes come to, alone or in place of what another says; private, unless none is promised.

    Raises:
        ConfigError: something is missing or contradictory.
    """
    return _alone(asked) if experiment is None else _changed(asked, experiment)


def _alone(asked: Wishes) -> Experiment:
    """The experiment that wishes alone describe."""
    if asked.parameters is None and asked.model is None:
        raise ConfigError("parameters", None, "the number of the model's parameters, or a model")
    clients, fraction = _drawn(asked, None, None)
    if asked.epsilon is None and asked.noise_multiplier is None:
        raise ConfigError("epsilon", None, "a budget, or a noise_multiplier")
    both = asked.epsilon is not None and asked.noise_multiplier is not None
    if both and asked.rounds is not None:
        raise ConfigError(
            "epsilon",
            asked.epsilon,
            "one of epsilon, noise_multiplier and rounds left out: two settle the third",
        )
    if asked.rounds is None and not both:
        raise ConfigError("rounds", None, "how many, or both an epsilon and a noise_multiplier")
    return Experiment(
        data=_data(Data(clients=clients), asked),
        model=Model(name=asked.model or "mlp"),
        scheme=DPSignFed(),
        rounds=asked.rounds or MOST_ROUNDS,
        fraction=fraction,
        sampling=asked.sampling or "poisson",
        privacy=_privacy(None, asked),
    )


def _changed(asked: Wishes, experiment: Experiment) -> Experiment:
    """The experiment with what is wished in place of what it says."""
    if isinstance(experiment.scheme, RecordLevel):
        raise ConfigError(
            "scheme.name",
            experiment.scheme_name,
            "a scheme in which clients send something: one party trains alone here, and its run says what it costs",
        )
    data = experiment.data
    if data.partition == "grid" and data.columns > 1:
        raise ConfigError("data.columns", data.columns, "1: a plan is for whole rows at each client")
    there = data.rows * data.columns if data.partition == "grid" else data.clients
    clients, fraction = _drawn(asked, there, experiment.fraction)
    bare = promises_nothing(asked, experiment)
    return replace(
        experiment,
        data=_data(data if data.partition == "grid" else replace(data, clients=clients), asked),
        model=experiment.model if asked.model is None else Model(name=asked.model),
        scheme=experiment.scheme if bare or experiment.scheme.private else DPSignFed(),
        rounds=asked.rounds or experiment.rounds,
        fraction=fraction,
        sampling=asked.sampling or experiment.sampling,
        privacy=None if bare else _privacy(experiment.privacy, asked),
    )


def _drawn(asked: Wishes, clients: int | None, fraction: float | None) -> tuple[int, float]:
    """How many clients there are, and the share of them in a round; `clients` and `fraction` where nothing is wished."""
    cohort = asked.cohort
    wanted = asked.clients
    if wanted is None and cohort is not None and asked.fraction is not None:
        wanted = max(cohort, round(cohort / asked.fraction))
    clients = clients if wanted is None else wanted
    if clients is None:
        raise ConfigError("clients", None, "the number of clients, or both cohort and fraction")
    if cohort is None:
        fraction = fraction if asked.fraction is None else asked.fraction
        if fraction is None:
            raise ConfigError(
                "fraction", None, "the share of the clients that takes part in a round, or cohort"
            )
        return clients, fraction
    if cohort > clients:
        raise ConfigError("cohort", cohort, f"at most the number of clients, {clients}")
    if asked.fraction is not None and abs(asked.fraction * clients - cohort) > 0.5:
        raise ConfigError(
            "cohort", cohort, f"fraction x clients = {asked.fraction * clients:g}, or leave one of them out"
        )
    return clients, cohort / clients if asked.fraction is None else asked.fraction


def _data(data: Data, asked: Wishes) -> Data:
    return data if asked.data is None else replace(data, name=asked.data)


def _privacy(before: Privacy | None, asked: Wishes) -> Privacy:
    """What is asked of privacy: a budget or noise that is wished for takes the place of both."""
    base = before or Privacy(epsilon=1.0)
    noise: tuple[float | None, float | None] = (asked.epsilon, asked.noise_multiplier)
    if noise == (None, None):
        if before is None:
            raise ConfigError("epsilon", None, "a budget, or a noise_multiplier: the experiment has neither")
        noise = (base.epsilon, base.noise_multiplier)
    changes: dict[str, Any] = {
        "delta": asked.delta,
        "accountant": asked.accountant,
        "dropout_tolerance": asked.dropout,
        "assumed_dishonest": asked.dishonest,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    return replace(base, epsilon=noise[0], noise_multiplier=noise[1], **changes)
