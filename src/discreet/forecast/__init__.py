"""What a run will cost, before anything is trained: the noise is settled, and messages are shaped, as a run does it.

A forecast is worked out by the very functions that a run calls (`discreet.budget.promised`, a scheme's `phases` and
`release`), on a task of which only the model's size is known. What it says is what ``result.json`` will say.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from discreet import machine
from discreet.budget import promised
from discreet.config import Experiment
from discreet.errors import ConfigError, ModelError
from discreet.forecast.figures import bandwidth, figures
from discreet.forecast.subject import subject
from discreet.forecast.wishes import Wishes, as_experiment, promises_nothing
from discreet.privacy.noise import DiscreteGaussian, Skellam
from discreet.privacy.planning import Plan
from discreet.privacy.promise import Promise
from discreet.privacy.traffic import Bandwidth
from discreet.schemes.base import Task
from discreet.schemes.private import promise_of

__all__ = ["Bandwidth", "Plan", "Wishes", "plan", "timings"]

WISH_OF = {
    "privacy.epsilon": "epsilon",
    "privacy.noise_multiplier": "noise_multiplier",
    "privacy.delta": "delta",
    "privacy.accountant": "accountant",
    "privacy.dropout_tolerance": "dropout",
    "privacy.assumed_dishonest": "dishonest",
    "data.name": "data",
    "model.name": "model",
}
"""The wish that is written into a key of an experiment."""


def plan(
    experiment: Experiment | None = None, *, data_dir: Path | None = None, **wishes: Any
) -> Plan | Bandwidth:
    """Work out a run from what is known of it.

    Without an experiment, known must be `parameters` or `model`, two of `clients`, `cohort` and `fraction`, and two of
    `rounds`, `epsilon` and `noise_multiplier`; the noise is that of dp-signfed. With one, wishes take the place of what
    it says: a budget that is wished for takes the place of its noise, noise that of its budget. If its own scheme is
    not private, the plan is for dp-signfed instead; or, where nothing about privacy is wished for, of what it sends.

    Args:
        experiment: what is going to run.
        data_dir: where data sets are looked for first. They are read only if an own table, own images or ``lfw`` must
            tell the model's inputs or who the clients are.
        **wishes: as in `Wishes`.

    Raises:
        ConfigError: something is missing, contradictory or out of range; a wish is named by its own name.
        UserError: the model cannot be made, or data that must be read cannot be.
    """
    asked = Wishes(**wishes)
    given = {name for name, value in wishes.items() if value is not None}
    try:
        chosen = as_experiment(asked, experiment)
        task, clients = subject(chosen, data_dir, parameters=asked.parameters, clients=asked.clients)
        if experiment is not None and not experiment.scheme.private:
            _check_own(experiment.scheme, task, asked.parameters)
        if promises_nothing(asked, experiment):
            return bandwidth(chosen, task, clients)
        # a cohort that is too small for a masked sum is refused there, and warned of here
        settled, task, allowed = promised(replace(chosen, secure="none"), task, clients)
        _check_survivors(promise_of(task))
    except ConfigError as error:
        wish = WISH_OF.get(error.key)
        if type(error) is ConfigError and wish is not None and (experiment is None or wish in given):
            raise ConfigError(wish, error.value, error.expected) from None
        raise
    rounds = settled.rounds if allowed is None else allowed
    beside = None if experiment is None else experiment.scheme
    masked = chosen.secure in ("auto", "masked")
    found = figures(settled, task, clients, rounds, masked=masked, beside=beside)
    return replace(found, secure="additive") if chosen.secure == "additive" else found


def timings(made: Plan) -> dict[str, float]:
    """Seconds that a client's part in an average round takes on this machine, by name; measured in half a second."""
    law = Skellam if made.mechanism == "skellam" else DiscreteGaussian
    found = {"noise": machine.seconds_for_noise(made.parameters, law(made.noise_share))}
    if made.neighbours is not None:
        masks = machine.seconds_for_masks(made.parameters, made.bits, made.neighbours)
        found = {"mask expansion": masks, **found}
    return found


def _check_own(scheme: Any, task: Task, parameters: int | None) -> None:
    """Refuse what a scheme without a promise cannot do, also where another's noise is planned."""
    try:
        scheme.phases(task)
    except ModelError:
        if parameters is None:
            raise
        expected = "a model instead: what this scheme sends depends on its layers"
        raise ConfigError("parameters", parameters, expected) from None


def _check_survivors(promise: Promise) -> None:
    """Refuse to assume that nobody who adds noise survives an average round."""
    cohort = max(1, round(promise.expected_cohort))
    # a millionth absorbs the rounding of products such as 0.9 * 100
    survivors = max(1, math.floor(cohort * (1 - promise.dropout_tolerance) + 1e-6))
    if promise.assumed_dishonest >= survivors:
        raise ConfigError(
            "privacy.assumed_dishonest",
            promise.assumed_dishonest,
            f"fewer than the {survivors} expected survivors of {cohort} clients a round",
        )
