"""From what an experiment asks of privacy to what every round promises, before anything is trained."""

from __future__ import annotations

from dataclasses import replace

from discreet.config import Experiment
from discreet.errors import ConfigError
from discreet.privacy.accounting import calibrate, rounds_within
from discreet.privacy.planning import largest_cohort
from discreet.privacy.promise import Promise
from discreet.privacy.releases import Noise
from discreet.sampling import how_sampled
from discreet.schemes.base import Task


def promised(experiment: Experiment, task: Task, clients: int) -> tuple[Experiment, Task, int | None]:
    """Settle the noise, and how many rounds the budget allows.

    Args:
        experiment: what was asked.
        task: the task, without a promise.
        clients: how many there are.

    Returns:
        The experiment with its noise multiplier and way of summing settled, the task with its promise, and the number
        of releases that the budget allows (None without a budget).

    Raises:
        ConfigError: the budget does not allow a single round, or no theory covers what was asked.
    """
    asked = experiment.privacy
    if asked is None:
        return replace(experiment, secure="none"), task, None
    sampling = how_sampled(experiment, clients)
    promise = Promise(
        noise_multiplier=asked.noise_multiplier or 1.0,
        sampling=sampling,
        expected_cohort=sampling.fraction * clients,
        largest_cohort=largest_cohort(sampling, clients),
        dropout_tolerance=asked.dropout_tolerance,
        assumed_dishonest=asked.assumed_dishonest,
    )

    def noise(multiplier: float) -> Noise:
        made: Noise = experiment.scheme.release(
            replace(task, promise=replace(promise, noise_multiplier=multiplier))
        ).noise
        return made

    if asked.noise_multiplier is None and asked.epsilon is not None:
        found = calibrate(
            asked.epsilon, asked.delta, experiment.rounds, sampling, noise=noise, accountant=asked.accountant
        )
        promise, asked = replace(promise, noise_multiplier=found), replace(asked, noise_multiplier=found)
    task = replace(task, promise=promise)
    allowed = None
    if asked.epsilon is not None:
        allowed = rounds_within(
            asked.epsilon,
            asked.delta,
            experiment.scheme.release(task),
            accountant=asked.accountant,
            limit=experiment.rounds,
        )
        if not allowed:
            raise ConfigError(
                "privacy.epsilon",
                asked.epsilon,
                f"a budget for at least one round with noise multiplier {promise.noise_multiplier:.4g}",
            )
    secure = "masked" if experiment.secure == "auto" else experiment.secure
    return replace(experiment, privacy=asked, secure=secure), task, allowed
