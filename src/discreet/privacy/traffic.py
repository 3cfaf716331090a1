"""What goes over the wire under each scheme, counted from the shapes of its messages."""

from __future__ import annotations

from dataclasses import dataclass

from discreet.secure.masking import GraphPlan, MaskingTerms, messages

FROM_CLIENTS = (messages.AdvertisedKeys, messages.SharedKeys, messages.MaskedInput, messages.UnmaskShares)
TO_CLIENTS = (messages.PeerKeys, messages.DeliveredShares, messages.UnmaskRequest)


@dataclass(frozen=True)
class Traffic:
    """What clients send and receive under one scheme.

    Attributes:
        scheme: its name, and what differs from its defaults.
        bits: of one element on the wire: 32 for numbers in floating point, 1 for votes, b for a sum modulo 2^b.
        bits_per_parameter: bits that one client sends in a round, keys and shares of a masked sum included, for each
            of the model's parameters: what ``result.json`` calls so.
        megabytes_a_round: 10^6 bytes that one client sends in a round.
        megabytes_a_client: 10^6 bytes that one client sends in the whole run, on average.
        megabytes_total: 10^6 bytes that all clients send in the whole run, on average.
        downlink_megabytes_a_round: 10^6 bytes that one client receives in a round.
    """

    scheme: str
    bits: int
    bits_per_parameter: float
    megabytes_a_round: float
    megabytes_a_client: float
    megabytes_total: float
    downlink_megabytes_a_round: float


def traffic(
    scheme: str,
    bits: int,
    *,
    up: int,
    down: int,
    parameters: int,
    cohort: float,
    clients: int,
    rounds: int,
) -> Traffic:
    """The traffic of a run in which every client of a round sends and receives as much.

    Args:
        scheme: its name.
        bits: of one element on the wire.
        up: bytes that a client sends in a round.
        down: bytes that it receives.
        parameters: of the model.
        cohort: clients a round, on average.
        clients: how many there are.
        rounds: of the run.
    """
    total = up / 1e6 * cohort * rounds
    return Traffic(scheme, bits, 8 * up / parameters, up / 1e6, total / clients, total, down / 1e6)


def masked_bytes(bits: int, length: int, graph: GraphPlan) -> tuple[int, int]:
    """What one client sends and receives for one masked sum, over all its stages.

    Args:
        bits: of the modulus.
        length: of the vectors.
        graph: the cohort, and who masks with whom.

    Raises:
        ConfigError: the vectors are longer than a masked sum takes.
    """
    terms = MaskingTerms(
        run=b"plan",
        round=1,
        cohort=tuple(range(graph.clients)),
        bits=bits,
        length=length,
        degree=graph.degree,
        threshold=graph.threshold,
    )
    return sum(kind.size(terms) for kind in FROM_CLIENTS), sum(kind.size(terms) for kind in TO_CLIENTS)
