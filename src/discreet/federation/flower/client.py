"""Flower's ClientApp: a relay to the process that acts for the site.

Flower starts a process for every message and runs in it the app that the server's side shipped. What a hospital trusts
is therefore what it has installed itself, and runs beside Flower: the site's own process, which checks every message.
The relay hands bytes over, in both directions, and knows none of the site's keys.

Where the site's process does not run, the relay's process acts for the site: it loads torch, data and state for each
message, which takes seconds.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from discreet.federation import resident

WHO, STEP = "query.who", "query.step"
"""Types of Flower messages: which site is at a node; and one of ours, for the site."""

BODY, SAID = "body", "said"
"""Records of a Flower message: our bytes; and small facts."""

FEW = 1 << 18
"""Bytes that count as few."""


def client_app() -> ClientApp:
    """The app, as Flower takes it."""
    app = ClientApp()
    app.query("who")(who)
    app.query("step")(step)
    return app


def who(message: Message, context: Context) -> Message:
    """Say which site is at this node. Nobody vouches for the answer: what the site signs later does."""
    try:
        number = int(_ask(message, context, resident.WHO, b""))
    except resident.NoAnswer as error:
        return said(message, {"cause": error.cause})
    return said(message, {"number": number})


def step(message: Message, context: Context) -> Message:
    """Hand one message to the site and its answer back."""
    try:
        answer = _ask(message, context, resident.STEP, unpacked(message.content))
    except resident.NoAnswer as error:
        return said(message, {"cause": error.cause})
    return Message(packed(answer), reply_to=message)


def packed(body: bytes) -> RecordDict:
    """Bytes as Flower carries them best: few as a value of a record, which takes fewer requests; many as an array."""
    if len(body) <= FEW:
        return RecordDict({BODY: ConfigRecord({BODY: body})})
    array = Array(dtype="uint8", shape=(len(body),), stype="bytes", data=body)
    return RecordDict({BODY: ArrayRecord({BODY: array})})


def unpacked(content: RecordDict) -> bytes:
    """The bytes in a Flower message; none if it holds no such thing."""
    record = content.get(BODY)
    if isinstance(record, ConfigRecord):
        value = record.get(BODY)
        return value if isinstance(value, bytes) else b""
    if not isinstance(record, ArrayRecord) or BODY not in record:
        return b""
    return record[BODY].data


def said(message: Message, facts: dict[str, int | str]) -> Message:
    """A reply of small facts."""
    return Message(RecordDict({SAID: ConfigRecord({**facts})}), reply_to=message)


def _ask(message: Message, context: Context, kind: bytes, body: bytes) -> bytes:
    folder = context.node_config.get("site")
    if not isinstance(folder, str):
        raise resident.NoAnswer("unreachable")
    left = message.metadata.created_at + message.metadata.ttl - time.time()
    return resident.ask(Path(folder).expanduser(), kind, body, max(5.0, left), _opened)


def _opened(folder: Path) -> resident.Acting:
    from discreet.federation.acting import open_site

    return open_site(folder)
