"""From the rows of a table to what a model trains on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.data.dataset import Arrays, split
from discreet.data.scaling import Scaling, standardised
from discreet.data.tables import Rows, read_columns, read_npz
from discreet.errors import ConfigError, DataError

SUFFIXES = (".csv", ".npz", ".parquet", ".pq")


def read_table(
    path: Path,
    *,
    target: str | None,
    client_column: str | None = None,
    test_path: Path | None = None,
    ignore: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
    standardise: bool = True,
) -> Arrays:
    """Reads a table of numbers, one example a row.

    Targets that are integers, booleans or strings are classes, numbered in sorted order; floats make a regression.
    Without a test file (or ``x_test`` in an NPZ) a test split is divided off as `discreet.data.dataset.split` says.

    Args:
        path: a .csv, .parquet (.pq) or .npz file.
        target: the column to predict; None for an NPZ.
        client_column: the column that says whose each row is; it becomes a column of the set, never a feature.
        test_path: a second file with the test rows.
        ignore: columns that are left out (CSV and Parquet).
        test_fraction: the test split's share otherwise, in (0, 1).
        seed: of that split.
        standardise: shift and scale each feature, and each target of a regression, to mean 0 and standard deviation 1
            over the train rows. **This uses statistics pooled over all participants**: in a real federation they have
            to agree on public ones first. A constant feature becomes 0.

    Returns:
        Inputs float32 (rows, features), class numbers int64 (rows,) or values float32 (rows, outputs).

    Raises:
        ConfigError: on a suffix, target or client column that does not fit.
        DataError: on damage, missing, NaN, infinite or non-numeric values, fewer than two classes, or a class of the
            test rows that the train rows lack.
    """
    train, test = _read(path, target, client_column, test_path, ignore)
    columns = {} if train.client is None else {client_column or "client": train.client}
    targets, classes = _classes(train.path, train.targets)
    if test is None:
        kept, held_out = split(path, targets, test_fraction, seed)
        learnt, tested = train.features[kept], train.features[held_out]
        targets, wanted = targets[kept], targets[held_out]
        columns = {name: values[kept] for name, values in columns.items()}
    else:
        learnt, tested = train.features, test.features
        if learnt.shape[1] != tested.shape[1]:
            raise DataError(path, f"{learnt.shape[1]} features, but the test rows have {tested.shape[1]}")
        wanted = _matched(test, train, targets, classes)
    names = [f"column {name!r}" for name in train.names]
    inputs, test_inputs, _ = _scaled(learnt, tested, standardise, path, names)
    scaling = None
    if classes is None:
        names = [f"target {number}" for number in range(1, targets.shape[1] + 1)]
        targets, wanted, scaling = _scaled(targets, wanted, standardise, path, names)
    return Arrays(inputs, targets, test_inputs, wanted, classes, columns, scaling)


def _read(
    path: Path,
    target: str | None,
    client_column: str | None,
    test_path: Path | None,
    ignore: Sequence[str],
) -> tuple[Rows, Rows | None]:
    for file, key in ((path, "data.path"), (test_path, "data.test_path")):
        if file is not None and file.suffix.lower() not in SUFFIXES:
            raise ConfigError(key, str(file), f"a file ending in {', '.join(SUFFIXES)}")
        if file is not None and not file.is_file():
            raise DataError(file, "no such file")
    if path.suffix.lower() == ".npz":
        if ignore:
            raise ConfigError("data.ignore", list(ignore), "none: an NPZ file has no named columns")
        if target not in (None, "y"):
            raise ConfigError("data.target", target, "none: an NPZ file holds its targets in the array y")
        if test_path is None:
            return read_npz(path, client_column)
        if test_path.suffix.lower() != ".npz":
            raise ConfigError("data.test_path", str(test_path), "an NPZ file, as the training table is one")
        train, test = read_npz(path, client_column)[0], read_npz(test_path, None)[0]
        return train, test
    if target is None:
        raise ConfigError("data.target", None, "the name of the column to predict")
    if target == client_column:
        raise ConfigError("data.client_column", client_column, "another column than data.target")
    rows = read_columns(path, target, client_column, ignore=ignore)
    if test_path is None:
        return rows, None
    if test_path.suffix.lower() == ".npz":
        raise ConfigError(
            "data.test_path", str(test_path), "a CSV or Parquet file, as the training table is one"
        )
    return rows, read_columns(test_path, target, client_column, rows.names)


def _scaled(
    train: NDArray[np.float64],
    test: NDArray[np.float64],
    standardise: bool,
    path: Path,
    names: Sequence[str],
) -> tuple[NDArray[np.float32], NDArray[np.float32], Scaling | None]:
    """Columns of values as float32, scaled if that is asked for, and by what; `names` are for messages."""
    scaling = None
    if standardise:
        train, test, scaling = standardised(train, test)
    with np.errstate(over="ignore"):
        result = train.astype(np.float32), test.astype(np.float32)
    for part in result:
        if not np.isfinite(part).all():
            column = names[int(np.argwhere(~np.isfinite(part))[0][1])]
            raise DataError(path, f"{column} has values too large for 32-bit floats")
    return *result, scaling


def _classes(path: Path, targets: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Class numbers and names, or float64 (rows, outputs) and None."""
    if targets.dtype.kind == "f":
        return targets.reshape(len(targets), -1).astype(np.float64), None
    labels, numbers = np.unique(targets, return_inverse=True)
    if len(labels) < 2:
        raise DataError(
            path, f"its target has the single value {_name(labels[0])!r}: expected at least two classes"
        )
    return numbers.reshape(-1).astype(np.int64), tuple(_name(label) for label in labels)


def _matched(test: Rows, train: Rows, targets: NDArray[Any], classes: tuple[str, ...] | None) -> NDArray[Any]:
    """The test rows' targets in the numbering of the train rows."""
    if classes is None or test.targets.dtype.kind == "f":
        if (classes is None) != (test.targets.dtype.kind == "f"):
            raise DataError(
                test.path,
                f"its targets are {test.targets.dtype}, but those of {train.path} are {train.targets.dtype}",
            )
        values = test.targets.reshape(len(test), -1).astype(np.float64)
        if values.shape[1] != targets.shape[1]:
            raise DataError(
                test.path, f"{values.shape[1]} targets a row, but {train.path} has {targets.shape[1]}"
            )
        return values
    numbers = {name: number for number, name in enumerate(classes)}
    for row, label in enumerate(test.targets, start=1):
        if _name(label) not in numbers:
            raise DataError(
                test.path,
                f"row {row}: class {_name(label)!r} is not in {train.path}, which has {_list(classes)}",
            )
    return np.array([numbers[_name(label)] for label in test.targets], dtype=np.int64)


def _name(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


def _list(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
