"""What a site can answer, and what each answer takes out of it; `discreet.federation.parts` says to what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from discreet.federation.fields import Bytes, Exactly, Many, Number, Record, Text, Truth, Whole
from discreet.federation.refusal import CAUSES, Cause
from discreet.federation.requests import MOST_EXAMPLES, MOST_FEATURES, Member
from discreet.wire import KEY_BYTES, MOST_SITES, REFUSED, SIGNATURE_BYTES, WELCOME, Part


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
class Welcome(Answered):
    """A site introduces itself.

    Attributes:
        identity: its public key.
        number: its number.
        examples: how many training examples it holds; where the scheme does not go by that, 1 for any.
        features: which input features it holds; empty for all.
        share_key, minimum, vouched: see `Member`.
        allows: what its owner allows, in a line.
    """

    kind: ClassVar[int] = WELCOME
    leaves: ClassVar[str] = (
        "the site's number, public keys, how many training examples it holds, which input features, and a line on what "
        "its owner allows"
    )
    written: ClassVar = {
        "identity": Exactly(KEY_BYTES),
        "number": Whole(4, MOST_SITES - 1),
        "examples": Whole(8, MOST_EXAMPLES),
        "features": Many(Whole(4), MOST_FEATURES),
        "share_key": Exactly(KEY_BYTES),
        "minimum": Whole(4, MOST_SITES),
        "vouched": Exactly(SIGNATURE_BYTES),
        "allows": Text(200),
    }
    identity: bytes
    number: int
    examples: int
    features: tuple[int, ...]
    share_key: bytes
    minimum: int
    vouched: bytes
    allows: str

    @property
    def member(self) -> Member:
        """What the others are told of it."""
        return Member(self.identity, self.share_key, self.minimum, self.vouched)


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
