"""The figures of a plan, from an experiment whose noise is settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from discreet.config import Experiment
from discreet.errors import ConfigError, LocalProtocolError, UserError
from discreet.privacy.accounting import Spent, adjacency_among, spent
from discreet.privacy.modulus import bits_by_paper_rule
from discreet.privacy.planning import Plan, largest_cohort, statement, warnings
from discreet.privacy.promise import Promise
from discreet.privacy.releases import Ledger, Poisson
from discreet.privacy.traffic import Bandwidth, Summed, Traffic, masked_bytes, shared_bytes, traffic
from discreet.sampling import how_sampled
from discreet.schemes import SCHEMES, DPSignFed
from discreet.schemes.base import Phase, Task
from discreet.schemes.private import promise_of
from discreet.schemes.traits import Addressed
from discreet.secure.groups import Reals, Signs, wire_bytes
from discreet.secure.masking import GraphPlan
from discreet.secure.ring import Ring
from discreet.tolerance import masking_graph

PAPER_RULE = 'dp-signfed, modulus = "paper"'
"""How the row of DP-SignFed under the paper's rule is called."""

SMALLEST_PROBED = 1_000
"""Up to this size the smallest cohort that can hide anyone is looked for."""


def bandwidth(experiment: Experiment, task: Task, clients: int) -> Bandwidth:
    """What an experiment without a promise sends, beside all other schemes without one, by their defaults and in the clear.

    Args:
        experiment: what is going to run.
        task: of which messages are counted.
        clients: how many there are.

    Raises:
        UserError: its scheme cannot do the task, or too few clients take part for its way of summing.
    """
    secure: Summed = "none" if experiment.secure == "auto" else experiment.secure
    drawn = how_sampled(experiment, clients)
    graph = None
    if secure == "masked":
        average = clients if experiment.scheme.everyone else max(1, round(drawn.fraction * clients))
        graph = masking_graph(None, average, experiment.dropouts.silent)
    rows = []
    for name, kind in SCHEMES.items():
        if name == experiment.scheme_name:
            scheme, dealt = experiment.scheme, replace(task, modular=secure != "none")
            phases, way = scheme.phases(dealt), (graph, experiment.share_holders * (secure == "additive"))
        elif not kind.private:
            scheme, dealt = kind(), task
            phases, way = _phases(scheme, dealt), (None, 0)
        else:
            continue
        cohort = clients if scheme.everyone else drawn.fraction * clients
        sums = [phase for phase in phases if phase.length]
        if sums:
            rows.append(_row(name, scheme, dealt, sums, *way, cohort, clients, experiment.rounds))
    own = next((row for row in rows if row.scheme == experiment.scheme_name), None)
    return Bandwidth(
        scheme=experiment.scheme_name,
        clients=clients,
        cohort=clients if experiment.scheme.everyone else drawn.fraction * clients,
        sampling="poisson" if isinstance(drawn, Poisson) else "fixed",
        rounds=experiment.rounds,
        parameters=task.parameters,
        secure=secure,
        neighbours=None if graph is None else graph.degree,
        bits_per_parameter=0.0 if own is None else own.bits_per_parameter,
        traffic=tuple(rows),
    )


def figures(
    experiment: Experiment, task: Task, clients: int, rounds: int, *, masked: bool, beside: Any = None
) -> Plan:
    """The figures of a settled experiment; `beside` is a scheme without a promise whose messages are compared as it is set."""
    asked, promise = experiment.privacy, promise_of(task)
    if asked is None:
        raise LocalProtocolError("an experiment without privacy has nothing to plan")
    average = max(1, round(promise.expected_cohort))
    graph = _average_graph(promise) if masked else None
    release = experiment.scheme.release(task)
    ledger = Ledger().add(release, rounds)
    promised_by = spent(ledger, asked.delta, asked.accountant)
    by_rdp = promised_by if promised_by.accountant == "rdp" else spent(ledger, asked.delta, "rdp")
    by_pld = promised_by if promised_by.accountant == "pld" else _by_pld(ledger, asked.delta)
    rows = _traffic(experiment, task, clients, rounds, masked=masked, beside=beside)
    own = next(row for row in rows if row.scheme == experiment.scheme_name)
    (votes,) = DPSignFed().phases(task)
    return Plan(
        scheme=experiment.scheme_name,
        clients=clients,
        cohort=promise.expected_cohort * promise.groups,
        groups=promise.groups,
        fraction=promise.sampling.fraction,
        sampling="poisson" if isinstance(promise.sampling, Poisson) else "fixed",
        rounds=rounds,
        parameters=task.parameters,
        secure="masked" if masked else "none",
        survivors=promise.shares(average),
        neighbours=None if graph is None else graph.degree,
        mechanism=release.noise.mechanism,
        adjacency=adjacency_among(promise.groups, promised_by.adjacency),
        noise_multiplier=promise.noise_multiplier,
        noise_share=promise.noise_multiplier
        * release.noise.l2_sensitivity
        / math.sqrt(promise.shares(average)),
        delta=asked.delta,
        epsilon=promised_by.epsilon,
        epsilon_rdp=by_rdp.epsilon,
        epsilon_pld=by_pld.epsilon if by_pld else None,
        accountant=promised_by.accountant,
        bits_sum_rule=_bits(votes),
        bits_paper_rule=bits_by_paper_rule(task.parameters, average, promise.noise_multiplier),
        bits_per_parameter=own.bits_per_parameter,
        traffic=rows,
        statement=statement(
            promised_by.epsilon, asked.delta, promised_by.adjacency, sampled=promise.sampling.fraction < 1
        ),
        warnings=warnings(
            promised_by.epsilon,
            asked.delta,
            clients,
            promise,
            fewest=_fewest(promise) if masked else 1,
            silent=experiment.dropouts.silent if masked else experiment.dropouts.lost,
        ),
    )


def _by_pld(ledger: Ledger, delta: float) -> Spent | None:
    try:
        return spent(ledger, delta, "pld")
    except ConfigError:
        return None


def _graph(cohort: int, promise: Promise) -> GraphPlan | None:
    """Who masks with whom in such a cohort; None if it is too small."""
    try:
        return masking_graph(promise, cohort)
    except ConfigError:
        return None


def _average_graph(promise: Promise) -> GraphPlan | None:
    return _graph(max(1, round(promise.expected_cohort)), promise)


def _fewest(promise: Promise) -> int | None:
    """The smallest cohort that a masked sum hides anyone in."""
    return next((count for count in range(3, SMALLEST_PROBED) if _graph(count, promise)), None)


def _traffic(
    experiment: Experiment, task: Task, clients: int, rounds: int, *, masked: bool, beside: Any
) -> tuple[Traffic, ...]:
    """What every scheme sends that sends anything; the experiment's own as it is set, others by their defaults."""
    own, promise = experiment.scheme_name, promise_of(task)
    undivided = replace(task, promise=_undivided(promise, clients))
    schemes: list[tuple[str, Any]] = []
    for name, kind in SCHEMES.items():
        schemes.append(
            (name, experiment.scheme if name == own else beside if type(beside) is kind else kind())
        )
        if kind is DPSignFed and schemes[-1][1].modulus == "sum":
            schemes.append((PAPER_RULE, DPSignFed(modulus="paper")))
    rows = []
    for name, scheme in schemes:
        dealt = task if name == own else undivided
        phases = _phases(scheme, dealt)
        if not phases:
            continue
        graph = _average_graph(promise_of(dealt)) if masked and scheme.private else None
        cohort = clients if scheme.everyone else promise.expected_cohort * promise.groups
        rows.append(_row(name, scheme, dealt, phases, graph, 0, cohort, clients, rounds))
    return tuple(rows)


def _row(
    name: str,
    scheme: Any,
    task: Task,
    phases: Sequence[Phase],
    graph: GraphPlan | None,
    holders: int,
    cohort: float,
    clients: int,
    rounds: int,
) -> Traffic:
    """What a scheme sends: with masks where there is a graph, in additive shares where there are holders."""
    words = [wire_bytes(phase.group, phase.length) for phase in phases]
    up = sum(shared_bytes(holders, one) for one in words) if holders else sum(words)
    down = scheme.payload_bytes(task) if isinstance(scheme, Addressed) else 4 * task.parameters
    if graph is not None:
        each = [masked_bytes(_bits(phase), phase.length, graph) for phase in phases]
        up, down = sum(sent for sent, _ in each), down + sum(received for _, received in each)
    return traffic(
        name,
        max(_bits(phase) for phase in phases),
        up=up,
        down=down,
        parameters=task.parameters,
        cohort=cohort,
        clients=clients,
        rounds=rounds,
    )


def _undivided(promise: Promise, clients: int) -> Promise:
    """The promise where a round's clients are in one sum."""
    return replace(
        promise,
        expected_cohort=promise.expected_cohort * promise.groups,
        largest_cohort=largest_cohort(promise.sampling, clients),
        groups=1,
    )


def _phases(scheme: Any, task: Task) -> list[Phase]:
    """The sums of a round in which something is sent; none for a scheme that cannot do such a task."""
    try:
        return [phase for phase in scheme.phases(task) if phase.length]
    except UserError:
        return []


def _bits(phase: Phase) -> int:
    """Of one element on the wire."""
    match phase.group:
        case Reals(dtype):
            return 8 * dtype.itemsize
        case Signs():
            return 1
        case Ring(bits):
            return bits
