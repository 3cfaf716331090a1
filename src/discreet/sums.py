"""How a simulation answers what a round asks to be summed: stack by stack, over an imagined wire.

What participants contribute is encoded as it would be sent, counted, decoded and added up in the order of their
numbers; where the experiment says so, by masked sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.cohort import Cohort
from discreet.errors import ConfigError, LocalProtocolError, RoundAborted
from discreet.evaluation import Map
from discreet.preparation import Federation
from discreet.privacy.promise import Promise
from discreet.privacy.releases import FixedSize
from discreet.rounds import Ask
from discreet.sampling import Attendance, grouped, how_sampled
from discreet.schemes.base import Contribution, Fused, Phase, Scope, Total, groups_of
from discreet.secure.groups import accumulate, decode, encode, lifted, wire_bytes, zeros
from discreet.secure.masking import (
    STAGES,
    GraphPlan,
    Stage,
    dropouts_at_most,
    masked_sum,
    plan_graph,
)
from discreet.secure.ring import Ring
from discreet.secure.shared_sum import SharedSum

CORRUPT = 0.1
"""Share of a cohort that may collude with the server without learning more than the sum; at least so much is planned
for, and as many clients as `privacy.assumed_dishonest` where that is more: who cheats with noise may collude too."""


SILENT = 1 / 3
"""Share of a cohort that a masked sum without noise is planned to lose where clients may fall silent at all.

Less if the cohort is small. So much tolerance has a price: a server that lies about who is gone can then get at both
secrets of a client, which it cannot where more than half of a client's neighbours must answer.
"""


class Tally:
    """What is counted while a round is played.

    Args:
        malicious: clients whose training losses mean nothing.
    """

    def __init__(self, malicious: frozenset[int] = frozenset()) -> None:
        self.malicious = malicious
        self.accepted: set[int] = set()
        self.empty: set[int] = set()
        self.rejected: set[int] = set()
        self.withheld: set[int] = set()
        self.released = True
        self.losses: list[float] = []
        self.saturated = 0
        self.uplink = 0
        self.downlink = 0

    def count(self, cohort: Cohort, given: Contribution, uplink: int) -> None:
        """Count what some clients brought."""
        accepted, sizes = given.accepted.cpu().numpy(), cohort.sizes
        losses = given.losses.cpu().double().numpy()
        self.empty |= set(cohort.ids[sizes == 0].tolist())
        self.rejected |= set(cohort.ids[~accepted & (sizes > 0)].tolist())
        # who is dropped in one phase of a round is no participant of it; who sends noise without an update is one
        self.accepted |= set(cohort.ids[accepted].tolist())
        self.accepted -= self.rejected
        if given.withheld is not None:
            self.withheld |= set(cohort.ids[given.withheld.cpu().numpy()].tolist())
        if given.saturated is not None:
            self.saturated += int(given.saturated.sum())
        counted = np.isfinite(losses) & accepted
        if self.malicious:
            counted &= [client not in self.malicious for client in cohort.ids.tolist()]
        self.losses += losses[counted].tolist()
        self.uplink += uplink

    @property
    def dropped(self) -> set[int]:
        """Who had examples, and no update to send that is finite."""
        return self.rejected | (self.withheld - self.empty)

    @property
    def diverged(self) -> bool:
        """Whether clients had examples, and none of them a finite update."""
        return bool(self.dropped) and not self.accepted - self.withheld

    def loss(self) -> float | None:
        """Mean training loss over the clients that had one."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True, eq=False)
class Received:
    """What came from one stack of clients in one phase, after its way over the wire.

    Attributes:
        cohort: the clients.
        given: what they contributed.
        elements: what arrived of it, one row for each client that was accepted.
        uplink: bytes that were sent.
    """

    cohort: Cohort
    given: Contribution
    elements: Tensor
    uplink: int


def answer(
    federation: Federation,
    ask: Ask,
    there: Attendance,
    kept: dict[int, Tensor],
    tally: Tally,
    parallel: Map,
    arrived: dict[int, Tensor] | None = None,
) -> Total:
    """Sum one phase over the clients that are there; what they keep for themselves goes into `kept`.

    Where `arrived` is given, what came from each client goes into it, by the clients' numbers.

    A client whose contribution would be lost is not worked on: it is gone for all phases of the round. The others
    size their noise by how many were drawn, as clients that cannot know who falls silent later.
    """
    phase, scheme = ask.phase, federation.scheme
    ids, drawn = there.sending, len(there.drawn)
    if ask.received:
        earlier = scheme.phases(federation.task)[len(ask.received) - 1]
        tally.downlink += len(ids) * wire_bytes(earlier.group, earlier.length)
    elif phase.length:  # a phase in which nothing is sent needs nothing sent back
        tally.downlink += drawn * _tensor_bytes(ask.payload)
    if isinstance(scheme, Fused) and len(ids) and arrived is None and scheme.fuses(federation.task):
        cohort = federation.cohort(ids, ask.round, kept, drawn)
        total, given = scheme.subtotal(federation.task, phase, ask.payload, ask.received, cohort, parallel)
        tally.count(cohort, given, total.count * wire_bytes(phase.group, phase.length))
        _keep(kept, cohort, given)
        return total
    lanes = federation.task.learner.lanes
    groups = grouped(federation.experiment, there, federation.partition.clients, ask.round, phase.groups)
    stacks = [
        [(one.sending[start : start + lanes], len(one.drawn)) for start in range(0, len(one.sending), lanes)]
        for one in groups
    ]
    accomplices = federation.accomplices(ids, ask.round, drawn)

    def contribute(stack: tuple[NDArray[np.int64], int]) -> Received:
        return _contribute(federation, ask, stack[0], kept, stack[1], accomplices)

    came, totals, released = iter(parallel(contribute, [stack for own in stacks for stack in own])), [], False
    for number, (one, own) in enumerate(zip(groups, stacks, strict=True)):
        tally.released = True
        totals.append(summed(federation, ask, one, number, islice(came, len(own)), kept, tally, arrived))
        released |= tally.released
    if phase.groups == 1:
        return totals[0]
    tally.released = released  # one sum that is seen is a release
    return side_by_side(phase, totals)


def side_by_side(phase: Phase, totals: Sequence[Total]) -> Total:
    """The totals of a round's groups as one, of those whose sums were released."""
    seen = [total for total in totals if total.count]
    values = torch.stack([total.values for total in seen]) if seen else zeros(phase.group, (0, phase.length))
    return Total(values, sum(total.count for total in seen))


def summed(
    federation: Federation,
    ask: Ask,
    there: Attendance,
    number: int,
    came: Iterable[Received],
    kept: dict[int, Tensor],
    tally: Tally,
    arrived: dict[int, Tensor] | None,
) -> Total:
    """The sum of one group of a round's clients, whose number it is."""
    phase, partition, drawn = ask.phase, federation.partition, len(there.drawn)
    groups = {"all": 1, "row": partition.rows, "column": partition.column_count}[phase.scope]
    values, count = zeros(phase.group, (groups, phase.length)), 0
    masked: list[Received] = []
    gathered: list[Tensor] = []
    shared = _shared_sum(federation, ask, groups)
    for received in came:
        cohort, given = received.cohort, received.given
        tally.count(cohort, given, received.uplink)
        _keep(kept, cohort, given)
        count += len(received.elements)
        if arrived is not None:
            senders = cohort.ids[given.accepted.cpu().numpy()].tolist()
            arrived |= zip(senders, received.elements, strict=True)
        if isinstance(phase.group, Ring) and federation.experiment.secure == "masked":
            masked.append(received)
            continue
        if shared is not None:
            _share(shared, phase.scope, received, tally)
            continue
        if phase.gathered:
            gathered.append(received.elements)
            continue
        if phase.scope == "all":
            accumulate(phase.group, values[0], received.elements)
            continue
        places = (cohort.row if phase.scope == "row" else cohort.column)[given.accepted.cpu().numpy()]
        for group in np.unique(places):
            accumulate(phase.group, values[group], received.elements[torch.from_numpy(places == group)])
    promise = federation.task.promise
    if promise is not None and count < promise.needed(drawn):
        # that nobody at all was drawn is seen, and a release like any other; its sum is nothing
        tally.released = not drawn
        return Total(values[0], 0)  # fewer shares of noise than were promised: nobody sees this sum
    if gathered:
        return Total(torch.cat(gathered), count)
    if masked:
        return _masked(federation, ask, there, number, masked, tally)
    if shared is not None:
        values = torch.from_numpy(shared.ring.lift(shared.total()))
        return Total(values[0] if phase.scope == "all" else values, count)
    if phase.common:
        values[:, -phase.common :] = values[:, -phase.common :].sum(0)
    values = lifted(phase.group, values)
    return Total(values[0] if phase.scope == "all" else values, count)


def _shared_sum(federation: Federation, ask: Ask, groups: int) -> SharedSum | None:
    """An empty sum by additive sharing, where the experiment asks for one."""
    phase = ask.phase
    if federation.experiment.secure != "additive" or not isinstance(phase.group, Ring):
        return None
    return SharedSum(
        phase.group,
        federation.experiment.share_holders,
        groups,
        phase.length,
        phase.common,
        federation.task.hidden,
        ask.round,
        f"simulation {ask.round} {phase.name}".encode(),
    )


def _share(shared: SharedSum, scope: Scope, received: Received, tally: Tally) -> None:
    """Let one stack of participants share out what they bring."""
    cohort, usable = received.cohort, received.given.accepted.cpu().numpy()
    places = {"all": cohort.row * 0, "row": cohort.row, "column": cohort.column}[scope][usable]
    before = shared.uplink
    vectors = shared.ring.reduce(received.elements.numpy())
    for client, group, vector in zip(cohort.ids[usable].tolist(), places.tolist(), vectors, strict=True):
        shared.add(client, group, vector)
    tally.uplink += shared.uplink - before - received.uplink


def _masked(
    federation: Federation,
    ask: Ask,
    there: Attendance,
    number: int,
    received: Sequence[Received],
    tally: Tally,
) -> Total:
    """The sum by the protocol of `discreet.secure.masking`, run by real clients and a real server in this process.

    The groups of a round run it each on its own; `number` tells their runs apart.
    """
    ring = ask.phase.group
    if not isinstance(ring, Ring) or ask.phase.scope != "all":
        raise LocalProtocolError("masked sums are over a ring and over all participants")
    vectors, unsent = ring.zeros((len(there.drawn), ask.phase.length)), np.ones(len(there.drawn), dtype=bool)
    for one in received:
        places = np.searchsorted(there.drawn, one.cohort.ids[one.given.accepted.cpu().numpy()])
        vectors[places], unsent[places] = ring.reduce(one.elements.numpy()), False
    dropouts: dict[Stage, list[int]] = {stage: there.silent(stage) for stage in STAGES}
    dropouts[Stage.MASK] = there.drawn[unsent].tolist()  # whoever has nothing to send is silent from here on
    nothing = Total(torch.zeros(ask.phase.length, dtype=torch.int64), 0)
    try:
        graph = masking_graph(
            federation.task.promise, len(there.drawn), federation.experiment.dropouts.silent
        )
    except ConfigError:
        tally.released = False  # a cohort too small to hide anyone in
        return nothing
    try:
        total = masked_sum(
            vectors,
            ring.bits,
            threshold=graph.threshold,
            degree=graph.degree,
            randomness=federation.task.hidden,
            dropouts=dropouts,
            minimum_survivors=max(2, graph.clients - graph.dropped),  # for fewer, the graph was not planned
            cohort=there.drawn.tolist(),
            run=b"simulation" if ask.phase.groups == 1 else f"simulation, group {number}".encode(),
            round=ask.round,
        )
    except RoundAborted:
        tally.released = False  # too few left to unmask the sum
        return nothing
    tally.uplink += sum(total.bytes_up.values()) - sum(one.uplink for one in received)
    tally.downlink += sum(total.bytes_down.values())
    return Total(torch.from_numpy(ring.lift(total.values)), len(total.survivors))


def masking_graph(promise: Promise | None, clients: int, silent: float = 0.0) -> GraphPlan:
    """Who masks with whom in a cohort of this size, for the dropouts and the colluders that are allowed for.

    Args:
        promise: of noise, which says how many may be missing; None where there is none.
        clients: of the cohort.
        silent: without a promise, the chance that a client falls silent: with 0, nobody may.

    Raises:
        ConfigError: the cohort is too small for them.
    """
    if promise is None:
        share = SILENT if silent else 0.0
        gone = max(0, min(math.floor(share * clients + 1e-9), clients - math.ceil(CORRUPT * clients) - 2))
        return plan_graph(clients, dropout=gone / clients, corrupt=CORRUPT)
    corrupt = max(CORRUPT, min(promise.assumed_dishonest, clients - 1) / clients)
    return plan_graph(clients, dropout=promise.dropout_tolerance, corrupt=corrupt)


def check_releases(federation: Federation) -> None:
    """Refuse, before anything runs, settings with which most rounds' sums would not be released.

    Raises:
        ConfigError: a round's clients cannot be hidden among each other, or so many fall silent that of most rounds
            too few are left.
    """
    experiment, promise = federation.experiment, federation.task.promise
    masked = experiment.secure == "masked"
    if promise is None and not masked:
        return
    drawn = how_sampled(experiment, federation.partition.clients)
    share = 1.0 if experiment.scheme.everyone else drawn.fraction
    groups = groups_of(experiment.scheme)
    cohort = max(1, round(share * federation.partition.clients) // groups)
    if masked and (isinstance(drawn, FixedSize) or groups > 1):
        try:
            masking_graph(promise, cohort, experiment.dropouts.silent)
        except ConfigError as error:
            if groups == 1:
                raise
            raise ConfigError(
                "scheme.groups",
                groups,
                f"fewer, of more than {cohort} clients each: in so few a masked sum hides nobody ({error})",
            ) from None
    if groups > 1 and promise is not None and promise.needed(cohort) > cohort:
        raise ConfigError(
            "scheme.groups",
            groups,
            f"fewer: of {cohort} clients a sum is not released with privacy.assumed_dishonest = "
            f"{promise.assumed_dishonest}",
        )
    chance = experiment.dropouts.silent if masked else experiment.dropouts.lost
    typical = dropouts_at_most(cohort, chance, 0.5)
    tolerance = SILENT if promise is None else promise.dropout_tolerance
    if not chance or (chance <= tolerance + 1e-9 and typical <= _spare(promise, cohort, masked)):
        return
    if promise is None:
        raise ConfigError(
            "dropouts",
            f"{chance:.2%} of a round",
            f"rates at which most masked rounds of {cohort} clients lose no more than "
            f"{max(0, _spare(None, cohort, masked))} of them, or secure = none",
        )
    advice = f"lower rates, or more than {cohort} clients a round"
    for failing, often in ((0.05, "19 of 20"), (1e-3, "999 of 1,000")):
        most = dropouts_at_most(cohort, chance, failing)
        wanted = math.ceil(100 * most / cohort - 1e-9) / 100
        if wanted < 1 and most <= _spare(replace(promise, dropout_tolerance=wanted), cohort, masked):
            advice = f"{wanted:g} there would do for {often} rounds of {cohort} clients"
    raise ConfigError(
        "dropouts",
        f"{chance:.2%} of a round",
        f"at most privacy.dropout_tolerance (now {tolerance:g}), and some room for chance: {advice}",
    )


def _spare(promise: Promise | None, cohort: int, masked: bool) -> int:
    """How many of a round's clients may fall silent; below 0 if its sum is never released."""
    try:
        spare = masking_graph(promise, cohort, SILENT).dropped if masked else cohort
    except ConfigError:
        return -1
    return spare if promise is None else cohort - promise.needed(cohort)


def _contribute(
    federation: Federation,
    ask: Ask,
    ids: NDArray[np.int64],
    kept: dict[int, Tensor],
    participants: int,
    accomplices: Cohort | None,
) -> Received:
    """Let one stack of clients contribute, and send it over an imagined wire."""
    cohort, phase = federation.cohort(ids, ask.round, kept, participants), ask.phase
    if accomplices is not None:
        cohort = replace(cohort, accomplices=accomplices)
    given = federation.scheme.contribute(federation.task, phase, ask.payload, ask.received, cohort)
    elements = given.elements if given.accepted.all() else given.elements[given.accepted]
    body = encode(phase.group, elements)
    empty = given.elements.new_empty(0, phase.length)  # what was sent is not held twice
    return Received(
        cohort, replace(given, elements=empty), decode(phase.group, body, phase.length), body.nbytes
    )


def _keep(kept: dict[int, Tensor], cohort: Cohort, given: Contribution) -> None:
    """Store what the clients keep; one with no examples has taken no part and keeps nothing."""
    if given.kept is not None:
        pairs = zip(cohort.ids.tolist(), given.kept.unbind(), strict=True)
        kept |= {client: own for size, (client, own) in zip(cohort.sizes, pairs, strict=True) if size}


def _tensor_bytes(payload: Any) -> int:
    """Bytes that every participant is sent of a payload: what it says itself, or those of its tensors."""
    if (said := getattr(payload, "nbytes", None)) is not None:
        return int(said)
    values = [getattr(payload, field.name) for field in fields(payload)]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
