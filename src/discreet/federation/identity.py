"""Who a party is: an Ed25519 key pair, and the fingerprint by which people compare public keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from discreet.errors import DataError
from discreet.wire import SIGNATURE_BYTES, verify

__all__ = ["SIGNATURE_BYTES", "Identity", "fingerprint", "same_fingerprint", "verify"]

_GROUP = 4
"""Hexadecimal digits between two colons of a fingerprint."""


@dataclass(frozen=True)
class Identity:
    """A party's Ed25519 key pair; two with the same public key are equal.

    Args:
        private: signs; it never leaves the party. `MaskingClient.start` takes it as its ``identity``.
    """

    private: Ed25519PrivateKey = field(repr=False, compare=False)
    public: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "public", self.private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        """A new one, from the operating system's random numbers."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> Identity:
        """The one whose private key is these 32 bytes; in a rehearsal they come from a seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @classmethod
    def from_pem(cls, data: bytes, source: object = "identity") -> Identity:
        """The one that `to_pem` wrote down.

        Args:
            data: the file's content.
            source: the file, for the error.

        Raises:
            DataError: it is no Ed25519 private key without a password.
        """
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise DataError(source, "holds no Ed25519 private key: expected PEM (PKCS #8) without a password")
        return cls(key)

    def to_pem(self) -> bytes:
        """The private key as PEM (PKCS #8), not encrypted. **Secret**: for a file that only its owner can read."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, message: bytes) -> bytes:
        """The signature of a message: `SIGNATURE_BYTES` bytes, the same at every call."""
        return self.private.sign(message)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public key."""
        return fingerprint(self.public)


def fingerprint(data: bytes) -> str:
    """SHA-256 as people compare it: 64 hexadecimal digits in groups of four, as ``1f3a:09c4:...``.

    Args:
        data: a public key of 32 bytes, or whatever else has to be compared.
    """
    digits = hashlib.sha256(data).hexdigest()
    return ":".join(digits[start : start + _GROUP] for start in range(0, len(digits), _GROUP))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are the same, however they are grouped and in whichever case."""
    first, second = (
        text.replace(":", "").replace(" ", "").replace("-", "").casefold() for text in (one, other)
    )
    return first == second
