"""Audit of membership by shadow models: who can tell, from how sure a model is, which examples others have trained on?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from discreet.adversaries.inference.likelihood import (
    Shadows,
    as_confident,
    balanced,
    confidences,
    likelihood_ratio,
    shadow_models,
)
from discreet.adversaries.inference.membership import membership
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.curves import curve, findings
from discreet.audits.member import fits, predictions
from discreet.cohort import Examples
from discreet.optimizers import LocalTraining
from discreet.randomness import SERVER

SHADOWS, PASSES, LANES, MOST = 16, 60, 8, 5000
"""Shadow models; passes over the data that they take at most; how many are trained at once, at most; and examples of a
kind that are asked about, at most."""

QUICK_SHADOWS, QUICK_PASSES = 4, 5

TRAINING = LocalTraining(batch_size=32, optimizer="adam", learning_rate=0.003)
"""How shadow models are trained, whatever the scheme: quickly."""


def measure(case: Case) -> Sequence[Finding] | Illustrated:
    """The likelihood ratio, online and offline, on whatever the party can predict with."""
    case = replace(case, most=min(case.most, MOST))
    members = case.others
    # with as many others, a shadow model is trained on as many examples as the model that is attacked
    others = replace(case, most=max(1, min(case.most, len(members)))).unseen
    if not len(members) or not len(others):
        return []
    pool, count = joined(members, others), len(members)
    task = case.federation.task
    loss, start = task.learner.loss, task.initial()
    known = None if case.truth is None else confidences(case.predict(case.truth), loss, pool)
    found, drawn = [], {}
    for name, (predict, promise) in predictions(case).items():
        level = confidences(predict, loss, pool)
        shadows = _trained(case, start, pool, float(level.mean()), count / len(pool))
        unprotected = None if known is None else likelihood_ratio(known, shadows)
        for place, kind in enumerate(("online", "offline")):
            score = likelihood_ratio(level, shadows)[place]
            got = membership(score[:count], score[count:])
            best = None
            if unprotected is not None:
                best = membership(unprotected[place][:count], unprotected[place][count:])
            found += findings(f"{kind}, {name}", got, promise, best)
            drawn[f"{kind}, {name}"] = curve(got)
    return Illustrated(found, series=drawn)


def joined(first: Examples, second: Examples) -> Examples:
    """Examples, and others behind them."""
    inputs = torch.cat([first.inputs, second.inputs])
    if first.reconstructs:
        return Examples.reconstructing(inputs)
    return Examples(inputs, torch.cat([first.targets, second.targets]))


def _trained(case: Case, start: Tensor, pool: Examples, level: float, share: float) -> Shadows:
    """Shadow models that are as sure in the mean as the party's predictions are."""
    task = case.federation.task
    learner = task.learner
    if learner.path != "autograd":
        learner = replace(learner, lanes=LANES)
    count, passes = (QUICK_SHADOWS, QUICK_PASSES) if case.quick else (SHADOWS, PASSES)
    held = balanced(count, len(pool), task.randomness.stream(0, SERVER, "audit shadows"))
    # another seed: the batches of a run are nobody's to know
    streams = replace(task.common, seed=task.common.key(0, SERVER, "audit shadow training") >> 65)
    models = shadow_models(learner, TRAINING, start, pool, held, streams)
    return as_confident(learner, models, pool, held, level, share, passes)


AUDIT = Audit(
    "who can tell, by shadow models (LiRA), which examples others have trained on",
    ("participant", "server"),
    1,
    measure,
    fits,
)
