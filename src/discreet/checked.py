"""Settings whose mistakes are told in one line, from Python as from TOML.

Settings are pydantic dataclasses: their fields are the schema. `plain` makes what pydantic complains of into one line
that names the key and says what would be right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, ValidationError

from discreet.errors import ConfigError, UnknownKey
from discreet.names import nearest

Settings = TypeVar("Settings")

STRICT = ConfigDict(extra="forbid", strict=True)
"""How the fields of settings are checked: no key that is not known, and no value of another type."""

SYNONYMS = {
    "gamma": "server_learning_rate",
    "lr": "learning_rate",
    "eta": "learning_rate",
    "t_gd": "steps",
    "local_steps": "steps",
    "local_epochs": "epochs",
    "n_clients": "clients",
    "num_rounds": "rounds",
}
"""What people call a key elsewhere, for the hint after an unknown one."""


def plain(prefix: str) -> Callable[[type[Settings]], type[Settings]]:
    """Decorate a pydantic dataclass so that its constructor raises `ConfigError`.

    Args:
        prefix: the section of its keys, as ``"scheme."``; empty at the top level.
    """

    def decorate(kind: type[Settings]) -> type[Settings]:
        construct = kind.__init__

        @wraps(construct)
        def checked(self: Any, *args: Any, **fields: Any) -> None:
            try:
                construct(self, *args, **fields)
            except ValidationError as error:
                raise _explained(error, kind, prefix) from None

        kind.__init__ = checked  # type: ignore[method-assign]
        return kind

    return decorate


def _explained(error: ValidationError, kind: type[Any], prefix: str) -> ConfigError:
    first, *others = error.errors(include_url=False)
    key = prefix + str(first["loc"][0]) if first["loc"] else prefix.rstrip(".") or "experiment"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return UnknownKey(key, _hint(str(first["loc"][0]), kind, prefix))
    # a key that may be one of several types has a complaint from each
    same = [first, *(other for other in others if other["loc"][:1] == first["loc"][:1])]
    wanted = [one["msg"].removeprefix("Input should be ") for one in same]
    expected = " or ".join(dict.fromkeys(text[:1].lower() + text[1:] for text in wanted))
    if expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return ConfigError(key, first["input"], expected)


def _hint(key: str, kind: type[Any], prefix: str) -> str:
    names = [field.name for field in dataclasses.fields(kind)]
    if sections := _sections_with(key, kind):
        return f"did you mean {' or '.join(f'{prefix}{section}.{key}' for section in sections)}?"
    known = {name: name for name in names} | {
        other: name for other, name in SYNONYMS.items() if name in names
    }
    near = nearest(key, known)
    if near is not None:
        return f"did you mean {prefix}{known[near]}?"
    return f"{prefix.rstrip('.') or 'the top level'} has {', '.join(names)}"


def _sections_with(key: str, kind: type[Any]) -> list[str]:
    """The sections among a class's fields that have such a key."""
    hints = get_type_hints(kind)
    return [
        name
        for name in (field.name for field in dataclasses.fields(kind))
        for one in (hints[name], *get_args(hints[name]))
        if dataclasses.is_dataclass(one) and key in {field.name for field in dataclasses.fields(one)}
    ]
