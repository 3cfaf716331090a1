"""How the server has a round played: it draws who takes part, and has sites answer what the round asks to be summed."""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from discreet.errors import RoundAborted
from discreet.federation.additive import additive
from discreet.federation.clear import in_clear
from discreet.federation.game import Game
from discreet.federation.masked import MaskedSum, Sums, require_minima
from discreet.federation.parts import ADDITIVE, MASKED, Answered, Masked, Told
from discreet.federation.standing import Plan, Sites
from discreet.federation.table import Table
from discreet.federation.terms import FEWEST, how_summed
from discreet.progress import Outcome, Progress
from discreet.rounds import Ask, play_round
from discreet.schemes.base import Total
from discreet.secure.groups import zeros
from discreet.secure.masking import Stage
from discreet.secure.ring import Ring
from discreet.sums import side_by_side

LOG = logging.getLogger(__name__)


def play(table: Table, progress: Progress, attempt: int) -> Outcome:
    """Play the round after `progress`, once.

    Raises:
        RoundAborted: too many sites failed; the round may be tried again.
    """
    number, sites, federation = progress.round + 1, table.sites, table.federation
    sites.admit()
    started, before = time.perf_counter(), _traffic(table.sites)
    ahead, table.ahead = table.ahead, None
    drawn = table.drawn(number)
    cohort = table.there(drawn)
    if ahead is not None and _holds(ahead, table, number, cohort):
        cohort = np.array(ahead.cohort, dtype=np.int64)
    else:
        ahead = None
    if not len(cohort) and len(table.willing(drawn, np.ones(len(drawn), dtype=bool))):
        require_minima(sites.here & set(drawn.tolist()), sites.minima)
        raise RoundAborted((), 1, "none of the sites drawn is there")
    for site in sorted(sites.here & set(drawn.tolist()) - set(cohort.tolist())):
        if sites.minima[site] > len(cohort):
            LOG.info(
                "round %d: %s is left out: asks for %d sites", number, sites.name(site), sites.minima[site]
            )
    game = Game(table, progress, number, attempt, len(drawn), cohort, ahead)
    playing = play_round(federation.scheme, federation.task, progress.state, number)
    try:
        ask = next(playing)
        while True:
            ask = playing.send(_answer(game, ask))
    except StopIteration as end:
        state = end.value
    after = _traffic(sites)
    game.tally.uplink, game.tally.downlink = after[0] - before[0], after[1] - before[1]
    return Outcome(
        state,
        {},
        game.tally,
        len(cohort),
        len(drawn) - len(game.arrived),
        time.perf_counter() - started,
        table.spending.ledger(),
    )


def _holds(ahead: Sums, table: Table, number: int, cohort: NDArray[np.int64]) -> bool:
    """Whether keys that were shared ahead are for this round, and those who shared them there and of one mind still."""
    return (
        ahead.round == number and set(ahead.cohort) <= set(cohort.tolist()) and ahead.agreed == table.agreed
    )


def _answer(game: Game, ask: Ask) -> Total:
    """What is summed, over the sites that take part.

    Raises:
        RoundAborted: too few of them did.
    """
    if not len(game.cohort):
        if game.drawn:  # fewer than each of them asks for
            game.tally.released = False
        else:  # which is seen, and a release like any other
            game.release()
        return Total(zeros(ask.phase.group, (ask.phase.length,)), 0)
    how = how_summed(game.table.federation.experiment, ask.phase)
    if how == MASKED:
        return _masked(game, ask)
    return additive(game, ask) if how == ADDITIVE else in_clear(game, ask)


def _masked(game: Game, ask: Ask) -> Total:
    """Sum a phase by masked sums, one for each group of the cohort, and share keys for the next round's."""
    table, phase, deadlines = game.table, ask.phase, game.table.deadlines
    sums = _with_keys(game)
    if not sums.sums:
        if len(game.cohort) < game.drawn:
            raise RoundAborted(game.cohort.tolist(), FEWEST, "too few of the sites drawn are there")
        game.tally.released = False  # a cohort too small to hide anyone in
        return Total(zeros(phase.group, (phase.length,)), 0)
    following = table.prepared(game.progress, game.number + 1)
    told: dict[int, Told | None] = {}
    plan = Plan()
    for one in sums.sums:
        for site, delivered in one.inbox.items():
            drawn = len(one.terms.cohort)
            part = game.work(ask, site, MASKED, drawn, serial=one.serial, delivered=delivered)
            plan.add(site, part, partial(_take, game, one, told, site))
    if following is not None:
        following.add_stage(plan, Stage.ADVERTISE)
    game.ask(plan, deadlines.work, phase.name)
    _close(game, sums, Stage.MASK)
    if sums.at(Stage.CONSENT):
        _stage(game, sums, Stage.CONSENT)
    game.release()
    plan = Plan()
    sums.add_stage(plan, Stage.UNMASK)
    if following is not None and following.close(Stage.ADVERTISE):
        following.add_stage(plan, Stage.SHARE)
    game.ask(plan, deadlines.keys, Stage.UNMASK.value)
    _close(game, sums, Stage.UNMASK)
    found = [total for one in sums.sums if (total := one.total()) is not None]
    if not found:
        raise RoundAborted((), 1, sums.aborted)
    if following is not None and following.close(Stage.SHARE) and not following.aborted:
        table.ahead = following
    totals = []
    for each in found:
        values = torch.from_numpy(Ring(sums.sums[0].terms.bits).lift(each.values))
        totals.append(Total(values, len(each.survivors)))
        game.count(each.survivors, told)
    return totals[0] if phase.groups == 1 else side_by_side(phase, totals)


def _with_keys(game: Game) -> Sums:
    """The masked sums of this round with their keys shared: ahead, or now."""
    if game.ahead is not None:
        return game.ahead
    sums = game.table.sums(game.number, game.cohort)
    for stage in (Stage.ADVERTISE, Stage.SHARE) if sums.sums else ():
        _stage(game, sums, stage)
    return sums


def _stage(game: Game, sums: Sums, stage: Stage) -> None:
    """An exchange for a stage alone."""
    plan = Plan()
    sums.add_stage(plan, stage)
    game.ask(plan, game.table.deadlines.keys, stage.value)
    _close(game, sums, stage)


def _close(game: Game, sums: Sums, stage: Stage) -> None:
    if not sums.close(stage):
        raise RoundAborted(game.table.sites.here, 1, sums.aborted)


def _take(
    game: Game,
    one: MaskedSum,
    told: dict[int, Told | None],
    site: int,
    answer: Answered,
    more: Told | None,
) -> None:
    """Take a masked input in."""
    if not isinstance(answer, Masked):
        raise game.broken(site, "parts: no masked input")
    one.take(site, answer, None)
    told[site] = more


def _traffic(sites: Sites) -> tuple[int, int]:
    return sum(one.up for one in sites.passed), sum(one.down for one in sites.passed)
