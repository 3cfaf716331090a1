"""A site's part in sums by additive sharing: it shares out what it brings, and adds up the shares that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import LocalProtocolError
from discreet.federation.fields import Reader
from discreet.federation.party import as_tensor
from discreet.federation.replies import PartialSum, Shared
from discreet.federation.sealing import NONCE_BYTES, SEALED, Topic
from discreet.randomness import Seeded, SystemRandom
from discreet.secure import sharing
from discreet.secure.groups import zeros
from discreet.secure.masking.keys import KeyPair
from discreet.secure.packing import pack, unpack
from discreet.secure.ring import Elements, Ring
from discreet.wire import Envelope


@dataclass(frozen=True, eq=False)
class Shares:
    """A site in one sum.

    Attributes:
        own: its keys.
        keys: everybody's public ones, by the sites' numbers.
        secrets: where shares and nonces come from.
        envelope: of the message; its sum is that of its run, session, round and attempt.
        agreed: what all sites have to know alike.
        phase: of the round.
        drawn: sites in the sum, for whose number each sizes its noise.
        ring: of the sum.
        length: of a contribution.
    """

    own: KeyPair
    keys: Sequence[bytes]
    secrets: Seeded | SystemRandom = field(repr=False)
    envelope: Envelope
    agreed: bytes
    phase: int
    drawn: int
    ring: Ring
    length: int

    def share_out(self, vector: Elements, holders: Sequence[int]) -> Shared:
        """A vector in shares, each sealed for its holder; the explicit one goes to another holder for each sender."""
        topic, me = self._topic(b"share"), self.own.client
        shares = sharing.split(
            self.ring,
            vector,
            len(holders),
            self.secrets,
            round=self.envelope.round,
            client=me,
            context=topic.context(me),
        )
        bodies = [sharing.to_bytes(self.ring, share) for share in shares]
        turned = [bodies[(place + me) % len(bodies)] for place in range(len(bodies))]
        return Shared(self._sealed(topic, holders, turned))

    def held(
        self, senders: Sequence[int], sealed: Sequence[bytes], groups: Sequence[int], count: int
    ) -> Elements:
        """The sums of the shares that were sealed for this site, shape (count, length).

        Args:
            senders: whose shares they are.
            sealed: the shares.
            groups: of each sender.
            count: how many groups there are.

        Raises:
            LocalProtocolError: one is no such share.
        """
        topic = self._topic(b"share")
        shares: list[list[sharing.Share]] = [[] for _ in range(count)]
        for sender, one, group in zip(senders, sealed, groups, strict=True):
            body = topic.open(self.own, sender, self.keys[sender], one)
            try:
                share = sharing.from_bytes(self.ring, body, self.length, topic.context(sender))
            except ValueError as error:
                raise LocalProtocolError(f"share: {error}") from None
            shares[group].append(share)
        return np.stack([sharing.add(self.ring, group, self.length) for group in shares])

    def together(self, sums: Elements, common: int) -> PartialSum:
        """Sums for the server: those of all groups; the common elements are in the first alone, and 0 in the others."""
        if common:
            tail = self.ring.total(sums[:, -common:])
            sums[:, -common:] = 0
            sums[0, -common:] = tail
        return PartialSum(pack(self.ring, sums.reshape(-1)).tobytes())

    def for_rows(self, sums: Elements, senders: Sequence[int], rows: NDArray[np.int64]) -> PartialSum:
        """Sums for the sites of each row, sealed for each of them."""
        bodies = [pack(self.ring, sums[row]).tobytes() for row in rows.tolist()]
        return PartialSum(b"", self._sealed(self._topic(b"row total"), senders, bodies))

    def row_total(self, holders: Sequence[int], body: bytes) -> Tensor:
        """The total of the site's row, from what the holders have sealed for it.

        Raises:
            LocalProtocolError: it is none.
        """
        reader, topic = Reader(body), self._topic(b"row total")
        sealed = SEALED.read(reader, "received")
        if reader.at != len(body) or len(sealed) != len(holders):
            raise LocalProtocolError("received: not one sum from each holder")
        parts = []
        for holder, one in zip(holders, sealed, strict=True):
            packed = topic.open(self.own, holder, self.keys[holder], one)
            try:
                parts.append(unpack(self.ring, np.frombuffer(packed, np.uint8), self.length))
            except ValueError as error:
                raise LocalProtocolError(f"received: {error}") from None
        total = self.ring.lift(sharing.reconstruct(self.ring, parts))
        return as_tensor(total.tobytes(), zeros(self.ring, (0,)).dtype)

    def _topic(self, purpose: bytes) -> Topic:
        one = self.envelope
        numbers = one.session, one.round, one.attempt, self.phase
        return Topic(purpose, one.run, *numbers, self.agreed, self.drawn)

    def _sealed(self, topic: Topic, receivers: Sequence[int], bodies: Sequence[bytes]) -> tuple[bytes, ...]:
        purpose = f"nonces {topic.purpose.decode()} {self.phase}"
        count, me = len(receivers), self.own.client
        words = self.secrets.words(self.envelope.round, me, purpose, 2 * count).astype("<u8").tobytes()
        nonces = [words[16 * place : 16 * place + NONCE_BYTES] for place in range(count)]
        return tuple(
            topic.seal(self.own, receiver, self.keys[receiver], nonce, body)
            for receiver, nonce, body in zip(receivers, nonces, bodies, strict=True)
        )
