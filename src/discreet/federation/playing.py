"""How the server has a round played: it draws who takes part, and has sites answer what the round asks to be summed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import ConfigError, RemoteProtocolError, RoundAborted
from discreet.federation import additive
from discreet.federation.link import Failure
from discreet.federation.masked import MaskedSum, Sums
from discreet.federation.parts import (
    ADDITIVE,
    IN_CLEAR,
    MASKED,
    Contributed,
    PartialSum,
    Shared,
    Told,
    Work,
)
from discreet.federation.party import as_bytes, written
from discreet.federation.spending import Entry, Spending
from discreet.federation.standing import Plan, Sites
from discreet.federation.terms import FEWEST, how_summed, masking_terms
from discreet.preparation import Federation
from discreet.progress import Outcome, Progress, is_over
from discreet.randomness import SERVER, Seeded
from discreet.rounds import Ask, play_round
from discreet.sampling import Attendance, grouped, sample
from discreet.schemes.base import Contribution, Narrowed, Phase, Total, releases_a_round
from discreet.secure.groups import Reals, decode, wire_bytes, zeros
from discreet.secure.masking import STAGES, MaskedTotal, Stage
from discreet.secure.ring import Ring
from discreet.sums import Received, Tally, side_by_side, summed


@dataclass(frozen=True)
class Deadlines:
    """How long the server waits for sites, in seconds.

    Attributes:
        gathering: for all sites to be there and to have read their data, at the beginning.
        work: for sites to train, or to add up.
        keys: for everything else.
    """

    gathering: float = 600.0
    work: float = 600.0
    keys: float = 120.0


PATIENT = Deadlines()
"""What is waited unless something else is said."""


@dataclass(eq=False)
class Table:
    """Where rounds are played.

    Attributes:
        federation: the server's.
        sites: those that play.
        spending: what is written down before it is released.
        deadlines: how long to wait.
        serial: of the last masked sum.
        ahead: the next round's masked sums, whose keys are shared already.
    """

    federation: Federation
    sites: Sites
    spending: Spending
    deadlines: Deadlines
    serial: int = 0
    ahead: Sums | None = None

    def play(self, progress: Progress, attempt: int) -> Outcome:
        """Play the round after `progress`.

        Raises:
            RoundAborted: too many sites failed; the round may be tried again.
        """
        number = progress.round + 1
        started = time.perf_counter()
        ahead, self.ahead = self.ahead, None
        drawn = self._drawn(number)
        cohort = self._there(drawn)
        if ahead is not None and ahead.round == number and set(ahead.cohort) <= set(cohort.tolist()):
            cohort = np.array(ahead.cohort, dtype=np.int64)
        else:
            ahead = None
        if len(drawn) and not len(cohort):
            raise RoundAborted((), 1, "none of the sites drawn is there")
        game = Game(self, progress, number, attempt, len(drawn), cohort, ahead)
        state = game.play()
        lost = len(drawn) - len(game.arrived)
        return Outcome(
            state,
            {},
            game.tally,
            len(cohort),
            lost,
            time.perf_counter() - started,
            self.spending.ledger(),
        )

    def prepared(self, progress: Progress, number: int) -> Sums | None:
        """The masked sums of a round that is still to come; None if it will not be played, or nobody is there for it."""
        before = replace(progress, round=number - 1, ledger=self.spending.ledger())
        if is_over(self.federation, before):
            return None
        cohort = self._there(self._drawn(number))
        return self.sums(number, cohort)

    def sums(self, number: int, cohort: NDArray[np.int64]) -> Sums:
        """New masked sums of a cohort's groups; who is in too small a group is in none."""
        (phase,) = self.federation.scheme.phases(self.federation.task)
        found = []
        for there in self.groups(number, cohort, phase):
            self.serial += 1
            words = self.federation.task.hidden.words(number, SERVER, f"masking graph {self.serial}", 4)
            try:
                terms = masking_terms(
                    self.federation,
                    self.sites.run,
                    self.sites.session,
                    self.serial,
                    number,
                    tuple(there.drawn.tolist()),
                    words.astype("<u8").tobytes(),
                )
            except ConfigError:
                continue  # a cohort too small to hide anyone in
            keys = {site: its.key for site, its in self.sites.all.items() if its.key is not None}
            found.append(MaskedSum.of(self.serial, terms, keys))
        return Sums(number, tuple(cohort.tolist()), found)

    def groups(self, number: int, cohort: NDArray[np.int64], phase: Phase) -> list[Attendance]:
        """The cohort in its groups."""
        everyone = Attendance(cohort, np.full(len(cohort), len(STAGES)))
        clients = self.federation.partition.clients
        return grouped(self.federation.experiment, everyone, clients, number, phase.groups)

    def _drawn(self, number: int) -> NDArray[np.int64]:
        return sample(self.federation.experiment, self.federation.partition.clients, number)

    def _there(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some sites who are there; of rows that predict together, whole rows alone."""
        here = np.isin(drawn, sorted(self.sites.here))
        columns = self.federation.partition.column_count
        if columns > 1 and any(
            phase.scope == "row" for phase in self.federation.scheme.phases(self.federation.task)
        ):
            here = here.reshape(-1, columns).all(1).repeat(columns)
        return drawn[here]


@dataclass(eq=False)
class Game:
    """One attempt at a round.

    Attributes:
        table: where it is played.
        progress: before it.
        number: of the round.
        attempt: counted from 0.
        drawn: how many were drawn for the round.
        cohort: who of them takes part.
        ahead: the masked sums, where their keys are shared already.
        tally: what is counted.
        arrived: whose contributions are in a sum.
        sealed: of a sum within rows, what each site is sent of its total.
        before: bytes from and to the sites before it.
    """

    table: Table
    progress: Progress
    number: int
    attempt: int
    drawn: int
    cohort: NDArray[np.int64]
    ahead: Sums | None
    tally: Tally = field(default_factory=Tally)
    arrived: set[int] = field(default_factory=set)
    sealed: dict[int, bytes] = field(default_factory=dict)
    before: tuple[int, int] = (0, 0)

    def play(self) -> Any:
        """The state after the round."""
        federation, sites = self.table.federation, self.table.sites
        self.before = _traffic(sites)
        playing = play_round(federation.scheme, federation.task, self.progress.state, self.number)
        try:
            ask = next(playing)
            while True:
                ask = playing.send(self.answer(ask))
        except StopIteration as end:
            state = end.value
        up, down = _traffic(sites)
        self.tally.uplink, self.tally.downlink = up - self.before[0], down - self.before[1]
        return state

    def answer(self, ask: Ask) -> Total:
        """What is summed, over the sites that take part.

        Raises:
            RoundAborted: too few of them did.
        """
        if not len(self.cohort):  # which is seen, and a release like any other
            self.release()
            return Total(zeros(ask.phase.group, (ask.phase.length,)), 0)
        match how_summed(self.table.federation.experiment, ask.phase):
            case how if how == MASKED:
                return self._masked(ask)
            case how if how == ADDITIVE:
                return self._additive(ask)
        return self._in_clear(ask)

    def release(self) -> None:
        """Write down what is about to be released; it is safe when this returns."""
        scheme, task, sites = self.table.federation.scheme, self.table.federation.task, self.table.sites
        if task.promise is not None:
            self.table.spending.append(
                Entry(
                    sites.run,
                    sites.session,
                    self.number,
                    self.attempt,
                    scheme.release(task),
                    releases_a_round(scheme, task),
                )
            )

    # ---- in the clear

    def _in_clear(self, ask: Ask) -> Total:
        phase = ask.phase
        self.release()
        came: dict[int, Received] = {}
        plan = Plan()
        groups = self.table.groups(self.number, self.cohort, phase)
        for there in groups:
            for site in there.drawn.tolist():
                part = self._work(ask, site, IN_CLEAR, len(there.drawn))
                plan.add(site, part, partial(self._take_clear, came, phase, site))
        self._ask(plan, self.table.deadlines.work, phase.name)
        self._check_whole(came)
        totals, released = [], False
        for number, there in enumerate(groups):
            self.tally.released = True
            received = [came[site] for site in there.drawn.tolist() if site in came]
            total = summed(self.table.federation, ask, there, number, received, {}, self.tally, None)
            totals.append(total)
            released |= self.tally.released
        self.tally.released = released
        self.arrived |= set(came)
        if not released or not came:
            raise RoundAborted(came, 1, "too few contributions arrived")
        return totals[0] if phase.groups == 1 else side_by_side(phase, totals)

    def _take_clear(
        self, came: dict[int, Received], phase: Phase, site: int, answer: Contributed, told: Told | None
    ) -> None:
        """Take a contribution in, if it is one."""
        if not isinstance(answer, Contributed):
            raise RemoteProtocolError(self.table.sites.name(site), self.number, "parts: no contribution")
        length = wire_bytes(phase.group, phase.length)
        if len(answer.body) != length:
            raise RemoteProtocolError(
                self.table.sites.name(site), self.number, "contribution: of another length"
            )
        body = np.frombuffer(answer.body, np.uint8).reshape(1, length)
        try:
            elements = decode(phase.group, body, phase.length)
        except ValueError:
            raise RemoteProtocolError(
                self.table.sites.name(site), self.number, "contribution: malformed"
            ) from None
        if isinstance(phase.group, Reals) and not elements.isfinite().all():
            raise RemoteProtocolError(self.table.sites.name(site), self.number, "contribution: not finite")
        if not answer.counts:
            elements = elements[:0]
        came[site] = self._received(site, answer.counts, told, elements)

    def _received(self, site: int, counts: bool, told: Told | None, elements: Tensor) -> Received:
        """What came from a site, as a simulation would have it."""
        cohort = self.table.federation.cohort(np.array([site]), self.number, {}, len(self.cohort))
        loss = np.nan if told is None or told.loss is None else told.loss
        given = Contribution(
            elements[:0],
            torch.tensor([counts]),
            torch.tensor([loss], dtype=torch.float64),
            withheld=None if told is None else torch.tensor([told.withheld]),
            saturated=None if told is None else torch.tensor([told.saturated]),
        )
        return Received(cohort, given, elements, 0)

    # ---- masked

    def _masked(self, ask: Ask) -> Total:
        table, phase, deadlines = self.table, ask.phase, self.table.deadlines
        sums = self.ahead
        if sums is None:
            sums = table.sums(self.number, self.cohort)
            for stage in (Stage.ADVERTISE, Stage.SHARE):
                plan = Plan()
                sums.add_stage(plan, stage)
                self._ask(plan, deadlines.keys, stage.value)
                self._close(sums)
        if not sums.sums:
            if len(self.cohort) < self.drawn:
                raise RoundAborted(self.cohort.tolist(), FEWEST, "too few of the sites drawn are there")
            self.tally.released = False
            return Total(zeros(phase.group, (phase.length,)), 0)
        following = table.prepared(self.progress, self.number + 1)
        told: dict[int, Told | None] = {}
        plan = Plan()
        for one in sums.sums:
            for site, delivered in one.inbox.items():
                part = self._work(
                    ask, site, MASKED, len(one.terms.cohort), serial=one.serial, delivered=delivered
                )
                plan.add(site, part, partial(self._take_masked, one, told, site))
        if following is not None:
            following.add_stage(plan, Stage.ADVERTISE)
        self._ask(plan, deadlines.work, phase.name)
        self._close(sums)
        self.release()
        plan = Plan()
        sums.add_stage(plan, Stage.UNMASK)
        if following is not None and following.close():
            following.add_stage(plan, Stage.SHARE)
        self._ask(plan, deadlines.keys, Stage.UNMASK.value)
        self._close(sums)
        found = [total for one in sums.sums if (total := one.total()) is not None]
        if not found:
            raise RoundAborted((), 1, sums.aborted)
        if following is not None and following.close() and not following.aborted:
            table.ahead = following
        return self._unmasked(phase, found, told)

    def _take_masked(
        self, one: MaskedSum, told: dict[int, Told | None], site: int, answer: Any, more: Told | None
    ) -> None:
        if not hasattr(answer, "message"):
            raise RemoteProtocolError(self.table.sites.name(site), self.number, "parts: no masked input")
        one.take(site, answer, None)
        told[site] = more

    def _unmasked(self, phase: Phase, found: list[MaskedTotal], told: Mapping[int, Told | None]) -> Total:
        totals = []
        for total in found:
            values = torch.from_numpy(_ring(phase).lift(total.values))
            totals.append(Total(values, len(total.survivors)))
            self._count(total.survivors, told)
        return totals[0] if phase.groups == 1 else side_by_side(phase, totals)

    def _count(self, sites: Any, told: Mapping[int, Told | None]) -> None:
        for site in sites:
            one = self._received(site, True, told.get(site), torch.empty(0, 0))
            self.tally.count(one.cohort, one.given, 0)
        self.arrived |= set(sites)

    def _close(self, sums: Sums) -> None:
        if sums.sums and not sums.close():
            raise RoundAborted(self.table.sites.here, 1, sums.aborted)

    # ---- additive

    def _additive(self, ask: Ask) -> Total:
        phase, ring, partition = ask.phase, _ring(ask.phase), self.table.federation.partition
        index, holders = len(ask.received), self._holders()
        shared: dict[int, Shared] = {}
        told: dict[int, Told | None] = {}
        plan = Plan()
        for site in self.cohort.tolist():
            part = self._work(ask, site, ADDITIVE, len(self.cohort), holders=holders)
            plan.add(site, part, partial(self._take_shared, shared, told, len(holders), site))
        self._ask(plan, self.table.deadlines.work, phase.name)
        self._check_whole(shared)
        self.release()
        sums: dict[int, PartialSum] = {}
        plan = Plan()
        for holder, holding in additive.delivered(shared, holders, index).items():
            plan.add(holder, holding, partial(_put, sums, holder))
        self._ask(plan, self.table.deadlines.work, f"{phase.name}, sums")
        if set(sums) != set(holders):
            raise RoundAborted(sums, len(holders), "holders of shares")
        self._count(sorted(shared), told)
        groups = {"all": 1, "row": partition.rows, "column": partition.column_count}[phase.scope]
        if phase.scope == "row":
            senders = sorted(shared)
            if any(len(one.sealed) != len(senders) for one in sums.values()):
                raise RoundAborted(sums, len(holders), "holders that sealed no sums")
            self.sealed = additive.row_parts(sums, holders, senders)
            # the server is not to see it: what goes on in its place is of the right length
            return Total(zeros(ring, (groups, phase.length)), len(shared))
        vectors = []
        for holder in holders:
            try:
                vectors.append(additive.read_sum(phase, ring, groups, holder, self.number, sums[holder]))
            except RemoteProtocolError as error:
                self.table.sites.failed(holder, phase.name, Failure("malformed", error.field), self.number)
                raise RoundAborted(sums, len(holders), f"site {holder}: {error.field}") from None
        values = additive.added(phase, ring, groups, vectors)
        return Total(values[0] if phase.scope == "all" else values, len(shared))

    def _holders(self) -> tuple[int, ...]:
        """Who holds shares in this attempt: drawn anew for each, so that everybody has its turn."""
        count = self.table.federation.experiment.share_holders
        if len(self.cohort) < count:
            raise RoundAborted(self.cohort.tolist(), count, "holders of shares")
        stream = Seeded(self.table.federation.experiment.seed).stream(
            self.number, SERVER, f"share holders {self.attempt}"
        )
        return tuple(sorted(stream.choice(self.cohort, count, replace=False).tolist()))

    def _take_shared(
        self,
        shared: dict[int, Shared],
        told: dict[int, Told | None],
        holders: int,
        site: int,
        answer: Any,
        more: Told | None,
    ) -> None:
        if not isinstance(answer, Shared) or len(answer.sealed) != holders:
            raise RemoteProtocolError(
                self.table.sites.name(site), self.number, "parts: no share for each holder"
            )
        shared[site], told[site] = answer, more

    # ---- what is sent

    def _work(self, ask: Ask, site: int, how: int, drawn: int, **more: Any) -> Work:
        federation = self.table.federation
        payload = ask.payload
        if isinstance(federation.scheme, Narrowed):
            payload = federation.scheme.sent_to(federation.task, payload, site)
        body = b"" if ask.received else written(payload)
        received = tuple(self._own_part(ask, number, site) for number in range(len(ask.received)))
        return Work(len(ask.received), drawn, how, body, received, **more)

    def _own_part(self, ask: Ask, number: int, site: int) -> bytes:
        """A site's own part of an earlier total of the round."""
        federation = self.table.federation
        phase = federation.scheme.phases(federation.task)[number]
        if phase.scope == "row" and how_summed(federation.experiment, phase) == ADDITIVE:
            return self.sealed[site]
        values = ask.received[number].values
        if phase.scope == "all":
            return as_bytes(values)
        partition = federation.partition
        return as_bytes(values[(partition.row_of if phase.scope == "row" else partition.column_of)(site)])

    def _check_whole(self, came: Mapping[int, Any]) -> None:
        """In a round of several phases, all must be in all of them."""
        federation = self.table.federation
        if len(federation.scheme.phases(federation.task)) > 1 and len(came) < len(self.cohort):
            raise RoundAborted(came, len(self.cohort), "a round of several phases")

    def _ask(self, plan: Plan, seconds: float, stage: str) -> None:
        self.table.sites.ask(plan, seconds, stage, self.number, self.attempt)


def _put(sums: dict[int, PartialSum], holder: int, answer: PartialSum, told: Told | None) -> None:
    sums[holder] = answer


def _ring(phase: Phase) -> Ring:
    if not isinstance(phase.group, Ring):
        raise RemoteProtocolError("server", 0, "secure sums are over a ring")
    return phase.group


def _traffic(sites: Sites) -> tuple[int, int]:
    return sum(its.up for its in sites.all.values()), sum(its.down for its in sites.all.values())
