"""How a simulation answers what a round asks to be summed: stack by stack, over an imagined wire.

What participants contribute is encoded as it would be sent, counted, decoded and added up in the order of their
numbers; where the experiment says so, by masked sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
from discreet.schemes.base import Contribution, Fused, Total
from discreet.secure.groups import accumulate, decode, encode, lifted, wire_bytes, zeros
from discreet.secure.masking import masked_sum, plan_graph
from discreet.secure.ring import Ring

CORRUPT = 0.1
"""Share of a cohort that may collude with the server without learning more than the sum."""


class Tally:
    """What is counted while a round is played."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.empty: set[int] = set()
        self.rejected: set[int] = set()
        self.withheld: set[int] = set()
        self.released = True
        self.losses: list[float] = []
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
        self.losses += losses[np.isfinite(losses) & accepted].tolist()
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
    ids: NDArray[np.int64],
    kept: dict[int, Tensor],
    tally: Tally,
    parallel: Map,
) -> Total:
    """Sum one phase over the clients `ids`; what they keep for themselves goes into `kept`."""
    phase, scheme = ask.phase, federation.scheme
    if ask.received:
        earlier = ask.received[-1].values  # of a grouped total, a participant is sent its own group's row
        tally.downlink += len(ids) * (earlier[0] if earlier.dim() > 1 else earlier).nbytes
    elif phase.length:  # a phase in which nothing is sent needs nothing sent back
        tally.downlink += len(ids) * _tensor_bytes(ask.payload)
    if isinstance(scheme, Fused) and len(ids):
        cohort = federation.cohort(ids, ask.round, kept, len(ids))
        total, given = scheme.subtotal(federation.task, phase, ask.payload, ask.received, cohort)
        tally.count(cohort, given, total.count * wire_bytes(phase.group, phase.length))
        _keep(kept, cohort, given)
        return total
    partition, lanes = federation.partition, federation.task.learner.lanes
    groups = {"all": 1, "row": partition.rows, "column": partition.column_count}[phase.scope]
    values, count = zeros(phase.group, (groups, phase.length)), 0
    stacks = [ids[start : start + lanes] for start in range(0, len(ids), lanes)]
    masked: list[Received] = []
    for received in parallel(lambda stack: _contribute(federation, ask, stack, kept, len(ids)), stacks):
        cohort, given = received.cohort, received.given
        tally.count(cohort, given, received.uplink)
        _keep(kept, cohort, given)
        count += len(received.elements)
        if isinstance(phase.group, Ring) and federation.experiment.secure == "masked":
            masked.append(received)
            continue
        if phase.scope == "all":
            accumulate(phase.group, values[0], received.elements)
            continue
        places = (cohort.row if phase.scope == "row" else cohort.column)[given.accepted.cpu().numpy()]
        for group in np.unique(places):
            accumulate(phase.group, values[group], received.elements[torch.from_numpy(places == group)])
    promise = federation.task.promise
    if promise is not None and count < promise.needed(len(ids)):
        # that nobody at all was drawn is seen, and a release like any other; its sum is nothing
        tally.released = not len(ids)
        return Total(values[0], 0)  # fewer shares of noise than were promised: nobody sees this sum
    if masked:
        return _masked(federation, ask, masked, tally)
    values = lifted(phase.group, values)
    return Total(values[0] if phase.scope == "all" else values, count)


def _masked(federation: Federation, ask: Ask, received: Sequence[Received], tally: Tally) -> Total:
    """The sum by the protocol of `discreet.secure.masking`, run by real clients and a real server in this process."""
    ring = ask.phase.group
    if not isinstance(ring, Ring) or ask.phase.scope != "all":
        raise LocalProtocolError("masked sums are over a ring and over all participants")
    ids = np.concatenate([one.cohort.ids for one in received])
    promise = federation.task.promise
    try:
        graph = plan_graph(
            len(ids),
            dropout=0.0 if promise is None else promise.dropout_tolerance,
            corrupt=CORRUPT,
        )
        total = masked_sum(
            ring.reduce(torch.cat([one.elements for one in received]).numpy()),
            ring.bits,
            threshold=graph.threshold,
            degree=graph.degree,
            randomness=federation.task.randomness,
            cohort=ids.tolist(),
            round=ask.round,
        )
    except (ConfigError, RoundAborted):
        tally.released = False  # a cohort too small to hide anyone in
        return Total(torch.zeros(ask.phase.length, dtype=torch.int64), 0)
    tally.uplink += sum(total.bytes_up.values()) - sum(one.uplink for one in received)
    tally.downlink += sum(total.bytes_down.values())
    return Total(torch.from_numpy(ring.lift(total.values)), len(total.survivors))


def _contribute(
    federation: Federation, ask: Ask, ids: NDArray[np.int64], kept: dict[int, Tensor], participants: int
) -> Received:
    """Let one stack of clients contribute, and send it over an imagined wire."""
    cohort, phase = federation.cohort(ids, ask.round, kept, participants), ask.phase
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
    """Bytes of the tensors of a payload, which is what every participant is sent."""
    values = [getattr(payload, field.name) for field in fields(payload)]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
