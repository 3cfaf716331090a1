"""Audit of membership from within: by what models of several rounds do with single examples, and how they then move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from discreet.adversaries.inference.membership import membership
from discreet.adversaries.inference.whitebox import Sighting, features, learnt
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.curves import curve, findings
from discreet.audits.member import fits, promised
from discreet.audits.perturbation import NOTHING, disguised, regressed
from discreet.randomness import SERVER
from discreet.schemes import Lossless
from discreet.schemes.base import GlobalModel
from discreet.schemes.traits import Confined
from discreet.secure.groups import lifted
from discreet.view import Seen

ROUNDS, MOST = 6, 2000
"""Rounds that are watched; examples of a kind that are asked about, at most."""

MODELS = "nothing: models tell what they have learnt"


def measure(case: Case) -> Sequence[Finding] | Illustrated:
    """What half of the candidates teach about the other half."""
    case = replace(case, most=min(case.most, MOST))
    members, others = case.others, case.unseen
    if min(len(members), len(others)) < 2:
        return []
    sightings, promise = _sightings(case)
    if not sightings:
        return []
    learner = case.federation.task.learner
    measured = [features(learner, sightings, one) for one in (members, others)]
    stream = case.federation.task.randomness.stream(0, SERVER, "audit known members")
    known, asked = [], []
    for one in measured:
        order = torch.from_numpy(stream.permutation(len(one)))
        half = len(one) // 2
        known.append(one[order[:half]])
        asked.append(one[order[half:]])
    got = membership(*(learnt(known[0], known[1], one) for one in asked))
    clear = any(len(one.moves) > 1 for one in sightings)
    name = (
        f"{'global, updates in clear' if clear else 'global' if case.view.party.number is None else 'local'}"
    )
    name = f"{name}: {len(sightings)} model{'s' if len(sightings) > 1 else ''}"
    return Illustrated(findings(name, got, promise), series={name: curve(got)})


def _sightings(case: Case) -> tuple[list[Sighting], str]:
    """The models that the party has had in its hands, how they moved, and what is promised about them."""
    task, scheme, states = case.federation.task, case.federation.scheme, case.observed.states
    party, nothing = (
        case.view.party,
        case.federation.task.initial().new_empty(0, case.federation.task.parameters),
    )
    if scheme.pooled:
        return ([] if case.truth is None else [Sighting(case.truth, nothing)]), promised(case)
    if party.number is None:
        if scheme.vector(case.state) is None:
            return [], NOTHING
        served = [scheme.vector(states[seen.round]) for seen in case.view.seen]
        sent_by = [_contributed(case, seen) for seen in case.view.seen]
        # the noise of a sum is promised, and a single client adds but a share of it
        clear = any(len(one) for one in sent_by)
        return _moving(served, sent_by), NOTHING if clear else promised(case, case.view.seen[-1].round)
    if sent := disguised(case):
        guessed = [regressed(case, one) for one in sent]
        found = [
            one.vector if guess is None else guess.vector() for one, guess in zip(sent, guessed, strict=True)
        ]
        return _moving([one.float() for one in found]), NOTHING
    if isinstance(scheme, Confined):
        own = [scheme.confined(task, states[round], party.number) for round in case.view.payloads()]
        return _moving(own), MODELS
    vectors = [one.vector for one in case.view.payloads().values() if isinstance(one, GlobalModel)]
    return _moving(vectors), promised(case, max(case.view.payloads(), default=case.round))


def _moving(models: Sequence[Tensor], clear: Sequence[Tensor] = ()) -> list[Sighting]:
    """Models with where each went, but for the last; and what clients sent, where that is seen."""
    if len(models) < 2:
        return [Sighting(model, model.new_empty(0, len(model))) for model in models]
    found = []
    for place, (model, following) in enumerate(pairwise(models)):
        sent = [clear[place]] if place < len(clear) else []
        found.append(Sighting(model, torch.cat([(following - model).unsqueeze(0), *sent])))
    return found


def _contributed(case: Case, seen: Seen) -> Tensor:
    """What clients sent of the parameters, one row each; nothing where the party does not see it."""
    count = case.federation.task.parameters
    if isinstance(case.federation.scheme, Lossless):
        return torch.empty(0, count)  # its gradients are of another model
    phases = case.federation.scheme.phases(case.federation.task)
    (group,) = (phase.group for phase in phases if phase.name == seen.phase)
    sent = (seen.contributions or {}).values()
    rows = [lifted(group, one)[:count].float() for one in sent if len(one) >= count]
    return torch.stack(rows) if rows else torch.empty(0, count)


AUDIT = Audit(
    "who can tell, by gradients and models of several rounds, which examples others have trained on",
    ("participant", "server"),
    ROUNDS,
    measure,
    fits,
)
