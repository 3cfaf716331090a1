"""What malicious clients do to their data, before anything is trained.

Forged examples are copies beside the others: the data of honest clients is not touched, and a round costs what it did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.settings import ATTACKS, Adversary
from discreet.cohort import Examples
from discreet.errors import ConfigError
from discreet.randomness import Seeded

Indices = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Aim:
    """The classes of an attack, by number.

    Attributes:
        classes: how many there are; None for a regression.
        source: the class that is attacked, or None.
        target: the class that it is to be taken for, or None.
    """

    classes: int | None
    source: int | None = None
    target: int | None = None


def aimed(adversary: Adversary, names: Sequence[str] | None) -> Aim:
    """The classes that an adversary names, as numbers.

    Args:
        adversary: the settings.
        names: of the classes, in the order of their numbers; None for a regression.

    Raises:
        ConfigError: there are no classes, or not these.
    """
    if names is None:
        if ATTACKS[adversary.attack].misdeed == "data":
            raise ConfigError(
                "adversary.attack", adversary.attack, "an attack on updates: these targets are no classes"
            )
        return Aim(None)
    source = None if adversary.source is None else _number("source", adversary.source, names)
    target = None if adversary.target is None else _number("target", adversary.target, names)
    if source is not None and source == target:
        raise ConfigError("adversary.target", adversary.target, "another class than adversary.source")
    return Aim(len(names), source, target)


def poisoned(
    adversary: Adversary,
    aim: Aim,
    examples: Examples,
    holdings: Sequence[Indices],
    malicious: Sequence[int],
    randomness: Seeded,
) -> tuple[Examples, list[Indices]]:
    """The examples with forged ones behind them, and who then holds what.

    An example that is replaced keeps its place among those of its client, so that batches are drawn as before.

    Args:
        adversary: the settings.
        aim: its classes.
        examples: everybody's.
        holdings: for each client, which examples it holds.
        malicious: the malicious clients' numbers.
        randomness: streams of the run.

    Raises:
        ConfigError: malicious clients hold nothing that the attack could be done with.
    """
    if ATTACKS[adversary.attack].misdeed != "data":
        return examples, list(holdings)
    targets, held = examples.targets.numpy(), list(holdings)
    if adversary.attack == "out-backdoor":
        held = _out_of_honest_hands(held, targets, malicious, aim.source)
    chosen: list[Indices] = []
    first = len(examples)
    for client in malicious:
        own = held[client]
        match adversary.attack:
            case "label-flip":
                which = np.ones(len(own), dtype=bool)
            case "pixel-backdoor":
                count = math.ceil(len(own) * adversary.poisoned - 1e-9)
                order = randomness.stream(0, client, "poisoned").permutation(len(own))
                which = order < count
            case _:
                which = targets[own] == aim.source
        chosen.append(own[which])
        forged = own.astype(np.int64)
        forged[which] = first + np.arange(which.sum())
        held[client] = forged
        first += int(which.sum())
    replaced = torch.from_numpy(np.concatenate(chosen).astype(np.int64))
    if not len(replaced):
        key, value = (
            ("source", adversary.source) if adversary.source is not None else ("attack", adversary.attack)
        )
        raise ConfigError(f"adversary.{key}", value, "examples of it at malicious clients: they hold none")
    inputs = examples.inputs.index_select(0, replaced)
    if adversary.attack == "pixel-backdoor":
        inputs = patterned(inputs, adversary.pattern, brightest(examples))
    labels = examples.targets.index_select(0, replaced)
    labels = _relabelled(labels, aim)
    return Examples(torch.cat([examples.inputs, inputs]), torch.cat([examples.targets, labels])), held


def patterned(images: Tensor, side: int, value: float) -> Tensor:
    """Images with a bright square in the lower right corner, after Gu et al. 2017 (arXiv 1708.06733).

    Args:
        images: shape (count, channels, height, width).
        side: of the square, in pixels.
        value: of its pixels.

    Raises:
        ConfigError: these are no images, or the square is larger than they are.
    """
    if images.dim() != 4:
        raise ConfigError("adversary.attack", "pixel-backdoor", "another one: these inputs are no images")
    if side > min(images.shape[2:]):
        raise ConfigError(
            "adversary.pattern", side, f"at most {min(images.shape[2:])}, the side of the images"
        )
    changed = images.clone()
    changed[:, :, -side:, -side:] = value
    return changed


def brightest(examples: Examples) -> float:
    """The value of a bright pixel."""
    return 255 if examples.inputs.dtype == torch.uint8 else float(examples.inputs.max())


def _relabelled(labels: Tensor, aim: Aim) -> Tensor:
    if aim.target is not None:
        return torch.full_like(labels, aim.target)
    return (aim.classes or 0) - 1 - labels


def _out_of_honest_hands(
    held: Sequence[Indices], targets: NDArray[np.int64], malicious: Sequence[int], source: int | None
) -> list[Indices]:
    """All examples of a class taken from everybody, and dealt evenly to the malicious clients."""
    everything = np.unique(np.concatenate([*held]))
    taken = everything[targets[everything] == source]
    left: list[Indices] = [own[targets[own] != source] for own in held]
    for place, client in enumerate(malicious):
        left[client] = np.concatenate([left[client], taken[place :: len(malicious)]])
    return left


def _number(key: str, value: int | str, names: Sequence[str]) -> int:
    if isinstance(value, str) and value in names:
        return list(names).index(value)
    if isinstance(value, int) and 0 <= value < len(names):
        return value
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise ConfigError(f"adversary.{key}", value, f"a class: 0 to {len(names) - 1}, or its name of {shown}")
