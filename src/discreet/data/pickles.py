"""Pickles that hold byte arrays, read without calling anything that they name.

A pickle is a program: it may name any function and have it called. The one here knows dictionaries, lists, numbers and
strings, and five names that NumPy writes for an array of bytes. For those it has stand-ins of its own: even NumPy's
functions are not called, because their saved state may claim that bytes are pointers.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.errors import DataError

# What the C unpickler raises on damaged input is not documented; these are what truncated and altered files give.
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    MemoryError,
)


def unpickle_arrays(path: Path, content: bytes) -> Mapping[bytes, Any]:
    """Reads a pickled dictionary of arrays of bytes, lists, numbers and strings; nothing else.

    Args:
        path: named in the error.
        content: the pickle; strings of Python 2 are read as bytes.

    Returns:
        The dictionary; arrays are read-only uint8.

    Raises:
        DataError: if the pickle is damaged, is no dictionary, or names any other class or function. Nothing that it
            names is imported or called.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _DAMAGE as error:
        raise DataError(path, f"not a pickle of byte arrays: {str(error) or type(error).__name__}") from error
    if not isinstance(value, dict):
        raise DataError(path, f"holds a {type(value).__name__}: expected a dictionary")
    return {key: item.array if isinstance(item, _Array) else item for key, item in value.items()}


class _Name:
    """A stand-in for something that may be named but neither called nor changed."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes a function, which is refused")


class _NewArray(_Name):
    __slots__ = ()

    def __call__(self, kind: object, shape: object, typecode: object) -> _Array:
        return _Array()


class _NewType(_Name):
    __slots__ = ()

    def __call__(self, name: object, *flags: object) -> _ByteType:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it has an array of type {name!r}, not of bytes")
        return _ByteType()


class _Latin1(_Name):
    __slots__ = ()

    def __call__(self, text: str, encoding: object) -> bytes:
        return text.encode("latin1")


class _ByteType:
    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Ignores the flags: a byte has no order, fields or alignment."""


class _Array:
    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, tuple(shape), _ByteType(), _, bytes(data)):
                pass
            case _:
                raise pickle.UnpicklingError("it has an array in an unknown form")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} with {len(data)} values")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if state[3] else "C")


_KNOWN: Mapping[tuple[str, str], _Name] = {
    ("numpy.core.multiarray", "_reconstruct"): _NewArray(),
    ("numpy._core.multiarray", "_reconstruct"): _NewArray(),
    ("numpy", "ndarray"): _Name(),
    ("numpy", "dtype"): _NewType(),
    ("_codecs", "encode"): _Latin1(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Only the stand-ins; called for everything that a pickle names."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is refused")
        return _KNOWN[module, name]
