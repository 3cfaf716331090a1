"""The server's side of sums by additive sharing, two exchanges: shares are given out, and added up by their holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from discreet.errors import LocalProtocolError, RemoteProtocolError, RoundAborted
from discreet.federation.game import Game
from discreet.federation.link import Failure
from discreet.federation.masked import require_minima
from discreet.federation.parts import ADDITIVE, Answered, Holding, PartialSum, Shared, Told
from discreet.federation.sealing import SEALED
from discreet.federation.standing import Plan
from discreet.randomness import SERVER, Seeded
from discreet.rounds import Ask
from discreet.schemes.base import Phase, Total
from discreet.secure import sharing
from discreet.secure.groups import zeros
from discreet.secure.packing import packed_bytes, unpack
from discreet.secure.ring import Elements, Ring


def additive(game: Game, ask: Ask) -> Total:
    """Sum a phase over the cohort, in its groups.

    Raises:
        RoundAborted: a holder of shares failed, or in a round of several phases anybody; or too few contribute for the
            noise that is promised, or for what their owners ask for.
    """
    phase, ring = ask.phase, ask.phase.group
    if not isinstance(ring, Ring):
        raise LocalProtocolError("secure sums are over a ring")
    partition, deadlines = game.table.federation.partition, game.table.deadlines
    holders = _holders(game)
    shared: dict[int, Shared] = {}
    told: dict[int, Told | None] = {}
    plan = Plan()
    for site in game.cohort.tolist():
        part = game.work(ask, site, ADDITIVE, len(game.cohort), holders=holders)
        plan.add(site, part, partial(_take, game, shared, told, len(holders), site))
    game.ask(plan, deadlines.work, phase.name)
    game.check_whole(shared)
    if not shared:
        raise RoundAborted((), 1, "no contribution arrived")
    promise, drawn = game.table.federation.task.promise, len(game.cohort)
    if promise is not None and len(shared) < promise.needed(drawn):
        needed = promise.needed(drawn)
        raise RoundAborted(sorted(shared), needed, "contributions, for the noise that is promised")
    for column in range(partition.column_count if phase.scope == "column" else 1):
        there = [one for one in shared if phase.scope != "column" or partition.column_of(one) == column]
        require_minima(there, game.table.sites.minima)
    game.release()
    sums: dict[int, PartialSum] = {}
    plan = Plan()
    senders = tuple(sorted(shared))
    for place, holder in enumerate(holders):
        sealed = tuple(shared[sender].sealed[place] for sender in senders)
        holding = Holding(len(ask.received), senders, sealed, drawn - len(senders))
        plan.add(holder, holding, partial(_put, sums, holder))
    game.ask(plan, deadlines.work, f"{phase.name}, sums")
    if set(sums) != set(holders):
        raise RoundAborted(sums, len(holders), "holders of shares")
    game.count(senders, told)
    groups = {"all": 1, "row": partition.rows, "column": partition.column_count}[phase.scope]
    if phase.scope == "row":
        if any(len(one.sealed) != len(senders) for one in sums.values()):
            raise RoundAborted(sums, len(holders), "holders that sealed no sums")
        game.sealed = _row_parts(sums, holders, senders)
        # the server is not to see it: what goes on in its place is of the right length
        return Total(zeros(ring, (groups, phase.length)), len(senders))
    vectors = [_read(game, phase, ring, groups, holder, sums[holder]) for holder in holders]
    values = _added(phase, ring, groups, vectors)
    return Total(values[0] if phase.scope == "all" else values, len(senders))


def _holders(game: Game) -> tuple[int, ...]:
    """Who holds shares in this attempt: drawn anew for each, so that everybody has its turn.

    Without those who have answered nonsense in this round, if there are enough: they could else stop it each time. Others
    can have failed through no fault of their own, and who made them fail must not choose who holds shares.
    """
    experiment = game.table.federation.experiment
    if len(game.cohort) < experiment.share_holders:
        raise RoundAborted(game.cohort.tolist(), experiment.share_holders, "holders of shares")
    stream = Seeded(experiment.seed).stream(game.number, SERVER, f"share holders {game.attempt}")
    failed = [one.site for one in game.table.sites.missed if one.failure.cause == "malformed"]
    reliable = game.cohort[~np.isin(game.cohort, failed)]
    among = reliable if len(reliable) >= experiment.share_holders else game.cohort
    chosen = stream.choice(among, experiment.share_holders, replace=False)
    return tuple(sorted(chosen.tolist()))


def _take(
    game: Game,
    shared: dict[int, Shared],
    told: dict[int, Told | None],
    holders: int,
    site: int,
    answer: Answered,
    more: Told | None,
) -> None:
    if not isinstance(answer, Shared) or len(answer.sealed) != holders:
        raise game.broken(site, "parts: no share for each holder")
    shared[site], told[site] = answer, more


def _put(sums: dict[int, PartialSum], holder: int, answer: PartialSum, told: Told | None) -> None:
    sums[holder] = answer


def _read(game: Game, phase: Phase, ring: Ring, groups: int, holder: int, answer: PartialSum) -> Elements:
    """A holder's sums.

    Raises:
        RoundAborted: these are none.
    """
    length = groups * phase.length
    try:
        if len(answer.body) != packed_bytes(length, ring.bits):
            raise game.broken(holder, "sum: of another length")
        return unpack(ring, np.frombuffer(answer.body, np.uint8), length)
    except (RemoteProtocolError, ValueError) as error:
        field = error.field if isinstance(error, RemoteProtocolError) else "sum: malformed"
        failure = Failure("malformed", field)
        game.table.sites.failed(holder, phase.name, failure, game.number, game.attempt)
        raise RoundAborted((), 1, f"{game.table.sites.name(holder)}: {field}") from None


def _added(phase: Phase, ring: Ring, groups: int, sums: Sequence[Elements]) -> Tensor:
    """The totals of all groups, shape (groups, length), as numbers."""
    found = sharing.reconstruct(ring, sums).reshape(groups, phase.length)
    if phase.common:
        found[:, -phase.common :] = found[0, -phase.common :]
    return torch.from_numpy(ring.lift(np.ascontiguousarray(found)))


def _row_parts(
    answers: Mapping[int, PartialSum], holders: Sequence[int], senders: Sequence[int]
) -> dict[int, bytes]:
    """For each sender what the holders have sealed for it of its row's total."""
    return {
        sender: SEALED.write([answers[holder].sealed[place] for holder in holders], "received")
        for place, sender in enumerate(senders)
    }
