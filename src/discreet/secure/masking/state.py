"""What a client keeps between messages, in memory or on disk.

Every stage keeps only what later stages need: a client that has sent its masked input no longer has the keys that
would undo it, and one that has answered the request to unmask has nothing left.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum

from discreet.errors import LocalProtocolError
from discreet.secure.masking import keys, shamir
from discreet.secure.masking.keys import PublicKeys, Roster, Secrets
from discreet.secure.masking.terms import MaskingTerms


class Progress(IntEnum):
    """How far a client is; it only ever grows."""

    STARTED = 0
    ADVERTISED = 1
    SHARED = 2
    MASKED = 3
    CONSENTED = 4
    FINISHED = 5
    FAILED = 6
    """A message was refused: nothing that comes in this round is answered any more."""


@dataclass(frozen=True)
class HeldShares:
    """What a client holds of one peer's secrets.

    Args:
        seed: share of the self-mask seed.
        key: share of the mask key.
    """

    seed: int = field(repr=False)
    key: int = field(repr=False)


@dataclass(frozen=True)
class ClientState:
    """All that a client knows.

    Args:
        client: its number.
        progress: what it has sent.
        secrets: its own, until its masked input is sent.
        signature: of its public keys, until they are sent.
        peers: neighbours' public keys, until its masked input is sent.
        held: shares of peers' secrets and its own, until it has answered the request to unmask.
        survivors: among their owners those that it has consented to, until then.
    """

    client: int
    progress: Progress
    secrets: Secrets | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)
    peers: tuple[tuple[int, PublicKeys], ...] = ()
    held: tuple[tuple[int, HeldShares], ...] = field(default=(), repr=False)
    survivors: tuple[int, ...] = ()

    def to_bytes(self, terms: MaskingTerms, roster: Roster | None) -> bytes:
        """The state as bytes. **They hold secrets in the clear**: keep them where only this client can read."""
        secrets = self.secrets
        parts = [
            _HEADER.pack(
                _MAGIC,
                terms.context,
                _roster_hash(roster),
                self.client,
                self.progress,
                secrets is not None,
                self.signature is not None,
                len(self.peers),
                len(self.held),
                len(self.survivors),
            )
        ]
        if secrets is not None:
            parts += [secrets.channel, secrets.mask, secrets.seed, secrets.dealer]
        if self.signature is not None:
            parts.append(self.signature)
        parts += [_PEER.pack(peer, its.channel, its.mask) for peer, its in self.peers]
        parts += [
            _HELD.pack(peer, shares.seed.to_bytes(_SHARE, "little"), shares.key.to_bytes(_SHARE, "little"))
            for peer, shares in self.held
        ]
        parts.append(struct.pack(f"<{len(self.survivors)}I", *self.survivors))
        body = b"".join(parts)
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes, terms: MaskingTerms, roster: Roster | None) -> ClientState:
        """The state in `data`.

        Raises:
            LocalProtocolError: the bytes are damaged, or are of another sum or another roster.
        """
        body = data[:-32]
        if len(body) < _HEADER.size or hashlib.sha256(body).digest() != data[-32:]:
            raise LocalProtocolError("the state of a masked sum is damaged")
        magic, context, pinned, client, progress, has_secrets, signed, peers, held, left = (
            _HEADER.unpack_from(body)
        )
        # going on under other terms would end in masks that don't cancel, which nobody would notice
        if magic != _MAGIC or context != terms.context:
            raise LocalProtocolError(
                "the state is of another masked sum: expected the terms that it was saved with"
            )
        if pinned != _roster_hash(roster):
            raise LocalProtocolError("the state was saved with another roster of identities")
        at = _HEADER.size
        secrets, signature = None, None
        if has_secrets:
            size = keys.KEY_BYTES
            secrets = Secrets(*(body[start : start + size] for start in range(at, at + 4 * size, size)))
            at += 4 * size
        if signed:
            signature = body[at : at + keys.SIGNATURE_BYTES]
            at += keys.SIGNATURE_BYTES
        peers_end = at + peers * _PEER.size
        held_end = peers_end + held * _HELD.size
        return cls(
            client,
            Progress(progress),
            secrets,
            signature,
            tuple((peer, PublicKeys(*its)) for peer, *its in _PEER.iter_unpack(body[at:peers_end])),
            tuple(
                (peer, HeldShares(*(int.from_bytes(share, "little") for share in shares)))
                for peer, *shares in _HELD.iter_unpack(body[peers_end:held_end])
            ),
            struct.unpack_from(f"<{left}I", body, held_end),
        )


_SHARE = shamir.SHARE_BYTES
_MAGIC = b"dms2"
_HEADER = struct.Struct("<4s32s32sIB??III")
_PEER = struct.Struct(f"<I{keys.KEY_BYTES}s{keys.KEY_BYTES}s")
_HELD = struct.Struct(f"<I{_SHARE}s{_SHARE}s")


def _roster_hash(roster: Roster | None) -> bytes:
    if roster is None:
        return bytes(32)
    entries = (struct.pack("<II", client, len(key)) + key for client, key in sorted(roster.items()))
    return hashlib.sha256(b"".join(entries)).digest()
