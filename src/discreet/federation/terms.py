"""What all parties of a masked sum of a federation agree on; each works it out for itself."""

from __future__ import annotations

import hashlib
import struct

from discreet.config import Experiment
from discreet.errors import ConfigError, LocalProtocolError
from discreet.federation.parts import ADDITIVE, IN_CLEAR, MASKED, Begin
from discreet.preparation import Federation
from discreet.schemes.base import Phase
from discreet.secure.masking import MaskingTerms
from discreet.secure.ring import Ring
from discreet.tolerance import masking_graph

FALLING_SILENT = 1.0
"""Between real sites anybody may fall silent: without a promise of noise that says how many, plan for some."""

FEWEST = 3
"""Sites in a masked sum: that of two tells each the other's vector."""

_PROTOCOL = b"discreet agreement 2"

ALL_NEIGHBOURS = 128
"""Up to so many sites of a masked sum are all neighbours of each other, so that each sees who is in it: a server that
lies to a few of them could else have their sum alone."""


def how_summed(experiment: Experiment, phase: Phase) -> int:
    """How a phase is summed: `IN_CLEAR`, `MASKED` or `ADDITIVE`."""
    if not isinstance(phase.group, Ring):
        return IN_CLEAR
    return {"masked": MASKED, "additive": ADDITIVE}.get(experiment.secure, IN_CLEAR)


def agreement(rehearse: bool, experiment: str, begin: Begin) -> bytes:
    """SHA-256 of what all sites of a run have to know alike, 32 bytes.

    Secure sums are bound to it: sites that a server tells different things cannot read what they seal for each other.

    Args:
        rehearse: whether nothing is secret.
        experiment: what runs, as TOML, letter by letter.
        begin: who takes part, with how much of what, and of how many sites a sum must be that each is in.
    """
    minima = b"".join(member.minimum.to_bytes(4, "little") for member in begin.members)
    said = bytes([rehearse]) + begin.lasting.to_bytes() + minima + experiment.encode()
    return hashlib.sha256(_PROTOCOL + said).digest()


def masking_terms(
    federation: Federation,
    run: bytes,
    agreed: bytes,
    session: int,
    serial: int,
    round: int,
    cohort: tuple[int, ...],
    nonce: bytes,
) -> MaskingTerms:
    """The terms of one masked sum.

    Args:
        federation: of the run.
        run: names it.
        agreed: what all its sites have to know alike, see `agreement`.
        session: of the server's process.
        serial: of the sum in the session; another sum is another.
        round: that it is for.
        cohort: who is asked to take part, in rising order.
        nonce: of the graph.

    Raises:
        ConfigError: the cohort is too small to hide anybody.
        LocalProtocolError: the scheme has no such sum.
    """
    task = federation.task
    phases = federation.scheme.phases(task)
    if len(phases) != 1 or phases[0].scope != "all" or how_summed(federation.experiment, phases[0]) != MASKED:
        raise LocalProtocolError("masked sums are the only one of their round, and over all participants")
    (phase,) = phases
    if len(cohort) < FEWEST:
        raise ConfigError("cohort", f"{len(cohort)} sites", f"at least {FEWEST}")
    graph = masking_graph(task.promise, len(cohort), FALLING_SILENT)
    if len(cohort) <= ALL_NEIGHBOURS or graph.complete:
        graph = graph.completed()
    needed = 0 if task.promise is None else task.promise.needed(len(cohort))
    return MaskingTerms(
        run=run + agreed + struct.pack("<II", session, serial),
        round=round,
        cohort=cohort,
        bits=phase.group.bits,
        length=phase.length,
        degree=graph.degree,
        threshold=graph.threshold,
        minimum_survivors=max(2, graph.clients - graph.dropped, needed),
        nonce=nonce,
    )
