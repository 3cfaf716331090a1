"""How far an attack gets, measured on test examples: never on those that malicious clients trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from discreet.adversaries.poisoned import Aim, brightest, patterned
from discreet.adversaries.settings import Adversary
from discreet.cohort import Examples
from discreet.errors import ConfigError
from discreet.evaluation import Evaluation

FIGURES = ("main_accuracy", "source_accuracy", "source_to_target", "pattern_to_target")
"""What a round's metrics may hold besides accuracy and loss, where there is an adversary:

| name | share of the test examples |
|---|---|
| ``main_accuracy`` | of all classes but the source, that are put into their class |
| ``source_accuracy`` | of the source class, that are put into it |
| ``source_to_target`` | of the source class, that are put into the target class |
| ``pattern_to_target`` | of all classes but the target, that are put into it once they have the pattern |
"""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """Test examples that show how far an attack gets; None for those that it does not need.

    Attributes:
        count: test examples in all.
        source: those of the source class.
        mistaken: the same, with the target for their class.
        marked: those of other classes than the target, with the pattern, and with the target for their class.
    """

    count: int
    source: Examples | None = None
    mistaken: Examples | None = None
    marked: Examples | None = None

    def to(self, device: torch.device) -> Yardstick:
        """The same examples on a device."""
        parts = (self.source, self.mistaken, self.marked)
        return Yardstick(self.count, *(one if one is None else one.to(device) for one in parts))

    def figures(self, whole: Evaluation, judge: Callable[[Examples], Evaluation]) -> dict[str, float]:
        """The figures of a model, by the names in `FIGURES`.

        Args:
            whole: how good it is on all test examples.
            judge: tells how good it is on some.
        """
        if whole.accuracy is None:
            return {}
        found = {"main_accuracy": whole.accuracy}
        if self.source is not None:
            on_source, others = _accuracy(judge(self.source)), self.count - len(self.source)
            if others:
                right = whole.accuracy * self.count - on_source * len(self.source)
                found["main_accuracy"] = max(0.0, right / others)
            found["source_accuracy"] = on_source
        if self.mistaken is not None:
            found["source_to_target"] = _accuracy(judge(self.mistaken))
        if self.marked is not None:
            found["pattern_to_target"] = _accuracy(judge(self.marked))
        return found


def yardstick(adversary: Adversary, aim: Aim, train: Examples, test: Examples) -> Yardstick:
    """What an attack is measured by.

    Args:
        adversary: the settings.
        aim: its classes.
        train: training examples, for the brightness of a pattern.
        test: test examples.

    Raises:
        ConfigError: there are test examples, and none of the class that is attacked.
    """
    found = Yardstick(len(test))
    if not len(test) or aim.target is None:
        return found
    if aim.source is not None:
        source = _some(test, test.targets == aim.source)
        if not len(source):
            raise ConfigError("adversary.source", adversary.source, "a class that the test set has")
        found = replace(found, source=source, mistaken=_as(source, aim.target))
    if adversary.attack == "pixel-backdoor":
        others = _some(test, test.targets != aim.target)
        if not len(others):
            raise ConfigError("adversary.target", adversary.target, "not the only class of the test set")
        marked = patterned(others.inputs, adversary.pattern, brightest(train))
        found = replace(found, marked=_as(replace(others, inputs=marked), aim.target))
    return found


def _some(examples: Examples, which: torch.Tensor) -> Examples:
    places = which.nonzero().flatten()
    return Examples(examples.inputs.index_select(0, places), examples.targets.index_select(0, places))


def _as(examples: Examples, target: int) -> Examples:
    return replace(examples, targets=torch.full_like(examples.targets, target))


def _accuracy(found: Evaluation) -> float:
    return 0.0 if found.accuracy is None else found.accuracy
