"""What goes over the wire under each scheme, counted from the shapes of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from discreet.secure.expansion import SEED_BYTES
from discreet.secure.masking import GraphPlan, MaskingTerms, messages

FROM_CLIENTS = (messages.AdvertisedKeys, messages.SharedKeys, messages.MaskedInput, messages.UnmaskShares)
TO_CLIENTS = (messages.PeerKeys, messages.DeliveredShares, messages.UnmaskRequest)

Summed = Literal["masked", "additive", "none"]
"""How sums are made: ``none`` in the clear."""

HEADING = (
    "scheme",
    "bits a parameter",
    "MB a client and round",
    "MB a client",
    "MB in all",
    "MB down a round",
)


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


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """The plan of a run that promises no differential privacy: what is sent.

    Attributes:
        scheme: of the run.
        clients: N, how many there are.
        cohort: how many take part in a round, on average under Poisson sampling.
        sampling: ``poisson`` or ``fixed``.
        rounds: how many.
        parameters: of the model.
        secure: how sums are made.
        neighbours: clients with whom one masks in an average round; None without masks.
        bits_per_parameter: what a client of `scheme` sends, as in `Traffic`.
        traffic: what each scheme without noise sends.
    """

    scheme: str
    clients: int
    cohort: float
    sampling: Literal["poisson", "fixed"]
    rounds: int
    parameters: int
    secure: Summed
    neighbours: int | None
    bits_per_parameter: float
    traffic: tuple[Traffic, ...]

    @property
    def statement(self) -> str:
        """What is promised, in a sentence."""
        return f"Nothing is promised: {self.scheme} adds no noise for privacy. A budget is planned for dp-signfed instead."

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, fit for JSON."""
        return {**asdict(self), "statement": self.statement, "traffic": [asdict(row) for row in self.traffic]}

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each line of a table, in order; `traffic` has columns of its own."""
        return [
            ("scheme", self.scheme),
            ("clients a round", said_of_cohort(self.cohort, self.clients, self.sampling)),
            ("rounds", str(self.rounds)),
            ("parameters", f"{self.parameters:,}"),
            ("sums", said_of_sums(self.secure, self.neighbours)),
        ]

    def traffic_rows(self) -> list[tuple[str, ...]]:
        """The table of `traffic`, its heading first; amounts in MB of 10^6 bytes."""
        return in_columns(self.traffic)


def said_of_cohort(cohort: float, clients: int, sampling: Literal["poisson", "fixed"]) -> str:
    """How many clients take part in a round, and how they are drawn."""
    return f"{cohort:g} of {clients}, {'independently' if sampling == 'poisson' else 'always'}"


def said_of_sums(secure: Summed, neighbours: int | None) -> str:
    """How sums are made."""
    sums = {"none": "in the clear", "masked": "masked", "additive": "by additive shares"}[secure]
    return sums if neighbours is None else f"{sums}, {neighbours} neighbours"


def in_columns(rows: Iterable[Traffic]) -> list[tuple[str, ...]]:
    """A table of traffic, its heading first; amounts in MB of 10^6 bytes."""
    found: list[tuple[str, ...]] = [HEADING]
    for one in rows:
        amounts = (
            one.megabytes_a_round,
            one.megabytes_a_client,
            one.megabytes_total,
            one.downlink_megabytes_a_round,
        )
        found.append((one.scheme, f"{one.bits_per_parameter:.4g}", *(f"{amount:,.4g}" for amount in amounts)))
    return found


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


def shared_bytes(holders: int, words: int) -> int:
    """What one client sends to share a vector out among all holders.

    Args:
        holders: how many there are, at least 2.
        words: bytes of the vector, packed.
    """
    return (holders - 1) * (1 + SEED_BYTES) + 1 + words


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
