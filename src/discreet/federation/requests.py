"""What a message to a site can ask; `discreet.federation.parts` says what answers it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from discreet.federation.fields import Bytes, Exactly, Many, Of, Record, Text, Truth, Whole
from discreet.secure.masking import Stage
from discreet.wire import HELLO, KEY_BYTES, MOST_ROUNDS, MOST_SITES, SIGNATURE_BYTES, Part

LONGEST_EXPERIMENT = 1 << 20
MOST_FEATURES = 1 << 24
MOST_EXAMPLES = 1 << 28
"""Training examples of all sites together."""

IN_CLEAR, MASKED, ADDITIVE = 0, 1, 2
"""How a phase is summed, as in `Work.how`."""

_SITE, _ROUND = Whole(4, MOST_SITES - 1), Whole(4, MOST_ROUNDS)
_SITES = Many(_SITE, MOST_SITES)


class Asked(Record):
    """A part of a request."""

    kind: ClassVar[int]

    @property
    def part(self) -> Part:
        """As it is sent."""
        return Part(self.kind, self.to_bytes())


@dataclass(frozen=True)
class Hello(Asked):
    """The server introduces itself and a run.

    Attributes:
        identity: its public key.
        rehearse: whether nothing in the run is to be secret.
        sites: how many there are.
        experiment: what runs, resolved, as TOML.
    """

    kind: ClassVar[int] = HELLO
    written: ClassVar = {
        "identity": Exactly(KEY_BYTES),
        "rehearse": Truth(),
        "sites": Whole(4, MOST_SITES),
        "experiment": Text(LONGEST_EXPERIMENT),
    }
    identity: bytes
    rehearse: bool
    sites: int
    experiment: str


@dataclass(frozen=True)
class Member(Record):
    """A site as the others have to know it.

    Attributes:
        identity: its public key.
        share_key: X25519 key of this run, for shares that only it may read.
        minimum: it is in no secure sum of fewer sites.
        vouched: signature of both by the identity; see `vouching`.
    """

    written: ClassVar = {
        "identity": Exactly(KEY_BYTES),
        "share_key": Exactly(KEY_BYTES),
        "minimum": Whole(4, MOST_SITES),
        "vouched": Exactly(SIGNATURE_BYTES),
    }
    identity: bytes
    share_key: bytes
    minimum: int
    vouched: bytes


@dataclass(frozen=True)
class Features(Record):
    """Input features that a column holds."""

    written: ClassVar = {"places": Many(Whole(4), MOST_FEATURES)}
    places: tuple[int, ...]


@dataclass(frozen=True)
class Begin(Asked):
    """What everybody has to know of everybody.

    Attributes:
        sizes: examples of each row.
        columns: features of each column; empty where all sites have all.
        members: the sites, by their numbers: ``row * columns + column``.
    """

    kind: ClassVar[int] = 9
    written: ClassVar = {
        "sizes": Many(Whole(8, MOST_EXAMPLES), MOST_SITES),
        "columns": Many(Of(Features), MOST_SITES),
        "members": Many(Of(Member), MOST_SITES),
    }
    sizes: tuple[int, ...]
    columns: tuple[Features, ...]
    members: tuple[Member, ...]

    @property
    def lasting(self) -> Begin:
        """What of it stays the same for a whole run.

        Not the share keys, which who has lost its own draws anew, nor the minima, which owners can change.
        """
        keyless = Member(bytes(KEY_BYTES), bytes(KEY_BYTES), 0, bytes(SIGNATURE_BYTES))
        members = tuple(replace(keyless, identity=member.identity) for member in self.members)
        return replace(self, members=members)


@dataclass(frozen=True)
class Work(Asked):
    """Contribute to the sum of one phase of the message's round.

    Attributes:
        phase: its place in the round.
        drawn: sites in the sum, for whose number each sizes its noise.
        how: `IN_CLEAR`, `MASKED` or `ADDITIVE`.
        payload: what the round begins with, in its first phase.
        received: totals of the earlier phases, the site's own part of each.
        serial: of the masked sum.
        delivered: what neighbours have sealed for the site (`DeliveredShares`), likewise.
        holders: who holds the additive shares.
    """

    kind: ClassVar[int] = 4
    written: ClassVar = {
        "phase": Whole(1),
        "drawn": Whole(4, MOST_SITES),
        "how": Whole(1, ADDITIVE),
        "payload": Bytes(),
        "received": Many(Bytes(), 16),
        "serial": Whole(4),
        "delivered": Bytes(),
        "holders": _SITES,
    }
    phase: int
    drawn: int
    how: int
    payload: bytes = field(default=b"", repr=False)
    received: tuple[bytes, ...] = field(default=(), repr=False)
    serial: int = 0
    delivered: bytes = field(default=b"", repr=False)
    holders: tuple[int, ...] = ()


@dataclass(frozen=True)
class Masking(Asked):
    """A stage of a masked sum other than that of the masked inputs, which comes with `Work`.

    Attributes:
        stage: its place in `Stage`, counted from 0.
        round: that the sum is for, which may be the one after the message's.
        serial: of the sum; no two sums of a session have the same.
        cohort: who is asked to take part.
        nonce: of the graph.
        message: the server's, to this stage; empty for the first.
    """

    kind: ClassVar[int] = 5
    written: ClassVar = {
        "stage": Whole(1, len(Stage) - 1),
        "round": _ROUND,
        "serial": Whole(4),
        "cohort": _SITES,
        "nonce": Exactly(32),
        "message": Bytes(),
    }
    stage: int
    round: int
    serial: int
    cohort: tuple[int, ...]
    nonce: bytes
    message: bytes = field(repr=False)


@dataclass(frozen=True)
class Holding(Asked):
    """Add up the shares that were sealed for this site.

    Attributes:
        phase: its place in the round.
        senders: whose shares they are, in rising order.
        sealed: the shares, in that order.
        absent: how many more were drawn, of whom nothing came; shares open for the number of all drawn alone.
    """

    kind: ClassVar[int] = 6
    written: ClassVar = {
        "phase": Whole(1),
        "senders": _SITES,
        "sealed": Many(Bytes(), MOST_SITES),
        "absent": Whole(4, MOST_SITES),
    }
    phase: int
    senders: tuple[int, ...]
    sealed: tuple[bytes, ...] = field(repr=False)
    absent: int = 0

    @property
    def drawn(self) -> int:
        """For how many sites the senders have sized their noise."""
        return len(self.senders) + self.absent


@dataclass(frozen=True)
class Evaluate(Asked):
    """Say how good the site's own model is, on its test examples.

    Attributes:
        payload: what the next round would begin with.
    """

    kind: ClassVar[int] = 7
    written: ClassVar = {"payload": Bytes()}
    payload: bytes = field(repr=False)


@dataclass(frozen=True)
class End(Asked):
    """The run is over.

    Attributes:
        payload: what another round would begin with: of a global model, the model.
    """

    kind: ClassVar[int] = 8
    written: ClassVar = {"payload": Bytes()}
    payload: bytes = field(repr=False)
