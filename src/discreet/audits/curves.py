"""What is told of an attack on membership: its figures, and its curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from discreet.adversaries.inference.membership import BY_CHANCE, Membership
from discreet.audits.case import Finding

RATES = (0.01, 0.001)
"""False-positive rates at which it is told how many members are found."""

POINTS = 200
"""A curve is written down at so many false-positive rates, at most."""

ADVANTAGE, AUC = "advantage", "AUC"

Curve = Mapping[str, list[float]]
"""``false_positive`` and ``true_positive``, rising, of one length."""


def found_at(rate: float) -> str:
    """The name of the share of members that are found at a false-positive rate."""
    return f"found at {rate:.1%} false alarms"


def found_by_chance(members: int, others: int, rate: float) -> float:
    """The share of members at a false-positive rate that guessing passes once in 20 times.

    With k = floor(rate * others) false alarms allowed, guessing in a random order finds the members before the others'
    k + 1st. Of the scores, which are as good as uniform, those above it are a share that is Beta(k + 1, others - k): the
    number that is found is beta-binomial, with a mean of (k + 1) / (others + 1) of the members.

    Args:
        members: how many are asked about, at least 1.
        others: likewise.
        rate: in [0, 1].
    """
    from scipy.stats import betabinom  # late: slow to import

    allowed = math.floor((rate + 1e-12) * others)
    if allowed >= others:
        return 1.0
    return float(betabinom.ppf(1 - BY_CHANCE, members, allowed + 1, others - allowed)) / members


def findings(attack: str, got: Membership, promise: str, known: Membership | None = None) -> list[Finding]:
    """The figures of an attack.

    Args:
        attack: its name.
        got: how well it did.
        promise: what the scheme promises about it.
        known: how well it does where nothing is hidden; None if that is not known.
    """
    told: list[tuple[str, Callable[[Membership], float], float]] = [
        (ADVANTAGE, lambda one: one.advantage, got.chance),
        (AUC, lambda one: one.auc, 0.5),
    ]
    for rate in RATES:
        read_at = partial(Membership.found_at, false_positive=rate)
        told.append((found_at(rate), read_at, found_by_chance(got.members, got.others, rate)))
    return [
        Finding(attack, figure, read(got), chance, None if known is None else read(known), promise)
        for figure, read, chance in told
    ]


def curve(got: Membership) -> Curve:
    """The share of members that are found, at false-positive rates that lie close where they are small."""
    rates = np.unique(got.false_positive)
    if len(rates) > POINTS:
        places = np.unique(np.geomspace(1, len(rates), POINTS).round().astype(np.int64)) - 1
        rates = rates[places]
    last = np.searchsorted(got.false_positive, rates, side="right") - 1
    return {"false_positive": rates.tolist(), "true_positive": got.true_positive[last].tolist()}
