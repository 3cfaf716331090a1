"""What a curious party learns, measured: ``discreet audit``.

An audit takes a party's view of some rounds, runs the attacks of `discreet.adversaries.inference` on it, and judges
them by what a simulation knows. Each figure stands beside what chance gives, what the same attack gives where nothing is
hidden, and what the scheme promises.
"""

from __future__ import annotations

from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.comparing import Compared, compare, compared_rows, other_rows
from discreet.audits.running import Audited, audit
from discreet.audits.table import AUDITS
from discreet.audits.words import rows

__all__ = [
    "AUDITS",
    "Audit",
    "Audited",
    "Case",
    "Compared",
    "Finding",
    "Illustrated",
    "audit",
    "compare",
    "compared_rows",
    "other_rows",
    "rows",
]
