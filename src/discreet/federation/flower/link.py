"""The server's link to sites, over Flower's Message API.

Flower knows nodes by numbers of its own. Which site is at a node, the node says itself; nobody vouches for that, and
the server checks the site's signature on everything that follows. A node keeps its site's number while it is online and
answers as the site: another one that claims the same waits, and the log says so. Once the first one does not answer, or
not with what the site has signed, the others have their turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from flwr.app import ConfigRecord, Message, RecordDict

from discreet.federation.flower.client import SAID, STEP, WHO, packed, unpacked
from discreet.federation.link import Cause, Failure, Heard, nobody

LOG = logging.getLogger(__name__)

CAUSES: Mapping[int, Cause] = {
    1: "crashed",  # the app could not be loaded
    2: "crashed",  # it raised
    3: "timeout",  # the message was not fetched in its time
    4: "timeout",
    5: "unreachable",  # the node has gone
    8: "crashed",  # the app's process has died
}
"""What Flower's error codes mean here; any other one counts as a crash."""

SAID_CAUSES: Mapping[object, Cause] = {
    "malformed": "malformed",
    "crashed": "crashed",
    "unreachable": "unreachable",
}
"""What a relay may say of why there is no answer."""

GRACE = 5.0
"""Seconds that a message outlives the server's patience, so that Flower does not end it a moment too early."""

ASK_AGAIN = 60.0
"""Seconds after which a node that has not said which site it has is asked again."""


class Grid(Protocol):
    """Of Flower's grid, what is used here."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are online."""
        ...

    def push_messages(self, messages: list[Message]) -> Iterable[str | None]:
        """Send messages; their numbers, in order, and none for one that was not taken."""
        ...

    def pull_messages(self, message_ids: list[str]) -> Iterable[Message]:
        """The replies that are there."""
        ...


class FlowerLink:
    """See `discreet.federation.link.Link`.

    Args:
        grid: Flower's.
        asking: seconds that a new node has to say which site it has.
        clock: seconds that never go back.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        asking: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._asking, self._clock, self._sleep = grid, asking, clock, sleep
        self._nodes: dict[int, int] = {}
        self._claims: dict[int, list[int]] = {}
        self._asked: dict[int, float] = {}

    def exchange(
        self, messages: Mapping[int, bytes], seconds: float, heard: Heard = nobody
    ) -> Mapping[int, bytes | Failure]:
        """See `Link`; when a reply has come is known to half a second, the longest pause between two looks."""
        nodes = {self._nodes[site]: site for site in messages if site in self._nodes}
        contents = {node: packed(messages[site]) for node, site in nodes.items()}
        replies = self._ask(STEP, contents, seconds, lambda node: heard(nodes[node]))
        results = {site: _read(replies[node]) for node, site in nodes.items()}
        for site, found in results.items():
            if isinstance(found, Failure):
                self.doubt(site)
        return {site: results.get(site, Failure("unreachable")) for site in sorted(messages)}

    def present(self) -> frozenset[int]:
        """The sites whose nodes are online; nodes that are new are asked which site they have."""
        online = set(self._grid.get_node_ids())
        self._nodes = {site: node for site, node in self._nodes.items() if node in online}
        self._claims = {
            site: [node for node in claims if node in online] for site, claims in self._claims.items()
        }
        for site, claims in self._claims.items():
            if claims and site not in self._nodes:
                self._nodes[site] = claims.pop(0)
        waiting = {node for claims in self._claims.values() for node in claims}
        self._meet(online - set(self._nodes.values()) - waiting)
        return frozenset(self._nodes)

    def doubt(self, site: int) -> None:
        """See `Link`: the next node that claims the number has it, and this one waits for its next turn."""
        if site in self._nodes and (claims := self._claims.get(site)):
            claims.append(self._nodes[site])
            self._nodes[site] = claims.pop(0)
            LOG.warning("node %d is taken for site %d now", self._nodes[site], site)

    def close(self) -> None:
        """Flower ends its grid by itself."""

    def _meet(self, strangers: set[int]) -> None:
        """Learn which sites are at new nodes."""
        now = self._clock()
        self._asked = {node: when for node, when in self._asked.items() if node in strangers}
        due = sorted(node for node in strangers if now - self._asked.get(node, -ASK_AGAIN) >= ASK_AGAIN)
        self._asked |= dict.fromkeys(due, now)
        if not due:
            return
        replies = self._ask(WHO, {node: RecordDict() for node in due}, self._asking)
        for node in due:
            site = _number(replies[node])
            if site is None:
                LOG.warning("node %d does not say which site it has", node)
            elif site in self._nodes:
                LOG.warning("node %d claims to be site %d, which another node is: it waits", node, site)
                self._claims.setdefault(site, []).append(node)
            else:
                self._nodes[site] = node

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict], seconds: float, heard: Heard = nobody
    ) -> dict[int, Message | Failure]:
        """The reply of each node, or why there is none."""
        if not contents:
            return {}
        end = self._clock() + seconds
        nodes = list(contents)
        sent = self._grid.push_messages(
            [Message(contents[node], node, kind, ttl=seconds + GRACE) for node in nodes]
        )
        waiting = {number: node for number, node in zip(sent, nodes, strict=False) if number}
        replies: dict[int, Message | Failure] = dict.fromkeys(nodes, Failure("timeout"))
        replies |= dict.fromkeys(
            set(nodes) - set(waiting.values()), Failure("unreachable", "not taken by Flower")
        )
        pause = 0.05
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    if not reply.has_error():
                        heard(node)
            left = end - self._clock()
            if not waiting or left <= 0:
                break
            self._sleep(min(pause, left))
            pause = min(0.5, pause * 1.3)
        return replies


def _read(reply: Message | Failure) -> bytes | Failure:
    """Our bytes in a reply, or why there are none. What it says in words is not passed on."""
    if isinstance(reply, Failure):
        return reply
    if reply.has_error():
        return Failure(CAUSES.get(reply.error.code, "crashed"), f"Flower's error {reply.error.code}")
    facts = _facts(reply)
    if facts is not None:
        return Failure(SAID_CAUSES.get(facts.get("cause"), "malformed"), "said by the node")
    return unpacked(reply.content) or Failure("malformed", "no bytes in it")


def _number(reply: Message | Failure) -> int | None:
    """The number of a site in a reply."""
    facts = None if isinstance(reply, Failure) or reply.has_error() else _facts(reply)
    number = None if facts is None else facts.get("number")
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


def _facts(reply: Message) -> ConfigRecord | None:
    record = reply.content.get(SAID)
    return record if isinstance(record, ConfigRecord) else None
