"""Who is malicious, and what they do: the section ``[adversary]`` of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass as frozen
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.checked import STRICT, plain
from discreet.errors import ConfigError
from discreet.names import did_you_mean
from discreet.randomness import SERVER, Seeded

Misdeed = Literal["data", "update", "common", "boost", "noise", "clip"]
"""What a malicious client does: trains on forged examples, lies about its update, agrees on one update with the others,
sends it several times as large, adds no noise, does not clip."""

POISONED, PATTERN = 0.5, 3
"""Of a pixel backdoor, if nothing else is asked for."""


@frozen(frozen=True)
class Attack:
    """A kind of attack.

    Attributes:
        summary: one line for tables.
        misdeed: what its clients do; None for nothing.
        takes: options that have a meaning with it, and without it none.
        needs: those of them that must be given.
    """

    summary: str
    misdeed: Misdeed | None = None
    takes: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()


ATTACKS: Mapping[str, Attack] = {
    "none": Attack("the protocol, but for what else is set: boost, collude, omit_noise, ignore_clip"),
    "gradient-ascent": Attack("trains uphill, against its own examples", "update"),
    "random-update": Attack("Gaussian noise of deviation `boost` a coordinate", "update"),
    "sign-flip": Attack("its update with the opposite sign", "update"),
    "free-riding": Attack("trains nothing, and sends a change of zero", "update"),
    "little-is-enough": Attack(
        "one common update, as far from the mean as passes for chance", "common", frozenset({"deviations"})
    ),
    "label-flip": Attack("trains on class C - 1 - c for c, of C classes", "data"),
    "in-backdoor": Attack(
        "trains on its examples of a class as if they were of another",
        "data",
        frozenset({"source", "target"}),
        frozenset({"source", "target"}),
    ),
    "out-backdoor": Attack(
        "holds all examples of a class, which no other client knows, as if they were of another",
        "data",
        frozenset({"source", "target"}),
        frozenset({"source", "target"}),
    ),
    "pixel-backdoor": Attack(
        "trains on images with a bright square in the corner as if they were of another class",
        "data",
        frozenset({"target", "poisoned", "pattern"}),
        frozenset({"target"}),
    ),
}


@plain("adversary.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Adversary:
    """Clients that are malicious in every round in which they take part.

    Attributes:
        attack: a name in `ATTACKS`.
        fraction: share of the clients that are malicious, drawn with the experiment's seed, in (0, 1).
        clients: or their numbers.
        boost: what a malicious client sends is so many times its update, above 0: after clipping, before noise. A vote
            of one bit has no room for it.
        collude: all malicious clients of a round send one update, the mean of theirs.
        omit_noise: they add no noise (differentially private schemes).
        ignore_clip: they do not clip (``dp-fedavg``).
        source: of ``in-backdoor`` and ``out-backdoor``: the class that is attacked, by number or name.
        target: of the backdoors: the class that it is to be taken for.
        poisoned: of ``pixel-backdoor``: share of a malicious client's examples that get the pattern, in (0, 1].
        pattern: of ``pixel-backdoor``: side of the square, in pixels.
        deviations: of ``little-is-enough``: how many standard deviations it is off the mean (z), at least 0; None for
            as many as its authors derive from how many take part and how many are malicious.
    """

    attack: str = "none"
    fraction: float | None = Field(default=None, gt=0, lt=1)
    clients: list[int] = Field(default_factory=list)
    boost: float = Field(default=1.0, gt=0, le=1e6)
    collude: bool = False
    omit_noise: bool = False
    ignore_clip: bool = False
    source: int | str | None = None
    target: int | str | None = None
    poisoned: float = Field(default=POISONED, gt=0, le=1)
    pattern: int = Field(default=PATTERN, ge=1)
    deviations: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    def __post_init__(self) -> None:
        if self.attack not in ATTACKS:
            hint = did_you_mean(self.attack, ATTACKS)
            raise ConfigError("adversary.attack", self.attack, f"one of: {', '.join(ATTACKS)}{hint}")
        if self.fraction is None and not self.clients:
            raise ConfigError(
                "adversary.fraction", None, "the share of clients that are malicious, or adversary.clients"
            )
        if self.fraction is not None and self.clients:
            raise ConfigError("adversary.clients", self.clients, "either fraction or clients, not both")
        if len(set(self.clients)) < len(self.clients):
            raise ConfigError("adversary.clients", self.clients, "every client named once")
        given = {
            "source": self.source is not None,
            "target": self.target is not None,
            "poisoned": self.poisoned != POISONED,
            "pattern": self.pattern != PATTERN,
            "deviations": self.deviations is not None,
        }
        attack = ATTACKS[self.attack]
        for name, there in given.items():
            if there and name not in attack.takes:
                fitting = " or ".join(one for one, kind in ATTACKS.items() if name in kind.takes)
                raise ConfigError(
                    f"adversary.{name}", getattr(self, name), f"to be left out unless the attack is {fitting}"
                )
            if name in attack.needs and not there:
                raise ConfigError(f"adversary.{name}", None, f"a class, for {self.attack}")
        if self.attack == "free-riding" and self.boost != 1:
            raise ConfigError("adversary.boost", self.boost, "1: a change of zero cannot be larger")
        if self.collude and self.attack in ("free-riding", "little-is-enough"):
            raise ConfigError("adversary.collude", True, f"false: in {self.attack} all send the same anyway")

    @property
    def common(self) -> bool:
        """Whether all malicious clients of a round send one update."""
        return self.collude or self.attack == "little-is-enough"

    @property
    def misdeeds(self) -> Mapping[Misdeed, str]:
        """What malicious clients do, each with the name of the setting that says so."""
        kind = ATTACKS[self.attack].misdeed
        found: dict[Misdeed, str] = {} if kind is None else {kind: "attack"}
        if self.collude:
            found["common"] = "collude"
        if self.boost != 1:
            found["boost"] = "boost"
        if self.omit_noise:
            found["noise"] = "omit_noise"
        if self.ignore_clip:
            found["clip"] = "ignore_clip"
        return found

    @property
    def in_training(self) -> bool:
        """Whether malicious clients do anything else in a round than train on the data that they have."""
        return bool(self.misdeeds.keys() - {"data"})


def enlisted(adversary: Adversary, clients: int, randomness: Seeded) -> NDArray[np.int64]:
    """The malicious clients' numbers, in rising order.

    Args:
        adversary: whose they are.
        clients: how many clients there are.
        randomness: streams of the run, of which they are drawn unless they are named.

    Raises:
        ConfigError: nobody would be malicious, or nobody honest, or one is named that there is not.
    """
    if adversary.fraction is None:
        named = np.sort(np.array(adversary.clients, dtype=np.int64))
        if named[0] < 0 or named[-1] >= clients:
            wrong = named[0] if named[0] < 0 else named[-1]
            raise ConfigError("adversary.clients", int(wrong), f"numbers from 0 to {clients - 1}")
        if len(named) == clients:
            raise ConfigError("adversary.clients", f"all {clients}", "at least one client that is honest")
        return named
    count = math.floor(adversary.fraction * clients + 0.5)
    if not 0 < count < clients:
        raise ConfigError(
            "adversary.fraction",
            adversary.fraction,
            f"a share of {clients} clients that leaves at least one malicious and one honest",
        )
    drawn = randomness.stream(0, SERVER, "adversary").choice(clients, count, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)
