"""How a simulation answers what a round asks to be summed: stack by stack, over an imagined wire.

What participants contribute is encoded as it would be sent, counted, decoded and added up in the order of their
numbers; where the experiment says so, by masked sums.
"""

from __future__ import annotations

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
from discreet.rounds import Ask
from discreet.sampling import Attendance, grouped
from discreet.schemes.base import Contribution, Phase, Scope, Total
from discreet.schemes.traits import Fused
from discreet.secure.groups import accumulate, decode, encode, lifted, wire_bytes, zeros
from discreet.secure.masking import STAGES, Stage, masked_sum
from discreet.secure.ring import Ring
from discreet.secure.shared_sum import SharedSum
from discreet.tally import Tally
from discreet.tolerance import masking_graph


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
