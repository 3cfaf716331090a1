"""The envelope of every message between the server of a federation and a site.

| bytes | what |
|---|---|
| 54 | magic and version, kind, run, session, sequence, round, attempt, sender, receiver, length of the body |
| n | the body: how many parts there are, and of each its kind, its length and its bytes |
| 64 | Ed25519 signature of all that comes before it |

There is one encoding of each message. `Envelope.from_bytes` looks at sizes first, then at the header, the signature, the
receiver and the parts, and raises nothing but RemoteProtocolError; what it allocates is bounded by the message itself.
What the parts mean is in `discreet.federation.parts`.

A request comes with a (session, sequence) that is greater than all before it; a reply repeats those of its request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from discreet.errors import LocalProtocolError, RemoteProtocolError

SERVER = 2**32 - 1
"""The server's number, as sender and receiver."""

RUN_BYTES, KEY_BYTES, SIGNATURE_BYTES = 16, 32, 64

MOST_SITES = 65_536
MOST_PARTS = 16
MOST_ROUNDS = 2**31

LARGEST = 2**30
"""Bytes of a message, unless the receiver says otherwise."""

HELLO, WELCOME, REFUSED = 1, 2, 3
INTRODUCTIONS = (HELLO, WELCOME, REFUSED)
"""Kinds of parts that begin with the public key of who sends them, since nobody may know it yet."""

_HEADER = struct.Struct("<2sBB16sIQIHIIQ")
_MAGIC, _VERSION = b"df", 1
_PART = struct.Struct("<BQ")

OVERHEAD = _HEADER.size + 1 + SIGNATURE_BYTES
"""Bytes of a message beside its parts, each of which takes `PART_OVERHEAD` more than its own."""
PART_OVERHEAD = _PART.size

Sign = Callable[[bytes], bytes]


class Kind(IntEnum):
    """Which way a message goes."""

    REQUEST = 1
    """From the server to a site."""
    REPLY = 2


@dataclass(frozen=True)
class Part:
    """One thing that is asked or answered.

    Attributes:
        kind: 1 to 255.
        body: as the kind has it.
    """

    kind: int
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Envelope:
    """A message.

    Attributes:
        kind: which way it goes.
        run: names the run, 16 bytes.
        session: of the server's process on that run, from 1.
        sequence: of the request within the session, from 1.
        round: that the message is about; 0 before the first.
        attempt: of the round, from 0.
        site: who is asked, or who answers.
        parts: 1 to `MOST_PARTS`.

    Raises:
        LocalProtocolError: a field is out of its range.
    """

    kind: Kind
    run: bytes
    session: int
    sequence: int
    round: int
    attempt: int
    site: int
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("run", len(self.run), RUN_BYTES, RUN_BYTES),
            ("session", self.session, 1, 2**32 - 1),
            ("sequence", self.sequence, 1, 2**63),
            ("round", self.round, 0, MOST_ROUNDS),
            ("attempt", self.attempt, 0, 2**16 - 1),
            ("site", self.site, 0, MOST_SITES - 1),
            ("parts", len(self.parts), 1, MOST_PARTS),
        ):
            if not low <= value <= high:
                raise LocalProtocolError(f"{name}: {value} is not from {low} to {high}")

    def to_bytes(self, sign: Sign) -> bytes:
        """The message as it is sent, signed by its sender.

        Args:
            sign: gives the sender's Ed25519 signature of some bytes.
        """
        body = [bytes([len(self.parts)])]
        for part in self.parts:
            body += [_PART.pack(part.kind, len(part.body)), part.body]
        asked = self.kind is Kind.REQUEST
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            self.kind,
            self.run,
            self.session,
            self.sequence,
            self.round,
            self.attempt,
            SERVER if asked else self.site,
            self.site if asked else SERVER,
            sum(map(len, body)),
        )
        data = b"".join([header, *body])
        return data + sign(data)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        *,
        kind: Kind,
        site: int,
        key: bytes | None,
        peer: object,
        largest: int = LARGEST,
    ) -> Envelope:
        """The message in `data`.

        Args:
            data: what was received.
            kind: which way it must go.
            site: which site must be its receiver, or its sender.
            key: the sender's public key. None to take the one that its first part states, which must be one of
                `INTRODUCTIONS`: the signature then says that the sender has that key, and nothing of who that is.
            peer: who sent it, as the transport says; named in the error.
            largest: bytes that a message may have.

        Raises:
            RemoteProtocolError: it is no such message.
        """
        round = 0

        def check(holds: bool, what: str) -> None:
            if not holds:
                raise RemoteProtocolError(peer, round, what)

        check(len(data) <= largest, f"length: more than {largest} bytes")
        check(len(data) > OVERHEAD, "length: too short for a message")
        magic, version, found, run, session, sequence, said, attempt, sender, receiver, length = (
            _HEADER.unpack_from(data)
        )
        check(magic == _MAGIC and version == _VERSION, "protocol: not a message of version 1")
        check(found == kind, f"kind: expected a {kind.name.lower()}")
        check(length == len(data) - _HEADER.size - SIGNATURE_BYTES, "length: not that of the header")
        check(said <= MOST_ROUNDS, "round: out of its range")
        round = said
        check(session >= 1, "session: out of its range")
        check(1 <= sequence <= 2**63, "sequence: out of its range")
        ends = (SERVER, site) if kind is Kind.REQUEST else (site, SERVER)
        check(sender == ends[0], "sender: not the one expected")
        parts = None
        if key is None:
            parts = _parts(data, check)
            check(parts[0].kind in INTRODUCTIONS, "parts: an introduction was expected")
            check(len(parts[0].body) >= KEY_BYTES, "parts: an introduction without a key")
            key = parts[0].body[:KEY_BYTES]
        signed = memoryview(data)[:-SIGNATURE_BYTES]
        check(verify(key, signed, data[-SIGNATURE_BYTES:]), "signature: not the sender's")
        check(receiver == ends[1], "receiver: another party")
        parts = _parts(data, check) if parts is None else parts
        return cls(kind, run, session, sequence, said, attempt, site, parts)


def verify(public: bytes, message: bytes | memoryview, signature: bytes) -> bool:
    """Whether the owner of an Ed25519 public key signed a message; False for whatever is no key or no signature."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _parts(data: bytes, check: Callable[[bool, str], None]) -> tuple[Part, ...]:
    """The parts of a message whose length is that of its header."""
    at, end = _HEADER.size + 1, len(data) - SIGNATURE_BYTES
    count = data[at - 1]
    check(1 <= count <= MOST_PARTS, "parts: too many, or none")
    # all lengths are looked at before anything is copied
    places: list[tuple[int, int, int]] = []
    for _ in range(count):
        check(end - at >= _PART.size, "parts: cut off")
        kind, length = _PART.unpack_from(data, at)
        at += _PART.size
        check(kind > 0, "parts: one without a kind")
        check(length <= end - at, "parts: longer than the message")
        places.append((kind, at, at + length))
        at += length
    check(at == end, "parts: something after the last")
    return tuple(Part(kind, data[start:stop]) for kind, start, stop in places)
