"""The audits. A new one is a file with an `AUDIT`, and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from discreet.audits import member, perturbation
from discreet.audits.case import Audit

AUDITS: Mapping[str, Audit] = {
    "lossless-shift": perturbation.AUDIT,
    "membership": member.AUDIT,
}
