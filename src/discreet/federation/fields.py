"""How the fields of a part become bytes: a few kinds of fields, of which each has one encoding."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

from discreet.errors import LocalProtocolError

Value = TypeVar("Value")
Item = TypeVar("Item")

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


class Reader:
    """Takes fields off some bytes, one after another.

    Args:
        data: all of them.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int, name: str) -> bytes:
        """The next bytes.

        Raises:
            LocalProtocolError: there are fewer.
        """
        if count > len(self.data) - self.at:
            raise LocalProtocolError(f"{name}: cut off")
        self.at += count
        return self.data[self.at - count : self.at]


class Field(ABC, Generic[Value]):
    """A kind of field."""

    @abstractmethod
    def write(self, value: Value, name: str) -> bytes:
        """The bytes of a value; LocalProtocolError if it is none."""

    @abstractmethod
    def read(self, reader: Reader, name: str) -> Value:
        """The value in the bytes that come next; LocalProtocolError if there is none."""


@dataclass(frozen=True)
class Whole(Field[int]):
    """A whole number from 0.

    Args:
        size: in bytes: 1, 2, 4 or 8.
        most: the largest; None for what the size allows.
    """

    size: int
    most: int | None = None

    def write(self, value: int, name: str) -> bytes:
        """See `Field`."""
        return self._checked(value, name).to_bytes(self.size, "little")

    def read(self, reader: Reader, name: str) -> int:
        """See `Field`."""
        return self._checked(int.from_bytes(reader.take(self.size, name), "little"), name)

    def _checked(self, value: int, name: str) -> int:
        most = 256**self.size - 1 if self.most is None else self.most
        if not 0 <= value <= most:
            raise LocalProtocolError(f"{name}: not from 0 to {most}")
        return value


@dataclass(frozen=True)
class Truth(Field[bool]):
    """Yes or no, a byte."""

    def write(self, value: bool, name: str) -> bytes:
        """See `Field`."""
        return bytes([value])

    def read(self, reader: Reader, name: str) -> bool:
        """See `Field`."""
        (found,) = reader.take(1, name)
        if found > 1:
            raise LocalProtocolError(f"{name}: neither yes nor no")
        return bool(found)


@dataclass(frozen=True)
class Number(Field[float | None]):
    """A finite number in float64, or none, which is written as NaN."""

    def write(self, value: float | None, name: str) -> bytes:
        """See `Field`."""
        if value is not None and not math.isfinite(value):
            value = None
        return struct.pack("<d", math.nan if value is None else value)

    def read(self, reader: Reader, name: str) -> float | None:
        """See `Field`."""
        data = reader.take(8, name)
        (found,) = struct.unpack("<d", data)
        if data == struct.pack("<d", math.nan):
            return None
        if not math.isfinite(found):
            raise LocalProtocolError(f"{name}: not finite")
        return float(found)


@dataclass(frozen=True)
class Exactly(Field[bytes]):
    """So many bytes."""

    size: int

    def write(self, value: bytes, name: str) -> bytes:
        """See `Field`."""
        if len(value) != self.size:
            raise LocalProtocolError(f"{name}: {len(value)} bytes, expected {self.size}")
        return value

    def read(self, reader: Reader, name: str) -> bytes:
        """See `Field`."""
        return reader.take(self.size, name)


@dataclass(frozen=True)
class Bytes(Field[bytes]):
    """Any number of bytes, which comes first."""

    def write(self, value: bytes, name: str) -> bytes:
        """See `Field`."""
        return _LENGTH.pack(len(value)) + value

    def read(self, reader: Reader, name: str) -> bytes:
        """See `Field`."""
        (length,) = _LENGTH.unpack(reader.take(_LENGTH.size, name))
        return reader.take(length, name)


@dataclass(frozen=True)
class Text(Field[str]):
    """UTF-8 of at most so many bytes."""

    most: int

    def write(self, value: str, name: str) -> bytes:
        """See `Field`."""
        data = value.encode()
        if len(data) > self.most:
            raise LocalProtocolError(f"{name}: longer than {self.most} bytes")
        return _COUNT.pack(len(data)) + data

    def read(self, reader: Reader, name: str) -> str:
        """See `Field`."""
        (length,) = _COUNT.unpack(reader.take(_COUNT.size, name))
        if length > self.most:
            raise LocalProtocolError(f"{name}: longer than {self.most} bytes")
        try:
            return reader.take(length, name).decode()
        except UnicodeDecodeError:
            raise LocalProtocolError(f"{name}: not UTF-8") from None


@dataclass(frozen=True)
class Many(Field[tuple[Item, ...]], Generic[Item]):
    """A list, whose length comes first.

    Args:
        item: what it is of; each takes a byte at least.
        most: how many there may be.
    """

    item: Field[Item]
    most: int

    def write(self, value: Sequence[Item], name: str) -> bytes:
        """See `Field`."""
        if len(value) > self.most:
            raise LocalProtocolError(f"{name}: more than {self.most}")
        return _COUNT.pack(len(value)) + b"".join(self.item.write(one, name) for one in value)

    def read(self, reader: Reader, name: str) -> tuple[Item, ...]:
        """See `Field`."""
        (count,) = _COUNT.unpack(reader.take(_COUNT.size, name))
        if count > min(self.most, len(reader.data) - reader.at):
            raise LocalProtocolError(f"{name}: more than there can be")
        return tuple(self.item.read(reader, name) for _ in range(count))


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen dataclass whose fields are written one after another, each as `written` says.

    Class attributes:
        written: of each field its kind, by its name and in their order.
    """

    written: ClassVar[dict[str, Field[Any]]]

    def to_bytes(self) -> bytes:
        """All fields.

        Raises:
            LocalProtocolError: a value is not what its field takes.
        """
        return b"".join(kind.write(getattr(self, name), name) for name, kind in self.written.items())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            LocalProtocolError: these are not the bytes of such a record; a peer's, if a peer sent them.
        """
        reader = Reader(data)
        found = cls.read(reader)
        if reader.at != len(data):
            raise LocalProtocolError(f"{cls.__name__}: something after the last field")
        return found

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The record in the bytes that come next."""
        return cls(**{name: kind.read(reader, name) for name, kind in cls.written.items()})


Kept = TypeVar("Kept", bound=Record)


@dataclass(frozen=True)
class Of(Field[Kept], Generic[Kept]):
    """A record in a record."""

    kind: type[Kept]

    def write(self, value: Kept, name: str) -> bytes:
        """See `Field`."""
        return value.to_bytes()

    def read(self, reader: Reader, name: str) -> Kept:
        """See `Field`."""
        return self.kind.read(reader)


def is_written_whole(kind: type[Record]) -> bool:
    """Whether all fields of a record are written, in their order; for a test."""
    return [field.name for field in fields(kind)] == list(kind.written)  # type: ignore[arg-type]
