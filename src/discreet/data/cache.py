"""Prepared sets: what decoding or tokenizing took many seconds is kept as arrays for the next time.

A prepared set is never needed: one that is damaged, of an older format, or of a source that has changed since is
made again, and a folder that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_dir

from discreet.data.dataset import Arrays
from discreet.data.npz import npz_arrays
from discreet.errors import DataError

FORMAT = 1
"""Raised whenever a reader gives other arrays than before for the same file."""

_FIELDS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


def cache_folder() -> Path:
    """``$DISCREET_CACHE``, or the folder ``prepared`` in the user's cache folder."""
    chosen = os.environ.get("DISCREET_CACHE")
    return Path(chosen) if chosen else Path(user_cache_dir("discreet")) / "prepared"


def prepared(
    name: str,
    sources: Sequence[Path],
    settings: Mapping[str, object],
    make: Callable[[], Arrays],
    keep: bool = True,
) -> Arrays:
    """The arrays that `make` gives, from the cache if they are there.

    Args:
        name: of the set; the file's name starts with it.
        sources: the files or folders that `make` reads. The path, size and time of change of each are part of the
            key, for a folder those of every file below it.
        settings: everything else on which the result depends.
        make: reads the set.
        keep: whether there is a cache at all; not for what must not lie in it.
    """
    if not keep:
        return make()
    key = hashlib.sha256(
        json.dumps(
            [FORMAT, [_fingerprint(source) for source in sources], sorted(settings.items())], default=str
        ).encode()
    )
    place = cache_folder() / f"{name}-{key.hexdigest()[:24]}.npz"
    arrays = _load(place)
    if arrays is None:
        arrays = make()
        _save(place, arrays)
    return arrays


def _fingerprint(source: Path) -> str:
    digest = hashlib.sha256(str(source.resolve()).encode())
    if source.is_dir():
        files = sorted(Path(folder) / file for folder, _, names in os.walk(source) for file in names)
    else:
        files = [source]
    for file in files:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _load(place: Path) -> Arrays | None:
    try:
        arrays = npz_arrays(place)
        inputs, targets, test_inputs, test_targets = (arrays[name] for name in _FIELDS)
        classes = json.loads(arrays["classes"].tobytes())
    except (DataError, KeyError, ValueError):
        return None
    return Arrays(inputs, targets, test_inputs, test_targets, None if classes is None else tuple(classes))


def _save(place: Path, arrays: Arrays) -> None:
    classes = np.frombuffer(json.dumps(arrays.classes).encode(), np.uint8)
    partial: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".", suffix=".part", delete=False) as file:
            partial = Path(file.name)
            np.savez(
                file, **{name: getattr(arrays, name) for name in _FIELDS}, allow_pickle=False, classes=classes
            )
        os.replace(partial, place)
    except OSError:
        return
    finally:
        # After an interrupt or on a full disk: half a file of hundreds of megabytes is of no use.
        if partial is not None:
            partial.unlink(missing_ok=True)
