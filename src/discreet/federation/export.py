"""A site's model as a file that other programs load, with a card that says what it is and what it does not protect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save
from torch import Tensor

from discreet.errors import DataError
from discreet.federation.files import NewFile, make_folder, write_new

SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the releases of one run, or of all, come to.

    Attributes:
        epsilon: at `delta`; None where nothing bounds it.
        delta: the chance left out of the promise.
        adjacency: what the promise is about.
        releases: how many were counted.
        unprotected: how many contributions nothing was promised of; they are not in `epsilon`.
    """

    epsilon: float | None
    delta: float
    adjacency: str
    releases: int
    unprotected: int

    def line(self, whose: str) -> str:
        """One line on it."""
        if not (self.releases or self.unprotected):
            return f"{whose}: nothing was given out"
        bare = f"{_many(self.unprotected, 'contribution')} of which nothing was promised"
        if not self.releases:
            return f"{whose}: {bare}: no differential privacy"
        bounded = self.epsilon is not None and math.isfinite(self.epsilon)
        number = f"epsilon {self.epsilon:.4g}" if bounded else "without a bound"
        line = (
            f"{whose}: {number} at delta {self.delta:g} ({self.adjacency}), {_many(self.releases, 'release')}"
        )
        return f"{line}; and {bare}, which no epsilon covers" if self.unprotected else line


NOTHING_SPENT = Cost(epsilon=0.0, delta=1e-5, adjacency="add-remove", releases=0, unprotected=0)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a model card says.

    Attributes:
        scheme: its name.
        model: the network's name.
        dataset: what the site's examples are called.
        parameters: trainable ones.
        rounds: that were played.
        examples: of the site, that it was trained on.
        site: the site's name.
        number: the site's.
        sites: how many there were.
        run: in hexadecimal.
        features: of the first layer, if the site has a part of a model only.
        kind: ``global``: all sites have this model; ``confined``: the site's own, which nobody else has; ``alone``:
            trained by the site alone.
        secure: how contributions were added up.
        unit: whose data a promise is about.
        spent: what the run has cost this site.
        spent_in_all: what all its runs have.
        rehearsal: whether nothing was secret.
        experiment: what ran, as TOML.
        versions: of what decides the figures.
    """

    scheme: str
    model: str
    dataset: str
    parameters: int
    rounds: int
    examples: int
    site: str
    number: int
    sites: int
    run: str
    kind: Literal["global", "confined", "alone"]
    secure: str
    features: tuple[int, ...] = ()
    unit: str = "client"
    spent: Cost = NOTHING_SPENT
    spent_in_all: Cost = NOTHING_SPENT
    rehearsal: bool = False
    experiment: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """The card as a text for people."""
        whose = {
            "global": "the global model, which every site has",
            "confined": f"the confined model of {self.site} alone",
            "alone": f"trained by {self.site} alone",
        }[self.kind]
        if self.features:
            whose = f"the part of a confined model that {self.site} alone has"
        rows = {
            "scheme": f"`{self.scheme}`",
            "model": f"`{self.model}`, {self.parameters:,} parameters",
            "this site's data": f"{self.dataset}, {self.examples:,} examples",
            "site": f"{self.site}, number {self.number} of {self.sites} (counted from 0)",
            "rounds": f"{self.rounds:,}",
            "contributions were added up": _SUMS.get(self.secure, self.secure),
            "run": f"`{self.run}`",
        }
        if self.features:
            rows["input features of the first layer"] = _places(self.features)
        parts = [
            f"# Model card: {self.model}, {self.scheme}",
            f"This is {whose}.",
            _table(("what was trained", ""), rows),
            "## What was spent",
            "\n".join(self._spent()),
            "## What it does not protect",
            "\n".join(f"* {line}" for line in self._limits()),
            "## Versions",
            _table(("program", "version"), self.versions),
        ]
        if self.experiment:
            parts += ["## The experiment", f"```toml\n{self.experiment.strip()}\n```"]
        return "\n\n".join(parts) + "\n"

    def _spent(self) -> list[str]:
        if self.kind == "alone":
            return ["Nothing was sent in this run, and nothing was spent. The model itself promises nothing."]
        return [
            f"* {self.spent.line('**This run**')}.",
            f"* {self.spent_in_all.line('**All runs of this site together**')}.",
        ]

    def _limits(self) -> list[str]:
        found = []
        if self.rehearsal:
            found.append(
                "This was a **rehearsal**: noise, masks and keys came from a seed. No promise of the scheme holds."
            )
        if self.kind == "confined":
            found.append(
                "**Whoever is given this model can work out the other sites' models from what it and they share**: the "
                "differences between confined models never change. Keep it, or ask the other sites first."
            )
        promised = self.spent.releases and not self.spent.unprotected
        if promised and not self.rehearsal:
            found += [
                f"The promise is about the data of one {self.unit}: what is true of many can still be learnt.",
                "It holds as far as the other sites added their shares of noise, and no more of them than assumed did not.",
            ]
        else:
            found.append(
                "Nothing formal keeps anybody from telling, from this model, whether a person was in the training data, or "
                "from reconstructing parts of it."
            )
        if self.features:
            found.append(
                'Under `forward = "joint"` it predicts only from the pre-activations of all sites of a row, added up. '
                "Whoever sees a site's addend and knows its part of the first layer can solve for the features."
            )
        found.append("It says nothing of how good the model is for anybody: test it on data of your own.")
        return found

    def facts(self) -> dict[str, Any]:
        """What of it goes into the file with the model: short texts, by name."""
        return {
            "scheme": self.scheme,
            "model": self.model,
            "kind": self.kind,
            "run": self.run,
            "rounds": str(self.rounds),
            "site": self.site,
            "rehearsal": json.dumps(self.rehearsal),
            "epsilon": json.dumps(self.spent.epsilon),
            "delta": json.dumps(self.spent.delta),
            "versions": json.dumps(dict(self.versions)),
            **({"features": json.dumps(self.features)} if self.features else {}),
        }


def export_model(path: Path, tensors: Mapping[str, Tensor], card: Card) -> tuple[Path, Path]:
    """Write a model, and its card beside it.

    Args:
        path: of the model, which ends in ``.safetensors``; the card has the same name and ends in ``.md``.
        tensors: the parameters, by the names that the network has for them.
        card: what it is.

    Returns:
        Both paths. Both files can be read by their owner alone.

    Raises:
        DataError: the path does not end so, or one of them is there already, or cannot be written; or a parameter is
            not finite.
    """
    if path.suffix != SUFFIX:
        raise DataError(path, f"expected a name that ends in {SUFFIX}")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise DataError(path, f"the parameter {name} holds NaN or infinity: nothing was written")
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(stored, {"format": "pt", **card.facts()})
    make_folder(path.parent)
    text = path.with_suffix(".md")
    write_new({path: NewFile(content), text: NewFile(card.markdown().encode())})
    return path, text


_SUMS = {
    "none": "in the clear: the server saw each of them",
    "masked": "under masks: the server saw their sum",
    "additive": "by additive shares: the server saw their sum",
}


def _places(features: Sequence[int]) -> str:
    """Numbers, counted from 0, with runs of them drawn together."""
    runs: list[list[int]] = []
    for one in features:
        if runs and one == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], one]
        else:
            runs.append([one])
    return ", ".join("-".join(map(str, run)) for run in runs) + f" ({len(features)})"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_cell(value)} |" for name, value in rows.items())])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
