"""Where sites stand, as the server sees them: who is there, who is not and why, and what passes between them.

A site that fails is away until it is welcomed again. It is asked for that along with the next rounds' messages, less and
less often, and before a round is tried again.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from discreet.errors import LocalProtocolError, RemoteProtocolError, UserError
from discreet.federation import parts
from discreet.federation.identity import Identity
from discreet.federation.link import Failure, Link
from discreet.federation.parts import Answered, Asked, Begin, Hello, Refused, Told, Welcome
from discreet.federation.party import Facts, facts_of
from discreet.federation.roster import Roster
from discreet.federation.traffic import Missed, Passed, Traffic
from discreet.wire import Envelope, Kind, verify

LOG = logging.getLogger(__name__)

Take = Callable[[Any, Told | None], None]
"""Takes the answer to a part, and what was told with it; raises RemoteProtocolError where it cannot be."""

SELDOM = 32
"""A site that stays away is asked again after so many rounds at most."""

PAUSE = 0.5
"""Seconds between two looks for sites that are not there yet."""

LONGEST_PAUSE = 8.0
"""Likewise, between the looks for sites without which a round cannot be: each is twice as long after the last."""

ANSWERS: Mapping[type[Asked], tuple[type[Answered], ...]] = {
    Hello: (Welcome,),
    Begin: (parts.Ready,),
    parts.Work: (parts.Contributed, parts.Masked, parts.Shared),
    parts.Masking: (parts.Masked,),
    parts.Holding: (parts.PartialSum,),
    parts.Evaluate: (parts.Evaluated,),
    parts.End: (parts.Done,),
}
"""What answers a part, unless it is refused."""


class Plan:
    """What sites are to be asked in one exchange, and who takes the answers."""

    def __init__(self) -> None:
        self.asked: dict[int, list[tuple[Asked, Take]]] = defaultdict(list)

    def add(self, site: int, part: Asked, take: Take) -> None:
        """Ask a site one thing more."""
        self.asked[site].append((part, take))


@dataclass
class Standing:
    """Where a site stands.

    Attributes:
        key: its public key; None as long as it is not known.
        welcome: what it said of itself last.
        here: whether it takes part.
        knows: which list of the sites it was told, counted from 1.
        wait: rounds until an absent one is asked again.
        due: the round in which it is.
        told: why it was last missed, for the log, which says the same thing once.
    """

    key: bytes | None
    welcome: Welcome | None = None
    here: bool = False
    knows: int = 0
    wait: int = 0
    due: int = 0
    told: Failure | None = None

    @property
    def refuses(self) -> bool:
        """Whether it said last that it will not."""
        return self.told is not None and self.told.cause == "refused"


@dataclass
class Sites:
    """The sites of a run.

    Attributes:
        link: to them.
        identity: signs what the server sends.
        roster: who they are; None to take those who answer.
        run: names the run.
        session: of this process.
        hello: how the server introduces itself and the run.
        all: the sites, by their numbers.
        waiting: of those who ask for other sums than before, what they said; they take part from the next attempt on.
        version: of the list of the sites, counted from 1; 0 before there is one.
        sequence: of the last message.
        missed: what went wrong since it was last looked at.
        passed: the exchanges, likewise.
    """

    link: Link
    identity: Identity
    roster: Roster | None
    run: bytes
    session: int
    hello: Hello
    all: dict[int, Standing] = field(init=False)
    facts: Facts | None = None
    waiting: dict[int, Welcome] = field(default_factory=dict)
    version: int = 0
    sequence: int = 0
    missed: list[Missed] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = {} if self.roster is None else self.roster.masking()
        self.all = {site: Standing(known.get(site)) for site in range(self.hello.sites)}

    @property
    def here(self) -> frozenset[int]:
        """The sites that take part."""
        return frozenset(site for site, its in self.all.items() if its.here)

    @property
    def minima(self) -> dict[int, int]:
        """Of how many sites a secure sum must be that a site is in, by its number."""
        return {site: its.welcome.minimum for site, its in self.all.items() if its.welcome is not None}

    def name(self, site: int) -> str:
        """What to call a site."""
        return f"site {site}" if self.roster is None else f"site {site} ({self.roster.name(site)})"

    # ---- the beginning

    def gather(self, seconds: float) -> None:
        """Wait until all sites have been welcomed.

        Raises:
            UserError: some have not, when the time is over; it names them, and says why.
        """
        end, tried = time.monotonic() + seconds, False
        while (left := end - time.monotonic()) > 0 or not tried:
            tried = True
            missing = sorted(set(self.all) - self.here)
            self._greet([site for site in missing if site in self.link.present()], max(left, 0.0))
            if len(self.here) == len(self.all):
                return
            time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
        # what a site answered says more than that the time was over when it was asked once more
        told = sorted(self.missed, key=lambda one: one.failure.cause != "timeout")
        reasons = {one.site: one.failure for one in told}
        absent = Failure("unreachable")
        listed = ", ".join(
            f"{self.name(site)}: {_reason(reasons.get(site, absent))}"
            for site in sorted(set(self.all) - self.here)
        )
        raise UserError(f"not all sites are there after {seconds:g} seconds ({listed})")

    def recall(
        self, round: int, attempt: int, seconds: float, awaited: Iterable[int] = (), patience: float = 0.0
    ) -> None:
        """Ask all who are away to come back, before a round is tried again.

        Args:
            round: that is tried.
            attempt: which.
            seconds: that they have to answer.
            awaited: sites that are waited for, unless they refuse; others who come meanwhile are welcome.
            patience: for how many seconds.
        """
        end, pause = time.monotonic() + patience, PAUSE
        away, left = set(self.all) - self.here, seconds
        while True:
            self._greet(sorted(away & self.link.present()), min(seconds, left), round, attempt)
            away = {site for site, its in self.all.items() if not its.here and not its.refuses}
            missing = away & set(awaited)
            left = end - time.monotonic()
            if not missing or left <= 0:
                return
            if pause == PAUSE:
                LOG.info("round %d: waiting for %s", round, ", ".join(map(self.name, sorted(missing))))
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def gathered(self) -> Facts:
        """Who holds how much of what, once all have said it.

        Raises:
            UserError: what they hold does not make a grid.
        """
        welcomes = [its.welcome for its in self.all.values() if its.welcome is not None]
        columns: list[tuple[int, ...]] = []
        for one in welcomes:
            if not one.features or one.features in columns:
                break
            columns.append(one.features)
        width = max(1, len(columns))
        for one in welcomes:
            first = welcomes[one.number - one.number % width]
            fits = one.examples == first.examples and one.features == (
                columns[one.number % width] if columns else ()
            )
            if not fits or len(welcomes) % width:
                raise UserError(
                    f"{self.name(one.number)} does not fit its row and column: sites of a row hold the same examples, "
                    "sites of a column the same features, and row after row is numbered"
                )
        self.facts = facts_of([one.examples for one in welcomes[::width]], columns)
        return self.facts

    def _greet(self, sites: Iterable[int], seconds: float, round: int = 0, attempt: int = 0) -> None:
        plan = Plan()
        for site in sites:
            self._introduce(plan, site, at_once=True)
        if plan.asked:
            self.ask(plan, seconds, "hello", round, attempt, greeting=True)

    def _introduce(self, plan: Plan, site: int, at_once: bool) -> None:
        plan.add(site, self.hello, partial(self._welcomed, site, at_once))

    def admit(self) -> None:
        """Take in who waits for the next attempt; for when one begins."""
        while self.waiting:
            self._take_in(*self.waiting.popitem())

    def _welcomed(self, site: int, at_once: bool, welcome: Welcome, told: Told | None) -> None:
        """Take a site in, if it is the one that it must be."""
        its = self.all[site]

        def check(holds: bool, what: str) -> None:
            if not holds:
                raise RemoteProtocolError(self.name(site), 0, what)

        check(welcome.number == site, "number: another site's")
        check(its.key in (None, welcome.identity), "identity: not the one that is known")
        others = {other.key for number, other in self.all.items() if number != site}
        check(welcome.identity not in others, "identity: another site's")
        vouched = parts.vouching(self.run, site, welcome.share_key, welcome.minimum)
        check(verify(welcome.identity, vouched, welcome.vouched), "share key: not signed")
        check(welcome.minimum <= len(self.all), "minimum: more than there are sites")
        if self.facts is not None:
            held = self.facts.sizes[site // max(1, len(self.facts.columns))]
            check(welcome.examples == held, "examples: other than at the beginning")
        self.waiting.pop(site, None)
        if at_once or its.welcome is None or its.welcome.minimum == welcome.minimum:
            self._take_in(site, welcome)
        else:  # sums that are going on are bound to what all were told
            self.waiting[site] = welcome

    def _take_in(self, site: int, welcome: Welcome) -> None:
        its = self.all[site]
        if its.welcome is None or its.welcome.member != welcome.member:
            self.version += 1  # everybody has to hear of it
        LOG.info("%s is there", self.name(site))
        its.key, its.welcome, its.here, its.knows, its.told = welcome.identity, welcome, True, 0, None

    def begin(self) -> Begin:
        """What everybody has to know of everybody, once all have been welcomed."""
        facts = self.facts or self.gathered()
        columns = tuple(parts.Features(own) for own in facts.columns)
        members = tuple(its.welcome.member for its in self.all.values() if its.welcome is not None)
        return Begin(facts.sizes, columns, members)

    # ---- asking

    def ask(
        self,
        plan: Plan,
        seconds: float,
        stage: str,
        round: int,
        attempt: int,
        *,
        greeting: bool = False,
        keeps: bool = False,
    ) -> None:
        """Ask sites, and have the answers taken; who fails is away from then on.

        Args:
            plan: what to ask whom.
            seconds: how long to wait.
            stage: what this is about, for the log.
            round: which the messages are about.
            attempt: likewise.
            greeting: whether this is to welcome sites; else those that are due are asked along with the others.
            keeps: whether who refuses a part stays all the same.
        """
        if not greeting:
            due = {site for site, its in self.all.items() if not its.here and its.due <= round}
            for site in due & self.link.present() - set(plan.asked) - self.waiting.keys():
                self._introduce(plan, site, at_once=False)
        messages, sent = {}, {}
        for site in sorted(plan.asked):
            wanted = list(plan.asked[site])
            its = self.all[site]
            if its.here and its.knows != self.version:
                wanted.insert(0, (self.begin(), partial(self._begun, site, self.version)))
            self.sequence += 1
            envelope = Envelope(
                Kind.REQUEST,
                self.run,
                self.session,
                self.sequence,
                round,
                attempt,
                site,
                tuple(part.part for part, _ in wanted),
            )
            sent[site] = (envelope, wanted)
            messages[site] = envelope.to_bytes(self.identity.sign)
        replies = self._exchanged(messages, seconds, stage, attempt)
        for site, (envelope, wanted) in sent.items():
            reply = replies[site]
            if isinstance(reply, Failure):
                self.failed(site, stage, reply, round, attempt)
                continue
            try:
                self._take(site, envelope, wanted, reply, stage, keeps)
            except RemoteProtocolError as error:
                self.failed(site, stage, Failure("malformed", error.field), round, attempt)
                self.link.doubt(site)

    def _exchanged(
        self, messages: Mapping[int, bytes], seconds: float, stage: str, attempt: int
    ) -> dict[int, bytes | Failure]:
        """What came back of each message; what that took is noted."""
        started = time.perf_counter()
        came: dict[int, float] = {}

        def heard(site: int) -> None:
            came[site] = time.perf_counter() - started

        found = self.link.exchange(messages, seconds, heard)
        taken = time.perf_counter() - started
        replies = {site: found.get(site, Failure("timeout")) for site in messages}
        sites = {
            site: Traffic(None, 0, len(messages[site]))
            if isinstance(reply, Failure)
            else Traffic(came.get(site, taken), len(reply), len(messages[site]))
            for site, reply in replies.items()
        }
        self.passed.append(Passed(stage, attempt, taken, sites))
        return replies

    def failed(self, site: int, stage: str, failure: Failure, round: int, attempt: int) -> None:
        """Note that a site did not answer as it should; it is away from now on."""
        its = self.all[site]
        self.missed.append(Missed(site, stage, attempt, failure))
        if its.told != failure:
            its.told = failure
            LOG.warning("%s, round %d, %s: %s", self.name(site), round, stage, _reason(failure))
        if its.here:
            # who was too slow is given time; who failed otherwise may be back at once
            its.wait = 1 if failure.cause == "timeout" else 0
        else:
            its.wait = min(SELDOM, max(1, 2 * its.wait))
        its.due, its.here = round + its.wait, False

    def _begun(self, site: int, version: int, answer: Answered, told: Told | None) -> None:
        self.all[site].knows = version

    def _take(
        self,
        site: int,
        request: Envelope,
        wanted: list[tuple[Asked, Take]],
        reply: bytes,
        stage: str,
        keeps: bool,
    ) -> None:
        """Have the answers of a site taken."""
        envelope = Envelope.from_bytes(
            reply, kind=Kind.REPLY, site=site, key=self.all[site].key, peer=self.name(site)
        )

        def check(holds: bool, what: str) -> None:
            if not holds:
                raise RemoteProtocolError(self.name(site), request.round, what)

        for name in ("run", "session", "sequence", "round", "attempt"):
            check(getattr(envelope, name) == getattr(request, name), f"{name}: not that of the request")
        try:
            answers = [parts.answered(part) for part in envelope.parts]
        except LocalProtocolError as error:
            raise RemoteProtocolError(self.name(site), request.round, str(error)) from None
        told: Told | None = None
        if isinstance(answers[-1], Told):
            check(self.hello.rehearse, "told: this is no rehearsal")
            told = answers[-1]
            answers.pop()
        check(bool(answers), "parts: no answer")
        if len(answers) == 1 < len(wanted) and isinstance(answers[0], Refused):
            failure = Failure("refused", answers[0].cause)
            self.failed(site, stage, failure, request.round, request.attempt)
            return
        check(len(answers) == len(wanted), "parts: not an answer to each")
        for answer, (part, take) in zip(answers, wanted, strict=True):
            if isinstance(answer, Refused):
                if keeps and not isinstance(part, Hello | Begin):
                    continue
                if self.all[site].here or isinstance(part, Hello):  # the first refusal says why
                    failure = Failure("refused", f"{answer.cause} ({type(part).__name__})")
                    self.failed(site, stage, failure, request.round, request.attempt)
                continue
            check(isinstance(answer, ANSWERS[type(part)]), "parts: another answer than was asked for")
            take(answer, told if isinstance(answer, ANSWERS[parts.Work]) else None)


def _reason(failure: Failure) -> str:
    return f"{failure.cause}, {failure.detail}" if failure.detail else failure.cause
