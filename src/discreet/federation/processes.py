"""Child processes that end together: started, watched, and stopped to the last one.

Each child leads a session of its own, so that a Ctrl-C at the terminal reaches the parent alone, which then stops them
in order. Programs that detach themselves from their group are found by a marker in their environment. A watchdog,
which does nothing but read a pipe, stops them all when the parent is killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from discreet.errors import DiscreetError

MARKER = "DISCREET_FEDERATION"
"""The environment variable that every child carries, and what a child starts too."""

PATIENCE = 6.0
"""Seconds that children have to end after SIGTERM, before SIGKILL."""


class ChildEnded(DiscreetError):
    """A child process that should go on has ended.

    Attributes:
        name: of the child.
        code: its exit code; negative: the signal that killed it.
        log: the file with what it said.
    """

    def __init__(self, name: str, code: int, log: Path) -> None:
        self.name, self.code, self.log = name, code, log
        super().__init__(f"{name} ended with exit code {code}: {last_words(log)} (all of it in {log})")


@dataclass(frozen=True)
class Family:
    """The children of a `family` block.

    Attributes:
        marker: what their environment carries under `MARKER`.
        folder: of their logs, a file a child.
        children: by name, as they were started.
        brief: names of those that end by themselves.
    """

    marker: str
    folder: Path
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    brief: set[str] = field(default_factory=set)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, brief: bool = False
    ) -> None:
        """Start a child; what it prints goes to its log.

        Args:
            name: one that no other child has.
            command: the program and its arguments.
            environment: all of it, but for the marker.
            brief: whether it ends by itself.
        """
        if brief:
            self.brief.add(name)
        with self.log(name).open("ab") as log:
            self.children[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, MARKER: self.marker},
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        """The file with what a child has said."""
        return self.folder / f"{name}.log"

    def check(self) -> None:
        """Raise if a child has ended that should go on, or has failed.

        Raises:
            ChildEnded: the first that has.
        """
        for name, child in self.children.items():
            code = child.poll()
            if code or (code is not None and name not in self.brief):
                raise ChildEnded(name, code, self.log(name))

    def ended(self, name: str) -> bool:
        """Whether a child has ended."""
        return self.children[name].poll() is not None


@contextmanager
def family(folder: Path) -> Iterator[Family]:
    """Children that are all gone when the block is left, however it is left, and when this process is killed.

    Args:
        folder: where their logs go; it exists.
    """
    marker = secrets.token_hex(16)
    watchdog = subprocess.Popen(
        [sys.executable, "-m", "discreet.federation.processes", marker],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    one = Family(marker, folder)
    try:
        yield one
    finally:
        stop(one)
        with suppress(OSError):
            if watchdog.stdin:
                watchdog.stdin.close()
        watchdog.wait()


def stop(one: Family, patience: float = PATIENCE) -> None:
    """End all children of a family and all that they started: SIGTERM first, SIGKILL to those that go on."""
    for child in one.children.values():
        _signal_group(child.pid, signal.SIGTERM)
    end = time.monotonic() + patience
    for child in one.children.values():
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
    for child in one.children.values():
        _signal_group(child.pid, signal.SIGKILL)  # of a child that has gone: what is left of its group
        child.wait()
    sweep(one.marker, max(0.5, end - time.monotonic()))


def sweep(marker: str, patience: float = PATIENCE) -> None:
    """End every process that carries a marker: SIGTERM first, SIGKILL to those that go on.

    Where the system does not show processes' environments (no ``/proc``), it does nothing.
    """
    end = time.monotonic() + patience
    found = carriers(marker)
    _signal_each(found, signal.SIGTERM)
    while found:
        time.sleep(0.05)
        found = carriers(marker)
        if time.monotonic() > end:
            _signal_each(found, signal.SIGKILL)


def carriers(marker: str) -> list[int]:
    """The processes that carry a marker, this one excepted, by their numbers; dead ones do not count."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def lives(process: int) -> bool:
    """Whether a process is there, and not merely waiting for its parent to hear of its end."""
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def last_words(log: Path, most: int = 300) -> str:
    """The end of a log in one line, for a message about the process that wrote it."""
    try:
        said = log.read_bytes()[-4096:].decode(errors="replace")
    except OSError:
        return "it said nothing"
    words = " ".join(said.split())
    return f"... {words[-most:]}" if len(words) > most else words or "it said nothing"


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _signal_each(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _watch(marker: str) -> None:
    """Wait until the parent is gone, which closes the pipe, and end what it has left."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    sweep(marker)


if __name__ == "__main__":
    _watch(sys.argv[1])
