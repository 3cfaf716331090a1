"""The messages of a masked sum, as bytes.

| message | from | body |
|---|---|---|
| `AdvertisedKeys` | client | two public keys, signed or not |
| `PeerKeys` | server | the same of every neighbour that advertised |
| `SharedKeys` | client | for every such neighbour two sealed shares |
| `DeliveredShares` | server | what neighbours sealed for this client |
| `MaskedInput` | client | the masked vector, packed at b bits an element |
| `UnmaskRequest` | server | which neighbours survived and which dropped out |
| `Consent` | client | its signature of the survivors, if somebody dropped out |
| `Consents` | server | the signatures of as many clients as the threshold says |
| `UnmaskShares` | client | a share of each survivor's seed, of each dropout's mask key |

A message is a header (protocol, kind, round, client, 16 bytes of the terms' hash) and a body. Lists are padded with
zeros to as many entries as the degree allows: **the length of a message depends on its kind and the terms alone**,
and there is exactly one encoding of each. `from_bytes` refuses everything else by RemoteProtocolError, before it
has copied anything. `client` is the sender, or the receiver of what comes from the server.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self, TypeVar

from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.secure.masking import keys, shamir
from discreet.secure.masking.keys import PublicKeys
from discreet.secure.masking.terms import MaskingTerms
from discreet.secure.packing import packed_bytes

_HEADER = struct.Struct("<2sBBqI16s")
_MAGIC, _VERSION = b"dm", 1
_NUMBER = struct.Struct("<I")
_Value = TypeVar("_Value")
_KEYS_BYTES = 2 * keys.KEY_BYTES + 1 + keys.SIGNATURE_BYTES


@dataclass(frozen=True)
class Message(ABC):
    """What all messages have in common.

    Args:
        client: who sent it, or whom the server sends it to.
    """

    kind: ClassVar[int]
    client: int

    @classmethod
    @abstractmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """The length of the body."""

    @classmethod
    def size(cls, terms: MaskingTerms) -> int:
        """The length of the message."""
        return _HEADER.size + cls.body_bytes(terms)

    @abstractmethod
    def body(self, terms: MaskingTerms) -> bytes:
        """The part after the header."""

    @classmethod
    @abstractmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """The message with this body of the right length; LocalProtocolError if there is none."""

    def to_bytes(self, terms: MaskingTerms) -> bytes:
        """The message as it is sent: `size(terms)` bytes.

        Raises:
            LocalProtocolError: it has more entries than the terms allow.
        """
        header = _HEADER.pack(_MAGIC, _VERSION, self.kind, terms.round, self.client, terms.context[:16])
        data = header + self.body(terms)
        if len(data) != self.size(terms):
            raise LocalProtocolError(f"{type(self).__name__}: {len(data)} bytes, expected {self.size(terms)}")
        return data

    @classmethod
    def from_bytes(cls, data: bytes, terms: MaskingTerms, *, peer: object, client: int) -> Self:
        """The message in `data`.

        Args:
            data: what was received.
            terms: of the sum.
            peer: who sent it, as the transport says; named in the error.
            client: whom it must be from, or for if the server sent it.

        Raises:
            RemoteProtocolError: it is no such message, or from another round, client or sum.
        """

        def check(holds: bool, what: str) -> None:
            if not holds:
                raise RemoteProtocolError(peer, terms.round, what)

        check(len(data) == cls.size(terms), f"length: {len(data)} bytes, expected {cls.size(terms)}")
        magic, version, kind, round, named, context = _HEADER.unpack_from(data)
        check(magic == _MAGIC and version == _VERSION, "protocol: not a message of version 1")
        check(kind == cls.kind, f"kind: expected {cls.__name__}")
        check(round == terms.round, f"round: it is for round {round}")
        check(context == terms.context[:16], "terms: it is for another sum")
        check(named == client, f"client: it names client {named}, expected {client}")
        try:
            return cls.parse(client, memoryview(data)[_HEADER.size :], terms)
        except LocalProtocolError as error:
            # what would be our bug if we built it is the peer's if it sent it
            raise RemoteProtocolError(peer, terms.round, str(error)) from None


@dataclass(frozen=True)
class AdvertisedKeys(Message):
    """Stage 1, from a client."""

    kind: ClassVar[int] = 1
    keys: PublicKeys

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """One client's keys."""
        return _KEYS_BYTES

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        return _keys_to_bytes(self.keys)

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        return cls(client, _keys_from_bytes(bytes(body)))


@dataclass(frozen=True)
class PeerKeys(Message):
    """Stage 1, to a client: the keys of its neighbours in ascending order."""

    kind: ClassVar[int] = 2
    peers: tuple[tuple[int, PublicKeys], ...]

    def __post_init__(self) -> None:
        _check_ascending("peers", [peer for peer, _ in self.peers])

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """A client and its keys for every neighbour."""
        return _list_bytes(terms.degree, _NUMBER.size + _KEYS_BYTES)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        entries = [_NUMBER.pack(peer) + _keys_to_bytes(its) for peer, its in self.peers]
        return _list_to_bytes(entries, self.body_bytes(terms))

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        entries, _ = _list_from_bytes("peers", body, terms.degree, _NUMBER.size + _KEYS_BYTES)
        return cls(client, tuple(_numbered(entry, _keys_from_bytes) for entry in entries))


@dataclass(frozen=True)
class _SealedShares(Message):
    sealed: tuple[tuple[int, bytes], ...]

    def __post_init__(self) -> None:
        _check_ascending("sealed", [peer for peer, _ in self.sealed])
        if any(len(each) != keys.SEALED_BYTES for _, each in self.sealed):
            raise LocalProtocolError(f"sealed: expected {keys.SEALED_BYTES} bytes each")

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """A client and two sealed shares for every neighbour."""
        return _list_bytes(terms.degree, _NUMBER.size + keys.SEALED_BYTES)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        return _list_to_bytes(
            [_NUMBER.pack(peer) + each for peer, each in self.sealed], self.body_bytes(terms)
        )

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        entries, _ = _list_from_bytes("sealed", body, terms.degree, _NUMBER.size + keys.SEALED_BYTES)
        return cls(client, tuple(_numbered(entry, bytes) for entry in entries))


@dataclass(frozen=True)
class SharedKeys(_SealedShares):
    """Stage 2, from a client: shares by the neighbour that they are sealed for."""

    kind: ClassVar[int] = 3


@dataclass(frozen=True)
class DeliveredShares(_SealedShares):
    """Stage 2, to a client: shares by the neighbour that sealed them."""

    kind: ClassVar[int] = 4


@dataclass(frozen=True)
class MaskedInput(Message):
    """Stage 3, from a client: its vector under masks, as `discreet.secure.packing` packs it."""

    kind: ClassVar[int] = 5
    packed: bytes = field(repr=False)

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """`length` elements of `bits` bits."""
        return packed_bytes(terms.length, terms.bits)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        return self.packed

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        used = terms.length * terms.bits % 8
        if used and body[-1] >> used:
            raise LocalProtocolError("packed: the spare bits at the end must be 0")
        return cls(client, bytes(body))


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """Stage 3, to a client: what became of its neighbours and itself, each list in ascending order.

    Args:
        client: whom it is for.
        survivors: whose masked input arrived.
        dropouts: who shared keys and sent no masked input.
        survivor_count: survivors in the whole cohort.
    """

    kind: ClassVar[int] = 6
    survivors: tuple[int, ...]
    dropouts: tuple[int, ...]
    survivor_count: int

    def __post_init__(self) -> None:
        _check_ascending("survivors", self.survivors)
        _check_ascending("dropouts", self.dropouts)

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """A number, and two lists that each have room for all holders."""
        return _NUMBER.size + 2 * _list_bytes(terms.degree + 1, _NUMBER.size)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        size = _list_bytes(terms.degree + 1, _NUMBER.size)
        lists = (
            _list_to_bytes([_NUMBER.pack(peer) for peer in peers], size)
            for peers in (self.survivors, self.dropouts)
        )
        return _NUMBER.pack(self.survivor_count) + b"".join(lists)

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        (count,) = _NUMBER.unpack_from(body)
        survivors, rest = _list_from_bytes("survivors", body[_NUMBER.size :], terms.degree + 1, _NUMBER.size)
        dropouts, _ = _list_from_bytes("dropouts", rest, terms.degree + 1, _NUMBER.size)
        return cls(client, _numbers(survivors), _numbers(dropouts), count)


@dataclass(frozen=True)
class Consent(Message):
    """From a client that was told who survived, and goes on with those and no others."""

    kind: ClassVar[int] = 8
    signature: bytes

    def __post_init__(self) -> None:
        _check_signature(self.signature)

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """A signature."""
        return keys.SIGNATURE_BYTES

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        return self.signature

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        return cls(client, bytes(body))


@dataclass(frozen=True)
class Consents(Message):
    """To a client that has consented: the same of others, in ascending order of their numbers."""

    kind: ClassVar[int] = 9
    consents: tuple[tuple[int, bytes], ...]

    def __post_init__(self) -> None:
        _check_ascending("consents", [peer for peer, _ in self.consents])
        for _, signature in self.consents:
            _check_signature(signature)

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """As many clients as the threshold says, and their signatures."""
        return _list_bytes(terms.threshold, _NUMBER.size + keys.SIGNATURE_BYTES)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        entries = [_NUMBER.pack(peer) + signature for peer, signature in self.consents]
        return _list_to_bytes(entries, self.body_bytes(terms))

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        size = _NUMBER.size + keys.SIGNATURE_BYTES
        entries, _ = _list_from_bytes("consents", body, terms.threshold, size)
        return cls(client, tuple(_numbered(entry, bytes) for entry in entries))


@dataclass(frozen=True)
class UnmaskShares(Message):
    """The last stage, from a client.

    Args:
        client: who sent it.
        seeds: of each survivor among its neighbours and itself, a share of the self-mask seed.
        keys: of each dropout among its neighbours, a share of the mask key.
    """

    kind: ClassVar[int] = 7
    seeds: tuple[tuple[int, int], ...] = field(repr=False)
    keys: tuple[tuple[int, int], ...] = field(repr=False)

    def __post_init__(self) -> None:
        for name, shares in (("seeds", self.seeds), ("keys", self.keys)):
            _check_ascending(name, [peer for peer, _ in shares])
            if not all(0 <= share < shamir.PRIME for _, share in shares):
                raise LocalProtocolError(f"{name}: a share must be an element of the field")

    @classmethod
    def body_bytes(cls, terms: MaskingTerms) -> int:
        """Two lists that each have room for all holders."""
        return 2 * _list_bytes(terms.degree + 1, _NUMBER.size + shamir.SHARE_BYTES)

    def body(self, terms: MaskingTerms) -> bytes:
        """See the module."""
        return b"".join(
            _list_to_bytes(
                [_NUMBER.pack(peer) + share.to_bytes(shamir.SHARE_BYTES, "little") for peer, share in shares],
                self.body_bytes(terms) // 2,
            )
            for shares in (self.seeds, self.keys)
        )

    @classmethod
    def parse(cls, client: int, body: memoryview, terms: MaskingTerms) -> Self:
        """See `Message.parse`."""
        size = _NUMBER.size + shamir.SHARE_BYTES
        seeds, rest = _list_from_bytes("seeds", body, terms.degree + 1, size)
        mask_keys, _ = _list_from_bytes("keys", rest, terms.degree + 1, size)
        lists = (
            tuple(_numbered(entry, lambda share: int.from_bytes(share, "little")) for entry in entries)
            for entries in (seeds, mask_keys)
        )
        return cls(client, *lists)


def _check_signature(signature: bytes) -> None:
    if len(signature) != keys.SIGNATURE_BYTES:
        raise LocalProtocolError(f"signature: expected {keys.SIGNATURE_BYTES} bytes")


def _keys_to_bytes(public: PublicKeys) -> bytes:
    signature = public.signature
    signed = bytes(1 + keys.SIGNATURE_BYTES) if signature is None else b"\1" + signature
    return public.channel + public.mask + signed


def _keys_from_bytes(data: bytes) -> PublicKeys:
    size = keys.KEY_BYTES
    channel, mask, signed = data[:size], data[size : 2 * size], data[2 * size :]
    if signed[0] > 1 or (signed[0] == 0 and any(signed)):
        raise LocalProtocolError("signature: neither there nor absent")
    return PublicKeys(channel, mask, signed[1:] if signed[0] else None)


def _list_bytes(capacity: int, size: int) -> int:
    return _NUMBER.size + capacity * size


def _list_to_bytes(entries: list[bytes], size: int) -> bytes:
    return (_NUMBER.pack(len(entries)) + b"".join(entries)).ljust(size, b"\0")


def _list_from_bytes(name: str, data: memoryview, capacity: int, size: int) -> tuple[list[bytes], memoryview]:
    """The entries of a padded list, and what comes after it."""
    (count,) = _NUMBER.unpack_from(data)
    end = _list_bytes(capacity, size)
    if count > capacity or any(data[_list_bytes(count, size) : end]):
        raise LocalProtocolError(f"{name}: more than {capacity} entries, or something after the last")
    starts = range(_NUMBER.size, _list_bytes(count, size), size)
    return [bytes(data[start : start + size]) for start in starts], data[end:]


def _numbered(entry: bytes, value: Callable[[bytes], _Value]) -> tuple[int, _Value]:
    (peer,) = _NUMBER.unpack_from(entry)
    return peer, value(entry[_NUMBER.size :])


def _numbers(entries: Iterable[bytes]) -> tuple[int, ...]:
    return tuple(_NUMBER.unpack(entry)[0] for entry in entries)


def _check_ascending(name: str, peers: Iterable[int]) -> None:
    listed = list(peers)
    if any(later <= earlier for earlier, later in pairwise(listed)):
        raise LocalProtocolError(f"{name}: expected clients in ascending order, each once")
