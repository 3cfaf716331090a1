"""The server's side of sums by additive sharing, two exchanges: shares are given out, and added up by their holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from discreet.errors import RemoteProtocolError
from discreet.federation.fields import Bytes, Many
from discreet.federation.parts import Holding, PartialSum, Shared
from discreet.schemes.base import Phase
from discreet.secure import sharing
from discreet.secure.packing import packed_bytes, unpack
from discreet.secure.ring import Elements, Ring
from discreet.wire import MOST_SITES

SEALED = Many(Bytes(), MOST_SITES)
"""How the parts of a row's total are put together, one from each holder."""


def delivered(shared: Mapping[int, Shared], holders: Sequence[int], phase: int) -> Mapping[int, Holding]:
    """For each holder what it is asked: to add up what was sealed for it."""
    senders = tuple(sorted(shared))
    return {
        holder: Holding(phase, senders, tuple(shared[sender].sealed[place] for sender in senders))
        for place, holder in enumerate(holders)
    }


def read_sum(phase: Phase, ring: Ring, groups: int, site: int, round: int, answer: PartialSum) -> Elements:
    """A holder's sums.

    Raises:
        RemoteProtocolError: these are none.
    """
    length = groups * phase.length
    if len(answer.body) != packed_bytes(length, ring.bits):
        raise RemoteProtocolError(f"site {site}", round, "sum: of another length")
    try:
        return unpack(ring, np.frombuffer(answer.body, np.uint8), length)
    except ValueError as error:
        raise RemoteProtocolError(f"site {site}", round, f"sum: {error}") from None


def added(phase: Phase, ring: Ring, groups: int, sums: Sequence[Elements]) -> Tensor:
    """The totals of all groups, shape (groups, length), as numbers."""
    found = sharing.reconstruct(ring, sums).reshape(groups, phase.length)
    if phase.common:
        found[:, -phase.common :] = found[0, -phase.common :]
    return torch.from_numpy(ring.lift(np.ascontiguousarray(found)))


def row_parts(
    answers: Mapping[int, PartialSum], holders: Sequence[int], senders: Sequence[int]
) -> dict[int, bytes]:
    """For each sender what the holders have sealed for it of its row's total."""
    return {
        sender: SEALED.write([answers[holder].sealed[place] for holder in holders], "received")
        for place, sender in enumerate(senders)
    }
