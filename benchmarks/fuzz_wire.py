"""Random and mutated messages against everything that reads what a peer has sent: only RemoteProtocolError may come out.

python benchmarks/fuzz_wire.py [--messages 10000000] [--seed 0] [--processes 2]

Half of the messages keep a wrong signature, or none; the other half is signed again by the right key, so that what lies
behind the signature is reached too. What is found stops the run, and is printed so that it can be repeated.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.federation import parts
from discreet.federation.identity import Identity
from discreet.wire import SIGNATURE_BYTES, Envelope, Kind, Part

RUN = bytes(range(16))
SITE = 2
SERVER_IDENTITY, SITE_IDENTITY = (Identity.from_secret(bytes([one]) * 32) for one in (1, 2))

NUMBERS = (
    0,
    1,
    2,
    16,
    17,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)
"""Where lengths and counts go wrong."""

LONGEST = 1 << 16
"""Bytes of a mutated message."""


@dataclass(frozen=True)
class Target:
    """Something that reads messages.

    Attributes:
        name: for the table.
        valid: messages that it takes, to be mutated.
        read: reads one; it may raise RemoteProtocolError, and nothing else.
        sign: signs what a message begins with; None if it has no signature.
        share: how much of all messages go to it, relative to the others.
    """

    name: str
    valid: Sequence[bytes]
    read: Callable[[bytes], object]
    sign: Callable[[bytes], bytes] | None
    share: float


class Found(Exception):
    """A message that did what it must not.

    Attributes:
        target: what read it.
        message: in hexadecimal.
    """

    def __init__(self, target: str, message: str, cause: str) -> None:
        self.target, self.message = target, message
        super().__init__(f"{target}: {cause} from the message {message}")


def mutated(message: bytes, others: Sequence[bytes], source: random.Random) -> bytes:
    """A message with one to four changes of any kind, or a random one."""
    if source.random() < 0.05:
        return source.randbytes(source.randrange(300))
    changed = bytearray(message)
    for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
        _change(changed, others, source)
    return bytes(changed[:LONGEST])


def _change(changed: bytearray, others: Sequence[bytes], source: random.Random) -> None:
    size = len(changed)
    place = source.randrange(size) if size else 0
    match source.randrange(9):
        case 0 if size:
            changed[place] ^= 1 << source.randrange(8)
        case 1 if size:
            changed[place] = source.randrange(256)
        case 2:
            del changed[place:]
        case 3:
            changed += source.randbytes(source.randrange(1, 40))
        case 4:
            del changed[place : place + source.randrange(1, 40)]
        case 5:
            changed[place:place] = changed[place : place + source.randrange(1, 80)]
        case 6:
            width = source.choice((1, 2, 4, 8))
            number = source.choice(NUMBERS) & (256**width - 1)
            changed[place : place + width] = number.to_bytes(width, "little")
        case 7:
            other = source.choice(others)
            start = source.randrange(len(other)) if other else 0
            changed[place : place + 60] = other[start : start + source.randrange(1, 60)]
        case _:
            changed[place:place] = source.randbytes(source.randrange(1, 20))


def tried(target: Target, count: int, seed: int) -> Counter[str]:
    """Have a target read so many messages.

    Args:
        target: what reads them.
        count: of messages.
        seed: decides all of them.

    Returns:
        How often each field was at fault; ``taken``: how many messages were none.

    Raises:
        Found: something else than RemoteProtocolError came out.
    """
    source = random.Random(f"{target.name} {seed}")
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        message = mutated(source.choice(target.valid), target.valid, source)
        if target.sign is not None and source.random() < 0.5:
            message = resigned(message, target.sign, source)
        try:
            target.read(message)
            outcomes["taken"] += 1
        except RemoteProtocolError as error:
            outcomes[error.field.partition(":")[0]] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Found(target.name, message.hex(), f"{type(error).__name__}: {error}") from error
    return outcomes


def resigned(message: bytes, sign: Callable[[bytes], bytes], source: random.Random) -> bytes:
    """The message with a right signature, and mostly with the length in its header that it has."""
    data = bytearray(message[:-SIGNATURE_BYTES])
    if len(data) >= 54 and source.random() < 0.9:
        struct.pack_into("<Q", data, 46, len(data) - 54)
    return bytes(data) + sign(bytes(data))


def envelopes() -> list[Target]:
    """The envelope, both ways, and the parts in it."""
    requests = [envelope(Kind.REQUEST, made).to_bytes(SERVER_IDENTITY.sign) for made in asked()]
    replies = [envelope(Kind.REPLY, made).to_bytes(SITE_IDENTITY.sign) for made in answered()]

    def request(data: bytes, key: bytes | None = SERVER_IDENTITY.public) -> None:
        for part in Envelope.from_bytes(data, kind=Kind.REQUEST, site=SITE, key=key, peer="server").parts:
            _read_part(parts.asked, part)

    def reply(data: bytes, key: bytes | None = SITE_IDENTITY.public) -> None:
        for part in Envelope.from_bytes(data, kind=Kind.REPLY, site=SITE, key=key, peer="site 2").parts:
            _read_part(parts.answered, part)

    return [
        Target("request", requests, request, SERVER_IDENTITY.sign, 3),
        Target("request, key unknown", requests, lambda data: request(data, None), SERVER_IDENTITY.sign, 1),
        Target("reply", replies, reply, SITE_IDENTITY.sign, 3),
        Target("reply, key unknown", replies, lambda data: reply(data, None), SITE_IDENTITY.sign, 1),
    ]


def _read_part(read: Callable[[Part], object], part: Part) -> None:
    # what a part's reader raises is the peer's fault: whoever calls it says so, as here
    try:
        read(part)
    except LocalProtocolError as error:
        raise RemoteProtocolError("peer", 0, str(error)) from error


def envelope(kind: Kind, made: Sequence[parts.Asked] | Sequence[parts.Answered]) -> Envelope:
    """A message with these parts."""
    return Envelope(kind, RUN, 1, 7, 3, 1, SITE, tuple(one.part for one in made))


def asked() -> list[list[parts.Asked]]:
    """Requests with every kind of part."""
    key, signature = bytes(32), bytes(64)
    members = tuple(parts.Member(key, key, signature) for _ in range(3))
    work = parts.Work(0, 3, parts.MASKED, b"payload", (b"total",), 4, b"delivered", (0, 1, 2))
    return [
        [parts.Hello(SERVER_IDENTITY.public, True, 3, 'rounds = 3\n[data]\nname = "digits"\n')],
        [parts.Begin((5, 6, 7), (parts.Features((0, 1)),), members)],
        [work, parts.Masking(0, 4, 5, (0, 1, 2), bytes(32), b"")],
        [parts.Masking(2, 3, 4, (0, 1, 2), bytes(32), b"message"), parts.Evaluate(b"payload")],
        [parts.Holding(1, (0, 1), (b"one", b"two"))],
        [parts.End(b"payload")],
    ]


def answered() -> list[list[parts.Answered]]:
    """Replies with every kind of part."""
    key, signature = bytes(32), bytes(64)
    return [
        [parts.Welcome(SITE_IDENTITY.public, SITE, 40, (0, 1), key, signature, "all")],
        [parts.Ready(), parts.Told(0.5, False, 3)],
        [parts.Contributed(True, bytes(40)), parts.Evaluated(0.5, None, 9)],
        [parts.Masked(bytes(60)), parts.Masked(b"")],
        [parts.Shared((bytes(20), bytes(20)))],
        [parts.PartialSum(bytes(30), (b"", b"sealed")), parts.Done()],
        [parts.Refused.because("budget")],
    ]


def targets() -> list[Target]:
    """All that is tried."""
    return envelopes()


def _slice(work: tuple[int, int, int]) -> Counter[str]:
    place, count, seed = work
    return tried(targets()[place], count, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    shares = [target.share for target in targets()]
    with ProcessPoolExecutor(options.processes) as pool:
        for place, target in enumerate(targets()):
            count = round(options.messages * target.share / sum(shares))
            start = time.perf_counter()
            pieces = [(place, count // 16 + (one < count % 16), 16 * options.seed + one) for one in range(16)]
            outcomes = sum(pool.map(_slice, pieces), Counter())
            rate = count / (time.perf_counter() - start)
            worst = ", ".join(f"{field} {times:,}" for field, times in outcomes.most_common(6))
            print(f"{target.name}: {count:,} messages, {rate:,.0f} a second; {worst}", flush=True)


if __name__ == "__main__":
    main()
