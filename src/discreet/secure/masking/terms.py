"""What all parties of one masked sum agree on before it starts; all of it is public."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from discreet.errors import ConfigError
from discreet.secure.masking import graph
from discreet.secure.ring import Ring

_PROTOCOL = b"discreet masked sum 2"


class Stage(StrEnum):
    """The exchanges of a round, each a message from every client and an answer to it."""

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    CONSENT = "consent"
    """Only where somebody dropped out, and clients have identities and are all neighbours."""
    UNMASK = "unmask"


STAGES = tuple(stage for stage in Stage if stage is not Stage.CONSENT)
"""Those that every round has."""


@dataclass(frozen=True, kw_only=True)
class MaskingTerms:
    """The terms of one masked sum.

    Every key is bound to all of them: parties that disagree about one cannot read each other's messages.

    Args:
        run: names the run, 1 to 64 bytes; a new one for every run.
        round: of the run, 0 to 2^63 - 1. **No two sums may have the same run and round.**
        cohort: who was asked to take part: at least 3 clients, 0 to 2^32 - 2, in ascending order. (The sum of two
            tells each the other's vector.)
        bits: b, of Z_2^b: 1 to 64.
        length: of the vectors, n: 1 to 2^31.
        degree: neighbours of a client: even, or all others.
        threshold: shares that recover a secret, of degree + 1: at least 2. Up to threshold - 1 clients may collude
            with a server that is curious. Against one that tells clients different things about who dropped out it
            must be above (clients + colluding clients) / 2, in a complete graph with a roster.
        minimum_survivors: the sum of fewer clients is not released; at least 2. In a complete graph clients make sure of
            that themselves; in a sparser one each sees its neighbours alone, and has the server's word for it.
        nonce: decides who is whose neighbour; 1 to 64 bytes.

    Raises:
        ConfigError: a term is out of its range.
    """

    run: bytes
    round: int
    cohort: tuple[int, ...]
    bits: int
    length: int
    degree: int
    threshold: int
    minimum_survivors: int = 2
    nonce: bytes = b"\0"

    def __post_init__(self) -> None:
        clients = len(self.cohort)
        if clients < 3 or list(self.cohort) != sorted(set(self.cohort)):
            raise ConfigError(
                "cohort", f"{clients} clients", "at least 3 distinct clients in ascending order"
            )
        for key, value, low, high in (
            ("cohort", self.cohort[0], 0, 2**32 - 2),
            ("cohort", self.cohort[-1], 0, 2**32 - 2),
            ("run", len(self.run), 1, 64),
            ("nonce", len(self.nonce), 1, 64),
            ("round", self.round, 0, 2**63 - 1),
            ("length", self.length, 1, 2**31),
            ("threshold", self.threshold, 2, self.degree + 1),
            ("minimum_survivors", self.minimum_survivors, 2, clients),
        ):
            if not low <= value <= high:
                raise ConfigError(key, value, f"from {low} to {high}")
        graph.check_degree(clients, self.degree)
        Ring(self.bits)

    @property
    def ring(self) -> Ring:
        """What the vectors' elements are from."""
        return Ring(self.bits)

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.degree == len(self.cohort) - 1

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """Every client's neighbours in ascending order."""
        return graph.neighbours(graph.arrange(self.cohort, self.nonce), self.degree)

    @cached_property
    def points(self) -> dict[int, int]:
        """Every client's point for Shamir's shares: its place in the cohort, counted from 1."""
        return {client: place for place, client in enumerate(self.cohort, 1)}

    def holders(self, client: int) -> frozenset[int]:
        """Who holds a share of a client's secrets: its neighbours and itself."""
        return frozenset((client, *self.neighbours[client]))

    @cached_property
    def context(self) -> bytes:
        """SHA-256 of all terms, 32 bytes."""
        terms = struct.pack(
            "<QBIIIIBB",
            self.round,
            self.bits,
            self.length,
            self.degree,
            self.threshold,
            self.minimum_survivors,
            len(self.run),
            len(self.nonce),
        )
        members = struct.pack(f"<{len(self.cohort)}I", *self.cohort)
        return hashlib.sha256(_PROTOCOL + terms + self.run + self.nonce + members).digest()
