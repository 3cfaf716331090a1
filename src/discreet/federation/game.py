"""One attempt at a round: what all ways of summing need to have sites take part in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import RemoteProtocolError, RoundAborted
from discreet.federation.masked import Sums
from discreet.federation.parts import ADDITIVE, Told, Work
from discreet.federation.party import as_bytes, written
from discreet.federation.spending import Entry
from discreet.federation.standing import Plan
from discreet.federation.table import Table
from discreet.federation.terms import how_summed
from discreet.progress import Progress
from discreet.rounds import Ask
from discreet.schemes.base import Contribution
from discreet.schemes.traits import Narrowed, releases_a_round
from discreet.sums import Received
from discreet.tally import Tally


@dataclass(eq=False)
class Game:
    """One attempt at a round.

    Attributes:
        table: where it is played.
        progress: before it.
        number: of the round.
        attempt: counted from 0.
        drawn: how many were drawn for the round.
        cohort: who of them takes part.
        ahead: the masked sums, where their keys are shared already.
        tally: what is counted.
        arrived: whose contributions are in a sum.
        sealed: of a sum within rows, what each site is sent of its total.
    """

    table: Table
    progress: Progress
    number: int
    attempt: int
    drawn: int
    cohort: NDArray[np.int64]
    ahead: Sums | None
    tally: Tally = field(default_factory=Tally)
    arrived: set[int] = field(default_factory=set)
    sealed: dict[int, bytes] = field(default_factory=dict)

    def release(self) -> None:
        """Write down what is about to be released; it is safe when this returns."""
        scheme, task, sites = self.table.federation.scheme, self.table.federation.task, self.table.sites
        if task.promise is None:
            return
        released, count = scheme.release(task), releases_a_round(scheme, task)
        entry = Entry(sites.run, sites.session, self.number, self.attempt, released, count)
        self.table.spending.append(entry)

    def ask(self, plan: Plan, seconds: float, stage: str) -> None:
        """Have an exchange about this attempt."""
        self.table.sites.ask(plan, seconds, stage, self.number, self.attempt)

    def work(self, ask: Ask, site: int, how: int, drawn: int, **more: Any) -> Work:
        """What a site is asked to contribute."""
        federation = self.table.federation
        payload = ask.payload
        if isinstance(federation.scheme, Narrowed):
            payload = federation.scheme.sent_to(federation.task, payload, site)
        body = b"" if ask.received else written(payload)
        received = tuple(self._own_part(ask, number, site) for number in range(len(ask.received)))
        return Work(len(ask.received), drawn, how, body, received, **more)

    def _own_part(self, ask: Ask, number: int, site: int) -> bytes:
        """A site's own part of an earlier total of the round."""
        federation = self.table.federation
        phase = federation.scheme.phases(federation.task)[number]
        if phase.scope == "row" and how_summed(federation.experiment, phase) == ADDITIVE:
            return self.sealed[site]
        values = ask.received[number].values
        if phase.scope == "all":
            return as_bytes(values)
        partition = federation.partition
        return as_bytes(values[(partition.row_of if phase.scope == "row" else partition.column_of)(site)])

    def check_whole(self, came: Mapping[int, Any]) -> None:
        """In a round of several phases, all must be in all of them.

        Raises:
            RoundAborted: somebody is not.
        """
        federation = self.table.federation
        if len(federation.scheme.phases(federation.task)) > 1 and len(came) < len(self.cohort):
            raise RoundAborted(came, len(self.cohort), "a round of several phases")

    def received(self, site: int, counts: bool, told: Told | None, elements: Tensor) -> Received:
        """What came from a site, as a simulation would have it.

        Args:
            site: its number.
            counts: whether it is a contribution.
            told: in a rehearsal, what a simulation sees of it.
            elements: of the group, a row if it counts, else none.
        """
        cohort = self.table.federation.cohort(np.array([site]), self.number, {}, len(self.cohort))
        loss = np.nan if told is None or told.loss is None else told.loss
        given = Contribution(
            elements[:0],
            torch.tensor([counts]),
            torch.tensor([loss], dtype=torch.float64),
            withheld=None if told is None else torch.tensor([told.withheld]),
            saturated=None if told is None else torch.tensor([told.saturated]),
        )
        return Received(cohort, given, elements, 0)

    def count(self, sites: Iterable[int], told: Mapping[int, Told | None]) -> None:
        """Count sites that are in a secure sum."""
        for site in sites:
            one = self.received(site, True, told.get(site), torch.empty(0, 0))
            self.tally.count(one.cohort, one.given, 0)
            self.arrived.add(site)

    def broken(self, site: int, field: str) -> RemoteProtocolError:
        """What to raise where a site's answer cannot be taken."""
        return RemoteProtocolError(self.table.sites.name(site), self.number, field)
