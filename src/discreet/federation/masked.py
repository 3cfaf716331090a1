"""The server's side of masked sums, two exchanges a round: keys for the next round travel with this one's messages.

X  work and masked inputs of this sum         + advertised keys of the next
   if somebody fell silent: signatures of who is left
Y  shares that unmask this sum                + shared keys of the next
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from discreet.errors import RoundAborted
from discreet.federation.parts import Masked, Masking, Told
from discreet.federation.standing import Plan
from discreet.secure.masking import MaskedTotal, MaskingServer, MaskingTerms, Stage


@dataclass(eq=False)
class MaskedSum:
    """One masked sum, from its first stage to its total.

    Attributes:
        serial: of the sum.
        terms: of the sum.
        server: collects, and adds up.
        minima: of how many sites a sum must be that a site is in, by its number.
        inbox: what the server answered each site to the last stage; those that go on.
        aborted: why it cannot go on; empty while it can.
    """

    serial: int
    terms: MaskingTerms
    server: MaskingServer
    minima: Mapping[int, int]
    inbox: Mapping[int, bytes] = field(default_factory=dict)
    aborted: str = ""

    @classmethod
    def of(
        cls, serial: int, terms: MaskingTerms, roster: Mapping[int, bytes], minima: Mapping[int, int]
    ) -> MaskedSum:
        """A sum that is about to begin."""
        return cls(serial, terms, MaskingServer(terms, roster), minima, dict.fromkeys(terms.cohort, b""))

    def add_stage(self, plan: Plan, stage: Stage) -> None:
        """If it is at this stage, not that of masked inputs, ask those who are still in it for their message."""
        if self.server.stage is not stage:
            return
        terms = self.terms
        for site, message in self.inbox.items():
            part = Masking(
                list(Stage).index(stage), terms.round, self.serial, terms.cohort, terms.nonce, message
            )
            plan.add(site, part, partial(self.take, site))

    def take(self, site: int, answer: Masked, told: Told | None) -> None:
        """Take a site's message of the present stage."""
        if not self.aborted:
            self.server.collect(site, answer.message)

    def close(self, stage: Stage) -> bool:
        """End the stage, if it is at this one; False if the sum cannot go on."""
        if self.aborted or self.server.stage is not stage:
            return not self.aborted
        try:
            self.inbox = self.server.close_stage()
            there = self.inbox if stage in (Stage.ADVERTISE, Stage.SHARE) else self.server.survivors
            require_minima(there, self.minima)
        except RoundAborted as error:
            self.inbox, self.aborted = {}, str(error)
        return not self.aborted

    def total(self) -> MaskedTotal | None:
        """The sum; None if it cannot be had."""
        if self.aborted:
            return None
        try:
            return self.server.total()
        except RoundAborted as error:
            self.aborted = str(error)
            return None


def require_minima(there: Iterable[int], minima: Mapping[int, int]) -> None:
    """Give up a sum that is over fewer sites than one in it asks for: none of them would help to read it.

    Args:
        there: the sites in it.
        minima: how many each site asks for.

    Raises:
        RoundAborted: it names the site that asks for most.
    """
    found = sorted(there)
    most = max(found, key=lambda site: minima.get(site, 0), default=None)
    if most is not None and len(found) < minima.get(most, 0):
        raise RoundAborted(found, minima[most], f"sites in a sum, for which site {most} asks")


@dataclass(eq=False)
class Sums:
    """The masked sums of one round: one, or one for each of its groups.

    Attributes:
        round: that they are for.
        cohort: who takes part, in rising order.
        agreed: what they are bound to, see `discreet.federation.terms.agreement`.
        sums: those that can be; a group that is too small to hide anybody has none.
    """

    round: int
    cohort: tuple[int, ...]
    agreed: bytes
    sums: Sequence[MaskedSum]

    def add_stage(self, plan: Plan, stage: Stage) -> None:
        """See `MaskedSum.add_stage`."""
        for one in self.sums:
            one.add_stage(plan, stage)

    def close(self, stage: Stage) -> bool:
        """End the stage for those that are at it; False if none of them can go on."""
        going_on = [one.close(stage) for one in self.sums]
        return any(going_on)

    def at(self, stage: Stage) -> bool:
        """Whether one of them is at this stage."""
        return any(one.server.stage is stage for one in self.sums if not one.aborted)

    @property
    def aborted(self) -> str:
        """Why those that cannot go on cannot."""
        return "; ".join(one.aborted for one in self.sums if one.aborted)
