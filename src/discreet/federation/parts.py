"""What a message to a site can ask, and what a site can answer: the parts of `discreet.wire.Envelope`.

| asked | answered |
|---|---|
| `Hello` | `Welcome` |
| `Begin` | `Ready` |
| `Work` | `Contributed` (in the clear), `Masked` (a masked sum), `Shared` (additive sharing) |
| `Masking` | `Masked` |
| `Holding` | `PartialSum` |
| `Evaluate` | `Evaluated` |
| `End` | `Done` |

Any of them may be answered by `Refused`. A reply has an answer to each part of its request, in their order; in a
rehearsal `Told` comes after them. A request that is refused as a whole is answered by `Refused` alone.

`LEAVES` says what leaves a site, part by part. **The length of an answer depends on the request and on what is public**,
never on the site's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from discreet.errors import LocalProtocolError
from discreet.federation.fields import Bytes, Exactly, Many, Number, Of, Record, Text, Truth, Whole
from discreet.federation.refusal import CAUSES, Cause
from discreet.wire import (
    HELLO,
    KEY_BYTES,
    MOST_ROUNDS,
    MOST_SITES,
    REFUSED,
    SIGNATURE_BYTES,
    WELCOME,
    Part,
)

LONGEST_EXPERIMENT = 1 << 20
MOST_FEATURES = 1 << 24

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


class Answered(Record):
    """A part of a reply.

    Class attributes:
        leaves: what it takes out of the site, in words.
    """

    kind: ClassVar[int]
    leaves: ClassVar[str]

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
        vouched: signature of that key by the identity; see `vouching`.
    """

    written: ClassVar = {
        "identity": Exactly(KEY_BYTES),
        "share_key": Exactly(KEY_BYTES),
        "vouched": Exactly(SIGNATURE_BYTES),
    }
    identity: bytes
    share_key: bytes
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
        "sizes": Many(Whole(8, 2**40), MOST_SITES),
        "columns": Many(Of(Features), MOST_SITES),
        "members": Many(Of(Member), MOST_SITES),
    }
    sizes: tuple[int, ...]
    columns: tuple[Features, ...]
    members: tuple[Member, ...]


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
        stage: its place in `STAGES`.
        round: that the sum is for, which may be the one after the message's.
        serial: of the sum; no two sums of a session have the same.
        cohort: who is asked to take part.
        nonce: of the graph.
        message: the server's, to this stage; empty for the first.
    """

    kind: ClassVar[int] = 5
    written: ClassVar = {
        "stage": Whole(1, 3),
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
    """

    kind: ClassVar[int] = 6
    written: ClassVar = {"phase": Whole(1), "senders": _SITES, "sealed": Many(Bytes(), MOST_SITES)}
    phase: int
    senders: tuple[int, ...]
    sealed: tuple[bytes, ...] = field(repr=False)


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


@dataclass(frozen=True)
class Welcome(Answered):
    """A site introduces itself.

    Attributes:
        identity: its public key.
        number: its number.
        examples: how many training examples it holds.
        features: which input features it holds; empty for all.
        share_key, vouched: see `Member`.
        allows: what its owner allows, in a line.
    """

    kind: ClassVar[int] = WELCOME
    leaves: ClassVar[str] = (
        "the site's number, public keys, how many training examples it holds, which input features, and a line on what "
        "its owner allows"
    )
    written: ClassVar = {
        "identity": Exactly(KEY_BYTES),
        "number": _SITE,
        "examples": Whole(8, 2**40),
        "features": Many(Whole(4), MOST_FEATURES),
        "share_key": Exactly(KEY_BYTES),
        "vouched": Exactly(SIGNATURE_BYTES),
        "allows": Text(200),
    }
    identity: bytes
    number: int
    examples: int
    features: tuple[int, ...]
    share_key: bytes
    vouched: bytes
    allows: str

    @property
    def member(self) -> Member:
        """What the others are told of it."""
        return Member(self.identity, self.share_key, self.vouched)


@dataclass(frozen=True)
class Ready(Answered):
    """The site is ready to play rounds."""

    kind: ClassVar[int] = 20
    leaves: ClassVar[str] = "that the site is ready"
    written: ClassVar = {}


@dataclass(frozen=True)
class Contributed(Answered):
    """A contribution in the clear.

    Attributes:
        counts: whether it is one: a site with no examples, or whose result is not finite, sends zeros that are not
            added.
        body: the group elements.
    """

    kind: ClassVar[int] = 21
    leaves: ClassVar[str] = "the contribution itself, and whether it counts"
    written: ClassVar = {"counts": Truth(), "body": Bytes()}
    counts: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Masked(Answered):
    """A message of a masked sum.

    Attributes:
        message: public keys, sealed shares, the masked contribution, or shares to unmask the sum, as the stage has it.
    """

    kind: ClassVar[int] = 22
    leaves: ClassVar[str] = (
        "public keys; shares of keys, sealed for other sites; the contribution under masks; shares that unmask the sum"
    )
    written: ClassVar = {"message": Bytes()}
    message: bytes = field(repr=False)


@dataclass(frozen=True)
class Shared(Answered):
    """A contribution in additive shares.

    Attributes:
        sealed: for each holder a share that only it can read, in the order of the request.
    """

    kind: ClassVar[int] = 23
    leaves: ClassVar[str] = "additive shares of the contribution, each sealed for the site that holds it"
    written: ClassVar = {"sealed": Many(Bytes(), MOST_SITES)}
    sealed: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class PartialSum(Answered):
    """The sum of the shares that a site holds.

    Attributes:
        body: the group elements; of sums within rows nothing, as the server is not to see them.
        sealed: of sums within rows that of its row for each sender, which only it can read, in the order of the request.
    """

    kind: ClassVar[int] = 24
    leaves: ClassVar[str] = (
        "sums of other sites' shares; of sums within rows, sealed for the sites of the row"
    )
    written: ClassVar = {"body": Bytes(), "sealed": Many(Bytes(), MOST_SITES)}
    body: bytes = field(repr=False)
    sealed: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Evaluated(Answered):
    """How good the site's own model is.

    Attributes:
        accuracy, loss: on its test examples; None where there is none.
        examples: how many those are.
    """

    kind: ClassVar[int] = 25
    leaves: ClassVar[str] = (
        "accuracy and loss of the site's own model on its test examples, and how many those are"
    )
    written: ClassVar = {"accuracy": Number(), "loss": Number(), "examples": Whole(8)}
    accuracy: float | None
    loss: float | None
    examples: int


@dataclass(frozen=True)
class Done(Answered):
    """The site has kept its model."""

    kind: ClassVar[int] = 26
    leaves: ClassVar[str] = "that the site has kept its model"
    written: ClassVar = {}


@dataclass(frozen=True)
class Refused(Answered):
    """The site will not.

    Attributes:
        identity: the site's public key, as it may refuse before it is known.
        number: of the cause in `CAUSES`.
    """

    kind: ClassVar[int] = REFUSED
    leaves: ClassVar[str] = "that the site refuses, which of a few causes it has, and its public key"
    written: ClassVar = {"identity": Exactly(KEY_BYTES), "number": Whole(1, len(CAUSES) - 1)}
    identity: bytes
    number: int

    @classmethod
    def because(cls, identity: bytes, cause: Cause) -> Refused:
        """The refusal for a cause."""
        return cls(identity, CAUSES.index(cause))

    @property
    def cause(self) -> Cause:
        """Why."""
        return CAUSES[self.number]


@dataclass(frozen=True)
class Told(Answered):
    """In a rehearsal, what a simulation shows to whoever runs it.

    Attributes:
        loss: mean training loss.
        withheld: whether only noise was sent, as there was no update.
        saturated: numbers that were cut to fit into fixed point.
    """

    kind: ClassVar[int] = 28
    leaves: ClassVar[str] = (
        "in a rehearsal alone: the training loss, whether there was an update, and how many numbers were cut"
    )
    written: ClassVar = {"loss": Number(), "withheld": Truth(), "saturated": Whole(8, 2**62)}
    loss: float | None
    withheld: bool
    saturated: int


ASKED: Mapping[int, type[Asked]] = {
    one.kind: one for one in (Hello, Begin, Work, Masking, Holding, Evaluate, End)
}
ANSWERED: Mapping[int, type[Answered]] = {
    one.kind: one
    for one in (
        Welcome,
        Ready,
        Contributed,
        Masked,
        Shared,
        PartialSum,
        Evaluated,
        Done,
        Refused,
        Told,
    )
}
LEAVES: Mapping[str, str] = {one.__name__: one.leaves for one in ANSWERED.values()}
"""What leaves a site, by the part that it leaves in. Nothing else does."""


def asked(part: Part) -> Asked:
    """What a part of a request asks.

    Raises:
        LocalProtocolError: nothing that there is.
    """
    if part.kind not in ASKED:
        raise LocalProtocolError(f"parts: nothing is asked by the kind {part.kind}")
    return ASKED[part.kind].from_bytes(part.body)


def answered(part: Part) -> Answered:
    """What a part of a reply answers.

    Raises:
        LocalProtocolError: nothing that there is.
    """
    if part.kind not in ANSWERED:
        raise LocalProtocolError(f"parts: nothing is answered by the kind {part.kind}")
    return ANSWERED[part.kind].from_bytes(part.body)


def vouching(run: bytes, number: int, share_key: bytes) -> bytes:
    """What a site signs to say that a share key is its own."""
    return b"discreet share key 1" + run + number.to_bytes(4, "little") + share_key
