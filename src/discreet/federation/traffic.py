"""What passed between the server and its sites, and what did not, as it stands in the metrics and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from discreet.federation.link import Failure


@dataclass(frozen=True)
class Traffic:
    """What passed between the server and one site.

    Attributes:
        seconds: until its reply was there; None if none came.
        up, down: bytes from the site, and to it.
    """

    seconds: float | None
    up: int
    down: int


@dataclass(frozen=True)
class Passed:
    """What one exchange took.

    Attributes:
        stage: what was asked.
        attempt: of the round, from 0.
        seconds: until all had answered, or the time was over.
        sites: those that were asked, by their numbers.
    """

    stage: str
    attempt: int
    seconds: float
    sites: Mapping[int, Traffic]

    @property
    def up(self) -> int:
        """Bytes from the sites."""
        return sum(one.up for one in self.sites.values())

    @property
    def down(self) -> int:
        """Bytes to the sites."""
        return sum(one.down for one in self.sites.values())

    def to_facts(self) -> dict[str, Any]:
        """As it stands in the metrics."""
        return {"stage": self.stage, "attempt": self.attempt, **in_all([self])}


@dataclass(frozen=True)
class Missed:
    """That a site did not answer as it should.

    Attributes:
        site: its number.
        stage: what it was asked.
        attempt: of the round, from 0.
        failure: why.
    """

    site: int
    stage: str
    attempt: int
    failure: Failure

    def to_facts(self) -> dict[str, Any]:
        """As it stands in the metrics."""
        return {
            "site": self.site,
            "stage": self.stage,
            "attempt": self.attempt,
            "cause": self.failure.cause,
            "detail": self.failure.detail,
        }


def in_all(passed: Iterable[Passed]) -> dict[str, Any]:
    """What some exchanges took together.

    Returns:
        ``seconds``, ``up``, ``down``, and ``sites``: the same of each site that was asked, by its number. Its seconds are
        those until its replies were there, and None if there was none.
    """
    exchanges = list(passed)
    sites: dict[int, Traffic] = {}
    for exchange in exchanges:
        for site, one in exchange.sites.items():
            before = sites.get(site, Traffic(None, 0, 0))
            seconds = (
                before.seconds if one.seconds is None else round((before.seconds or 0.0) + one.seconds, 4)
            )
            sites[site] = Traffic(seconds, before.up + one.up, before.down + one.down)
    return {
        "seconds": round(sum(one.seconds for one in exchanges), 4),
        "up": sum(one.up for one in exchanges),
        "down": sum(one.down for one in exchanges),
        "sites": {str(site): vars(one).copy() for site, one in sorted(sites.items())},
    }
