"""What a figure is held to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from discreet.errors import ConfigError


@dataclass(frozen=True)
class Want:
    """A bound on a figure.

    Attributes:
        way: whether the figure must be at least, or at most, the bound.
        bound: finite.
    """

    way: Literal[">=", "<="]
    bound: float

    @classmethod
    def read(cls, key: str, given: float | str) -> Want | None:
        """Read one of a table's file: a number, ``">= 0.9"``, ``"<= 16"``, or ``""`` for none.

        Args:
            key: named in the error.
            given: what stands there.

        Raises:
            ConfigError: it is something else.
        """
        if given == "":
            return None
        if not isinstance(given, str):
            return cls(">=", float(given))
        found = re.fullmatch(r"\s*(>=|<=)\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*", given)
        if found is None:
            raise ConfigError(key, given, 'a number, ">= 0.9", "<= 16", or "" for none')
        return cls(">=" if found[1] == ">=" else "<=", float(found[2]))

    def is_reached_by(self, figure: object) -> bool:
        """Whether the figure is there, a number, and within the bound, which itself will do."""
        if isinstance(figure, bool) or not isinstance(figure, int | float):
            return False
        return figure >= self.bound if self.way == ">=" else figure <= self.bound
