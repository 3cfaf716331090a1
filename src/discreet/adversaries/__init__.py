"""Malicious clients of a simulation: what they do to their data and to their updates, and how far they get with it.

A new attack is a row in `ATTACKS` and a function: on examples in `discreet.adversaries.poisoned`, or on updates in
`discreet.adversaries.malice`.
"""

from __future__ import annotations

from discreet.adversaries.malice import Malice
from discreet.adversaries.settings import ATTACKS, Adversary, enlisted

__all__ = ["ATTACKS", "Adversary", "Malice", "enlisted"]
