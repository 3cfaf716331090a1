"""Audit of membership: can a party tell which examples others have trained on?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from discreet.adversaries.inference.membership import Membership, loss_threshold
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.curves import curve, findings
from discreet.audits.perturbation import NOTHING, as_they_come, disguised, regressed
from discreet.preparation import Federation
from discreet.schemes.base import GlobalModel
from discreet.schemes.traits import Confined


def measure(case: Case) -> Sequence[Finding] | Illustrated:
    """A loss threshold, on whatever the party can predict with."""
    members, others = case.others, case.unseen
    if not len(members) or not len(others):
        return []

    def attacked(predict: Callable[[Tensor], Tensor]) -> Membership:
        return loss_threshold(predict, case.federation.task.learner.loss, members, others)

    known = None if case.truth is None else attacked(case.predict(case.truth))
    found, drawn = [], {}
    for name, (predict, promise) in predictions(case).items():
        got = attacked(predict)
        found += findings(name, got, promise, known)
        drawn[name] = curve(got)
    return Illustrated(found, series=drawn)


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest advantage that any test has under (epsilon, delta)-differential privacy.

    ``(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)``, from Kairouz, Oh and Viswanath 2015 (arXiv 1311.0776).
    """
    return math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1)


def predictions(case: Case) -> Mapping[str, tuple[Callable[[Tensor], Tensor], str]]:
    """What the party can predict with, and what the scheme promises about it."""
    party, scheme = case.view.party, case.federation.scheme
    if party.number is None:
        if case.truth is None:
            return {}
        return {"the model": (case.predict(case.truth), promised(case))}
    if sent := disguised(case):
        found = {"predictions as they come": (sent[0].as_it_comes, as_they_come(sent[0]))}
        if (estimate := regressed(case, sent[0])) is not None:
            found["after the regression on own labels"] = (estimate.outputs, NOTHING)
        return found
    if isinstance(scheme, Confined):
        own = scheme.confined(case.federation.task, case.state, party.number)
        return {"its own confined model": (case.predict(own), "nothing: models tell what they have learnt")}
    payload = next(iter(case.view.payloads().values()), None)
    if isinstance(payload, GlobalModel):
        return {"the model it is sent": (case.predict(payload.vector), promised(case))}
    return {}


def promised(case: Case, round: int | None = None) -> str:
    """What the scheme promises about membership, of all models up to the one a round began with; None for the first."""
    cost = case.spent(case.round if round is None else round)
    if cost is None or not math.isfinite(cost.epsilon):
        return NOTHING
    most = most_advantage(cost.epsilon, cost.delta)
    releases = f"{cost.releases} release{'s' * (cost.releases != 1)}"
    return f"advantage at most {most:.3g} (epsilon {cost.epsilon:.3g} after {releases})"


def fits(federation: Federation) -> str | None:
    """Why membership says nothing about a federation; None if it does."""
    if not len(federation.test):
        return "there are no test examples to compare training examples with"
    if federation.partition.column_count > 1:
        return "participants hold some of the columns, and no model of their own to ask"
    sent = any(phase.length for phase in federation.scheme.phases(federation.task))
    return None if sent or federation.scheme.pooled else "nobody receives anything"


AUDIT = Audit(
    "who can tell, from a model's losses, which examples others have trained on",
    ("participant", "server"),
    1,
    measure,
    fits,
)
