"""The server's side of sums in the clear: one exchange."""

from __future__ import annotations

from functools import partial

import numpy as np

from discreet.errors import RoundAborted
from discreet.federation.game import Game
from discreet.federation.parts import IN_CLEAR, Answered, Contributed, Told
from discreet.federation.standing import Plan
from discreet.rounds import Ask
from discreet.schemes.base import Phase, Total
from discreet.secure.groups import Reals, decode, wire_bytes
from discreet.sums import Received, side_by_side, summed


def in_clear(game: Game, ask: Ask) -> Total:
    """Sum a phase, of each group of the cohort, over those whose contributions arrive.

    Raises:
        RoundAborted: too few did.
    """
    phase, table = ask.phase, game.table
    game.release()
    came: dict[int, Received] = {}
    plan = Plan()
    groups = table.groups(game.number, game.cohort, phase)
    for group in groups:
        for site in group.drawn.tolist():
            part = game.work(ask, site, IN_CLEAR, len(group.drawn))
            plan.add(site, part, partial(_take, game, came, phase, site))
    game.ask(plan, table.deadlines.work, phase.name)
    game.check_whole(came)
    totals, released = [], False
    for number, group in enumerate(groups):
        game.tally.released = True
        arrived = [came[site] for site in group.drawn.tolist() if site in came]
        totals.append(summed(table.federation, ask, group, number, arrived, {}, game.tally, None))
        released |= game.tally.released
    game.tally.released = released
    game.arrived |= set(came)
    if not released or not came:
        raise RoundAborted(came, 1, "too few contributions arrived")
    return totals[0] if phase.groups == 1 else side_by_side(phase, totals)


def _take(
    game: Game, came: dict[int, Received], phase: Phase, site: int, answer: Answered, told: Told | None
) -> None:
    """Take a contribution in, if it is one."""
    if not isinstance(answer, Contributed):
        raise game.broken(site, "parts: no contribution")
    length = wire_bytes(phase.group, phase.length)
    if len(answer.body) != length:
        raise game.broken(site, "contribution: of another length")
    try:
        elements = decode(phase.group, np.frombuffer(answer.body, np.uint8).reshape(1, length), phase.length)
    except ValueError:
        raise game.broken(site, "contribution: malformed") from None
    if isinstance(phase.group, Reals) and not elements.isfinite().all():
        raise game.broken(site, "contribution: not finite")
    came[site] = game.received(site, answer.counts, told, elements[: int(answer.counts)])
