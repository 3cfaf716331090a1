"""The audits. A new one is a file with an `AUDIT`, and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from discreet.audits import (
    canary,
    colluders,
    inversion,
    member,
    normal_equations,
    perturbation,
    shadow,
    within,
)
from discreet.audits.case import Audit

AUDITS: Mapping[str, Audit] = {
    "lossless-shift": perturbation.AUDIT,
    "membership": member.AUDIT,
    "membership-lira": shadow.AUDIT,
    "membership-white-box": within.AUDIT,
    "canaries": canary.AUDIT,
    "inversion": inversion.AUDIT,
    "normal-equations": normal_equations.AUDIT,
    "colluders": colluders.AUDIT,
}
