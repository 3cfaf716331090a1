"""Files that hold secrets or must outlive a power failure: made for their owner alone, written whole, never over others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from discreet.errors import DataError

OWNER, EVERYBODY = 0o600, 0o644
"""Permissions of a file that its owner alone may read, and of one that everybody may."""


@dataclass(frozen=True)
class NewFile:
    """A file to be written.

    Attributes:
        content: all of it.
        mode: its permissions, `OWNER` or `EVERYBODY`.
    """

    content: bytes
    mode: int = OWNER


@contextmanager
def access(path: Path, doing: str) -> Iterator[None]:
    """Turn the operating system's refusals into one clear line.

    Raises:
        DataError: `path` cannot be ``doing`` ("read", "written").
    """
    try:
        yield
    except OSError as error:
        raise DataError(path, f"cannot be {doing}: {error.strerror or error}") from error


def make_folder(folder: Path) -> None:
    """Make a folder that its owner alone can enter, and its parents as others are; one that is there stays as it is.

    Raises:
        DataError: it cannot be made, or is a file.
    """
    with access(folder, "made"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise


def check_private(path: Path) -> None:
    """Refuse a file or folder of secrets that others than its owner have access to.

    Raises:
        DataError: it is absent, another user's, or open to others; the line says which chmod is right.
    """
    with access(path, "read"):
        found = path.stat()
    folder = stat.S_ISDIR(found.st_mode)
    right = "700" if folder else "600"
    if found.st_uid != os.geteuid():
        raise DataError(path, "belongs to another user: expected the user who runs the site")
    if found.st_mode & 0o077:
        what = "can be entered" if folder else "can be read"
        raise DataError(path, f"{what} by others than its owner: chmod {right} {path}")


def read(path: Path, largest: int | None = None) -> bytes:
    """A file's content.

    Raises:
        DataError: it cannot be read, or is larger than allowed.
    """
    with access(path, "read"), path.open("rb") as file:
        content = file.read() if largest is None else file.read(largest + 1)
    if largest is not None and len(content) > largest:
        raise DataError(path, f"has more than {largest:,} bytes")
    return content


def read_text(path: Path) -> str:
    """A file of text.

    Raises:
        DataError: it cannot be read, or is not UTF-8.
    """
    try:
        return read(path).decode()
    except UnicodeDecodeError:
        raise DataError(path, "is not text in UTF-8") from None


def write_new(files: Mapping[Path, NewFile]) -> tuple[Path, ...]:
    """Write files that are not there yet: all of them, or where that fails none.

    Args:
        files: what to write, by path; folders on the way are there.

    Returns:
        Their paths.

    Raises:
        DataError: one is there already, or cannot be written.
    """
    for path in files:
        with access(path, "written"):
            there = os.path.lexists(path)
        if there:
            raise DataError(path, "is there already: expected a path where nothing is; nothing was written")
    written: list[Path] = []
    try:
        for path, file in files.items():
            with access(path, "written"):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file.mode)
                written.append(path)
                _fill(handle, file.content)
    except BaseException:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise
    for folder in dict.fromkeys(path.parent for path in files):
        sync_folder(folder)
    return tuple(files)


def replace(path: Path, content: bytes, mode: int = OWNER) -> None:
    """Put a file in place of one that may be there; a crash leaves the one or the other, and when this returns the new one.

    Raises:
        DataError: it cannot be written; what was there stays.
    """
    hidden = path.with_name(f".{path.name}.tmp")
    with access(path, "written"):
        try:
            _fill(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), content)
            os.replace(hidden, path)
        except BaseException:
            with suppress(OSError):
                hidden.unlink()
            raise
    sync_folder(path.parent)


def write_all(handle: int, content: bytes) -> None:
    """Write all of it, in as many steps as the system takes, and wait until it is on the disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Raises:
        DataError: it cannot be opened.
    """
    with access(folder, "synchronised"):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _fill(handle: int, content: bytes) -> None:
    try:
        write_all(handle, content)
    finally:
        os.close(handle)
