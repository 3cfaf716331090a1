"""How the server reaches sites: a request to each, and what comes back of it, in time or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from discreet.errors import DiscreetError

Cause = Literal["timeout", "unreachable", "crashed", "refused", "malformed"]

Answer = Callable[[bytes], bytes]
"""A site as the link sees it: the reply to a message."""

Heard = Callable[[int], None]
"""Is told the number of a site whose reply has come."""


def nobody(site: int) -> None:
    """Does not listen."""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer of a site.

    Attributes:
        cause: ``timeout``: none came in time; ``unreachable``: the site could not be asked; ``crashed``: it ended, or
            raised; ``refused``: it said no; ``malformed``: what came breaks the protocol.
        detail: more about it, for the log.
    """

    cause: Cause
    detail: str = ""


class Link(Protocol):
    """What carries messages between the server and sites, which have the numbers 0 to N - 1."""

    def exchange(
        self, messages: Mapping[int, bytes], seconds: float, heard: Heard = nobody
    ) -> Mapping[int, bytes | Failure]:
        """Ask some sites, and wait until all have answered or the time is over.

        Args:
            messages: a request for each site that is asked, by its number.
            seconds: how long to wait.
            heard: is told of each site whose reply comes, as soon as it is there.

        Returns:
            For each of them its reply, or why there is none, in rising order of the numbers.
        """
        ...

    def present(self) -> frozenset[int]:
        """The sites that can be reached now."""
        ...

    def doubt(self, site: int) -> None:
        """Hear that what came of a site was not its own: whoever else says that he is it may be."""
        ...

    def close(self) -> None:
        """End the link; there is no other call after this one."""
        ...


class Fault(Protocol):
    """What goes wrong between the server and a site; also what does not, as it stands around every call."""

    def __call__(self, site: int, message: bytes, answer: Answer) -> bytes | Failure:
        """What the server gets of a message to a site.

        Args:
            site: its number.
            message: what the server has sent.
            answer: calls the site: with this message, another, several times, or not at all.
        """
        ...


def no_fault(site: int, message: bytes, answer: Answer) -> bytes | Failure:
    """A link on which nothing goes wrong."""
    return answer(message)


class MemoryLink:
    """A link to sites in this process, on which faults can be tried out.

    Args:
        sites: for each site what answers its messages.
        fault: what goes wrong.
    """

    def __init__(self, sites: Mapping[int, Answer], fault: Fault = no_fault) -> None:
        self.sites, self.fault = dict(sites), fault
        self.absent: set[int] = set()
        self.exchanges = 0

    def exchange(
        self, messages: Mapping[int, bytes], seconds: float, heard: Heard = nobody
    ) -> Mapping[int, bytes | Failure]:
        """See `Link`; a site that raises one of our errors has crashed, and any other is a failure of the test."""
        self.exchanges += 1
        found: dict[int, bytes | Failure] = {}
        for site in sorted(messages):
            found[site] = reply = self._asked(site, messages[site])
            if not isinstance(reply, Failure):
                heard(site)
        return found

    def present(self) -> frozenset[int]:
        """All sites but those in `absent`."""
        return frozenset(self.sites) - self.absent

    def doubt(self, site: int) -> None:
        """Nobody else says that he is a site."""

    def close(self) -> None:
        """Nothing is left to end."""

    def _asked(self, site: int, message: bytes) -> bytes | Failure:
        if site not in self.present():
            return Failure("unreachable")
        try:
            return self.fault(site, message, self.sites[site])
        except DiscreetError:
            return Failure("crashed")
