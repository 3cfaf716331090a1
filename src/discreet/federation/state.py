"""What a site remembers between messages, as bytes. **It holds secrets**: keys, streams, its model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from discreet.federation.fields import Bytes, Exactly, Many, Of, Record, Text, Truth, Whole
from discreet.federation.parts import LONGEST_EXPERIMENT
from discreet.federation.requests import MOST_EXAMPLES
from discreet.wire import KEY_BYTES, MOST_ROUNDS, MOST_SITES, RUN_BYTES

_ROUND = Whole(4, MOST_ROUNDS)
_SITES = Many(Whole(4, MOST_SITES - 1), MOST_SITES)

MOST_RUNS = 1 << 12
"""Runs that a site can hear of until its owner has it forget them."""
MOST_SUMS = 4
"""Masked sums that a site may be in at the same time: that of a round, that of the next, and one of either over again."""


@dataclass(frozen=True)
class Mark(Record):
    """The last message of a run that was accepted.

    Attributes:
        run: names the run.
        server: public key of its server.
        session, sequence: of the message; only a later one is answered.
        serial: of the last masked sum of the session that the site has advertised keys for; only for a later one does it
            again, so that it has one client in each sum, which consents once.
    """

    written: ClassVar = {
        "run": Exactly(RUN_BYTES),
        "server": Exactly(KEY_BYTES),
        "session": Whole(4),
        "sequence": Whole(8),
        "serial": Whole(4),
    }
    run: bytes
    server: bytes
    session: int
    sequence: int
    serial: int = 0


@dataclass(frozen=True)
class SumState(Record):
    """Where the site stands in one masked sum.

    Attributes:
        serial, round, cohort, nonce: see `discreet.federation.parts.Masking`.
        client: state of the `MaskingClient`.
    """

    written: ClassVar = {
        "serial": Whole(4),
        "round": _ROUND,
        "cohort": _SITES,
        "nonce": Exactly(32),
        "client": Bytes(),
    }
    serial: int
    round: int
    cohort: tuple[int, ...]
    nonce: bytes
    client: bytes = field(repr=False)


@dataclass(frozen=True)
class KeptState(Record):
    """What the scheme has a site keep after a round.

    Attributes:
        round: the round; 0 before the first.
        vector: the numbers, as they lie in memory.
    """

    written: ClassVar = {"round": _ROUND, "vector": Bytes()}
    round: int
    vector: bytes = field(repr=False)


@dataclass(frozen=True, order=True)
class Place(Record):
    """How far the site has come in a run: it goes forward only.

    Attributes:
        session, round, attempt: of the message.
        step: two for each phase: to contribute, and to add up others' shares.
    """

    written: ClassVar = {"session": Whole(4), "round": _ROUND, "attempt": Whole(2), "step": Whole(2)}
    session: int
    round: int
    attempt: int
    step: int


@dataclass(frozen=True)
class RunState(Record):
    """Where the site stands in its run.

    Attributes:
        run: names it.
        rehearse: whether nothing in it is secret.
        sites: how many there are.
        experiment: what runs, as TOML.
        streams: key of the site's own streams.
        share_key: X25519 private key.
        begun: the `Begin` that the site has accepted; empty before that.
        place: where it is in the rounds.
        payload: what that round began with, if later phases need it.
        holders: of the shares of its first phase, likewise.
        sums: masked sums that are not over.
        kept: after the last two rounds that the site took part in, the later one last.
        model: the site's own, once the run is over.
        played: the last round.
        worked: where the site last contributed.
        ended: where it was when the run was over.
        judged: models of rounds before this one are judged no more.
        examples: how many training examples the site holds.
    """

    written: ClassVar = {
        "run": Exactly(RUN_BYTES),
        "rehearse": Truth(),
        "sites": Whole(4, MOST_SITES),
        "experiment": Text(LONGEST_EXPERIMENT),
        "streams": Exactly(KEY_BYTES),
        "share_key": Exactly(KEY_BYTES),
        "begun": Bytes(),
        "place": Of(Place),
        "payload": Bytes(),
        "holders": _SITES,
        "sums": Many(Of(SumState), MOST_SUMS),
        "kept": Many(Of(KeptState), 2),
        "model": Bytes(),
        "played": _ROUND,
        "worked": Of(Place),
        "ended": Of(Place),
        "judged": Whole(4),
        "examples": Whole(8, MOST_EXAMPLES),
    }
    run: bytes
    rehearse: bool
    sites: int
    experiment: str
    streams: bytes = field(repr=False)
    share_key: bytes = field(repr=False)
    begun: bytes = field(default=b"", repr=False)
    place: Place = Place(0, 0, 0, 0)
    payload: bytes = field(default=b"", repr=False)
    holders: tuple[int, ...] = ()
    sums: tuple[SumState, ...] = ()
    kept: tuple[KeptState, ...] = ()
    model: bytes = field(default=b"", repr=False)
    played: int = 0
    worked: Place = Place(0, 0, 0, 0)
    ended: Place = Place(0, 0, 0, 0)
    judged: int = 0
    examples: int = 0

    def before(self, round: int) -> bytes | None:
        """What was kept of the rounds before one; None for nothing."""
        earlier = [one.vector for one in self.kept if one.round < round]
        return earlier[-1] if earlier else None

    def keeping(self, round: int, vector: bytes) -> RunState:
        """With what is kept after a round, and what was kept before it."""
        earlier = [one for one in self.kept if one.round < round]
        return replace(self, kept=(*earlier[-1:], KeptState(round, vector)))

    def with_sum(self, one: SumState) -> RunState:
        """With the state of a masked sum, in place of an earlier one; the oldest is forgotten where there are too many."""
        others = [other for other in self.sums if other.serial != one.serial]
        return replace(self, sums=(*others, one)[-MOST_SUMS:])

    def without_sum(self, serial: int) -> RunState:
        """Without a masked sum."""
        return replace(self, sums=tuple(one for one in self.sums if one.serial != serial))


@dataclass(frozen=True)
class SiteState(Record):
    """All that a site remembers.

    Attributes:
        marks: of every run that it has heard of.
        current: its last run, if it has one.
    """

    written: ClassVar = {"marks": Many(Of(Mark), MOST_RUNS), "current": Many(Of(RunState), 1)}
    marks: tuple[Mark, ...] = ()
    current: tuple[RunState, ...] = ()

    @property
    def run(self) -> RunState | None:
        """The last run."""
        return self.current[0] if self.current else None

    def mark(self, run: bytes) -> Mark | None:
        """What is known of a run."""
        return next((one for one in self.marks if one.run == run), None)

    def marked(self, mark: Mark) -> SiteState:
        """With a message accepted."""
        return replace(self, marks=(*(one for one in self.marks if one.run != mark.run), mark))

    def running(self, run: RunState) -> SiteState:
        """With a run as the last one."""
        return replace(self, current=(run,))
