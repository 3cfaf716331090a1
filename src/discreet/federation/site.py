"""A site: answers the server's messages, and goes on from the state that it stored after the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from discreet.config import Experiment, from_table, parse
from discreet.errors import (
    DataError,
    DiscreetError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RoundAborted,
    UserError,
)
from discreet.federation import parts
from discreet.federation.holdings import Holdings, OwnData
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.parts import Answered, Asked, Begin, End, Evaluate, Hello, Holding, Masking, Work
from discreet.federation.party import Facts, as_bytes, check_playable, facts_of, with_streams
from discreet.federation.refusal import Cause, Refusal, require
from discreet.federation.roster import Roster
from discreet.federation.seat import Seat
from discreet.federation.spending import Spending
from discreet.federation.state import MOST_RUNS, Mark, RunState, SiteState
from discreet.federation.step import Step
from discreet.federation.terms import agreement
from discreet.randomness import Keyed, Seeded, SystemRandom
from discreet.secure.masking import Stage
from discreet.secure.masking.keys import public_key
from discreet.wire import KEY_BYTES, RUN_BYTES, Envelope, Kind, Part, verify

FAILS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What training on strange numbers, or the owner's own code, may raise."""


class Site:
    """One site of a federation.

    Args:
        number: of the site, 0 to N - 1.
        identity: signs what it sends.
        limits: what its owner allows.
        spending: what its data has cost.
        roster: who the others are; None to trust the server for it.
        data: its own; None for the part of the experiment's data that has its number.
        data_dir: where the experiment's data is looked for first.
        device: where it trains.
        on_step: is told what each message asked and what became of it; only the site's owner is to read that.
    """

    def __init__(
        self,
        number: int,
        identity: Identity,
        limits: Limits,
        spending: Spending,
        *,
        roster: Roster | None = None,
        data: OwnData | None = None,
        data_dir: str | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.number, self.identity, self.limits, self.spending = number, identity, limits, spending
        self.roster, self.device, self.holdings = roster, device, Holdings(number, data, data_dir)
        self._on_step = on_step
        self._seat: tuple[tuple[bytes, str, bytes], Seat] | None = None

    def step(self, state: bytes, message: bytes) -> tuple[bytes, bytes]:
        """Answer a message.

        Args:
            state: what this returned last; empty at the very first.
            message: what the server has sent.

        Returns:
            The new state, to be stored before the reply leaves, and the reply. The state holds secrets.

        Raises:
            RemoteProtocolError: the message does not come from the server of this run, or is none at all; there is
                nothing to reply, and the state stays as it was.
            LocalProtocolError: the state is damaged.
        """
        known = SiteState.from_bytes(state) if state else SiteState()
        envelope = self._read(known, message)
        mark = known.mark(envelope.run)
        if mark is not None and (envelope.session, envelope.sequence) <= (mark.session, mark.sequence):
            seen = Refusal("replayed", "this message, or a later one, was answered")
            return state, self._turned_away(envelope, seen)
        if mark is None and len(known.marks) >= MOST_RUNS:
            full = Refusal("limits", f"{MOST_RUNS} runs are remembered: forget them to join others")
            return state, self._turned_away(envelope, full)
        unread: LocalProtocolError | None = None
        try:
            wanted = [parts.asked(part) for part in envelope.parts]
        except LocalProtocolError as error:
            wanted, unread = [], error
        server = mark.server if mark is not None else self._introduced(wanted)
        if server is None:
            raise RemoteProtocolError("server", envelope.round, "parts: no introduction")
        serial = mark.serial if mark is not None and mark.session == envelope.session else 0
        known = known.marked(Mark(envelope.run, server, envelope.session, envelope.sequence, serial))
        if unread is not None:
            return known.to_bytes(), self._turned_away(envelope, unread)
        answers: list[Part] = []
        refused: list[tuple[Cause, Exception]] = []
        told: Part | None = None
        for one in wanted:
            answer, known, more = self._answered(known, envelope, one, refused)
            answers.append(answer.part)
            told = told if more is None else more
        run = known.run
        if told is not None and run is not None and run.rehearse:
            answers.append(told)
        self._on_step(Step(envelope, tuple(wanted), tuple(refused)))
        return known.to_bytes(), self._reply(envelope, answers)

    # ---- messages

    def _read(self, known: SiteState, message: bytes) -> Envelope:
        """The message, signed by the server that this run began with."""
        mark = known.mark(message[4 : 4 + RUN_BYTES])
        key = None if mark is None else mark.server
        if self.roster is not None:
            key = self.roster.server
        return Envelope.from_bytes(
            message,
            kind=Kind.REQUEST,
            site=self.number,
            key=key,
            peer="server",
            largest=self.limits.largest_message,
        )

    def _introduced(self, wanted: list[Asked]) -> bytes | None:
        """The public key of the server of a run that is not known yet."""
        if self.roster is not None:
            return self.roster.server
        return wanted[0].identity if wanted and isinstance(wanted[0], Hello) else None

    def _reply(self, envelope: Envelope, answers: list[Part]) -> bytes:
        return replace(envelope, kind=Kind.REPLY, parts=tuple(answers)).to_bytes(self.identity.sign)

    def _refused(self, cause: Cause) -> parts.Refused:
        return parts.Refused.because(self.identity.public, cause)

    def _turned_away(self, envelope: Envelope, error: ProtocolError | Refusal) -> bytes:
        """The reply to a message whose parts are not looked at."""
        cause = _cause(error, False)
        self._on_step(Step(envelope, (), ((cause, error),)))
        return self._reply(envelope, [self._refused(cause).part])

    def _answered(
        self, known: SiteState, envelope: Envelope, one: Asked, refused: list[tuple[Cause, Exception]]
    ) -> tuple[Answered, SiteState, Part | None]:
        """The answer to one part, the state after it, and what is told in a rehearsal; a refusal is noted.

        A part that is refused leaves the state as it was, but that a masked sum which went wrong is over.
        """
        try:
            return self._done(known, envelope, one)
        except (DiscreetError, *FAILS) as error:
            cause = _cause(error, isinstance(one, Hello | Begin))
            refused.append((cause, error))
            broken = isinstance(error, RemoteProtocolError | RoundAborted)
            if broken and known.run is not None and isinstance(one, Work | Masking):
                known = known.running(known.run.without_sum(one.serial))
            return self._refused(cause), known, None

    def _done(
        self, known: SiteState, envelope: Envelope, one: Asked
    ) -> tuple[Answered, SiteState, Part | None]:
        if isinstance(one, Hello):
            return *self._welcome(known, envelope, one), None
        run = known.run
        if run is None or run.run != envelope.run:
            raise Refusal("state-missing", "this run has not begun here, or another has since")
        if isinstance(one, Begin):
            run = self._begin(run, one)
            return parts.Ready(), known.running(run), None
        if not run.begun:
            raise Refusal("state-missing", "the site was not told who takes part")
        seat = self._seated(run)
        if isinstance(one, Work):
            brought, run, told = seat.work(run, envelope, one)
            return brought, known.running(run), told.part
        answer: Answered
        match one:
            case Masking():
                known = _once(known, envelope, one)
                answer, run = seat.masking(run, envelope, one)
            case Holding():
                answer, run = seat.holding(run, envelope, one)
            case Evaluate():
                answer, run = seat.evaluated(run, envelope, one)
            case End():
                answer, run = self._end(seat, run, envelope, one)
            case _:
                raise LocalProtocolError("parts: not asked of a site")
        return answer, known.running(run), None

    # ---- the beginning

    def _welcome(self, known: SiteState, envelope: Envelope, one: Hello) -> tuple[Answered, SiteState]:
        """Look at a run, and say who this site is."""
        if self.roster is not None:
            require("limits", one.identity == self.roster.server, "another server than that of the roster")
            require("limits", one.sites == len(self.roster), "another number of sites than in the roster")
        require("data", self.number < one.sites, "the site's number is not among the sites")
        experiment = self._experiment(one.experiment)
        check_playable(experiment)
        self._check_allowed(experiment, one.sites, one.rehearse)
        examples, features = self.holdings.of(experiment, one.experiment, one.sites)
        run = known.run
        if run is None or run.run != envelope.run:
            run = self._started(envelope.run, experiment, one)
        else:
            run = self._again(run, experiment, one)
        share_key = public_key(run.share_key)
        minimum = self._minimum(one.sites)
        vouched = self.identity.sign(parts.vouching(run.run, self.number, share_key, minimum))
        answer = parts.Welcome(
            self.identity.public,
            self.number,
            examples if experiment.scheme.counts_examples else min(examples, 1),
            features,
            share_key,
            minimum,
            vouched,
            _in_a_line(self.limits),
        )
        return answer, known.running(replace(run, sums=(), examples=examples))

    def _minimum(self, sites: int) -> int:
        return min(self.limits.minimum_cohort, sites)

    def _check_allowed(self, experiment: Experiment, sites: int, rehearse: bool, columns: int = 1) -> None:
        own = self.holdings.data is not None
        self.limits.check(experiment, sites, rehearse=rehearse, own_data=own, columns=columns)

    def _again(self, run: RunState, experiment: Experiment, one: Hello) -> RunState:
        """A run that goes on: with more rounds, or on another machine of the server's, and else as it was."""
        before = self._experiment(run.experiment)
        same = (run.rehearse, run.sites) == (one.rehearse, one.sites)
        same &= replace(before, rounds=experiment.rounds) == experiment and before.rounds <= experiment.rounds
        require("malformed", same, "another experiment than this run began with")
        return replace(run, experiment=one.experiment)

    def _experiment(self, text: str) -> Experiment:
        """The experiment, to be computed on this site's device."""
        found = from_table(parse(text, "the experiment"))
        return replace(found, engine=replace(found.engine, device=self.device, workers=1))

    def _started(self, run: bytes, experiment: Experiment, one: Hello) -> RunState:
        secrets = Seeded(experiment.seed) if one.rehearse else SystemRandom()
        words = secrets.words(0, self.number, "site keys", 8).astype("<u8").tobytes()
        return RunState(run, one.rehearse, one.sites, one.experiment, words[:KEY_BYTES], words[KEY_BYTES:])

    def _begin(self, run: RunState, one: Begin) -> RunState:
        """Check what is said of everybody, and build what the rounds need."""
        if run.begun and Begin.from_bytes(run.begun).lasting != one.lasting:
            raise Refusal("malformed", "other sites, or other data, than this run began with")
        run = replace(run, begun=one.to_bytes())
        self._seated(run)
        return run

    def _check_members(self, run: RunState, one: Begin, facts: Facts) -> None:
        """Refuse sites that are not who they must be, or that make no grid."""
        require("malformed", len(one.members) == run.sites == facts.sites, "not as many sites as there are")
        require("malformed", facts.is_dealt_once, "columns do not hold each feature once")
        for number, member in enumerate(one.members):
            known = member.identity if self.roster is None else self.roster.public(number)
            require("malformed", member.identity == known, f"site {number} is another in the roster")
            vouched = parts.vouching(run.run, number, member.share_key, member.minimum)
            require(
                "malformed",
                verify(member.identity, vouched, member.vouched),
                f"site {number} did not sign its share key and minimum",
            )
        own = one.members[self.number]
        require("malformed", own.identity == self.identity.public, "this site's key is another's")
        require("malformed", own.share_key == public_key(run.share_key), "this site's share key is another's")

    def _seated(self, run: RunState) -> Seat:
        """The site in its run: remembered, or built from the state."""
        told = (run.run, run.experiment, run.begun)
        if self._seat is not None and self._seat[0] == told:
            return self._seat[1]
        begin = Begin.from_bytes(run.begun)
        facts = facts_of(begin.sizes, [column.places for column in begin.columns])
        self._check_members(run, begin, facts)
        experiment = self._experiment(run.experiment)
        self._check_allowed(experiment, run.sites, run.rehearse, max(1, len(facts.columns)))
        # where its owner has changed it since, the others hear of it when the site is welcomed again
        same = begin.members[self.number].minimum == self._minimum(run.sites)
        require("state-missing", same, "minimum_cohort is not what the others were told")
        found = self.holdings.federation(experiment, run.experiment, facts)
        secrets = Seeded(experiment.seed) if run.rehearse else SystemRandom()
        randomness = Seeded(experiment.seed) if run.rehearse else Keyed(run.streams)
        if not run.rehearse and facts.columns and getattr(experiment.scheme, "heads", "own") == "row":
            raise Refusal("scheme", "heads of a row would be known to the server")
        seat = Seat(
            self.number,
            self.identity,
            self.limits,
            self.spending,
            secrets,
            with_streams(found, randomness, secrets),
            begin,
            agreement(run.rehearse, run.experiment, begin),
            run.rehearse,
        )
        self._seat = (told, seat)
        return seat

    # ---- the end

    def _end(self, seat: Seat, run: RunState, envelope: Envelope, one: End) -> tuple[Answered, RunState]:
        vector = seat.own_model(run, envelope.round + 1, one.payload)
        model = b"" if vector is None else as_bytes(vector.to(torch.float32))
        if run.model and model != run.model and run.place <= run.ended:
            raise Refusal("stale", "the run ended with another model, and no round was played since")
        return parts.Done(), replace(run, model=model, played=envelope.round, ended=run.place, sums=())


def _once(known: SiteState, envelope: Envelope, one: Masking) -> SiteState:
    """Refuse to begin a masked sum again; the mark outlives the run's state, which another run takes the place of."""
    mark = known.mark(envelope.run)
    if mark is None or tuple(Stage)[one.stage] is not Stage.ADVERTISE:
        return known
    require("stale", one.serial > mark.serial, "keys for this masked sum, or a later one, were advertised")
    return known.marked(replace(mark, serial=one.serial))


def _cause(error: Exception, beginning: bool) -> Cause:
    """What the server is told of an error."""
    match error:
        case Refusal():
            return error.cause
        case RoundAborted():
            return "limits"
        case ProtocolError():
            return "malformed"
        case DataError() if beginning:
            return "data"
        case UserError() if beginning:
            return "scheme"
    return "internal"


def _in_a_line(limits: Limits) -> str:
    schemes = limits.schemes if isinstance(limits.schemes, str) else ", ".join(limits.schemes)
    budget = "" if limits.epsilon is None else f"; epsilon {limits.epsilon:g} at delta {limits.delta:g}"
    return f"schemes: {schemes}; at least {limits.minimum_cohort} sites a sum{budget}"[:190]
