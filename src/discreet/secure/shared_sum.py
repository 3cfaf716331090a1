"""A whole sum by additive sharing in one process, for simulations: who sends what to whom, without a network.

Every participant splits its vector into one share for each share-holder. Each share-holder adds up the shares that it
holds, and the aggregator adds up the share-holders' sums. Any s - 1 of the s share-holders together see uniform
numbers; the aggregator sees s numbers that are uniform but for their sum.

Source: Zhang, Bai, Li, Nepal, Ko, arXiv 2104.13050, appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from discreet.randomness import Seeded, SystemRandom
from discreet.secure import sharing
from discreet.secure.ring import Elements, Ring


@dataclass(eq=False)
class SharedSum:
    """The running sums of the share-holders, one for each group of participants.

    Args:
        ring: where the elements are from.
        holders: s, how many share-holders there are, at least 2.
        groups: participants are added up in so many groups.
        length: of a vector.
        common: so many of the last elements are added up over all groups.
        randomness: of the participants.
        round: of the sum.
        context: binds the shares to this sum.
    """

    ring: Ring
    holders: int
    groups: int
    length: int
    common: int
    randomness: Seeded | SystemRandom
    round: int
    context: bytes
    uplink: int = 0
    sums: list[Elements] = field(init=False)

    def __post_init__(self) -> None:
        self.sums = [self.ring.zeros((self.groups, self.length)) for _ in range(self.holders)]

    def add(self, participant: int, group: int, elements: Elements) -> None:
        """Let a participant share its vector out.

        Args:
            participant: its number.
            group: of the participant.
            elements: shape (length,), reduced.
        """
        shares = sharing.split(
            self.ring,
            elements,
            self.holders,
            self.randomness,
            round=self.round,
            client=participant,
            context=self.context,
        )
        for holder, share in zip(self.sums, shares, strict=True):
            vector = sharing.elements(self.ring, share, self.length)
            self.ring.add(holder[group], vector, out=holder[group])
            self.uplink += len(sharing.to_bytes(self.ring, share))

    def partial_sums(self) -> list[Elements]:
        """What each share-holder sends to the aggregator, shape (groups, length) each.

        The common elements are in the first group's row alone, and 0 in the others.
        """
        found = []
        for own in self.sums:
            sent = own.copy()
            if self.common:
                tail = self.ring.total(sent[:, -self.common :])
                sent[:, -self.common :] = 0
                sent[0, -self.common :] = tail
            found.append(sent)
        return found

    def total(self) -> Elements:
        """The sums of the groups as the aggregator gets them, shape (groups, length)."""
        total = sharing.reconstruct(self.ring, [sent.reshape(-1) for sent in self.partial_sums()])
        found = total.reshape(self.groups, self.length)
        if self.common:
            found[:, -self.common :] = found[0, -self.common :]
        return np.ascontiguousarray(found)
