"""NPZ files: NumPy arrays in a zip, whose checksums find damage."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import DataError


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an NPZ file, by name; arrays of Python objects are refused, since they are pickles.

    Raises:
        DataError: if it cannot be read, is damaged or no NPZ file, or has arrays of Python objects.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(path, "holds a single array: expected an NPZ file of named arrays")
            with archive:
                return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(
            path, f"damaged or not an NPZ file of plain arrays: {' '.join(str(error).split())}"
        ) from error
