"""What a run would cost in privacy and bandwidth, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from discreet.errors import ConfigError
from discreet.privacy.accounting import (
    Accountant,
    Adjacency,
    DiscreteGaussianSum,
    FixedSize,
    Gaussian,
    Ledger,
    Noise,
    Poisson,
    Released,
    Sampling,
    Skellam,
    Spent,
    adjacency_of,
    calibrate,
    rounds_within,
    spent,
)
from discreet.privacy.modulus import bits_by_paper_rule, bits_by_sum_rule, bits_for_sum

VACUOUS = 10.0
"""An epsilon above which a promise says little: odds may change by a factor of more than 20,000."""

CLIP_STEPS = 1 << 16
"""Steps of the fixed point in one clip norm, for dp-fedavg."""


@dataclass(frozen=True)
class Traffic:
    """What clients send under one scheme: the sums' words, without keys and framing.

    Attributes:
        scheme: its name.
        bits: bits a parameter.
        megabytes_a_round: 10^6 bytes that one client sends in a round.
        megabytes_a_client: 10^6 bytes that one client sends in the whole run, on average.
        megabytes_total: 10^6 bytes that all clients send in the whole run, on average.
    """

    scheme: str
    bits: int
    megabytes_a_round: float
    megabytes_a_client: float
    megabytes_total: float


@dataclass(frozen=True)
class Plan:
    """What is settled, given or worked out.

    Attributes:
        clients: N, how many there are.
        cohort: how many take part in a round, on average under Poisson sampling.
        fraction: the same as a share of all clients.
        sampling: ``poisson`` or ``fixed``.
        rounds: how many.
        parameters: coordinates of an update.
        survivors: honest clients whose shares of noise must reach the sum of an average round. Every round sizes its
            shares for the same part of the cohort that it drew.
        mechanism: ``gaussian``, ``discrete-gaussian-sum`` or ``skellam``.
        adjacency: what the promise is about.
        noise_multiplier: of the sum.
        delta: the chance left out of the promise.
        epsilon: by `accountant`.
        epsilon_rdp: by Rényi divergences.
        epsilon_pld: by privacy loss distributions; None where there are none for this sampling or noise.
        accountant: ``rdp`` or ``pld``: whose epsilon is promised.
        bits_sum_rule: bits a vote's coordinate, so that the sum does not wrap.
        bits_paper_rule: the same by the paper's rule.
        traffic: what each scheme sends.
        statement: what the promise means.
        warnings: what to think about before going on.
        timings: seconds by name, as they were handed in.
    """

    clients: int
    cohort: float
    fraction: float
    sampling: Literal["poisson", "fixed"]
    rounds: int
    parameters: int
    survivors: int
    mechanism: str
    adjacency: Adjacency
    noise_multiplier: float
    delta: float
    epsilon: float
    epsilon_rdp: float
    epsilon_pld: float | None
    accountant: Literal["rdp", "pld"]
    bits_sum_rule: int
    bits_paper_rule: int
    traffic: tuple[Traffic, ...]
    statement: str
    warnings: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)

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
        drawn = f"{self.cohort:g} of {self.clients}, {'independently' if self.sampling == 'poisson' else 'always'}"
        pld = "no theory" if self.epsilon_pld is None else f"{self.epsilon_pld:.4g}"
        return [
            ("clients a round", drawn),
            ("rounds", str(self.rounds)),
            ("parameters", f"{self.parameters:,}"),
            ("survivors needed", str(self.survivors)),
            ("noise", self.mechanism),
            ("noise multiplier", f"{self.noise_multiplier:.4g}"),
            ("epsilon (rdp)", f"{self.epsilon_rdp:.4g}"),
            ("epsilon (pld)", pld),
            ("delta", f"{self.delta:g}"),
            ("adjacency", self.adjacency),
            ("modulus, sum rule", f"{self.bits_sum_rule} bits"),
            ("modulus, paper's rule", f"{self.bits_paper_rule} bits"),
            *((name, f"{seconds:.3g} s") for name, seconds in self.timings.items()),
        ]


def plan(
    *,
    parameters: int | None = None,
    delta: float | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    fraction: float | None = None,
    rounds: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sampling: str = "poisson",
    mechanism: str = "discrete-gaussian-sum",
    accountant: Accountant = "rdp",
    dropout: float = 0.0,
    dishonest: int = 0,
    threshold: int | None = None,
    clip_steps: int = CLIP_STEPS,
    timings: Mapping[str, float] | None = None,
) -> Plan:
    """Work out a run from what is known of it.

    Known must be `parameters` and `delta`, two of `clients`, `cohort` and `fraction`, and two of `rounds`, `epsilon`
    and `noise_multiplier`.

    Args:
        parameters: coordinates of an update.
        delta: in (0, 1).
        clients: N.
        cohort: clients a round, on average under Poisson sampling.
        fraction: the same as a share of N, in (0, 1].
        rounds: how many; left out, as many as the budget allows with the given noise.
        epsilon: the budget; left out, what the given noise costs.
        noise_multiplier: of the sum; left out, the smallest that keeps the budget.
        sampling: ``poisson`` or ``fixed``.
        mechanism: ``discrete-gaussian-sum``, ``skellam`` or ``gaussian``.
        accountant: whose epsilon is promised: ``rdp``, ``pld`` or ``best``.
        dropout: share of a cohort that is expected to drop out of a round, in [0, 1).
        dishonest: clients of a cohort who are assumed to add no noise.
        threshold: fewest survivors with whom a masked sum can be opened; None for more than half of the cohort.
        clip_steps: steps of the fixed point in one clip norm, for dp-fedavg.
        timings: seconds by name, measured elsewhere, to show beside the rest.

    Raises:
        ConfigError: something is missing, contradictory or out of range.
    """
    if parameters is None or parameters < 1:
        raise ConfigError("parameters", parameters, "the number of the model's parameters, at least 1")
    if delta is None or not 0 < delta < 1:
        raise ConfigError("delta", delta, "a number above 0 and below 1")
    drawn, clients = _sampling(sampling, clients, cohort, fraction)
    expected = drawn.fraction * clients
    survivors = _survivors(expected, dropout, dishonest)

    def noise(multiplier: float) -> Noise:
        return _noise(mechanism, multiplier, parameters, survivors)

    noise_multiplier, rounds = _settle(noise, drawn, delta, rounds, epsilon, noise_multiplier, accountant)
    ledger = Ledger().add(Released(drawn, noise(noise_multiplier)), rounds)
    promised = spent(ledger, delta, accountant)
    by_rdp = promised if promised.accountant == "rdp" else spent(ledger, delta, "rdp")
    by_pld = promised if promised.accountant == "pld" else _by_pld(ledger, delta)
    largest = largest_cohort(drawn, clients)
    # everyone may survive, and then there is more noise than the shares were sized for
    loudest = noise_multiplier * math.sqrt(max(1.0, expected / survivors))
    votes = bits_by_sum_rule(parameters, largest, loudest)
    updates = bits_for_sum(clip_steps, largest, loudest * clip_steps)
    sizes = {"fedavg": 32, "signfed": 1, "dp-fedavg": updates, "dp-signfed": votes}
    return Plan(
        clients=clients,
        cohort=expected,
        fraction=drawn.fraction,
        sampling="poisson" if isinstance(drawn, Poisson) else "fixed",
        rounds=rounds,
        parameters=parameters,
        survivors=survivors,
        mechanism=mechanism,
        adjacency=adjacency_of(ledger),
        noise_multiplier=noise_multiplier,
        delta=delta,
        epsilon=promised.epsilon,
        epsilon_rdp=by_rdp.epsilon,
        epsilon_pld=by_pld.epsilon if by_pld else None,
        accountant=promised.accountant,
        bits_sum_rule=votes,
        bits_paper_rule=bits_by_paper_rule(parameters, max(1, round(expected)), noise_multiplier),
        traffic=tuple(
            _traffic(name, bits, parameters, expected, clients, rounds) for name, bits in sizes.items()
        ),
        statement=_statement(promised.epsilon, delta, adjacency_of(ledger), drawn.fraction < 1),
        warnings=tuple(
            _warnings(promised.epsilon, delta, drawn, clients, survivors, dropout, dishonest, threshold)
        ),
        timings=dict(timings or {}),
    )


def _sampling(
    kind: str, clients: int | None, cohort: int | None, fraction: float | None
) -> tuple[Sampling, int]:
    if kind not in ("poisson", "fixed"):
        raise ConfigError("sampling", kind, "'poisson' or 'fixed'")
    if clients is not None and clients < 1:
        raise ConfigError("clients", clients, "at least 1")
    if cohort is not None and cohort < 1:
        raise ConfigError("cohort", cohort, "at least 1")
    if fraction is not None and not 0 < fraction <= 1:
        raise ConfigError("fraction", fraction, "a share of the clients, above 0 and at most 1")
    if clients is None:
        if cohort is None or fraction is None:
            raise ConfigError("clients", None, "the number of clients, or both cohort and fraction")
        clients = max(cohort, round(cohort / fraction))
    if cohort is None and fraction is None:
        raise ConfigError("fraction", None, "the share of the clients that takes part in a round, or cohort")
    if cohort is not None and fraction is not None and abs(fraction * clients - cohort) > 0.5:
        raise ConfigError(
            "cohort", cohort, f"fraction x clients = {fraction * clients:g}, or leave one of them out"
        )
    if cohort is not None and cohort > clients:
        raise ConfigError("cohort", cohort, f"at most the number of clients, {clients}")
    if kind == "fixed":
        # at least one of the two is known here
        size = cohort if cohort is not None else max(1, round((fraction or 0) * clients))
        return FixedSize(size, clients), clients
    return Poisson(fraction if fraction is not None else (cohort or 0) / clients), clients


def _survivors(cohort: float, dropout: float, dishonest: int) -> int:
    if not 0 <= dropout < 1:
        raise ConfigError("dropout", dropout, "a share of the cohort, at least 0 and below 1")
    if dishonest < 0:
        raise ConfigError("dishonest", dishonest, "a number of clients, at least 0")
    # a millionth absorbs the rounding of products such as 0.9 * 100
    survivors = math.floor(cohort * (1 - dropout) + 1e-6) - dishonest
    if survivors < 1:
        raise ConfigError(
            "dishonest",
            dishonest,
            f"honest survivors to be left of {cohort:g} clients of whom {dropout:.0%} drop out",
        )
    return survivors


def _noise(mechanism: str, multiplier: float, parameters: int, shares: int) -> Noise:
    votes = math.sqrt(parameters)
    if mechanism == "gaussian":
        return Gaussian(multiplier)
    if mechanism == "skellam":
        return Skellam(multiplier, parameters, votes)
    if mechanism == "discrete-gaussian-sum":
        return DiscreteGaussianSum(multiplier, votes, parameters, shares)
    raise ConfigError("mechanism", mechanism, "'discrete-gaussian-sum', 'skellam' or 'gaussian'")


def _settle(
    noise: Callable[[float], Noise],
    drawn: Sampling,
    delta: float,
    rounds: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    accountant: Accountant,
) -> tuple[float, int]:
    """Noise multiplier and rounds, from two of rounds, epsilon and noise multiplier."""
    if rounds is not None and rounds < 1:
        raise ConfigError("rounds", rounds, "at least 1")
    if epsilon is not None and not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("epsilon", epsilon, "a number above 0")
    if noise_multiplier is not None and not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ConfigError("noise_multiplier", noise_multiplier, "a number above 0")
    if noise_multiplier is None:
        if epsilon is None:
            raise ConfigError("epsilon", None, "a budget, or a noise_multiplier")
        if rounds is None:
            raise ConfigError("rounds", None, "how many, or both epsilon and noise_multiplier")
        return calibrate(epsilon, delta, rounds, drawn, noise=noise, accountant=accountant), rounds
    if epsilon is None:
        if rounds is None:
            raise ConfigError("rounds", None, "how many, or an epsilon")
        return noise_multiplier, rounds
    if rounds is not None:
        raise ConfigError(
            "epsilon", epsilon, "one of epsilon, noise_multiplier and rounds left out: two settle the third"
        )
    fit = rounds_within(epsilon, delta, Released(drawn, noise(noise_multiplier)), accountant=accountant)
    if fit == 0:
        raise ConfigError(
            "epsilon", epsilon, f"a budget for at least one round at noise multiplier {noise_multiplier:g}"
        )
    return noise_multiplier, fit


def _by_pld(ledger: Ledger, delta: float) -> Spent | None:
    try:
        return spent(ledger, delta, "pld")
    except ConfigError:
        return None


def largest_cohort(drawn: Sampling, clients: int) -> int:
    """No round draws more, but with probability below 1e-9 a round."""
    if isinstance(drawn, FixedSize):
        return drawn.cohort
    if drawn.probability == 1:
        return clients
    from scipy.stats import binom  # late: slow to import

    return max(1, int(binom.isf(1e-9, clients, drawn.probability)))


def _traffic(scheme: str, bits: int, parameters: int, cohort: float, clients: int, rounds: int) -> Traffic:
    once = math.ceil(bits * parameters / 8) / 1e6
    total = once * cohort * rounds
    return Traffic(scheme, bits, once, total / clients, total)


def _statement(epsilon: float, delta: float, adjacency: Adjacency, sampled: bool) -> str:
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


def _warnings(
    epsilon: float,
    delta: float,
    drawn: Sampling,
    clients: int,
    survivors: int,
    dropout: float,
    dishonest: int,
    threshold: int | None,
) -> list[str]:
    cohort = drawn.fraction * clients
    needed = math.floor(cohort / 2) + 1 if threshold is None else threshold
    found = []
    if delta >= 1 / clients:
        found.append(
            f"delta {delta:g} is not below 1/clients = {1 / clients:g}: giving one client away would keep it"
        )
    if epsilon > VACUOUS:
        found.append(f"epsilon {epsilon:.3g} is vacuous: above {VACUOUS:g} it promises next to nothing")
    if survivors + dishonest < needed:
        found.append(f"{survivors + dishonest} expected survivors are too few for the threshold of {needed}")
    least = max(2 if threshold is None else threshold, dishonest + 1)
    if isinstance(drawn, Poisson) and drawn.probability < 1:
        short = _too_few(clients, drawn.probability, dropout, least)
        if short > 0.01:
            found.append(
                f"{short:.0%} of the rounds will end with fewer than {least} survivors and not be released"
            )
    if dishonest and survivors <= dishonest:
        found.append(
            f"{dishonest} dishonest clients outnumber the {survivors} honest survivors: who is left to hide among?"
        )
    excess = math.sqrt(cohort / survivors)
    if excess > 1.5:
        found.append(
            f"if no one drops out and all are honest, the noise is {excess:.2g} times what the budget needs"
        )
    return found


def _too_few(clients: int, probability: float, dropout: float, needed: int) -> float:
    from scipy.stats import binom

    return float(binom.cdf(needed - 1, clients, probability * (1 - dropout)))
