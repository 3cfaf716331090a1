"""The site's own process: it has torch and the site's own data loaded, and answers what the relay hands it.

It listens on ``site.sock`` in the site's folder, for processes of the same user alone. A frame, both ways, is one byte
that says what it is, eight bytes of length (big-endian), and the body. One process at a time acts for a site: it holds
a lock on ``site.lock`` for as long as it lives. A relay that finds nobody listening takes the lock, and answers by
itself.

This module is what the relay imports for every message: it loads nothing heavy.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from discreet.errors import DataError, DiscreetError, RemoteProtocolError, UserError

SOCKET, LOCK = "site.sock", "site.lock"

WHO, STEP, DONE, FAILED = b"w", b"s", b"d", b"f"
"""What a frame is: who are you? | a message to answer | the answer | a cause, one of `CAUSES`."""

CAUSES = ("malformed", "crashed", "unreachable")
"""All that a relay says of why there is no answer: the message was none; the site failed; nobody acts for it."""

LARGEST = 1 << 31
"""Bytes that a body may have, whatever the site's limits say."""

PATIENCE, PACE = 60.0, 1 << 24
"""Seconds that a relay has for a frame, and bytes of it that are worth one more: at no time may another wait longer."""

HEAD = struct.Struct(">cQ")

LOG = logging.getLogger(__name__)


class NoAnswer(DiscreetError):
    """A site gave no answer.

    Attributes:
        cause: one of `CAUSES`.
    """

    def __init__(self, cause: Literal["malformed", "crashed", "unreachable"]) -> None:
        self.cause = cause
        super().__init__(cause)


class Busy(DataError):
    """Another process acts for a site."""


@dataclass(frozen=True)
class Acting:
    """What acts for a site.

    Attributes:
        number: the site's.
        step: answers a message; what it must not forget is on the disk before it returns.
        largest: bytes that a message may have.
    """

    number: int
    step: Callable[[bytes], bytes]
    largest: int = LARGEST


Opener: TypeAlias = Callable[[Path], Acting]
"""Loads the site in a folder; it takes seconds."""


def ask(folder: Path, kind: bytes, body: bytes, seconds: float, opener: Opener) -> bytes:
    """Have a message answered: by the site's process, or here if there is none.

    Args:
        folder: the site's.
        kind: `WHO` or `STEP`.
        body: the message.
        seconds: to wait for an answer at most; the work itself, if it is done here, is not cut short.
        opener: loads the site, if it has to be done here.

    Returns:
        The answer; to `WHO`, the site's number in decimal digits.

    Raises:
        NoAnswer: there is none.
    """
    end = time.monotonic() + seconds
    while True:
        with suppress(OSError):  # nobody listens, or too many are waiting
            return _ask_resident(folder, kind, body, max(0.1, end - time.monotonic()))
        try:
            with acting(folder):
                return _answered(opener(folder), kind, body)
        except Busy:  # and does not listen yet
            if time.monotonic() > end:
                raise NoAnswer("unreachable") from None
        except (UserError, OSError):
            raise NoAnswer("unreachable") from None
        time.sleep(0.1)


def serve(folder: Path, opener: Opener) -> None:
    """Act for a site until a signal ends it: one message after another.

    A relay that acts for the site just now may end what it does; for a minute it is waited for.

    Args:
        folder: the site's.
        opener: loads the site.

    Raises:
        Busy: another process acts for the site.
        UserError: the folder is no site's.
    """
    with ExitStack() as held:
        _take_over(folder, held)
        one = opener(folder)
        with _listening(folder) as listener:
            while True:
                asked, _ = listener.accept()
                with asked:
                    _serve_one(asked, one)


@contextmanager
def acting(folder: Path) -> Iterator[None]:
    """Be the one process that acts for a site.

    Raises:
        Busy: another one is.
        DataError: there is no such folder.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataError(folder, f"is no site's folder: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(folder, "another process acts for this site: expected one at a time") from None
        yield
    finally:
        os.close(handle)


def _take_over(folder: Path, held: ExitStack) -> None:
    """Become the one process that acts for a site, unless another one listens, or does not end."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            held.enter_context(acting(folder))
            return
        except Busy:
            if time.monotonic() > end or _listens(folder):
                raise
        time.sleep(0.05)


def _listens(folder: Path) -> bool:
    with _short(folder) as place, socket.socket(socket.AF_UNIX) as asked, suppress(OSError):
        asked.settimeout(1.0)
        asked.connect(f"{place}/{SOCKET}")
        return True
    return False


@contextmanager
def _listening(folder: Path) -> Iterator[socket.socket]:
    """The socket of a site, for its owner alone; one that a killed process left is replaced.

    It gets its name once it listens: whoever finds it is answered.
    """
    new = f"{SOCKET}.new"
    with _short(folder) as place, socket.socket(socket.AF_UNIX) as listener:
        (folder / new).unlink(missing_ok=True)
        before = os.umask(0o177)  # nobody else may connect, not even for a moment
        try:
            listener.bind(f"{place}/{new}")
        finally:
            os.umask(before)
        listener.listen(16)
        (folder / new).replace(folder / SOCKET)
        try:
            yield listener
        finally:
            (folder / SOCKET).unlink(missing_ok=True)


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A folder by a name that is short enough for a socket's address, where the system has one."""
    if len(os.fsencode(folder / SOCKET)) < 96 or not Path("/proc/self/fd").is_dir():
        yield str(folder)
        return
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _ask_resident(folder: Path, kind: bytes, body: bytes, seconds: float) -> bytes:
    with _short(folder) as place, socket.socket(socket.AF_UNIX) as asked:
        end = time.monotonic() + seconds
        asked.settimeout(seconds)
        asked.connect(f"{place}/{SOCKET}")
        try:
            _send(asked, kind, body, seconds)
            what, answer = _receive(asked, LARGEST, end - time.monotonic())
        except (OSError, EOFError, ValueError):
            raise NoAnswer("crashed") from None
    if what == DONE:
        return answer
    raise NoAnswer("malformed" if answer == b"malformed" else "crashed")


def _serve_one(asked: socket.socket, one: Acting) -> None:
    try:
        kind, body = _receive(asked, one.largest, PATIENCE)
    except OSError as error:  # it was too slow, or has gone
        LOG.warning("a relay is cut off before its message is there: %s", error)
        return
    except (EOFError, ValueError) as error:
        LOG.warning("a relay has sent no message: %s", error)
        with suppress(OSError):  # it may have gone
            _send(asked, FAILED, b"malformed", PATIENCE)
        return
    try:
        what, answer = DONE, _answered(one, kind, body)
    except NoAnswer as error:
        what, answer = FAILED, error.cause.encode()
    except BaseException:
        with suppress(OSError):  # a relay that has gone must not hide why
            _send(asked, FAILED, b"crashed", PATIENCE)
        raise
    try:
        _send(asked, what, answer, PATIENCE)
    except OSError as error:
        LOG.warning("a relay has not taken its answer: %s", error)


def _answered(one: Acting, kind: bytes, body: bytes) -> bytes:
    if kind == WHO:
        return str(one.number).encode()
    if kind != STEP:
        raise NoAnswer("malformed")
    try:
        return one.step(body)
    except RemoteProtocolError:
        raise NoAnswer("malformed") from None


def _send(to: socket.socket, kind: bytes, body: bytes, seconds: float) -> None:
    """Send a frame, which has so many seconds, and more by its size, to be taken."""
    to.settimeout(seconds + len(body) / PACE)
    to.sendall(HEAD.pack(kind, len(body)))
    if body:  # a peer that has read all of an empty one may be gone
        to.sendall(body)


def _receive(asked: socket.socket, largest: int, seconds: float) -> tuple[bytes, bytes]:
    """A frame, which has so many seconds, and more by what has come of it.

    Raises:
        EOFError: it ends before its end.
        ValueError: it is larger than allowed.
        TimeoutError: it does not come in time.
    """
    end = time.monotonic() + seconds
    kind, length = HEAD.unpack(_exactly(asked, HEAD.size, end))
    if length > largest:
        raise ValueError(f"{length} bytes: expected {largest} at most")
    return kind, _exactly(asked, length, end)


def _exactly(asked: socket.socket, length: int, end: float) -> bytes:
    found = bytearray()  # it grows with what arrives, not with what was announced; so does the time it has
    while len(found) < length:
        left = end + len(found) / PACE - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        asked.settimeout(left)
        part = asked.recv(min(1 << 20, length - len(found)))
        if not part:
            raise EOFError("it ends before its end")
        found += part
    return bytes(found)
