"""Downloading a named set from its public mirrors: resumed, checked against SHA-256, and placed whole or not at all.

The checksums are those of the files as published, as recorded by scikit-learn (LFW), Keras (CIFAR) and TensorFlow
Datasets (MNIST, Fashion-MNIST, IMDB).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from discreet.data.dataset import Progress, no_progress
from discreet.data.places import default_root
from discreet.errors import ConfigError, DataError
from discreet.names import did_you_mean

TIMEOUT = 30.0
"""Seconds without a byte after which a mirror is given up."""
ATTEMPTS = 3
"""How often a cut transfer is taken up again at one mirror."""
_CHUNK = 2**18


@dataclass(frozen=True)
class Remote:
    """A file to download.

    Attributes:
        place: where it goes, relative to the root; its last part is its name on the mirrors.
        sha256: of the file, in hexadecimal.
        mirrors: URLs of the folders in which it is published, tried in turn.
        url: a URL of its own, tried first, where a mirror has it under another name; or "".
    """

    place: str
    sha256: str
    mirrors: tuple[str, ...]
    url: str = ""

    def urls(self, mirrors: Sequence[str] | None) -> tuple[str, ...]:
        """The URLs to try, in order; `mirrors` replaces its own."""
        own = (self.url,) if self.url and mirrors is None else ()
        folders = self.mirrors if mirrors is None else mirrors
        return (*own, *(f"{folder.rstrip('/')}/{Path(self.place).name}" for folder in folders))


def _remotes(folder: str, mirrors: tuple[str, ...], checksums: Mapping[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{folder}/{name}", sha256, mirrors) for name, sha256 in checksums.items())


_FIGSHARE = "https://ndownloader.figshare.com/files/5976015"
_LFW_SHA256 = "b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a"

REMOTE: Mapping[str, tuple[Remote, ...]] = {
    "mnist": _remotes(
        "mnist",
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
        ),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": _remotes(
        "fashion-mnist",
        (
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": _remotes(
        "cifar10",
        ("https://www.cs.toronto.edu/~kriz",),
        {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
    ),
    "cifar100": _remotes(
        "cifar100",
        ("https://www.cs.toronto.edu/~kriz",),
        {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
    ),
    "imdb": _remotes(
        "imdb",
        ("https://ai.stanford.edu/~amaas/data/sentiment", "http://d2l-data.s3-accelerate.amazonaws.com"),
        {"aclImdb_v1.tar.gz": "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"},
    ),
    "lfw": (
        Remote("lfw_home/lfw-funneled.tgz", _LFW_SHA256, ("http://vis-www.cs.umass.edu/lfw",), _FIGSHARE),
    ),
}


def fetch(
    name: str,
    destination_root: Path | str | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    on_progress: Progress | None = None,
    catalogue: Mapping[str, tuple[Remote, ...]] = REMOTE,
) -> tuple[Path, ...]:
    """Downloads a named set to where `discreet.data.sources.load` looks for it.

    A file that is there already and has the right checksum is not fetched again. An interrupted transfer leaves a
    ``.part`` file, which the next call resumes.

    Args:
        name: of the set, a key of `catalogue`.
        destination_root: the folder for data sets; None for the one in the user's cache folder.
        mirrors: URLs of folders that hold the files, instead of the usual ones.
        on_progress: called as ``on_progress(bytes so far, bytes in all or 0, file)``.
        catalogue: what can be fetched.

    Returns:
        The files.

    Raises:
        ConfigError: if there is no such set.
        DataError: if no mirror gives the right file, or it cannot be written.
    """
    if name not in catalogue:
        known = f"one of {', '.join(catalogue)}{did_you_mean(name, catalogue)}"
        raise ConfigError("name", name, f"a set that can be fetched: {known}")
    root = default_root() if destination_root is None else Path(destination_root)
    return tuple(
        download(remote.urls(mirrors), root / remote.place, remote.sha256, on_progress or no_progress)
        for remote in catalogue[name]
    )


def download(urls: Sequence[str], place: Path, sha256: str, progress: Progress = no_progress) -> Path:
    """Downloads one file, from the first URL that gives the right one.

    Args:
        urls: http or https, tried in turn; a transfer that was cut is resumed at the next.
        place: where the file goes. It appears there complete and checked, or not at all.
        sha256: of the file, in hexadecimal.
        progress: called with the bytes so far and in all.

    Returns:
        `place`.

    Raises:
        DataError: if another file is in its place, no URL gives the right file (the reason at each is named), or the
            disk does not take it.
    """
    if place.exists():
        if _sha256(place) != sha256:
            raise DataError(
                place, f"is there already with another SHA-256 than {sha256}: move it away to fetch it"
            )
        return place
    part = place.with_name(place.name + ".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(place.parent, f"cannot be made: {error.strerror}") from error
    reasons = []
    for url in urls:
        reason = _from_url(url, part, sha256, progress)
        if reason is None:
            os.replace(part, place)
            return place
        reasons.append(f"{url}: {reason}")
    raise DataError(place, f"could not be downloaded from {'; '.join(reasons)}")


def _from_url(url: str, part: Path, sha256: str, progress: Progress) -> str | None:
    """Completes the part file from one URL; returns None, or why it could not."""
    reason = ""
    for _ in range(ATTEMPTS):
        before = _size(part)
        reason = _transfer(url, part, progress) or ""
        if not reason:
            if _sha256(part) == sha256:
                return None
            part.unlink()
            reason = f"its SHA-256 is not {sha256}"
            if not before:
                return reason
            # What was there before may have been of another version: once more, from the start.
        elif _size(part) <= before:
            return reason
    return reason


def _transfer(url: str, part: Path, progress: Progress) -> str | None:
    """Appends the rest of the file to the part file; returns None, or why the transfer failed."""
    have = _size(part)
    if not url.startswith(("http://", "https://")):
        return "not an http or https address"
    headers = {"User-Agent": "discreet", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            if have and answer.status != 206:
                have = 0
            elif have and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                part.unlink()
                return "answered with another part of the file than was asked for"
            total = have + int(answer.headers.get("Content-Length") or -have)
            with _opened(part, append=have > 0) as file:
                for data in _chunks(answer):
                    have += _written(file, data)
                    progress(have, total, part.stem)
    except urllib.error.HTTPError as error:
        return _refused(error, part)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        return _reason(error)
    return f"the connection was cut after {have} of {total} bytes" if have < total else None


def _refused(error: urllib.error.HTTPError, part: Path) -> str | None:
    with error:
        if error.code == 416 and _size(part):
            # Nothing beyond what is there: it may be complete, which the checksum tells.
            return None
        return f"{error.code} {error.reason}"


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while data := answer.read(_CHUNK):
        yield data


def _opened(part: Path, *, append: bool) -> BinaryIO:
    try:
        return part.open("ab" if append else "wb")
    except OSError as error:
        raise DataError(part, f"cannot be written: {error.strerror}") from error


def _written(file: BinaryIO, data: bytes) -> int:
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        raise DataError(
            file.name, f"cannot be written: {error.strerror}; it is kept, to be resumed"
        ) from error
    return len(data)


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", error)
    return " ".join(str(inner).split()) or type(error).__name__


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
