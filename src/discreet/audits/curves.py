"""What is told of an attack on membership: its figures, and its curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from discreet.adversaries.inference.membership import Membership
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
    told += [(found_at(rate), partial(Membership.found_at, false_positive=rate), rate) for rate in RATES]
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
