"""What was given out, written down before it is: the ledger of a site, and that of a server.

A line of JSON for each release, appended and on the disk before anything that depends on it leaves. A crash may count a
release that never happened; it never forgets one that did.

How a line gets there: it is first written whole to a second file, ``NAME.next``, which takes its name atomically, and
only then appended. Whoever finds a ledger whose last line is torn, or not there yet, completes it from the second file.
So from the moment that a line is on the disk at all, it counts, and once. Lines are numbered: a ledger that has lost
some, or has others in their place, is refused, and nothing is given out until its owner has seen to it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from discreet.errors import ConfigError, DataError, LocalProtocolError
from discreet.federation.files import OWNER, access, replace, sync_folder, write_all
from discreet.privacy.releases import NOTHING, Ledger, Released
from discreet.wire import RUN_BYTES


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Args:
        run: the run's 16 bytes.
        session, round, attempt: for what it was, each at least 0.
        released: what is about to be given out; None if nothing was promised of it.
        count: how many such releases; 0 where an earlier line has counted it.

    Raises:
        LocalProtocolError: a field is out of its range.
    """

    run: bytes
    session: int
    round: int
    attempt: int
    released: Released | None
    count: int = 1

    def __post_init__(self) -> None:
        if len(self.run) != RUN_BYTES:
            raise LocalProtocolError(f"a run is named by {RUN_BYTES} bytes, got {len(self.run)}")
        for name in ("session", "round", "attempt", "count"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise LocalProtocolError(f"{name} = {value!r}: expected a whole number of at least 0")

    def to_facts(self) -> dict[str, Any]:
        """The entry as plain JSON."""
        return {
            "run": self.run.hex(),
            "session": self.session,
            "round": self.round,
            "attempt": self.attempt,
            "count": self.count,
            "released": None if self.released is None else self.released.to_facts(),
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Entry:
        """The entry that `to_facts` wrote down.

        Raises:
            ValueError, TypeError, KeyError, LocalProtocolError, ConfigError: it is none.
        """
        known = dict(facts)
        released = known.pop("released")
        return cls(
            run=bytes.fromhex(known.pop("run")),
            released=None if released is None else Released.from_facts(released),
            **known,
        )


Make: TypeAlias = Callable[[Sequence[Entry], Ledger], Entry]
"""Decides on an entry, given all that are there and their ledger; it may raise instead."""


class Spending(Protocol):
    """A ledger that outlives its process, or stands in for one."""

    def write(self, make: Make) -> Entry:
        """Add the entry that `make` decides on, while nobody else can add any; it is safe when this returns."""
        ...

    def append(self, entry: Entry) -> None:
        """Add an entry; it is safe when this returns."""
        ...

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were added."""
        ...

    def ledger(self) -> Ledger:
        """What they come to; entries of which nothing was promised are not in it (see `unprotected`)."""
        ...


class MemorySpending:
    """A ledger that is gone with its process: for tests."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._ledger = NOTHING

    def write(self, make: Make) -> Entry:
        """See `Spending.write`."""
        entry = make(self._entries, self._ledger)
        self._entries.append(entry)
        self._ledger = _added(self._ledger, entry)
        return entry

    def append(self, entry: Entry) -> None:
        """See `Spending.append`."""
        self.write(lambda entries, ledger: entry)

    def entries(self) -> tuple[Entry, ...]:
        """See `Spending.entries`."""
        return tuple(self._entries)

    def ledger(self) -> Ledger:
        """See `Spending.ledger`."""
        return self._ledger


class SpendingFile:
    """A ledger in a file, made when the first entry is added; two processes may have it open, and take turns.

    Args:
        path: of the file.
        mode: permissions of a new one, as `os.open` takes them.

    Raises:
        DataError: from every method: the file is damaged, or cannot be read or written.
    """

    def __init__(self, path: Path, mode: int = OWNER) -> None:
        self._path, self._mode = path, mode
        self._next = path.with_name(f"{path.name}.next")
        self._lines: list[bytes] = []
        self._entries: list[Entry] = []
        self._ledger = NOTHING
        self._size = 0

    def __repr__(self) -> str:
        return f"SpendingFile({str(self._path)!r})"

    def write(self, make: Make) -> Entry:
        """See `Spending.write`."""
        with self._locked() as handle:
            self._catch_up(handle)
            entry = make(self._entries, self._ledger)
            line = _line(len(self._lines) + 1, entry)
            replace(self._next, line, self._mode)
            self._extend(handle, line)
            self._take(line, entry)
        return entry

    def append(self, entry: Entry) -> None:
        """See `Spending.append`."""
        self.write(lambda entries, ledger: entry)

    def entries(self) -> tuple[Entry, ...]:
        """See `Spending.entries`."""
        self._look()
        return tuple(self._entries)

    def ledger(self) -> Ledger:
        """See `Spending.ledger`."""
        self._look()
        return self._ledger

    def _look(self) -> None:
        with access(self._path, "read"):
            there = self._path.exists() or self._next.exists()
        if not there:
            if self._lines:
                raise DataError(self._path, f"is gone, with {len(self._lines)} lines: put it back")
            return
        with self._locked() as handle:
            self._catch_up(handle)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with access(self._path, "opened"):
            new = not self._path.exists()
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if new:
                sync_folder(self._path.parent)
            yield handle
        finally:
            os.close(handle)

    def _catch_up(self, handle: int) -> None:
        """Read what others have added, and complete a line that a crash has torn."""
        with access(self._path, "read"):
            size = os.fstat(handle).st_size
            announced = self._next.read_bytes() if self._next.exists() else b""
            last = self._lines[-1] if self._lines else b""
            if size == self._size and announced == last:
                return
            content = os.pread(handle, size, 0)
        *lines, torn = content.split(b"\n")
        lines = [line + b"\n" for line in lines]
        if lines[: len(self._lines)] != self._lines:
            raise DataError(
                self._path, f"has lost lines that were there: expected {len(self._lines)} or more"
            )
        for line in lines[len(self._lines) :]:
            self._take(line, self._read(line, len(self._lines) + 1))
        number = _number(announced)
        if number > len(self._lines) + 1:
            raise DataError(
                self._path,
                f"has lost lines: {len(self._lines)} are there, and {self._next.name} is line {number}; put the newest "
                "copy of both back",
            )
        if number == len(self._lines) and announced != self._lines[-1]:
            raise DataError(self._path, f"line {number} is not the one in {self._next.name}")
        if number == len(self._lines) + 1 and announced.startswith(torn):
            entry = self._read(announced, number)
            self._extend(handle, announced[len(torn) :])
            self._take(announced, entry)
        elif torn:
            raise DataError(
                self._path,
                f"line {len(self._lines) + 1} is torn, and {self._next.name} does not complete it: "
                "put the newest copy of both back",
            )

    def _read(self, line: bytes, number: int) -> Entry:
        try:
            facts = json.loads(line)
            if facts.pop("line") != number:
                raise ValueError("not its number")
            return Entry.from_facts(facts)
        except (ValueError, TypeError, KeyError, AttributeError, LocalProtocolError, ConfigError) as error:
            raise DataError(
                self._path, f"line {number} is damaged: put the newest copy of the file back"
            ) from error

    def _take(self, line: bytes, entry: Entry) -> None:
        self._lines.append(line)
        self._entries.append(entry)
        self._ledger = _added(self._ledger, entry)
        self._size += len(line)

    def _extend(self, handle: int, content: bytes) -> None:
        with access(self._path, "written"):
            write_all(handle, content)


def unprotected(entries: Sequence[Entry]) -> int:
    """How many contributions were given out of which nothing was promised."""
    return sum(entry.count for entry in entries if entry.released is None)


def _added(ledger: Ledger, entry: Entry) -> Ledger:
    return ledger if entry.released is None else ledger.add(entry.released, entry.count)


def _line(number: int, entry: Entry) -> bytes:
    return json.dumps({"line": number, **entry.to_facts()}, allow_nan=False).encode() + b"\n"


def _number(line: bytes) -> int:
    """The number that a whole line says it has; 0 for anything else."""
    try:
        number = json.loads(line)["line"] if line.endswith(b"\n") else 0
    except (ValueError, TypeError, KeyError):
        return 0
    return number if type(number) is int else 0
