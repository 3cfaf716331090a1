"""A site's part in masked sums: one step of its client after another, kept in the site's state between messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from discreet.errors import ConfigError
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.parts import Answered, Masked, Masking, Member, Work
from discreet.federation.refusal import Refusal, check_request
from discreet.federation.state import RunState, SumState
from discreet.federation.terms import ALL_NEIGHBOURS, masking_terms
from discreet.preparation import Federation
from discreet.randomness import Seeded, SystemRandom
from discreet.secure.masking import MaskingClient, MaskingTerms, Stage
from discreet.wire import Envelope


@dataclass(frozen=True, eq=False)
class Masker:
    """A site's part in the masked sums of a run.

    Attributes:
        number: the site's.
        identity: signs its keys.
        limits: what its owner allows.
        secrets: where masks and keys come from.
        federation: the site's.
        members: all sites.
        agreed: what all sites have to know alike, see `discreet.federation.terms.agreement`.
    """

    number: int
    identity: Identity
    limits: Limits
    secrets: Seeded | SystemRandom
    federation: Federation
    members: tuple[Member, ...]
    agreed: bytes

    @cached_property
    def _roster(self) -> dict[int, bytes]:
        return {number: member.identity for number, member in enumerate(self.members)}

    @cached_property
    def _minima(self) -> dict[int, int]:
        return {number: member.minimum for number, member in enumerate(self.members)}

    def stage(self, run: RunState, envelope: Envelope, part: Masking) -> tuple[Answered, RunState]:
        """A stage of a masked sum, but for that of the masked inputs; the errors are those of `Seat.work`."""
        stage = tuple(Stage)[part.stage]
        check_request(stage is not Stage.MASK, "stage: masked inputs come with work")
        if stage is Stage.ADVERTISE:
            check_request(not part.message, "message: there is none to the first stage")
            check_request(
                part.round in (envelope.round, envelope.round + 1), "round: neither this one nor the next"
            )
            check_request(
                self.number in part.cohort and max(part.cohort) < len(self.members), "cohort: cannot be"
            )
            self.limits.check_cohort(len(part.cohort))
            fresh = SumState(part.serial, part.round, part.cohort, part.nonce, b"")
            client = MaskingClient.start(
                self._terms(envelope, fresh),
                self.number,
                self.secrets,
                identity=self.identity.private,
                roster=self._roster,
                minima=self._minima,
            )
            answer = Masked(client.advertise())
            return answer, run.with_sum(replace(fresh, client=client.state_bytes()))
        there = _sum(run, part.serial)
        if stage is Stage.SHARE:
            return self.stepped(run, envelope, there, lambda client: client.share_keys(part.message))
        if stage is Stage.CONSENT:
            own = self.identity.private
            return self.stepped(run, envelope, there, lambda client: client.consent(part.message, own))
        return self.stepped(run, envelope, there, lambda client: client.unmask(part.message))

    def stepped(
        self, run: RunState, envelope: Envelope, there: SumState, step: Callable[[MaskingClient], bytes]
    ) -> tuple[Answered, RunState]:
        """One step of a client, and where it then stands."""
        terms = self._terms(envelope, there)
        client = MaskingClient.restore(there.client, terms, roster=self._roster, minima=self._minima)
        answer = Masked(step(client))
        return answer, run.with_sum(replace(there, client=client.state_bytes()))

    def _terms(self, envelope: Envelope, there: SumState) -> MaskingTerms:
        try:
            terms = masking_terms(
                self.federation,
                envelope.run,
                self.agreed,
                envelope.session,
                there.serial,
                there.round,
                there.cohort,
                there.nonce,
            )
        except ConfigError as error:
            raise Refusal("limits", f"a masked sum of {len(there.cohort)} sites: {error}") from None
        # with some neighbours alone nobody sees who is in the sum: a server that lies could have single contributions
        if not terms.complete and (self.limits.epsilon is not None or self.limits.minimum_cohort > 1):
            cause = f"a masked sum of {len(there.cohort)} sites: expected {ALL_NEIGHBOURS} at most"
            raise Refusal("limits", cause)
        return terms

    def awaits(self, run: RunState, envelope: Envelope, part: Work) -> SumState:
        """The sum that a contribution is for; the errors are those of `Seat.work`."""
        there = _sum(run, part.serial)
        check_request(there.round == envelope.round, "serial: of another round's sum")
        check_request(len(there.cohort) == part.drawn, "drawn: not the size of the cohort")
        return there


def _sum(run: RunState, serial: int) -> SumState:
    found = next((one for one in run.sums if one.serial == serial), None)
    if found is None:
        raise Refusal("stale", "no such masked sum is going on")
    return found
