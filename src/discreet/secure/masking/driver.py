"""A whole masked sum in one process, for simulations: real clients, a real server, no network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from discreet.errors import ConfigError
from discreet.randomness import SERVER, Seeded, SystemRandom
from discreet.secure.masking.client import MaskingClient
from discreet.secure.masking.server import MaskedTotal, MaskingServer
from discreet.secure.masking.terms import STAGES, MaskingTerms, Stage
from discreet.secure.ring import Elements


def masked_sum(
    vectors: Elements,
    bits: int,
    *,
    threshold: int,
    randomness: Seeded | SystemRandom,
    degree: int | None = None,
    dropouts: Mapping[Stage, Collection[int]] | None = None,
    minimum_survivors: int = 2,
    cohort: Sequence[int] | None = None,
    run: bytes = b"simulation",
    round: int = 1,
    threads: int = 1,
) -> MaskedTotal:
    """The sum of vectors as a server learns it that sees them only masked.

    Args:
        vectors: shape (K, n), one client a row, in the ring's word and reduced; K at least 3.
        bits: b, of Z_2^b.
        threshold: shares that recover a secret; `plan_graph` finds it.
        randomness: of clients and server.
        degree: neighbours of a client; all others if None.
        dropouts: who is silent from a stage on. A client that drops out at `Stage.UNMASK` is in the sum.
        minimum_survivors: the sum of fewer clients is not released.
        cohort: the clients' numbers in ascending order; 0 to K - 1 if None.
        run: names the run.
        round: of the run; no two sums may have the same run and round.
        threads: that make masks; they change the time it takes and nothing else.

    Returns:
        The sum, exactly, of those who sent their masked input.

    Raises:
        ConfigError: a setting is out of its range, or a dropout is not of the cohort.
        LocalProtocolError: elements outside the ring.
        RoundAborted: too many dropouts.
    """
    if vectors.ndim != 2:
        raise ConfigError("vectors", vectors.shape, "shape (K, n), one client a row")
    clients = tuple(range(len(vectors)) if cohort is None else cohort)
    if len(clients) != len(vectors):
        raise ConfigError("cohort", f"{len(clients)} clients", f"{len(vectors)}, one for each vector")
    terms = MaskingTerms(
        run=run,
        round=round,
        cohort=clients,
        bits=bits,
        length=vectors.shape[1],
        degree=len(clients) - 1 if degree is None else degree,
        threshold=threshold,
        minimum_survivors=minimum_survivors,
        nonce=randomness.words(round, SERVER, "masking graph", 4).astype("<u8").tobytes(),
    )
    silent = _silent(dropouts or {}, clients)
    server = MaskingServer(terms)
    parties = {client: MaskingClient.start(terms, client, randomness) for client in clients}
    rows = dict(zip(clients, vectors, strict=True))
    inbox: dict[int, bytes] = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for client, received in inbox.items():
            if client in silent[stage]:
                continue
            party = parties[client]
            match stage:
                case Stage.ADVERTISE:
                    sent = party.advertise()
                case Stage.SHARE:
                    sent = party.share_keys(received)
                case Stage.MASK:
                    sent = party.mask(received, rows[client], threads=threads)
                case Stage.UNMASK:
                    sent = party.unmask(received)
            server.collect(client, sent)
        inbox = server.close_stage()
    return server.total(threads=threads)


def _silent(
    dropouts: Mapping[Stage, Collection[int]], cohort: tuple[int, ...]
) -> dict[Stage, frozenset[int]]:
    """Who sends nothing in a stage: those who dropped out in it or before."""
    gone: frozenset[int] = frozenset()
    silent: dict[Stage, frozenset[int]] = {}
    for stage in STAGES:
        gone |= frozenset(dropouts.get(stage, ()))
        silent[stage] = gone
    unknown = gone - set(cohort)
    if unknown or not dropouts.keys() <= set(STAGES):
        raise ConfigError("dropouts", dict(dropouts), "stages of a masked sum, and clients of its cohort")
    return silent
