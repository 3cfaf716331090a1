"""What the options of the built-in models may be."""

from __future__ import annotations

from collections.abc import Sequence

from discreet.errors import ConfigError


def positive(option: str, values: Sequence[int]) -> tuple[int, ...]:
    """The widths or channels of some layers.

    Args:
        option: its name in the section ``model``.
        values: what was given: a list of whole numbers of at least 1.

    Raises:
        ConfigError: it is anything else.
    """
    fits = isinstance(values, Sequence) and not isinstance(values, str)
    if not fits or not all(type(value) is int and value >= 1 for value in values):
        raise ConfigError(f"model.{option}", values, "a list of whole numbers of at least 1")
    return tuple(values)
