"""What a site does in a round: contribute, mask, add up the shares that it holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import LocalProtocolError
from discreet.evaluation import evaluate
from discreet.federation.budget import charge
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits, check_minimum
from discreet.federation.masker import Masker
from discreet.federation.parts import (
    ADDITIVE,
    IN_CLEAR,
    MASKED,
    Answered,
    Begin,
    Contributed,
    Evaluate,
    Evaluated,
    Holding,
    Masking,
    Told,
    Work,
)
from discreet.federation.party import as_bytes, as_tensor, read, template
from discreet.federation.refusal import Refusal, check_request
from discreet.federation.shares import Shares
from discreet.federation.spending import Spending
from discreet.federation.state import Place, RunState
from discreet.federation.terms import how_summed
from discreet.preparation import Federation
from discreet.randomness import Seeded, SystemRandom
from discreet.schemes.base import Contribution, Phase, Total
from discreet.schemes.references import Local
from discreet.schemes.traits import Kept, Narrowed
from discreet.secure.groups import encode, zeros
from discreet.secure.masking.keys import KeyPair
from discreet.secure.ring import Ring
from discreet.wire import Envelope


@dataclass(frozen=True, eq=False)
class Seat:
    """A site in a run that has begun.

    Attributes:
        number: the site's.
        identity: signs what it sends.
        limits: what its owner allows.
        spending: what its data has cost.
        secrets: where masks, shares and keys come from.
        federation: the site's, with its own data.
        begin: what it was told of the others.
        agreed: what all sites have to know alike, see `discreet.federation.terms.agreement`.
        rehearse: whether nothing is secret.
    """

    number: int
    identity: Identity
    limits: Limits
    spending: Spending
    secrets: Seeded | SystemRandom
    federation: Federation
    begin: Begin
    agreed: bytes
    rehearse: bool

    @cached_property
    def _template(self) -> Any:
        return template(self.federation, self.number)

    @property
    def _sites(self) -> int:
        return len(self.begin.members)

    @property
    def _columns(self) -> int:
        return max(1, len(self.begin.columns))

    @cached_property
    def _masker(self) -> Masker:
        members = self.begin.members
        return Masker(
            self.number, self.identity, self.limits, self.secrets, self.federation, members, self.agreed
        )

    # ---- contributing

    def work(self, run: RunState, envelope: Envelope, part: Work) -> tuple[Answered, RunState, Told]:
        """Contribute to a sum.

        Returns:
            The answer, the new state, and what is told in a rehearsal.

        Raises:
            Refusal: the site will not.
            LocalProtocolError: the request makes no sense.
            RemoteProtocolError, RoundAborted: the masked sum cannot go on.
        """
        scheme, task = self.federation.scheme, self.federation.task
        phases = scheme.phases(task)
        phase, how = self._phase(phases, part.phase)
        place = Place(envelope.session, envelope.round, envelope.attempt, 2 * part.phase)
        check_request(part.how == how, "how: not as the experiment says")
        check_request(envelope.round >= 1, "round: there is none")
        _check_forward(run, place, goes_on=part.phase > 0)
        self._check_drawn(part.drawn, phase)
        sum_state = self._masker.awaits(run, envelope, part) if how == MASKED else None
        if how == ADDITIVE:
            self._check_holders(part.holders)
        body = run.payload if part.phase else part.payload
        payload = read(body, self._template, envelope.round)
        if isinstance(scheme, Narrowed):
            payload = scheme.placed(task, payload, self.number)
        received = self._received(run, envelope, part, phases)
        if part.phase == 0:
            self._charge(envelope)
        given = self._contribution(run, envelope.round, part, phase, payload, received)
        # what later phases need of this one
        run = replace(run, place=place, worked=place)
        if len(phases) > 1:
            run = replace(run, payload=body, holders=part.holders)
        if given.kept is not None and self._examples:
            run = run.keeping(envelope.round, as_bytes(given.kept[0]))
        told = _told(given)
        if how == IN_CLEAR:
            counts = bool(given.accepted[0])
            elements = given.elements if counts else zeros(phase.group, (1, phase.length))
            return Contributed(counts, encode(phase.group, elements).tobytes()), run, told
        vector = _ring(phase).reduce(given.elements.cpu().numpy()[0])
        if sum_state is not None:
            answer, run = self._masker.stepped(
                run, envelope, sum_state, lambda client: client.mask(part.delivered, vector)
            )
            return answer, run, told
        shares = self._shares(run, envelope, part.phase, phase, part.drawn)
        return shares.share_out(vector, part.holders), run, told

    def _contribution(
        self,
        run: RunState,
        round: int,
        part: Work,
        phase: Phase,
        payload: Any,
        received: tuple[Total, ...],
    ) -> Contribution:
        kept: dict[int, Tensor] = {}
        if (own := run.before(round)) is not None:
            start = payload.vector  # the only schemes that keep numbers keep a whole model's
            kept[self.number] = as_tensor(own, start.dtype).to(start.device)
        ids = np.array([self.number], dtype=np.int64)
        cohort = self.federation.cohort(ids, round, kept, part.drawn)
        found: Contribution = self.federation.scheme.contribute(
            self.federation.task, phase, payload, received, cohort
        )
        return found

    @property
    def _examples(self) -> int:
        return self.begin.sizes[self.number // self._columns]

    def _phase(self, phases: tuple[Phase, ...], number: int) -> tuple[Phase, int]:
        check_request(number < len(phases), "phase: there is no such")
        return phases[number], how_summed(self.federation.experiment, phases[number])

    def _check_drawn(self, drawn: int, phase: Phase) -> None:
        """Refuse to make its share of noise smaller than it can rightly be, or to be one of too few."""
        promise = self.federation.task.promise
        most = self._sites if promise is None else min(self._sites, promise.largest_cohort)
        check_request(1 <= drawn <= most, "drawn: cannot be")
        if not isinstance(self.federation.scheme, Local):  # which sends nothing
            # the sums of a grid's columns are each over one site of a row
            self.limits.check_cohort(drawn // self._columns if phase.scope == "column" else drawn)

    def _charge(self, envelope: Envelope) -> None:
        scheme, task = self.federation.scheme, self.federation.task
        if isinstance(scheme, Local):
            return
        promised = task.promise is not None and not self.rehearse
        charge(
            self.spending,
            self.limits,
            run=envelope.run,
            session=envelope.session,
            round=envelope.round,
            attempt=envelope.attempt,
            released=scheme.release(task) if promised else None,
            rounds=self.federation.experiment.rounds,
        )

    def _received(
        self, run: RunState, envelope: Envelope, part: Work, phases: tuple[Phase, ...]
    ) -> tuple[Total, ...]:
        """The site's own part of the totals of the round's earlier phases."""
        check_request(len(part.received) == part.phase, "received: not one for each earlier phase")
        found = []
        for number, body in enumerate(part.received):
            phase, how = self._phase(phases, number)
            if how == ADDITIVE and phase.scope == "row":
                values = self._shares(run, envelope, number, phase, part.drawn).row_total(run.holders, body)
            else:
                values = as_tensor(body, zeros(phase.group, (0,)).dtype)
            check_request(len(values) == phase.length, "received: of another length")
            found.append(Total(values if phase.scope == "all" else values[None], part.drawn))
        return tuple(found)

    def masking(self, run: RunState, envelope: Envelope, part: Masking) -> tuple[Answered, RunState]:
        """A stage of a masked sum, but for that of the masked inputs; the errors are those of `work`."""
        return self._masker.stage(run, envelope, part)

    # ---- additive sharing

    def _shares(self, run: RunState, envelope: Envelope, number: int, phase: Phase, drawn: int) -> Shares:
        return Shares(
            KeyPair.of(self.number, run.share_key),
            [member.share_key for member in self.begin.members],
            self.secrets,
            envelope,
            self.agreed,
            number,
            drawn,
            _ring(phase),
            phase.length,
        )

    def _check_holders(self, holders: tuple[int, ...]) -> None:
        check_request(
            len(set(holders)) == len(holders) == self.federation.experiment.share_holders
            and max(holders) < self._sites,
            "holders: not as the experiment says",
        )

    def holding(self, run: RunState, envelope: Envelope, part: Holding) -> tuple[Answered, RunState]:
        """Add up the shares that this site holds, once for each sum; the errors are those of `work`."""
        phases = self.federation.scheme.phases(self.federation.task)
        phase, how = self._phase(phases, part.phase)
        check_request(how == ADDITIVE, "holding: there are no shares of this phase")
        place = Place(envelope.session, envelope.round, envelope.attempt, 2 * part.phase + 1)
        _check_forward(run, place, goes_on=False)
        senders = np.array(part.senders, dtype=np.int64)
        rising = len(senders) > 0 and (np.diff(senders) > 0).all() and senders[-1] < self._sites
        check_request(bool(rising) and len(part.sealed) == len(senders), "senders: cannot be")
        rows, columns = senders // self._columns, senders % self._columns
        groups = {"all": columns * 0, "row": rows, "column": columns}[phase.scope]
        count = {"all": 1, "row": len(self.begin.sizes), "column": self._columns}[phase.scope]
        self._check_hidden(phase, senders, groups)
        self._check_noise(part)
        shares = self._shares(run, envelope, part.phase, phase, part.drawn)
        sums = shares.held(part.senders, part.sealed, groups.tolist(), count)
        run = replace(run, place=place)
        if phase.scope == "row":
            return shares.for_rows(sums, part.senders, rows), run
        return shares.together(sums, phase.common), run

    def _check_hidden(self, phase: Phase, senders: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
        """Refuse sums that are over fewer than this site or one in them asks for, or that would show contributions."""
        counts = np.bincount(groups)
        fewest = int(counts[counts > 0].min())
        # the total of a row is for the row alone
        there = np.full(len(groups), len(groups)) if phase.scope == "row" else counts[groups]
        self.limits.check_cohort(int(there.min()))
        for sender, count in zip(senders.tolist(), there.tolist(), strict=True):
            check_minimum(self.begin.members[sender].minimum, sender, count)
        if phase.scope == "row":
            check_request(fewest == self._columns, "senders: a row without one of its sites")
        elif fewest < 2:
            raise Refusal("limits", "a sum of shares of one site alone")

    def _check_noise(self, part: Holding) -> None:
        """Refuse a sum with less noise in it than was promised."""
        promise = self.federation.task.promise
        needed = 0 if promise is None else promise.needed(part.drawn)
        if len(part.senders) < needed:
            raise Refusal("limits", f"noise of {len(part.senders)} sites, where that of {needed} is promised")

    # ---- what is the site's own

    def own_model(self, run: RunState, round: int, payload: bytes) -> Tensor | None:
        """The site's model, or its part of one, given what a round would begin with."""
        scheme, task = self.federation.scheme, self.federation.task
        seen = read(payload, self._template, round)
        if isinstance(scheme, Narrowed):
            seen = scheme.placed(task, seen, self.number)
        if not isinstance(scheme, Kept):
            return None
        own = run.before(round)
        kept = None if own is None else as_tensor(own, seen.vector.dtype)
        return scheme.own_model(task, seen, self.number, kept)

    def evaluated(self, run: RunState, envelope: Envelope, part: Evaluate) -> tuple[Answered, RunState]:
        """How good the site's own model is on its test examples, once a round.

        No noise covers that, and the server chooses the model: with a budget there is no answer.
        """
        if not self.limits.report_evaluation:
            raise Refusal("limits", "report_evaluation is false")
        if self.limits.epsilon is not None:
            raise Refusal("limits", "nothing is promised of an evaluation, and epsilon is limited")
        if envelope.round < run.judged:
            raise Refusal("stale", "the model of this round has been judged")
        vector = self.own_model(run, envelope.round + 1, part.payload)
        test = self.federation.test
        if vector is None or self._columns > 1:
            raise Refusal("scheme", "the site has no whole model of its own to evaluate")
        found = evaluate(self.federation.task.learner, vector, test)
        answer = Evaluated(found.accuracy, found.loss, len(test))
        return answer, replace(run, judged=envelope.round + 1)


def _check_forward(run: RunState, place: Place, *, goes_on: bool) -> None:
    """Refuse to do a thing twice, or what comes after another of the same round where that is missing."""
    if place <= run.place:
        raise Refusal("stale", "it is done, or over")
    if goes_on and run.worked != replace(place, step=place.step - 2):
        raise Refusal("stale", "the round's earlier phases are missing")


def _ring(phase: Phase) -> Ring:
    if not isinstance(phase.group, Ring):
        raise LocalProtocolError("secure sums are over a ring")
    return phase.group


def _told(given: Contribution) -> Told:
    withheld = given.withheld is not None and bool(given.withheld[0])
    saturated = 0 if given.saturated is None else int(given.saturated[0])
    return Told(float(given.losses[0]), withheld, saturated)
