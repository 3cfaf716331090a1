"""Audit of differential privacy: how much of epsilon can one run be shown to have spent?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.inference.canaries import (
    CONFIDENCE,
    Bound,
    Canaries,
    among_groups,
    bounded,
    directions,
    scores,
)
from discreet.adversaries.malice import Malice
from discreet.adversaries.settings import Adversary
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.data.partition import Partition
from discreet.preparation import Federation
from discreet.privacy.accounting import Spent, spent
from discreet.privacy.releases import NOTHING
from discreet.randomness import SERVER
from discreet.rounds import play_round
from discreet.sampling import attend
from discreet.schemes.dp_fedavg import ClippedModel
from discreet.schemes.private import promise_of
from discreet.schemes.traits import RecordLevel, releases_a_round
from discreet.sums import answer
from discreet.tally import Tally

SHARE, MOST = 0.5, 1000
"""The share of the clients that are canaries, and how many there are at most."""

LOUD = 2.0
"""Before it is clipped, a canary's update is so many times the clip norm."""

SUMS, MODELS = "noisy sums", "models alone"

AT_ONCE = 1 << 24
"""Numbers of canaries' updates that are looked for at once: all of them together need not fit into memory."""


@dataclass(frozen=True, eq=False)
class Planted:
    """A federation in which some clients are canaries.

    Attributes:
        federation: with what they send and hold.
        canaries: their numbers, shape (m,).
        coins: which of them are in, shape (m,).
    """

    federation: Federation
    canaries: NDArray[np.int64]
    coins: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Release:
    """What a round gives out.

    Attributes:
        round: counted from 1.
        total: the noisy sum of the parameters, or of each group, shape (groups, n).
        move: how the model moved, shape (n,).
    """

    round: int
    total: Tensor
    move: Tensor


def planted(federation: Federation, share: float = SHARE) -> Planted:
    """Makes canaries of some clients that hold examples. Who takes part in a round, and the noise, stay as they are.

    Args:
        federation: of the run.
        share: of the clients.
    """
    partition, task = federation.partition, federation.task
    stream = task.randomness.stream(0, SERVER, "audit canaries")
    holding = np.flatnonzero(partition.sizes > 0)
    count = min(MOST, max(1, math.floor(share * len(holding))))
    chosen = np.sort(stream.choice(holding, count, replace=False)).astype(np.int64)
    coins = stream.integers(0, 2, count).astype(bool)
    out = set(chosen[~coins].tolist())
    held = [partition.indices(row)[: 0 if row in out else None] for row in range(partition.rows)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in held])]).astype(np.int64)
    there = task.adversary or Malice(Adversary(clients=[0]), np.empty(0, dtype=np.int64))
    size = LOUD * getattr(federation.scheme, "clip_norm", 1.0)
    canaries = Canaries(there.adversary, there.clients, chosen[coins], size)
    changed = replace(
        federation,
        partition=Partition(np.concatenate(held).astype(np.int64), offsets),
        task=replace(task, adversary=canaries, scratch={}),
        # masked, the sums are the same
        experiment=replace(federation.experiment, secure="none"),
    )
    return Planted(changed, chosen, coins)


def played(federation: Federation, rounds: int) -> Iterator[Release]:
    """What the rounds of a run from its beginning give out; of rounds of which nothing is released, nothing."""
    scheme, task = federation.scheme, federation.task
    state = scheme.init(task)
    for round in range(1, rounds + 1):
        there = attend(federation.experiment, federation.partition.clients, round)
        playing, total = play_round(scheme, task, state, round), None
        before = state
        try:
            ask = next(playing)
            while True:
                total = answer(federation, ask, there, {}, Tally(), map)
                ask = playing.send(total)
        except StopIteration as end:
            state = end.value
        first = isinstance(before, ClippedModel) and not float(
            before.clip_norm
        )  # ranges of norms, no updates
        if total is not None and total.count and not first:
            sums = total.values.reshape(-1, total.values.shape[-1]).double()
            move = scheme.vector(state) - scheme.vector(before)
            yield Release(round, sums[:, : task.parameters], move)


def evidence(there: Planted, rounds: int, delta: float) -> dict[str, Bound]:
    """What a run from its beginning shows to who sees its noisy sums, and to who sees the models alone."""
    federation = there.federation
    task = federation.task
    found = {name: torch.zeros(len(there.canaries), dtype=torch.float64) for name in (SUMS, MODELS)}
    some = max(1, AT_ONCE // task.parameters)
    for release in played(federation, rounds):
        for first in range(0, len(there.canaries), some):
            part = slice(first, first + some)
            signs = directions(task.randomness, release.round, there.canaries[part], task.parameters)
            found[SUMS][part] += _in_sums(federation, release.total, signs)
            found[MODELS][part] += scores(release.move, signs)
    return {name: bounded(score, there.coins, delta) for name, score in found.items()}


def _in_sums(federation: Federation, total: Tensor, signs: Tensor) -> Tensor:
    """How much of each canary there is in a round's sums, for who knows neither who took part nor in which group."""
    if len(total) == 1:
        return scores(total[0], signs)
    promise = promise_of(federation.task)
    chance = min(1.0, promise.expected_cohort / federation.partition.clients)
    # groups are of votes, and a canary's are all of size 1
    return among_groups(total, signs, math.sqrt(total.shape[1]), chance)


def measure(case: Case) -> Sequence[Finding] | Illustrated:
    """A run of as many rounds, from its beginning, with canaries among the clients."""
    experiment = case.federation.experiment
    if experiment.privacy is None:
        return []
    rounds, delta = min(case.observed.states) - 1, experiment.privacy.delta
    there = planted(case.federation)
    claimed = claim(case.federation, rounds)
    count = len(there.canaries)
    perfect = bounded(torch.arange(count).double(), np.arange(count) >= count // 2, delta).epsilon
    found = []
    seen = {"server": (SUMS, MODELS), "aggregator": (SUMS,), "participant": (MODELS,)}[case.view.party.role]
    for name, bound in evidence(there, rounds, delta).items():
        if name not in seen:
            continue
        attack = f"{count} canary clients, {name}"
        kept = "" if bound.epsilon <= claimed.epsilon else ": NOT KEPT"
        promise = f"epsilon at most {claimed.epsilon:.3g} (delta {delta:g}){kept}"
        figure = f"epsilon is at least ({CONFIDENCE:.0%} sure)"
        found.append(Finding(attack, figure, bound.epsilon, 0.0, perfect, promise))
        if bound.guesses:
            share = bound.right / bound.guesses
            found.append(Finding(attack, f"right of {bound.guesses} guesses", share, 0.5, 1.0, promise))
    return found


def claim(federation: Federation, rounds: int) -> Spent:
    """What the accountant says of a run of so many rounds, all of them released."""
    scheme, task, asked = federation.scheme, federation.task, federation.experiment.privacy
    if asked is None:
        raise ValueError("a run without a promise has no epsilon")
    ledger = NOTHING.add(scheme.release(task), rounds * releases_a_round(scheme, task))
    return spent(ledger, asked.delta, asked.accountant)


def _fits(federation: Federation) -> str | None:
    scheme = federation.scheme
    if not scheme.private:
        return "no differential privacy is promised"
    if isinstance(scheme, RecordLevel):
        return "the promise is about records, and canaries are clients"
    return None if (federation.partition.sizes > 0).any() else "no client holds examples"


AUDIT = Audit(
    "how much of epsilon one run with canary clients shows to be spent",
    ("server", "aggregator", "participant"),
    1,
    measure,
    _fits,
)
