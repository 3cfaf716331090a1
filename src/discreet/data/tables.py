"""A user's own table: the columns of a CSV or Parquet file, or the arrays of an NPZ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.data.npz import npz_arrays
from discreet.errors import ConfigError, DataError
from discreet.names import did_you_mean


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one file, checked: no value is missing, NaN or infinite.

    Attributes:
        path: the file.
        names: of the features, in order.
        features: float64 (rows, features).
        targets: class labels (integers, booleans or strings), shape (rows,); or floats for a regression, shape (rows,)
            or (rows, outputs).
        client: values of the client column, shape (rows,), or None.
    """

    path: Path
    names: tuple[str, ...]
    features: NDArray[np.float64]
    targets: NDArray[Any]
    client: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.features)


def read_columns(
    path: Path,
    target: str,
    client_column: str | None,
    names: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> Rows:
    """Reads a CSV (comma-separated, with a header, UTF-8) or Parquet file.

    Every column but the target and the client column is a feature and has to be numeric or boolean. Rows are counted
    from 1 in messages, the header not counted.

    Args:
        path: the file; its suffix says which of the two it is.
        target: the column to predict.
        client_column: a column that says whose each row is; never a feature.
        ignore: columns that are left out.
        names: the features to take, in this order, as for a test file; the file may then lack the client column.

    Raises:
        ConfigError: if it has no such target or client column.
        DataError: if it is damaged or empty, a feature is not numeric, or a value is missing, NaN or infinite.
    """
    table = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
    columns: list[str] = list(table.column_names)
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise DataError(path, f"has two columns {twice!r}: expected a different name for each")
    if len(columns) == 1 and ";" in columns[0]:
        raise DataError(path, f"has the single column {columns[0]!r}: expected commas between columns")
    _check_column("data.target", target, columns, path)
    if names is None:
        for name in ignore:
            _check_column("data.ignore", name, columns, path)
    if client_column is not None and (names is None or client_column in columns):
        _check_column("data.client_column", client_column, columns, path)
    if not table.num_rows:
        raise DataError(path, "has no rows")
    chosen = (
        names
        if names is not None
        else [name for name in columns if name not in (target, client_column, *ignore)]
    )
    for name in chosen:
        if name not in columns:
            raise DataError(path, f"has no column {name!r}, which the training table has")
    if not chosen:
        raise DataError(path, f"has no columns but {target!r} and the client column: nothing to learn from")
    features = np.stack([_numbers(path, name, table.column(name)) for name in chosen], axis=1)
    client = None
    if client_column is not None and client_column in columns:
        client = _values(path, client_column, table.column(client_column))
    return Rows(path, tuple(chosen), features, _values(path, target, table.column(target)), client)


def read_npz(path: Path, client_column: str | None) -> tuple[Rows, Rows | None]:
    """Reads the arrays ``x`` (rows, features) and ``y`` (rows,) or (rows, outputs) of an NPZ file.

    ``x_test`` and ``y_test`` hold a test split, and ``client`` (or the array named `client_column`) says whose each
    train row is; all three may be absent.

    Returns:
        The train rows, and the test rows if there are any.

    Raises:
        ConfigError: if it has no array `client_column`.
        DataError: if it is damaged, lacks an array, holds Python objects, shapes do not fit, or a value is NaN or
            infinite.
    """
    arrays = npz_arrays(path)
    if client_column is not None:
        _check_column("data.client_column", client_column, list(arrays), path)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(path, "has only one of x_test and y_test: expected both or neither")
    train = _npz_rows(path, arrays, "x", "y", client_column or "client")
    test = _npz_rows(path, arrays, "x_test", "y_test", None) if "x_test" in arrays else None
    return train, test


def _npz_rows(path: Path, arrays: dict[str, NDArray[Any]], x: str, y: str, client: str | None) -> Rows:
    for name in (x, y):
        if name not in arrays:
            raise DataError(
                path, f"has no array {name!r}: expected x and y, it has {', '.join(sorted(arrays))}"
            )
    inputs, targets = arrays[x], arrays[y]
    if inputs.dtype.kind not in "fiub" or inputs.ndim != 2 or not inputs.size:
        raise DataError(
            path, f"{x} is {inputs.dtype} of shape {inputs.shape}: expected numbers of shape (rows, features)"
        )
    regression = targets.dtype.kind == "f"
    if not (targets.ndim == 1 or (regression and targets.ndim == 2)) or targets.dtype.kind not in "fiubUS":
        raise DataError(
            path,
            f"{y} is {targets.dtype} of shape {targets.shape}: expected labels of shape (rows,) "
            "or floats of shape (rows,) or (rows, outputs)",
        )
    owners = arrays.get(client) if client is not None else None
    for name, array in ((y, targets), (client or "", owners)):
        if array is not None and (array.ndim == 0 or len(array) != len(inputs)):
            raise DataError(path, f"{name} has {array.shape} values, but {x} has {len(inputs)} rows")
    names = tuple(str(number) for number in range(1, inputs.shape[1] + 1))
    features = inputs.astype(np.float64)
    _check_finite(path, features, lambda column: f"{x}, column {column + 1}")
    if regression:
        _check_finite(path, targets.reshape(len(targets), -1), lambda column: f"{y}, column {column + 1}")
    return Rows(path, names, features, targets, owners)


def _csv(path: Path) -> Any:
    # pyarrow takes most of a second to import, which commands that read no table need not wait for.
    import pyarrow
    from pyarrow import csv

    try:
        # One thread, so that a message about a bad row has its number.
        return csv.read_csv(path, read_options=csv.ReadOptions(use_threads=False))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, f"not a CSV table: {_line(error)}") from error


def _parquet(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, f"damaged or not a Parquet file: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _numbers(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    import pyarrow
    from pyarrow import types

    kind = column.type
    if types.is_null(kind):
        raise DataError(path, f"row 1, column {name!r}: a value is missing")
    if not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    ):
        row, value = _first_text(column)
        raise DataError(
            path,
            f"row {row}, column {name!r}: {value!r} is no number; encode the column as numbers, or leave it out by data.ignore",
        )
    _check_present(path, name, column)
    if types.is_boolean(kind):
        column = column.cast(pyarrow.int8())
    numbers = np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy(), dtype=np.float64)
    _check_finite(path, numbers[:, None], lambda _: f"column {name!r}")
    return numbers


def _first_text(column: Any) -> tuple[int, str]:
    """The first value that is no number, and its row; of a column that is not numeric."""
    values = column.to_pylist()
    for row, value in enumerate(values, start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            if value is not None:
                return row, str(value)
    return 1, str(values[0])


def _values(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A target or client column: floats, integers, booleans or strings."""
    from pyarrow import types

    kind = column.type
    if types.is_floating(kind) or types.is_decimal(kind):
        return _numbers(path, name, column)
    _check_present(path, name, column)
    if types.is_integer(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy())
    texts = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for value in column.to_pylist()
    ]
    if "" in texts:
        raise DataError(path, f"row {texts.index('') + 1}, column {name!r}: a value is missing")
    return np.array(texts)


def _check_present(path: Path, name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null().to_numpy()))) + 1
        raise DataError(path, f"row {row}, column {name!r}: a value is missing")


def _check_finite(path: Path, values: NDArray[Any], where: Callable[[int], str]) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = (int(number) for number in bad[0])
        raise DataError(path, f"row {row + 1}, {where(column)}: {values[row, column]} is no finite number")


def _check_column(key: str, value: str, columns: Sequence[str], path: Path) -> None:
    if value not in columns:
        shown = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
        raise ConfigError(key, value, f"a column of {path}: it has {shown}{did_you_mean(value, columns)}")
