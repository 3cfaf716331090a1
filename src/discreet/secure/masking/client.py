"""The client's side of a masked sum: messages out, each but the first in answer to one from the server.

    client = MaskingClient.start(terms, 7, SystemRandom())
    client.advertise()            -> AdvertisedKeys
    client.share_keys(PeerKeys)   -> SharedKeys
    client.mask(DeliveredShares, vector) -> MaskedInput
    client.unmask(UnmaskRequest)  -> UnmaskShares

or, where somebody dropped out, peers have identities and the graph is complete,

    client.consent(UnmaskRequest, identity) -> Consent
    client.unmask(Consents)       -> UnmaskShares

A client goes forward only. It answers each stage once; a message that it refuses ends the round for it, and what it
knew is gone. `state_bytes` and `restore` let it sleep between messages: store the new state before the answer leaves
and delete the old one, since a client restored twice would answer twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.errors import LocalProtocolError, RemoteProtocolError, RoundAborted
from discreet.randomness import Seeded, SystemRandom
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
    PeerKeys,
    SharedKeys,
    UnmaskRequest,
    UnmaskShares,
)
from discreet.secure.masking.state import ClientState, HeldShares, Progress
from discreet.secure.masking.terms import MaskingTerms
from discreet.secure.packing import pack
from discreet.secure.ring import Elements

_SERVER = "server"


class MaskingClient:
    """One client in one masked sum; made by `start` or `restore`."""

    def __init__(
        self,
        terms: MaskingTerms,
        state: ClientState,
        roster: Roster | None,
        minima: Mapping[int, int] | None = None,
    ) -> None:
        self._terms, self._state, self._roster, self._minima = terms, state, roster, minima or {}

    def __repr__(self) -> str:
        return f"MaskingClient({self.client}, {self.progress.name})"

    @classmethod
    def start(
        cls,
        terms: MaskingTerms,
        client: int,
        randomness: Seeded | SystemRandom,
        *,
        identity: Ed25519PrivateKey | None = None,
        roster: Roster | None = None,
        minima: Mapping[int, int] | None = None,
    ) -> MaskingClient:
        """A client that is about to advertise its keys.

        Args:
            terms: of the sum.
            client: its number, one of the cohort.
            randomness: `SystemRandom` in a deployment; `Seeded` in a simulation, in which nothing is secret.
            identity: signs the keys that it advertises.
            roster: identities of its peers. Without it the client takes the server's word for whose keys are whose.
            minima: clients that are in no sum of fewer than so many, whatever the terms allow; see
                `MaskingTerms.minimum_survivors`.

        Raises:
            LocalProtocolError: the client is not of the cohort.
        """
        if client not in terms.points:
            raise LocalProtocolError(f"client {client} is not of the cohort")
        secrets = keys.draw(randomness, terms, client)
        signature = secrets.public(terms, client, identity).signature
        state = ClientState(client, Progress.STARTED, secrets, signature)
        return cls(terms, state, roster, minima)

    @classmethod
    def restore(
        cls,
        data: bytes,
        terms: MaskingTerms,
        *,
        roster: Roster | None = None,
        minima: Mapping[int, int] | None = None,
    ) -> MaskingClient:
        """The client whose `state_bytes` these are; terms and roster must be the same.

        Raises:
            LocalProtocolError: they are damaged, or of other terms or another roster.
        """
        return cls(terms, ClientState.from_bytes(data, terms, roster), roster, minima)

    def state_bytes(self) -> bytes:
        """All that the client needs to go on. **Secret**: keep it where only the client can read it."""
        return self._state.to_bytes(self._terms, self._roster)

    @property
    def client(self) -> int:
        """The client's number."""
        return self._state.client

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._state.progress

    def advertise(self) -> bytes:
        """The public keys.

        Raises:
            LocalProtocolError: it has advertised them before.
        """
        if self.progress != Progress.STARTED:
            raise LocalProtocolError(
                f"client {self.client} cannot advertise keys: it is {self.progress.name}"
            )
        state, secrets = self._state, self._secrets()
        public = PublicKeys(keys.public_key(secrets.channel), keys.public_key(secrets.mask), state.signature)
        self._state = ClientState(self.client, Progress.ADVERTISED, secrets)
        return AdvertisedKeys(self.client, public).to_bytes(self._terms)

    def share_keys(self, data: bytes) -> bytes:
        """Shares of the own secrets for every neighbour, sealed.

        Args:
            data: a `PeerKeys`.

        Raises:
            RemoteProtocolError: the message is refused, and the round over for this client.
            RoundAborted: fewer holders than the threshold; over likewise.
        """
        with self._one_step(Progress.ADVERTISED):
            terms, secrets = self._terms, self._secrets()
            peers = PeerKeys.from_bytes(data, terms, peer=_SERVER, client=self.client).peers
            self._check_peers(peers)
            holders = sorted([self.client, *(peer for peer, _ in peers)])
            self._require_holders(holders)
            points = [terms.points[holder] for holder in holders]
            both = (
                shamir.split(
                    int.from_bytes(secret, "little"),
                    points,
                    secrets.coefficients(terms, self.client, purpose),
                )
                for secret, purpose in ((secrets.seed, b"seed"), (secrets.mask, b"mask key"))
            )
            shares = {holder: HeldShares(*each) for holder, *each in zip(holders, *both, strict=True)}
            own = KeyPair.of(self.client, secrets.channel)
            sealed = tuple(
                (
                    peer,
                    keys.channel(terms, own, peer, its.channel, outgoing=True).seal(
                        shares[peer].seed, shares[peer].key
                    ),
                )
                for peer, its in peers
            )
            reply = SharedKeys(self.client, sealed).to_bytes(terms)
            kept = ((self.client, shares[self.client]),)
            self._state = ClientState(self.client, Progress.SHARED, secrets, None, peers, kept)
            return reply

    def mask(self, data: bytes, vector: Elements, *, threads: int = 1) -> bytes:
        """The vector under the self-mask and a mask for every neighbour that shared its keys.

        Args:
            data: a `DeliveredShares`.
            vector: shape (length,), reduced elements of the ring.
            threads: that make the masks.

        Raises:
            LocalProtocolError: the vector does not fit; the client stays as it is.
            RemoteProtocolError: the message is refused, and the round over for this client.
            RoundAborted: fewer holders than the threshold, or fewer clients than must be in the sum; over likewise.
        """
        terms, ring = self._terms, self._terms.ring
        if vector.shape != (terms.length,) or not ring.contains(vector):
            raise LocalProtocolError(
                f"expected a vector of {terms.length} {ring.dtype} below 2^{ring.bits}, "
                f"got {vector.dtype} of shape {vector.shape}"
            )
        with self._one_step(Progress.SHARED):
            sealed = DeliveredShares.from_bytes(data, terms, peer=_SERVER, client=self.client).sealed
            peers = dict(self._state.peers)
            held = dict(self._state.held)
            self._check(
                {peer for peer, _ in sealed} <= peers.keys(), "sealed: from a client that sent no keys"
            )
            self._require_holders([self.client, *(peer for peer, _ in sealed)])
            self._require_survivors([self.client, *(peer for peer, _ in sealed)])
            own = KeyPair.of(self.client, self._secrets().channel)
            for peer, each in sealed:
                route = keys.channel(terms, own, peer, peers[peer].channel, outgoing=False)
                try:
                    held[peer] = HeldShares(*route.open(each))
                except ValueError as error:
                    raise RemoteProtocolError(peer, terms.round, f"sealed: {error}") from None
            masked = vector.copy()
            plus, minus = self._masks([(peer, peers[peer].mask) for peer, _ in sealed])
            add_masks(ring, masked, plus, minus, threads)
            reply = MaskedInput(self.client, pack(ring, masked).tobytes()).to_bytes(terms)
            self._state = ClientState(
                self.client, Progress.MASKED, held=tuple(sorted(held.items(), key=_first))
            )
            return reply

    def consent(self, data: bytes, identity: Ed25519PrivateKey) -> bytes:
        """The signature that this client goes on with the survivors that it is told, and no others.

        Args:
            data: an `UnmaskRequest`.
            identity: signs it.

        Raises:
            RemoteProtocolError: the message is refused, and the round over for this client.
            RoundAborted: fewer survivors than the threshold, or than must be in the sum; over likewise.
        """
        with self._one_step(Progress.MASKED):
            survivors = self._requested(data).survivors
            signature = keys.consent(self._terms, survivors, identity)
            held = self._state.held
            self._state = ClientState(self.client, Progress.CONSENTED, held=held, survivors=survivors)
            return Consent(self.client, signature).to_bytes(self._terms)

    def unmask(self, data: bytes) -> bytes:
        """For every survivor among the holders a share of its seed, for every dropout one of its mask key.

        Never both of one client: together they would undo its masked input.

        Args:
            data: an `UnmaskRequest`; `Consents` if this client has consented.

        Raises:
            RemoteProtocolError: the message is refused, and the round over for this client.
            RoundAborted: fewer survivors than the threshold, or than must be in the sum; over likewise.
        """
        if self.progress == Progress.CONSENTED:
            with self._one_step(Progress.CONSENTED):
                self._check_consents(data)
                return self._shares(self._state.survivors)
        with self._one_step(Progress.MASKED):
            request = self._requested(data)
            asks = self._terms.complete and self._roster is not None
            self._check(not (asks and request.dropouts), "dropouts: the others have not consented")
            return self._shares(request.survivors)

    def _requested(self, data: bytes) -> UnmaskRequest:
        """What the server asks, if it can be and enough are left."""
        terms, held = self._terms, dict(self._state.held)
        request = UnmaskRequest.from_bytes(data, terms, peer=_SERVER, client=self.client)
        survivors, dropouts = set(request.survivors), set(request.dropouts)
        self._check(not survivors & dropouts, "survivors and dropouts: both shares of one client asked for")
        self._check(
            survivors | dropouts <= held.keys(), "survivors and dropouts: a client that shared no keys"
        )
        self._check(survivors | dropouts == held.keys(), "survivors and dropouts: a client is missing")
        self._check(self.client in survivors, "dropouts: this client sent its masked input")
        others = len(terms.cohort) - len(dropouts)
        self._check(len(survivors) <= request.survivor_count <= others, "survivor_count: cannot be")
        self._require_holders(request.survivors)
        self._require_survivors(request.survivors)
        needed = self._needed(request.survivors)
        if request.survivor_count < needed:
            raise RoundAborted(request.survivors, needed)
        return request

    def _check_consents(self, data: bytes) -> None:
        """Refuse to unmask for fewer than the threshold who go on with the same survivors."""
        terms, survivors, roster = self._terms, self._state.survivors, self._roster or {}
        found = Consents.from_bytes(data, terms, peer=_SERVER, client=self.client).consents
        self._check(len(found) == terms.threshold, f"consents: expected {terms.threshold}")
        self._check({peer for peer, _ in found} <= set(survivors), "consents: of a client that dropped out")
        for peer, signature in found:
            signed = keys.consents(terms, survivors, peer, signature, roster)
            self._check(signed, f"consents: client {peer}'s identity did not sign these survivors")

    def _shares(self, survivors: tuple[int, ...]) -> bytes:
        """The last message."""
        held = self._state.held
        left = set(survivors)
        reply = UnmaskShares(
            self.client,
            tuple((peer, shares.seed) for peer, shares in held if peer in left),
            tuple((peer, shares.key) for peer, shares in held if peer not in left),
        ).to_bytes(self._terms)
        self._state = ClientState(self.client, Progress.FINISHED)
        return reply

    @contextmanager
    def _one_step(self, expected: Progress) -> Iterator[None]:
        try:
            self._check(self.progress == expected, f"stage: this client is {self.progress.name}")
            yield
        except (RemoteProtocolError, RoundAborted):
            self._state = ClientState(self.client, Progress.FAILED)
            raise

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise RemoteProtocolError(_SERVER, self._terms.round, what)

    def _require_holders(self, holders: list[int] | tuple[int, ...]) -> None:
        if len(holders) < self._terms.threshold:
            raise RoundAborted(
                sorted(holders), self._terms.threshold, f"holders of client {self.client}'s secrets"
            )

    def _require_survivors(self, there: list[int] | tuple[int, ...]) -> None:
        """Where all others are neighbours, see to it that the sum can only be of enough."""
        needed = self._needed(there)
        if self._terms.complete and len(there) < needed:
            raise RoundAborted(sorted(there), needed)

    def _needed(self, there: Iterable[int]) -> int:
        """How many must be in a sum with these in it."""
        return max(self._terms.minimum_survivors, *(self._minima.get(one, 0) for one in there), 0)

    def _check_peers(self, peers: tuple[tuple[int, PublicKeys], ...]) -> None:
        terms, secrets = self._terms, self._secrets()
        neighbours = set(terms.neighbours[self.client])
        self._check({peer for peer, _ in peers} <= neighbours, "peers: keys of a client that is no neighbour")
        seen = {keys.public_key(secrets.channel), keys.public_key(secrets.mask)}
        for peer, its in peers:
            # a key that comes back to its owner, or twice, would make a channel or a mask with oneself
            self._check(not {its.channel, its.mask} & seen, f"peers: client {peer} has another client's key")
            self._check(its.channel != its.mask, f"peers: client {peer} has one key for two purposes")
            self._check(
                keys.usable(its.channel) and keys.usable(its.mask), f"peers: client {peer} has a weak key"
            )
            if self._roster is not None:
                signed = keys.signed_by(terms, peer, its, self._roster)
                self._check(signed, f"peers: client {peer}'s identity did not sign its keys")
            seen |= {its.channel, its.mask}

    def _masks(self, partners: list[tuple[int, bytes]]) -> tuple[list[Seed], list[Seed]]:
        """The seeds whose vectors are added, and those whose are subtracted."""
        terms, secrets, me = self._terms, self._secrets(), self.client
        own = KeyPair.of(me, secrets.mask)
        shared = {peer: keys.mask_seed(terms, own, peer, public) for peer, public in partners}
        plus = [keys.self_seed(terms, secrets.seed, me)]
        plus += [seed for peer, seed in shared.items() if me < peer]
        return plus, [seed for peer, seed in shared.items() if me > peer]

    def _secrets(self) -> keys.Secrets:
        if self._state.secrets is None:
            raise LocalProtocolError(f"client {self.client} no longer has its secrets")
        return self._state.secrets


def _first(entry: tuple[int, HeldShares]) -> int:
    return entry[0]
