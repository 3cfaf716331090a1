"""A plan: what a run would cost in privacy and bandwidth, in figures and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from discreet.privacy.accounting import Adjacency
from discreet.privacy.promise import Promise
from discreet.privacy.releases import FixedSize, Poisson, Sampling
from discreet.privacy.traffic import Summed, Traffic, in_columns, said_of_cohort, said_of_sums

VACUOUS = 10.0
"""An epsilon above which a promise says little: odds may change by a factor of more than 20,000."""

COMMON = 0.01
"""The share of rounds from which on it is worth a warning that they are not released."""

FACTOR_OF_NOISE = 1.5
"""Noise that is larger than the budget needs by this factor is worth a warning."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is settled, given or worked out.

    Attributes:
        scheme: whose noise it is.
        clients: N, how many there are.
        cohort: how many take part in a round, on average under Poisson sampling.
        fraction: the same as a share of all clients.
        sampling: ``poisson`` or ``fixed``.
        rounds: how many.
        parameters: coordinates of an update.
        secure: ``masked``, ``additive``, or ``none`` where sums are in the clear.
        survivors: honest clients whose shares of noise must reach the sum of an average round. Every round sizes its
            shares for the same part of the cohort that it drew.
        neighbours: clients with whom one masks in an average round; None without masks, or where they are too few.
        mechanism: which noise.
        adjacency: what the promise is about.
        noise_multiplier: of the sum.
        noise_share: standard deviation of one client's noise in an average round, in steps of the integers.
        delta: the chance left out of the promise.
        epsilon: by `accountant`, if every round is released.
        epsilon_rdp: by Rényi divergences.
        epsilon_pld: by privacy loss distributions; None where there are none for this sampling or noise.
        accountant: ``rdp`` or ``pld``: whose epsilon is promised.
        bits_sum_rule: bits a vote's coordinate, so that the sum does not wrap.
        bits_paper_rule: the same by the paper's rule, for the average cohort.
        bits_per_parameter: what a client of `scheme` sends, as in `Traffic`.
        traffic: what each scheme sends.
        statement: what the promise means.
        warnings: what to think about before going on.
        timings: seconds by name that one client takes in a round, measured elsewhere.
        groups: into which a round's clients are dealt, each with a sum of its own: `survivors`, `neighbours`,
            `noise_share` and the bits are then those of an average group.
    """

    scheme: str
    clients: int
    cohort: float
    fraction: float
    sampling: Literal["poisson", "fixed"]
    rounds: int
    parameters: int
    secure: Summed
    survivors: int
    neighbours: int | None
    mechanism: str
    adjacency: str
    noise_multiplier: float
    noise_share: float
    delta: float
    epsilon: float
    epsilon_rdp: float
    epsilon_pld: float | None
    accountant: Literal["rdp", "pld"]
    bits_sum_rule: int
    bits_paper_rule: int
    bits_per_parameter: float
    traffic: tuple[Traffic, ...]
    statement: str
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    groups: int = 1

    @property
    def bits(self) -> int:
        """Of the modulus of the planned scheme."""
        return next(row.bits for row in self.traffic if row.scheme == self.scheme)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, fit for JSON: an infinite epsilon is None."""
        plain = {**asdict(self), "timings": dict(self.timings), "warnings": list(self.warnings)}
        plain["traffic"] = [asdict(row) for row in self.traffic]
        for name in ("epsilon", "epsilon_rdp", "epsilon_pld"):
            if plain[name] is not None and not math.isfinite(plain[name]):
                plain[name] = None
        return plain

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each line of a table, in order; `traffic` has columns of its own."""
        drawn = said_of_cohort(self.cohort, self.clients, self.sampling)
        pld = "no theory" if self.epsilon_pld is None else f"{self.epsilon_pld:.4g}"
        sums = said_of_sums(self.secure, self.neighbours)
        return [
            ("scheme", self.scheme),
            ("clients a round", drawn if self.groups == 1 else f"{drawn}, in {self.groups} groups"),
            ("rounds", str(self.rounds)),
            ("parameters", f"{self.parameters:,}"),
            ("sums", sums),
            ("survivors needed", str(self.survivors)),
            ("noise", self.mechanism),
            ("noise multiplier", f"{self.noise_multiplier:.4g}"),
            ("epsilon (rdp)", f"{self.epsilon_rdp:.4g}"),
            ("epsilon (pld)", pld),
            ("delta", f"{self.delta:g}"),
            ("adjacency", self.adjacency),
            ("modulus, sum rule", f"{self.bits_sum_rule} bits"),
            ("modulus, paper's rule", f"{self.bits_paper_rule} bits"),
            *(
                (f"{name}, here", f"{seconds:.3g} s a client and round")
                for name, seconds in self.timings.items()
            ),
        ]

    def traffic_rows(self) -> list[tuple[str, ...]]:
        """The table of `traffic`, its heading first; amounts in MB of 10^6 bytes."""
        return in_columns(self.traffic)


def largest_cohort(drawn: Sampling, clients: int, groups: int = 1) -> int:
    """No round draws more, but with probability below 1e-9 a round; with several groups, for any one of them."""
    if isinstance(drawn, FixedSize):
        return math.ceil(drawn.cohort / groups)
    clients = math.ceil(clients / groups)
    if drawn.probability == 1:
        return clients
    from scipy.stats import binom  # late: slow to import

    return max(1, int(binom.isf(1e-9, clients, drawn.probability)))


def statement(epsilon: float, delta: float, adjacency: Adjacency, *, sampled: bool) -> str:
    """What a promise means, in a sentence.

    Args:
        epsilon: above 0, may be infinite.
        delta: the chance left out.
        adjacency: what is changed.
        sampled: whether a round draws only some of the clients.
    """
    if not math.isfinite(epsilon):
        return "Nothing is promised: the noise is too small for any epsilon."
    change = (
        "taking any one client's data away"
        if adjacency == "add-remove"
        else "replacing any one client's data"
    )
    who = (
        "who sees every released sum, but not who took part in which,"
        if sampled
        else "who sees every released sum"
    )
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 700 else "a number beyond all meaning"
    return (
        f"For anyone {who} {change} makes whatever they may observe at most {factor} times as likely or unlikely "
        f"(epsilon {epsilon:.3g}), but for a chance of {delta:g}."
    )


def warnings(
    epsilon: float,
    delta: float,
    clients: int,
    promise: Promise,
    *,
    fewest: int | None = 1,
    silent: float = 0.0,
) -> tuple[str, ...]:
    """What to think about before going on, most important first.

    Args:
        epsilon: promised.
        delta: the chance left out.
        clients: how many there are.
        promise: of every round.
        fewest: clients that a round must have so that its sum can be made: the smallest cohort that a masked sum hides
            anyone in, 1 in the clear; None if there is no such cohort.
        silent: the chance that a client falls silent in a round.
    """
    found = []
    if delta >= 1 / clients:
        found.append(
            f"delta {delta:g} is not below 1/clients = {1 / clients:g}: giving one client away would keep it"
        )
    if epsilon > VACUOUS:
        found.append(f"epsilon {epsilon:.3g} is vacuous: above {VACUOUS:g} it promises next to nothing")
    drawn = promise.sampling
    if isinstance(drawn, FixedSize) and drawn.fraction < 1:
        found.append(
            "cohorts of constant size are accounted for replacing a client's data, which moves a sum twice as far "
            "as taking it away: sampling = poisson needs less noise"
        )
    return (*found, *_about_cohorts(clients, promise, fewest, silent))


def _about_cohorts(clients: int, promise: Promise, fewest: int | None, silent: float) -> list[str]:
    """Warnings of rounds that have too few clients, or too many who cannot be relied upon."""
    found = []
    cohort, dishonest = promise.expected_cohort, promise.assumed_dishonest
    average, clients = max(1, round(cohort)), math.ceil(clients / promise.groups)
    of = "clients a round" if promise.groups == 1 else "clients a group"
    if fewest is None or promise.largest_cohort < fewest:
        least = "no number of clients is enough" if fewest is None else f"it takes {fewest}"
        found.append(
            f"{cohort:g} {of} are too few for the threshold of a masked sum: {least}, to hide one another"
        )
    else:
        least_of_a_round = max(fewest, dishonest + 1)
        short = _share_below(least_of_a_round, clients, promise)
        if short > COMMON:
            found.append(
                f"{short:.0%} of the rounds will have fewer than {least_of_a_round} clients, too few for the "
                "threshold, and not be released"
            )
    needed, survivors = promise.needed(average), promise.shares(average)
    lost = _share_above(average - needed, average, silent)
    if lost > COMMON:
        found.append(
            f"{lost:.0%} of the rounds will lose more clients than the share of {promise.dropout_tolerance:g} "
            "that may drop out, and not be released"
        )
    if promise.dropout_tolerance and 2 * needed <= average:
        found.append(
            f"{needed} of {average} clients are enough to open a sum, which is not more than half: a server that "
            "lies about who dropped out could open single vectors"
        )
    if dishonest and survivors <= dishonest:
        found.append(
            f"{dishonest} dishonest clients outnumber the {survivors} honest survivors: who is left to hide among?"
        )
    excess = math.sqrt(average / survivors)
    if excess > FACTOR_OF_NOISE:
        found.append(
            f"if no one drops out and all are honest, the noise is {excess:.2g} times what the budget needs"
        )
    return found


def _share_below(least: int, clients: int, promise: Promise) -> float:
    """The share of rounds that draw someone, and fewer than `least`."""
    drawn = promise.sampling
    if not isinstance(drawn, Poisson) or drawn.probability == 1:
        return float(promise.largest_cohort < least)
    from scipy.stats import binom  # late: slow to import

    below = binom.cdf(least - 1, clients, drawn.probability) - binom.pmf(0, clients, drawn.probability)
    return max(0.0, float(below))


def _share_above(most: int, clients: int, rate: float) -> float:
    """The share of rounds in which more than `most` of so many clients fall silent, each with a chance of `rate`."""
    from scipy.stats import binom  # late: slow to import

    return float(binom.sf(most, clients, rate)) if rate else 0.0
