"""From what an experiment asks of privacy to what every round promises, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import replace

from discreet.config import Experiment
from discreet.errors import ConfigError
from discreet.privacy.accounting import spent
from discreet.privacy.calibration import calibrate, rounds_within
from discreet.privacy.noise import LARGEST, SMALLEST
from discreet.privacy.planning import largest_cohort
from discreet.privacy.promise import Promise
from discreet.privacy.releases import NOTHING, Gaussian, Poisson, Released, Sampling
from discreet.sampling import how_sampled
from discreet.schemes.base import Task
from discreet.schemes.traits import RecordLevel, groups_of, releases_a_round


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
        return (
            replace(experiment, secure="none" if experiment.secure == "auto" else experiment.secure),
            task,
            None,
        )
    if isinstance(experiment.scheme, RecordLevel):
        _check_alone(experiment)
    sampling, groups = how_sampled(experiment, clients), groups_of(experiment.scheme)
    cohort = sampling.fraction * clients
    if groups > max(1.0, cohort):
        raise ConfigError("scheme.groups", groups, f"at most {cohort:g}, the clients of a round")
    promise = Promise(
        noise_multiplier=asked.noise_multiplier or 1.0,
        sampling=sampling,
        expected_cohort=cohort / groups,
        largest_cohort=largest_cohort(sampling, clients, groups),
        dropout_tolerance=asked.dropout_tolerance,
        assumed_dishonest=asked.assumed_dishonest,
        noise=asked.noise,
        groups=groups,
    )

    def release(multiplier: float) -> Released:
        made: Released = experiment.scheme.release(
            replace(task, promise=replace(promise, noise_multiplier=multiplier))
        )
        return made

    each = releases_a_round(experiment.scheme, task)
    if asked.noise_multiplier is None and asked.epsilon is not None:
        found = calibrate(
            asked.epsilon,
            asked.delta,
            experiment.rounds * each,
            release(promise.noise_multiplier).sampling,
            noise=lambda multiplier: release(multiplier).noise,
            accountant=asked.accountant,
        )
        promise, asked = replace(promise, noise_multiplier=found), replace(asked, noise_multiplier=found)
    task = replace(task, promise=promise)
    noise = release(promise.noise_multiplier).noise
    if not isinstance(noise, Gaussian):  # which comes in no shares
        deviation = promise.noise_multiplier * noise.l2_sensitivity
        _check_shares(promise, deviation, smallest_cohort(sampling, clients, groups))
    allowed = None
    if asked.epsilon is None:  # what no theory covers is refused now, not when all rounds have run
        spent(NOTHING.add(experiment.scheme.release(task)), asked.delta, asked.accountant)
    else:
        allowed = rounds_within(
            asked.epsilon,
            asked.delta,
            experiment.scheme.release(task),
            accountant=asked.accountant,
            limit=experiment.rounds * each,
        )
        if allowed < each:
            raise ConfigError(
                "privacy.epsilon",
                asked.epsilon,
                f"a budget for at least one round with noise multiplier {promise.noise_multiplier:.4g}",
            )
    secure = experiment.secure
    if secure == "auto":
        secure = "masked" if experiment.scheme.modular else "none"
    if secure == "masked" and promise.largest_cohort < 3 and groups == 1:
        raise ConfigError("secure", secure, "at least 3 clients a round to hide among, or none, in the clear")
    return replace(experiment, privacy=asked, secure=secure), task, allowed


def smallest_cohort(drawn: Sampling, clients: int, groups: int = 1) -> int:
    """No round that draws anyone draws fewer, but with probability below 1e-9 a round; likewise for groups."""
    if not isinstance(drawn, Poisson):
        return drawn.cohort // groups
    from scipy.stats import binom  # late: slow to import

    return max(1, int(binom.ppf(1e-9, clients // groups, drawn.probability)))


def _check_alone(experiment: Experiment) -> None:
    """Refuse what has a meaning only where several clients add shares of noise."""
    asked, name = experiment.privacy, experiment.scheme_name
    if asked is not None and asked.noise != "discrete-gaussian":
        raise ConfigError(
            "privacy.noise", asked.noise, f"to be left out: {name} adds continuous Gaussian noise"
        )
    for key in ("dropout_tolerance", "assumed_dishonest"):
        if value := getattr(asked, key, 0):
            raise ConfigError(f"privacy.{key}", value, f"0: in {name} one party adds all of the noise")
    if experiment.dropouts.silent:
        raise ConfigError(
            "dropouts",
            f"{experiment.dropouts.silent:.2%} of a round",
            f"none: {name} has one party, who is there",
        )


def _check_shares(promise: Promise, deviation: float, smallest: int) -> None:
    """Refuse, before anything runs, noise whose shares are too small or too large to be drawn."""
    for participants in (smallest, promise.largest_cohort):
        share = deviation / math.sqrt(promise.shares(participants))
        if not SMALLEST <= share <= LARGEST:
            raise ConfigError(
                "privacy.noise_multiplier",
                promise.noise_multiplier,
                f"one with which a client's share of noise, {share:.3g} steps of the integers here, "
                f"is from {SMALLEST} to {LARGEST:.0e}",
            )
