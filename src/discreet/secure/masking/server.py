"""The server's side of a masked sum: collects messages, answers a stage's when it is closed, and adds up.

    server = MaskingServer(terms)
    while server.stage is not None:
        server.collect(client, data)      for whatever arrives
        server.close_stage()              -> the answer to every client that is still there
    server.total()

Who sent no message before its stage was closed has dropped out. So has who sent one that is refused: `collect` then
raises RemoteProtocolError, and the client is not listened to any more; what was accepted from it before stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from discreet.errors import LocalProtocolError, RemoteProtocolError, RoundAborted
from discreet.secure.expansion import Seed
from discreet.secure.masking import keys, shamir
from discreet.secure.masking.keys import KeyPair, PublicKeys, Roster
from discreet.secure.masking.masks import add_masks
from discreet.secure.masking.messages import (
    AdvertisedKeys,
    Consent,
    Consents,
    DeliveredShares,
    MaskedInput,
    Message,
    PeerKeys,
    SharedKeys,
    UnmaskRequest,
    UnmaskShares,
)
from discreet.secure.masking.terms import MaskingTerms, Stage
from discreet.secure.packing import unpack
from discreet.secure.ring import Elements

_Kind = TypeVar("_Kind", bound=Message)
_Heard = TypeVar("_Heard")


@dataclass(frozen=True, eq=False)
class MaskedTotal:
    """What came out of a masked sum.

    Args:
        values: the sum of the survivors' vectors, shape (n,), reduced elements of the ring.
        survivors: whose vectors are in the sum, in ascending order.
        dropped: why a client is not listened to any more, for those whose message was refused.
        bytes_up: from all clients to the server, a stage.
        bytes_down: from the server to all clients, a stage.
        server_trusted_for_keys: nobody's identity was checked: a server that handed out keys of its own could have
            read every vector.
    """

    values: Elements = field(repr=False)
    survivors: tuple[int, ...]
    dropped: Mapping[int, str]
    bytes_up: Mapping[Stage, int]
    bytes_down: Mapping[Stage, int]
    server_trusted_for_keys: bool


class MaskingServer:
    """The server in one masked sum.

    Args:
        terms: of the sum.
        roster: identities; clients whose keys are not signed by theirs are refused.
    """

    def __init__(self, terms: MaskingTerms, roster: Roster | None = None) -> None:
        self._terms, self._roster = terms, roster
        self._stage: Stage | None = Stage.ADVERTISE
        self._dropped: dict[int, str] = {}
        self._keys: dict[int, PublicKeys] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._masked: set[int] = set()
        self._sum = terms.ring.zeros(terms.length)
        self._consents: dict[int, bytes] | None = None
        self._seeds: dict[int, dict[int, int]] = {}
        self._mask_keys: dict[int, dict[int, int]] = {}
        self._complete = False
        self._up = dict.fromkeys(Stage, 0)
        self._down = dict.fromkeys(Stage, 0)

    def __repr__(self) -> str:
        return f"MaskingServer(round {self._terms.round}, {self._stage or 'closed'})"

    @property
    def stage(self) -> Stage | None:
        """The stage whose messages are being collected; None when there is none any more."""
        return self._stage

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose masked input has arrived, in ascending order."""
        return tuple(sorted(self._masked))

    @property
    def expected(self) -> tuple[int, ...]:
        """Whose message of this stage is still missing."""
        asked: Set[int]
        heard: Set[int]
        match self._stage:
            case Stage.ADVERTISE:
                asked, heard = set(self._terms.cohort), self._keys.keys()
            case Stage.SHARE:
                asked, heard = self._keys.keys(), self._sealed.keys()
            case Stage.MASK:
                asked, heard = self._sealed.keys(), self._masked
            case Stage.CONSENT:
                asked, heard = self._masked, (self._consents or {}).keys()
            case Stage.UNMASK:
                asked = self._masked if self._consents is None else self._consents.keys()
                heard = self._seeds.keys()
            case None:
                return ()
        return tuple(sorted(asked - heard - self._dropped.keys()))

    def collect(self, client: int, data: bytes) -> None:
        """Take a client's message of the present stage.

        Args:
            client: who sent it, as the transport says.
            data: what was received.

        Raises:
            LocalProtocolError: no messages are being collected.
            RemoteProtocolError: the message is refused, and the client has dropped out.
        """
        if self._stage is None:
            raise LocalProtocolError("this masked sum is over")
        self._up[self._stage] += len(data)
        try:
            self._check(client, client not in self._dropped, "a message was refused before")
            self._check(client, client in self.expected, f"stage: not expected in stage {self._stage}")
            match self._stage:
                case Stage.ADVERTISE:
                    self._take_keys(client, self._read(AdvertisedKeys, client, data).keys)
                case Stage.SHARE:
                    self._take_sealed(client, dict(self._read(SharedKeys, client, data).sealed))
                case Stage.MASK:
                    self._take_masked(client, self._read(MaskedInput, client, data).packed)
                case Stage.CONSENT:
                    self._take_consent(client, self._read(Consent, client, data).signature)
                case Stage.UNMASK:
                    self._take_answer(client, self._read(UnmaskShares, client, data))
        except RemoteProtocolError as error:
            if client in self._terms.points:
                self._dropped.setdefault(client, error.field)
            raise

    def close_stage(self) -> dict[int, bytes]:
        """End the stage: who has not been heard has dropped out.

        Returns:
            The answer to every client that goes on, by client; none after the last stage.

        Raises:
            LocalProtocolError: there is no stage left.
            RoundAborted: too few clients are left. The round is over, its masked inputs stay masked.
        """
        stage = self._stage
        if stage is None:
            raise LocalProtocolError("this masked sum is over")
        # whatever happens now, this stage's messages are in; only success opens the next
        self._stage = None
        answers = {client: answer.to_bytes(self._terms) for client, answer in self._close(stage).items()}
        self._down[stage] += sum(len(data) for data in answers.values())
        if stage is Stage.UNMASK:
            self._complete = True
        else:
            self._stage = self._after(stage)
        return answers

    def _after(self, stage: Stage) -> Stage:
        """The stage after one that is not the last."""
        if stage is Stage.MASK and self._consents is None:
            return Stage.UNMASK
        stages = list(Stage)
        return stages[stages.index(stage) + 1]

    def total(self, *, threads: int = 1) -> MaskedTotal:
        """The sum of the survivors' vectors, once all stages are closed.

        Args:
            threads: that make the masks which are taken away.

        Raises:
            LocalProtocolError: stages are left, or the round was aborted.
            RoundAborted: the shares of some client's secret are not of one secret.
        """
        if not self._complete:
            raise LocalProtocolError("there is no total: close all stages first")
        terms = self._terms
        plus: list[Seed] = []
        minus = [
            keys.self_seed(terms, self._recover(each, self._seeds), each) for each in sorted(self._masked)
        ]
        for dropout, partners in self._half_masked().items():
            pair = KeyPair.of(dropout, self._recover(dropout, self._mask_keys))
            if pair.public != self._keys[dropout].mask:
                raise self._wrong_shares(dropout)
            for partner in partners:
                seed = keys.mask_seed(terms, pair, partner, self._keys[partner].mask)
                # the smaller of the two numbers added the mask, the other subtracted it
                (minus if partner < dropout else plus).append(seed)
        values = self._sum.copy()
        add_masks(terms.ring, values, plus, minus, threads)
        return MaskedTotal(
            values,
            self.survivors,
            dict(self._dropped),
            dict(self._up),
            dict(self._down),
            self._roster is None,
        )

    def _check(self, client: int, holds: bool, what: str) -> None:
        if not holds:
            raise RemoteProtocolError(client, self._terms.round, what)

    def _read(self, kind: type[_Kind], client: int, data: bytes) -> _Kind:
        return kind.from_bytes(data, self._terms, peer=client, client=client)

    def _take_keys(self, client: int, its: PublicKeys) -> None:
        taken = {key for other in self._keys.values() for key in (other.channel, other.mask)}
        self._check(client, not {its.channel, its.mask} & taken, "keys: another client's")
        self._check(client, its.channel != its.mask, "keys: one for two purposes")
        self._check(client, keys.usable(its.channel) and keys.usable(its.mask), "keys: points of low order")
        if self._roster is not None:
            signed = keys.signed_by(self._terms, client, its, self._roster)
            self._check(client, signed, "signature: not by the client's identity")
        self._keys[client] = its

    def _take_sealed(self, client: int, sealed: dict[int, bytes]) -> None:
        asked = self._keys.keys() & set(self._terms.neighbours[client])
        self._check(client, sealed.keys() == asked, "sealed: not for exactly the neighbours that sent keys")
        self._sealed[client] = sealed

    def _take_masked(self, client: int, packed: bytes) -> None:
        ring = self._terms.ring
        ring.add(self._sum, unpack(ring, np.frombuffer(packed, np.uint8), self._terms.length), out=self._sum)
        self._masked.add(client)

    def _take_consent(self, client: int, signature: bytes) -> None:
        signed = keys.consents(self._terms, self.survivors, client, signature, self._roster or {})
        self._check(client, signed, "signature: not of these survivors by the client's identity")
        self._consents = (self._consents or {}) | {client: signature}

    def _take_answer(self, client: int, answer: UnmaskShares) -> None:
        survivors, dropouts = self._around(client)
        self._check(
            client, tuple(peer for peer, _ in answer.seeds) == survivors, "seeds: not of the survivors"
        )
        self._check(client, tuple(peer for peer, _ in answer.keys) == dropouts, "keys: not of the dropouts")
        self._seeds[client], self._mask_keys[client] = dict(answer.seeds), dict(answer.keys)

    def _close(self, stage: Stage) -> Mapping[int, Message]:
        match stage:
            case Stage.ADVERTISE:
                self._keys = self._going_on(self._keys)
                return {
                    client: PeerKeys(
                        client, tuple((peer, self._keys[peer]) for peer in self._here(client, self._keys))
                    )
                    for client in self._keys
                }
            case Stage.SHARE:
                self._sealed = self._going_on(self._sealed)
                self._require_survivors(self._sealed)
                return {
                    client: DeliveredShares(
                        client,
                        tuple(
                            (peer, self._sealed[peer][client]) for peer in self._here(client, self._sealed)
                        ),
                    )
                    for client in self._sealed
                }
            case Stage.MASK:
                listening = self._masked - self._dropped.keys()
                self._require_survivors(self._masked)
                self._require_holders([*self._masked, *self._half_masked()], listening)
                count = len(self._masked)
                if self._terms.complete and self._roster is not None and self._sealed.keys() - self._masked:
                    self._consents = {}
                return {client: UnmaskRequest(client, *self._around(client), count) for client in listening}
            case Stage.CONSENT:
                found = {} if self._consents is None else self._going_on(self._consents)
                some = tuple(sorted(found.items()))[: self._terms.threshold]
                return {client: Consents(client, some) for client in found}
            case Stage.UNMASK:
                self._require_holders([*self._masked, *self._half_masked()], self._seeds.keys())
                return {}

    def _going_on(self, heard: dict[int, _Heard]) -> dict[int, _Heard]:
        """Those heard who are not refused, if each of them has holders enough."""
        here = {client: heard[client] for client in sorted(heard) if client not in self._dropped}
        if not here:
            raise RoundAborted((), self._terms.threshold)
        self._require_holders(here, here.keys())
        return here

    def _here(self, client: int, heard: Mapping[int, object]) -> list[int]:
        return [peer for peer in self._terms.neighbours[client] if peer in heard]

    def _around(self, client: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Survivors and dropouts among the holders of a client's secrets, itself among them."""
        holders = sorted(self._terms.holders(client) & self._sealed.keys())
        survivors = tuple(peer for peer in holders if peer in self._masked)
        return survivors, tuple(peer for peer in holders if peer not in self._masked)

    def _half_masked(self) -> dict[int, tuple[int, ...]]:
        """Dropouts whose pairwise masks are in the sum, with the survivors that put them there."""
        partners = {client: self._around(client)[0] for client in self._sealed if client not in self._masked}
        return {client: survivors for client, survivors in partners.items() if survivors}

    def _require_holders(self, clients: Iterable[int], present: Set[int]) -> None:
        for client in clients:
            left = self._terms.holders(client) & present
            if len(left) < self._terms.threshold:
                cause = f"holders of client {client}'s secrets"
                raise RoundAborted(sorted(left), self._terms.threshold, cause)

    def _require_survivors(self, clients: Collection[int]) -> None:
        if len(clients) < self._terms.minimum_survivors:
            raise RoundAborted(sorted(clients), self._terms.minimum_survivors)

    def _recover(self, client: int, answers: Mapping[int, Mapping[int, int]]) -> bytes:
        """A client's secret from the shares of it among answers."""
        terms = self._terms
        shares = {terms.points[holder]: its[client] for holder, its in answers.items() if client in its}
        try:
            return shamir.recover(shares, terms.threshold).to_bytes(shamir.SECRET_BYTES, "little")
        except (ValueError, OverflowError):
            raise self._wrong_shares(client) from None

    def _wrong_shares(self, client: int) -> RoundAborted:
        cause = f"wrong shares of client {client}'s secrets"
        return RoundAborted(sorted(self._masked), self._terms.threshold, cause)
