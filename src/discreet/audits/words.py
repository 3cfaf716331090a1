"""Audits as a short table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADER = ("attack", "figure", "measured", "by chance", "unprotected", "promised")


def rows(entry: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of one audit, from its entry in ``audit.json``; the first row holds the columns' names."""
    found: list[tuple[str, ...]] = [HEADER]
    for finding in entry["findings"]:
        figures = [shown(finding[key]) for key in ("measured", "chance", "unprotected")]
        found.append((finding["attack"], finding["figure"], *figures, finding["promise"]))
    return found


def shown(value: float | None) -> str:
    """A figure in three digits; a dash where there is none."""
    if value is None:
        return "-"
    if value and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.1e}"
    return f"{value:.3g}"
