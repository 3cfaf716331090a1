"""The keys of one client in one round, and what pairs of clients derive from them.

| what | made by | bound to |
|---|---|---|
| two X25519 key pairs, a self-mask seed, a dealer's seed | the entropy that the client is given | - |
| channel key, one for each direction | X25519, HKDF-SHA256 | terms, purpose, both clients, both public keys |
| pairwise mask seed | X25519, HKDF-SHA256 | terms, purpose, both clients, both public keys |
| coefficients of Shamir's polynomials | the dealer's seed, AES-256-CTR | terms, purpose, client |

Everything is drawn when the client starts. One that goes on from its stored state has no need of fresh random
numbers, and so cannot share the same secret by two different polynomials.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from discreet.errors import LocalProtocolError
from discreet.randomness import Seeded, SystemRandom
from discreet.secure.expansion import Seed, expand
from discreet.secure.masking import shamir
from discreet.secure.masking.terms import MaskingTerms
from discreet.secure.ring import Ring

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEALED_BYTES = 2 * shamir.SHARE_BYTES + 16
"""Two shares and the tag of the authenticated cipher."""

Roster = Mapping[int, bytes]
"""Every client's Ed25519 public key, pinned before the run."""

_CURVE_FIELD = 2**255 - 19
_LOW_ORDER = {
    0,
    1,
    _CURVE_FIELD - 1,
    *(
        int.from_bytes(bytes.fromhex(point), "little")
        for point in (
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        )
    ),
}
"""u-coordinates of the points of Curve25519 and its twist whose order divides 8."""

_LIMBS = 6
"""64-bit words that one coefficient is made from: 384 bits leave a bias below 2^-127."""


@dataclass(frozen=True)
class PublicKeys:
    """What a client advertises.

    Args:
        channel: X25519 key for encryption between clients, 32 bytes.
        mask: X25519 key for pairwise masks, 32 bytes.
        signature: Ed25519 signature of both by the client's identity key, 64 bytes, or None.

    Raises:
        LocalProtocolError: a length is wrong.
    """

    channel: bytes
    mask: bytes
    signature: bytes | None = None

    def __post_init__(self) -> None:
        for name, key in (("channel", self.channel), ("mask", self.mask)):
            if len(key) != KEY_BYTES:
                raise LocalProtocolError(f"{name} key: expected {KEY_BYTES} bytes, got {len(key)}")
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise LocalProtocolError(
                f"signature: expected {SIGNATURE_BYTES} bytes, got {len(self.signature)}"
            )


@dataclass(frozen=True)
class Secrets:
    """What a client draws for one round; 32 bytes each.

    Args:
        channel: X25519 private key.
        mask: X25519 private key.
        seed: of the self-mask.
        dealer: decides the polynomials by which `mask` and `seed` are shared.
    """

    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    dealer: bytes = field(repr=False)

    def public(self, terms: MaskingTerms, client: int, identity: Ed25519PrivateKey | None) -> PublicKeys:
        """The public keys, signed if there is an identity to sign with."""
        channel, mask = public_key(self.channel), public_key(self.mask)
        if identity is None:
            return PublicKeys(channel, mask)
        return PublicKeys(channel, mask, identity.sign(_signed(terms, client, channel, mask)))

    def coefficients(self, terms: MaskingTerms, client: int, purpose: bytes) -> list[int]:
        """The threshold - 1 elements of Shamir's field that make a polynomial, the same at every call."""
        count = terms.threshold - 1
        seed = Seed(self.dealer, _info(b"polynomial " + purpose, terms, client))
        words = expand(Ring(64), seed, count * _LIMBS).astype("<u8").tobytes()
        size = 8 * _LIMBS
        return [
            int.from_bytes(words[at : at + size], "little") % shamir.PRIME
            for at in range(0, len(words), size)
        ]


def draw(randomness: Seeded | SystemRandom, terms: MaskingTerms, client: int) -> Secrets:
    """A client's secrets for one round.

    Args:
        randomness: `SystemRandom` in a deployment, `Seeded` in a simulation, in which nothing is secret.
        terms: of the sum.
        client: whose they are.
    """
    words = randomness.words(terms.round, client, "masking", 4 * KEY_BYTES // 8).astype("<u8").tobytes()
    return Secrets(*(words[at : at + KEY_BYTES] for at in range(0, len(words), KEY_BYTES)))


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def usable(public: bytes) -> bool:
    """Whether an X25519 public key leads to a secret; a point of low order does not, with any private key."""
    return (int.from_bytes(public, "little") % 2**255) % _CURVE_FIELD not in _LOW_ORDER


@dataclass(frozen=True)
class KeyPair:
    """A client's X25519 key pair.

    Args:
        client: whose it is.
        private: the private key, which to load takes as long as to use.
        public: 32 bytes.
    """

    client: int
    private: X25519PrivateKey = field(repr=False, compare=False)
    public: bytes

    @classmethod
    def of(cls, client: int, private: bytes) -> KeyPair:
        """The pair with this private key."""
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(client, key, key.public_key().public_bytes_raw())

    def agree(self, public: bytes, info: bytes) -> bytes:
        """32 bytes that only this client and the owner of the public key know.

        Raises:
            ValueError: the public key is a point of low order.
        """
        secret = self.private.exchange(X25519PublicKey.from_public_bytes(public))
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def mask_seed(terms: MaskingTerms, own: KeyPair, peer: int, public: bytes) -> Seed:
    """The seed of the mask that two clients have in common; the same from both sides.

    Args:
        terms: of the sum.
        own: one client's mask keys.
        peer: the other client.
        public: its mask key.

    Raises:
        ValueError: the public key is a point of low order.
    """
    (first, first_key), (second, second_key) = sorted([(own.client, own.public), (peer, public)])
    info = _info(b"mask", terms, first, second) + first_key + second_key
    return Seed(own.agree(public, info), b"pairwise mask")


def self_seed(terms: MaskingTerms, seed: bytes, client: int) -> Seed:
    """The seed of a client's own mask."""
    return Seed(seed, _info(b"self mask", terms, client))


@dataclass(frozen=True)
class Channel:
    """One direction between two clients; its key encrypts one message only, so that a constant nonce will do.

    Args:
        key: of ChaCha20-Poly1305.
    """

    key: bytes = field(repr=False)

    def seal(self, seed_share: int, key_share: int) -> bytes:
        """Both shares, encrypted: `SEALED_BYTES` bytes."""
        body = b"".join(share.to_bytes(shamir.SHARE_BYTES, "little") for share in (seed_share, key_share))
        return ChaCha20Poly1305(self.key).encrypt(bytes(12), body, None)

    def open(self, sealed: bytes) -> tuple[int, int]:
        """The share of the seed and that of the mask key.

        Raises:
            ValueError: it was not sealed by the peer for us under these terms, or holds no shares.
        """
        try:
            body = ChaCha20Poly1305(self.key).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            raise ValueError("not authentic") from None
        seed_share, key_share = (
            int.from_bytes(part, "little")
            for part in (body[: shamir.SHARE_BYTES], body[shamir.SHARE_BYTES :])
        )
        if len(body) != 2 * shamir.SHARE_BYTES or max(seed_share, key_share) >= shamir.PRIME:
            raise ValueError("not two shares")
        return seed_share, key_share


def channel(terms: MaskingTerms, own: KeyPair, peer: int, public: bytes, *, outgoing: bool) -> Channel:
    """The channel from a client to a peer, or back.

    Args:
        terms: of the sum.
        own: the client's channel keys.
        peer: the peer.
        public: the peer's channel key.
        outgoing: whether the client is the sender.

    Raises:
        ValueError: the public key is a point of low order.
    """
    ends = [(own.client, own.public), (peer, public)]
    (sender, sender_key), (receiver, receiver_key) = ends if outgoing else ends[::-1]
    info = _info(b"channel", terms, sender, receiver) + sender_key + receiver_key
    return Channel(own.agree(public, info))


def signed_by(terms: MaskingTerms, client: int, keys: PublicKeys, roster: Roster) -> bool:
    """Whether the client's pinned identity signed these keys for this sum."""
    if keys.signature is None or client not in roster:
        return False
    try:
        identity = Ed25519PublicKey.from_public_bytes(roster[client])
        identity.verify(keys.signature, _signed(terms, client, keys.channel, keys.mask))
    except InvalidSignature:
        return False
    return True


def consent(terms: MaskingTerms, survivors: Sequence[int], identity: Ed25519PrivateKey) -> bytes:
    """A client's signature that it goes on with these survivors, in ascending order, and no others."""
    return identity.sign(_consented(terms, survivors))


def consents(
    terms: MaskingTerms, survivors: Sequence[int], client: int, signature: bytes, roster: Roster
) -> bool:
    """Whether it is the signature of the client's pinned identity to that."""
    if client not in roster:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(roster[client]).verify(signature, _consented(terms, survivors))
    except InvalidSignature:
        return False
    return True


def _consented(terms: MaskingTerms, survivors: Sequence[int]) -> bytes:
    return _info(b"survivors", terms, *survivors)


def _signed(terms: MaskingTerms, client: int, channel: bytes, mask: bytes) -> bytes:
    return _info(b"advertised keys", terms, client) + channel + mask


def _info(purpose: bytes, terms: MaskingTerms, *clients: int) -> bytes:
    # the purpose's length first and fixed lengths after it: no two different inputs give the same bytes
    return bytes([len(purpose)]) + purpose + terms.context + struct.pack(f"<{len(clients)}I", *clients)
