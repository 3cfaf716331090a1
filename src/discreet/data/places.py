"""Where the files of a named set are looked for, and in which forms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from discreet.data.dataset import Arrays, Reading
from discreet.errors import DataError

Count = tuple[int | None, int | None, str]
"""Train examples, test examples (None: not known without reading everything), and a note on how they were counted."""


@dataclass(frozen=True)
class Form:
    """One form in which people have a set: an archive, a folder, or a few files in one folder.

    Attributes:
        members: the files or folders that make it up, relative to one folder; each with its alternative names.
        folders: where that folder may be, relative to a root; "" is the root itself.
        read: turns the found members into arrays.
        count: counts the examples of the found members without decoding them.
        accepts: a last look at the found members, where names alone could mean another set.
        slow: whether reading takes so long that the result is worth keeping.
    """

    members: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    read: Callable[[Sequence[Path], Reading], Arrays]
    count: Callable[[Sequence[Path], Reading], Count]
    accepts: Callable[[Sequence[Path]], bool] = lambda members: True
    slow: bool = False


@dataclass(frozen=True)
class Place:
    """A set that was found: its form, the folder it lies in, and its members."""

    form: Form
    folder: Path
    members: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The one file or folder that is the set, or else the folder of its files."""
        return self.members[0] if len(self.members) == 1 else self.folder


def default_root() -> Path:
    """The folder ``data`` in the user's cache folder, into which `discreet data fetch` puts sets."""
    return Path(user_cache_dir("discreet")) / "data"


def roots(data_dir: Path | str | None, system: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The folders to look in, in order: `data_dir`, ``$DISCREET_DATA``, the user's cache folder, `system`.

    Raises:
        DataError: if `data_dir` is given and is no folder.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(data_dir, "no such folder: expected the folder that holds the data sets")
    chosen = os.environ.get("DISCREET_DATA")
    given = ([Path(data_dir)] if data_dir is not None else []) + ([Path(chosen)] if chosen else [])
    return tuple(dict.fromkeys([*given, default_root(), *system]))


def find(name: str, forms: Sequence[Form], where: Sequence[Path]) -> Place:
    """The first place that holds the whole set, in the order of the roots, then of the forms.

    Raises:
        DataError: if there is none. It names the places; or the missing file, if a place has only a part.
    """
    partial: tuple[Path, str] | None = None
    for root in where:
        for form in forms:
            for folder, members in _candidates(root, form):
                missing = [
                    names[0] for names, path in zip(form.members, members, strict=True) if path is None
                ]
                found = tuple(path for path in members if path is not None)
                if not missing and form.accepts(found):
                    return Place(form, folder, found)
                if missing and len(found) and partial is None:
                    partial = folder, missing[0]
    if partial is not None:
        folder, first = partial
        raise DataError(
            folder,
            f"holds only a part of {name}: {first} is missing; 'discreet data fetch {name}' fetches it",
        )
    raise DataError(
        name, f"not found in {', '.join(map(str, where))}; 'discreet data fetch {name}' fetches it"
    )


def _candidates(root: Path, form: Form) -> Iterator[tuple[Path, list[Path | None]]]:
    for below in form.folders:
        folder = root / below
        if folder.is_dir():
            yield folder, [_first(folder, names) for names in form.members]


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)
