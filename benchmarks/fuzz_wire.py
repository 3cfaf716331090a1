"""Random and mutated messages against everything that reads what a peer has sent: only RemoteProtocolError may come out.

python benchmarks/fuzz_wire.py [--messages 10000000] [--seed 0] [--processes 2]

Against the envelope and its parts, against a site's `step` in every state that it was in during short runs (sums in the
clear, under masks, the same with a site that falls silent, by additive shares), and against the server's reading of every reply of those runs.

Half of the messages keep a wrong signature, or none; the other half is signed again by the right key, most of it with
right lengths too, so that what lies behind the signature is reached. What is found stops the run, and is printed so that it can be repeated.
"""

from __future__ import annotations

import argparse
import copy
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from multiprocessing import get_context
from types import FunctionType, MethodType
from typing import Any
from unittest import mock

from discreet.config import Experiment, from_table, parse
from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.federation import parts, standing
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.link import Failure, MemoryLink
from discreet.federation.roster import Member, Roster
from discreet.federation.server import federate
from discreet.federation.site import Site
from discreet.federation.spending import Entry, Make, MemorySpending
from discreet.preparation import Federation
from discreet.privacy.releases import NOTHING
from discreet.schemes.base import Task
from discreet.wire import MOST_PARTS, SIGNATURE_BYTES, Envelope, Kind, Part

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
        sign: signs what a message begins with.
        share: how much of all messages go to it, relative to the others.
        choose: is told which of `valid` is about to be mutated.
        opened: the envelope of a valid message; None if they are no envelopes.
    """

    name: str
    valid: Sequence[bytes]
    read: Callable[[bytes], object]
    sign: Callable[[bytes], bytes]
    share: float
    choose: Callable[[bytes], None] = lambda message: None
    opened: Callable[[bytes], Envelope] | None = None


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
        valid = source.choice(target.valid)
        target.choose(valid)
        message = mutated(valid, target.valid, source)
        if target.opened is not None and source.random() < 0.3:
            message = rebuilt(target.opened(valid), target.valid, source, target.sign)
        elif source.random() < 0.3:
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


def rebuilt(
    envelope: Envelope, others: Sequence[bytes], source: random.Random, sign: Callable[[bytes], bytes]
) -> bytes:
    """The message with changes inside its parts, or to their order, or to its header; all lengths are right."""
    held = list(envelope.parts)
    place = source.randrange(len(held))
    match source.randrange(10):
        case 0:
            held.insert(place, source.choice(held))
        case 1 if len(held) > 1:
            del held[place]
        case 2:
            held[place] = Part(source.randrange(1, 30), held[place].body)
        case 3:
            source.shuffle(held)
        case 4:
            name = source.choice(("session", "sequence", "round", "attempt", "site"))
            changed = source.choice((0, 1, 2, 3, 2**16 - 1, 2**31, getattr(envelope, name) + 1))
            with suppress(LocalProtocolError):  # out of its range: the other mutations write such headers
                envelope = replace(envelope, **{name: changed})
        case _:
            held[place] = Part(held[place].kind, mutated(held[place].body, others, source))
    return replace(envelope, parts=tuple(held[:MOST_PARTS])).to_bytes(sign)


def opener(kind: Kind, key: Callable[[], bytes], site: Callable[[], int]) -> Callable[[bytes], Envelope]:
    """What reads valid messages of a kind."""

    @lru_cache(maxsize=256)
    def opened(message: bytes) -> Envelope:
        return Envelope.from_bytes(message, kind=kind, site=site(), key=key(), peer="a valid message")

    return opened


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
        Target(
            "request, key unknown", requests[:1], lambda data: request(data, None), SERVER_IDENTITY.sign, 1
        ),
        Target("reply", replies, reply, SITE_IDENTITY.sign, 3),
        Target("reply, key unknown", replies[:1], lambda data: reply(data, None), SITE_IDENTITY.sign, 1),
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
    members = tuple(parts.Member(key, key, 3, signature) for _ in range(3))
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
        [parts.Welcome(SITE_IDENTITY.public, SITE, 40, (0, 1), key, 3, signature, "all")],
        [parts.Ready(), parts.Told(0.5, False, 3)],
        [parts.Contributed(True, bytes(40)), parts.Evaluated(0.5, None, 9)],
        [parts.Masked(bytes(60)), parts.Masked(b"")],
        [parts.Shared((bytes(20), bytes(20)))],
        [parts.PartialSum(bytes(30), (b"", b"sealed")), parts.Done()],
        [parts.Refused.because(SITE_IDENTITY.public, "budget")],
    ]


@dataclass(frozen=True)
class Step:
    """A message of a run, and the state in which the site had it.

    Attributes:
        site: its number.
        state: as it was stored.
        message: the server's.
    """

    site: int
    state: bytes
    message: bytes


@dataclass(frozen=True, eq=False)
class Taking:
    """The server as it was when it had sites' replies in hand.

    Attributes:
        sites: its view of them.
        arguments: what its reader is given beside the reply, in two parts.
        reply: the one that came.
        shared: what a copy of it need not copy.
    """

    sites: standing.Sites
    arguments: tuple[tuple[Any, ...], tuple[Any, ...]]
    reply: bytes
    shared: Mapping[int, Any]

    def read(self, reply: bytes) -> None:
        """Have a copy of the server read a reply."""
        memo = dict(self.shared)
        sites, (before, after) = copy.deepcopy((self.sites, self.arguments), memo)
        sites._take(*before, reply, *after)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A short run between four sites.

    Attributes:
        steps: of the sites.
        takings: of the server.
    """

    steps: list[Step]
    takings: list[Taking]


RUNS = {
    "clear": 'secure = "none"\n[scheme]\nname = "fedavg"\nsteps = 2\n',
    "masked": 'secure = "masked"\n[privacy]\nnoise_multiplier = 1.0\n[scheme]\nname = "dp-signfed"\nsteps = 2\n',
    "masked, one gone": 'secure = "masked"\n[scheme]\nname = "cgd"\n',
    "additive": 'secure = "additive"\n[scheme]\nname = "cgd"\n',
}
SITES = 4
MASKING = 4
"""The exchange in which the first masked inputs are sent."""

COMMON = f'[data]\nname = "breast-cancer"\nclients = {SITES}\n[model]\nname = "linear"\n'


def members(pinned: Roster | None) -> list[Site]:
    """The sites; without a record of what they spend, which would grow with every message."""
    limits = Limits(allow_rehearsal=True, report_evaluation=True, largest_message=LONGEST)
    return [
        Site(number, identity, limits, Forgetful(), roster=pinned)
        for number, identity in enumerate(IDENTITIES)
    ]


class Forgetful(MemorySpending):
    """A ledger of which nothing is kept."""

    def write(self, make: Make) -> Entry:
        """See `MemorySpending.write`."""
        return make((), NOTHING)


IDENTITIES = [Identity.from_secret(bytes([10 + one]) * 32) for one in range(SITES)]
ROSTER = Roster(
    SERVER_IDENTITY.public,
    tuple(Member(number, f"site-{number}", one.public) for number, one in enumerate(IDENTITIES)),
)


@cache
def recorded(name: str) -> Recorded:
    """Play one of `RUNS`, and write down every message and every reading of a reply."""
    experiment = from_table(parse("rounds = 2\n" + RUNS[name] + COMMON, name))
    states = [b""] * SITES
    made = Recorded([], [])
    here = members(ROSTER)

    def answer(number: int, message: bytes) -> bytes:
        made.steps.append(Step(number, states[number], message))
        states[number], reply = here[number].step(states[number], message)
        return reply

    def silent(number: int, message: bytes, answer: Callable[[bytes], bytes]) -> bytes | Failure:
        gone = name.endswith("one gone") and number == SITES - 1 and link.exchanges == MASKING
        return Failure("timeout") if gone else answer(message)

    real = standing.Sites._take

    def watched(sites: standing.Sites, *given: Any) -> None:
        *before, reply, stage, keeps = given
        heavy = [sites.link, sites.identity, sites.roster, SERVER_IDENTITY, *_heavy(given)]
        memo = {id(one): one for one in heavy}
        kept = copy.deepcopy((sites, (tuple(before), (stage, keeps))), dict(memo))
        made.takings.append(Taking(*kept, reply, memo))
        real(sites, *given)

    with mock.patch.object(standing.Sites, "_take", watched):
        link = MemoryLink({number: partial(answer, number) for number in range(SITES)}, silent)
        federate(experiment, link, identity=SERVER_IDENTITY, roster=ROSTER, rehearse=True)
    return made


def _heavy(given: Sequence[Any]) -> list[Any]:
    """The federations that the takers of replies know of: no reply changes them."""
    found: list[Any] = []
    waiting, seen = list(given), set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Federation | Experiment | Task):
            found.append(one)
        elif isinstance(one, partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif isinstance(one, FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif hasattr(one, "__dict__") and type(one).__module__.startswith("discreet."):
            waiting += vars(one).values()
    return found


def sites(name: str) -> Target:
    """A site's step, in every state of a run; messages are mutated with those of its other states at hand."""
    steps = recorded(name).steps
    here = members(ROSTER)
    by_message = {step.message: step for step in steps}
    current = [steps[0]]

    def choose(message: bytes) -> None:
        current[0] = by_message[message]

    def read(message: bytes) -> None:
        step = current[0]
        _, reply = here[step.site].step(step.state, message)
        Envelope.from_bytes(
            reply, kind=Kind.REPLY, site=step.site, key=IDENTITIES[step.site].public, peer="the site itself"
        )

    opened = opener(Kind.REQUEST, lambda: SERVER_IDENTITY.public, lambda: current[0].site)
    return Target(f"a site, {name}", list(by_message), read, SERVER_IDENTITY.sign, 0.5, choose, opened)


def server(name: str) -> Target:
    """The server's reading of a reply, at every point of a run."""
    takings = {taking.reply: taking for taking in recorded(name).takings}
    current = [next(iter(takings.values()))]

    def choose(reply: bytes) -> None:
        current[0] = takings[reply]

    def site() -> int:
        return int(current[0].arguments[0][0])

    opened = opener(Kind.REPLY, lambda: IDENTITIES[site()].public, site)
    return Target(
        f"the server, {name}",
        list(takings),
        lambda reply: current[0].read(reply),
        lambda message: IDENTITIES[site()].sign(message),
        0.1,
        choose,
        opened,
    )


def targets() -> list[Target]:
    """All that is tried."""
    return [*envelopes(), *(made(name) for name in RUNS for made in (sites, server))]


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
    # not forked: torch's threads, which this process has by now, would not be in a copy of it, which then waits for them
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
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
