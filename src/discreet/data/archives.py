"""Files of a folder, a tar (plain, gz, bz2, xz) or a zip, one after the other, without unpacking anything."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from discreet.data.dataset import Progress, no_progress
from discreet.errors import DataError

LARGEST_MEMBER = 2**29
"""Bytes: no file of a known set is larger, and a damaged or hostile archive cannot fill the memory."""

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    ValueError,
    OSError,
)
_BLOCK = 512


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Tail:
    """A readable that remembers the last block that went through it."""

    def __init__(self, source: _Readable) -> None:
        self.source, self.last = source, b""

    def read(self, size: int = -1, /) -> bytes:
        data = self.source.read(size)
        self.last = (self.last + data[-_BLOCK:])[-_BLOCK:]
        return data


def walk(
    path: Path,
    wanted: Callable[[str], bool],
    *,
    what: str = "reading",
    progress: Progress = no_progress,
) -> Iterator[tuple[str, bytes]]:
    """The contents of the wanted files: a folder's in the order of their names, an archive's in its own order.

    Args:
        path: a folder, or a file whose first bytes say which archive it is.
        wanted: told a file's name relative to `path`, with forward slashes; says whether to read it.
        what: passed on to `progress`.
        progress: called now and then, in bytes of an archive or in files of a folder.

    Raises:
        DataError: if the archive is damaged, at the latest after its last file.
    """
    yield from _walk(path, wanted, what, progress, read=True)


def names(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> list[str]:
    """The names of the wanted files that `walk` would give, in its order."""
    return [name for name, _ in _walk(path, wanted, "listing", no_progress, read=False)]


def _walk(
    path: Path, wanted: Callable[[str], bool], what: str, progress: Progress, *, read: bool
) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from _folder(path, wanted, what, progress, read)
        return
    try:
        with path.open("rb") as file:
            start = file.read(6)
            file.seek(0)
            if start.startswith(b"PK"):
                yield from _zip(path, file, wanted, what, progress, read)
            else:
                yield from _tar(path, file, start, wanted, what, progress, read)
    except _DAMAGE as error:
        raise DataError(path, f"damaged or not an archive: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _folder(
    path: Path, wanted: Callable[[str], bool], what: str, progress: Progress, read: bool
) -> Iterator[tuple[str, bytes]]:
    found = sorted(
        relative
        for folder, _, files in os.walk(path)
        for file in files
        if wanted(relative := (Path(folder) / file).relative_to(path).as_posix())
    )
    for number, name in enumerate(found):
        if number % 256 == 0:
            progress(number, len(found), what)
        try:
            content = (path / name).read_bytes() if read else b""
        except OSError as error:
            raise DataError(path / name, f"cannot be read: {error.strerror}") from error
        yield name, content
    progress(len(found), len(found), what)


def _zip(
    path: Path, file: IO[bytes], wanted: Callable[[str], bool], what: str, progress: Progress, read: bool
) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and wanted(m.filename)]
        for number, member in enumerate(members):
            if number % 256 == 0:
                progress(number, len(members), what)
            if member.flag_bits & 1:
                raise DataError(
                    path, f"{member.filename} is encrypted: expected an archive without a password"
                )
            _check_size(path, member.filename, member.file_size)
            yield member.filename, archive.read(member) if read else b""
        progress(len(members), len(members), what)


def _tar(
    path: Path,
    file: IO[bytes],
    start: bytes,
    wanted: Callable[[str], bool],
    what: str,
    progress: Progress,
    read: bool,
) -> Iterator[tuple[str, bytes]]:
    size = os.fstat(file.fileno()).st_size
    tail = _Tail(_unpacked(file, start))
    # A plain stream: tarfile's own decompression checks neither the gz checksum nor an early end.
    with tarfile.open(fileobj=cast(IO[bytes], tail), mode="r|") as archive:
        for number, member in enumerate(archive):
            if number % 256 == 0:
                progress(file.tell(), size, what)
            name = member.name.removeprefix("./")
            if not member.isfile() or not wanted(name):
                continue
            _check_size(path, name, member.size)
            content = archive.extractfile(member) if read else None
            yield name, content.read() if content is not None else b""
    while tail.read(2**20):
        pass
    if tail.last.strip(b"\0"):
        raise DataError(path, "truncated: the archive has no end mark")
    progress(size, size, what)


def _unpacked(file: IO[bytes], start: bytes) -> _Readable:
    if start.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), 2**18)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(file)
    return file


def _check_size(path: Path, name: str, size: int) -> None:
    if size > LARGEST_MEMBER:
        raise DataError(path, f"{name} has {size} bytes: expected at most {LARGEST_MEMBER}")
