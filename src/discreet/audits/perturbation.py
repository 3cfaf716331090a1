"""Audit of lossless perturbation: how much of the secret, the predictions and the model a participant gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from discreet.adversaries.inference.lossless import (
    aimed_at,
    by_true_outputs,
    from_weights,
    in_clear,
    projected,
    regression,
    two_rounds,
    without_labels,
)
from discreet.adversaries.inference.perturbed import Disguised, Estimate
from discreet.audits.case import Audit, Case, Finding
from discreet.audits.distance import relative_error
from discreet.cohort import Examples
from discreet.preparation import Federation
from discreet.schemes import Lossless
from discreet.schemes.lossless.reading import read

EASY = "values that are far off; the largest may still be the right one"
NOTHING = "nothing"
EXACT = "nothing: known to be exact"


def measure(case: Case) -> Sequence[Finding]:
    """Every attack of `discreet.adversaries.inference.lossless`, on the first model that the party is sent."""
    sent = disguised(case)
    if not sent or case.truth is None:
        return []
    first, (inputs, targets) = sent[0], _all(case.unseen)
    judge = _Judge(case, first, inputs, targets)
    found = judge.findings("none: predictions as they come", first.as_it_comes, as_they_come(first))
    if first.payload.m:
        measured = first.structure.outputs - first.payload.m
        off = relative_error(in_clear(first, inputs), projected(first, judge.outputs))
        found.append(Finding("projection", "relative error", off, None, 0.0, EXACT))
        share = measured / first.structure.outputs
        found.append(Finding("projection", "share of each prediction in clear", share, 0.0, 1.0, EXACT))
    estimates = _estimates(case, sent)
    for name, estimate in estimates.items():
        if first.payload.m:
            found += judge.findings(name, estimate.outputs, NOTHING)
            off = relative_error(estimate.gamma, judge.exact.gamma)
            found.append(Finding(name, "relative error of gamma", off, 1.0, 0.0, NOTHING))
    # the last estimate is as a rule the best one; what is left are the scales
    guessed = list(estimates.values())[-1].vector()
    found.append(
        Finding(
            "scales from the weights' sizes",
            "relative error of all weights",
            relative_error(guessed, case.truth.double()),
            1.0,
            0.0,
            "nothing: hidden layers are only rescaled",
        )
    )
    return found


def as_they_come(sent: Disguised) -> str:
    """What is promised of predictions as they come: nothing where only weights are rescaled."""
    return EASY if sent.payload.m else NOTHING


def disguised(case: Case) -> tuple[Disguised, ...]:
    """The perturbed models that the party was sent; none if the scheme sends other ones."""
    learner = case.federation.task.learner
    if not isinstance(case.federation.scheme, Lossless):
        return ()
    return Disguised.of(case.view, learner.network, read(learner.network, learner.shape))


def regressed(case: Case, model: Disguised) -> Estimate | None:
    """The attack with the party's own labels; None where it has none, or there is nothing to take off."""
    if not len(case.own) or not model.payload.m:
        return None
    return regression(model, case.own, case.federation.task.learner.loss)


def _estimates(case: Case, sent: Sequence[Disguised]) -> dict[str, Estimate]:
    """What each attack finds, of those that there is anything for: data, or a second round."""
    loss, classes = case.federation.task.learner.loss, case.own.targets.dim() == 1
    found = {"regression on own labels": regressed(case, sent[0])}
    if len(case.own):
        unlabelled = without_labels(sent[0], _all(case.own)[0], loss, classes=classes)
        found["regression without labels"] = unlabelled
    found["weights of one round"] = from_weights(sent[0])
    if len(sent) > 1 and sent[0].structure.hidden:
        found["weights of two rounds"] = two_rounds(sent[0], sent[1])
    return {name: estimate for name, estimate in found.items() if estimate is not None}


class _Judge:
    """Compares predictions with the true model's, on examples that nobody has trained on."""

    def __init__(self, case: Case, model: Disguised, inputs: Tensor, targets: Tensor) -> None:
        truth = case.truth
        self.inputs, self.targets = inputs, targets
        self.outputs = inputs.new_empty(0) if truth is None else case.predict(truth.double())(inputs)
        self.exact = by_true_outputs(model, inputs, self.outputs)
        self.classes = targets.dim() == 1
        aims = aimed_at(case.federation.task.learner.loss, targets, model.structure.outputs)
        self.blind = self.outputs.mean(0) if aims is None else aims.mean(0)

    def findings(self, attack: str, predict: Callable[[Tensor], Tensor], promise: str) -> list[Finding]:
        """How far predictions are off, and of classes how many are right."""
        given = predict(self.inputs)
        blind = relative_error(self.blind.expand_as(self.outputs), self.outputs)
        off = relative_error(given, self.outputs)
        found = [Finding(attack, "relative error of predictions", off, blind, 0.0, promise)]
        if self.classes:
            most = float(self.targets.bincount().max()) / len(self.targets)
            found.append(
                Finding(attack, "accuracy", self._right(given), most, self._right(self.outputs), promise)
            )
        return found

    def _right(self, outputs: Tensor) -> float:
        return float((outputs.argmax(1) == self.targets).double().mean())


def _all(examples: Examples) -> tuple[Tensor, Tensor]:
    return examples.gather(torch.arange(len(examples), device=examples.targets.device))


def _fits(federation: Federation) -> str | None:
    if not isinstance(federation.scheme, Lossless):
        return "it is about lossless perturbation"
    return None if len(federation.test) else "there are no test examples to judge predictions by"


AUDIT = Audit(
    "what a participant gets back of a perturbed model: the secret, its predictions, its weights",
    ("participant",),
    2,
    measure,
    _fits,
)
