"""What one site sends to another through the server, so that only that one can read it.

A key for each message: X25519 of both sites' keys of the run, HKDF-SHA256 over all that the message is for. Encryption is
ChaCha20-Poly1305; a message that comes under another run, round, phase, sender or receiver does not open.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from discreet.errors import LocalProtocolError
from discreet.federation.fields import Bytes, Many
from discreet.secure.masking.keys import KeyPair
from discreet.wire import MOST_SITES

NONCE_BYTES, TAG_BYTES = 12, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes that sealing adds."""

SEALED = Many(Bytes(), MOST_SITES)
"""How the parts of a row's total are put together, one from each holder."""


@dataclass(frozen=True)
class Topic:
    """What sealed messages are for; each is bound to it.

    Attributes:
        purpose: as ``b"share"``.
        run: names the run.
        session, round, attempt, phase: of the sum.
        agreed: what all sites have to know alike, as `discreet.federation.terms.agreement` has it.
        drawn: sites in the sum, for whose number each sizes its noise.
    """

    purpose: bytes
    run: bytes
    session: int
    round: int
    attempt: int
    phase: int
    agreed: bytes
    drawn: int

    def context(self, sender: int) -> bytes:
        """Names what a sender has to say of it."""
        numbers = struct.pack(
            "<IIHBII", self.session, self.round, self.attempt, self.phase, self.drawn, sender
        )
        return bytes([len(self.purpose)]) + self.purpose + self.run + self.agreed + numbers

    def seal(self, own: KeyPair, receiver: int, key: bytes, nonce: bytes, body: bytes) -> bytes:
        """A body that only the receiver can read.

        Args:
            own: the sender's keys.
            receiver: its number.
            key: its public key.
            nonce: `NONCE_BYTES` bytes, drawn anew for each message.
            body: what it is to read.

        Raises:
            LocalProtocolError: the key is none.
        """
        ends = struct.pack("<I", receiver) + own.public + key
        return nonce + ChaCha20Poly1305(_agreed(own, key, self.context(own.client) + ends)).encrypt(
            nonce, body, None
        )

    def open(self, own: KeyPair, sender: int, key: bytes, sealed: bytes) -> bytes:
        """What a sender has sealed for this site.

        Raises:
            LocalProtocolError: it was not sealed by that sender, for this site and this topic.
        """
        ends = struct.pack("<I", own.client) + key + own.public
        cipher = ChaCha20Poly1305(_agreed(own, key, self.context(sender) + ends))
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise LocalProtocolError(f"sealed: not by site {sender} for this") from None


def _agreed(own: KeyPair, key: bytes, info: bytes) -> bytes:
    try:
        return own.agree(key, info)
    except ValueError:
        raise LocalProtocolError("share key: a weak one") from None
