"""What a site keeps of every finished run: its model, what ran, and what a model card says of it.

A run's folder is named by the run's 16 bytes in hexadecimal. It holds ``model.safetensors``: the parameters as one vector,
with the experiment and the facts beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from discreet import preparation
from discreet.config import Experiment, from_table, parse
from discreet.cut import named_part
from discreet.data.dataset import Dataset
from discreet.errors import DataError
from discreet.federation import files
from discreet.federation.budget import cost
from discreet.federation.export import Card, Cost
from discreet.federation.kept import KeptModel
from discreet.federation.limits import is_secure
from discreet.federation.settings import SiteSettings
from discreet.federation.spending import Entry, unprotected
from discreet.privacy.accounting import adjacency_among
from discreet.privacy.releases import NOTHING
from discreet.results import versions
from discreet.schemes.references import Local
from discreet.schemes.traits import Confined, groups_of, protected_unit
from discreet.training import Learner

MODEL, VECTOR = "model.safetensors", "parameters"
USUAL_DELTA = 1e-5
"""For the card of a run, and of a site, that states none."""

_RUN = re.compile(r"[0-9a-f]{32}")


def keep(runs: Path, kept: KeptModel) -> bool:
    """Keep a run, in place of what was kept of it before; one that is kept already is left as it is.

    Args:
        runs: the folder of all of them.
        kept: the run; without a model nothing is kept.

    Returns:
        Whether it was written now.

    Raises:
        DataError: it cannot be written, or has no proper name.
    """
    if kept.vector is None:
        return False
    folder = runs / _name(runs, kept.facts.get("run"))
    said = {"experiment": kept.experiment, "facts": json.dumps(dict(kept.facts), sort_keys=True)}
    if (folder / MODEL).exists() and _said(folder / MODEL) == said:
        return False
    files.make_folder(runs)
    files.make_folder(folder)
    files.replace(folder / MODEL, save({VECTOR: kept.vector.detach().cpu().contiguous()}, said))
    return True


def kept_runs(runs: Path) -> tuple[str, ...]:
    """The runs that were kept, by their names, the latest last."""
    with files.access(runs, "read"):
        found = [folder for folder in runs.iterdir() if (folder / MODEL).exists()] if runs.exists() else []
        return tuple(
            folder.name for folder in sorted(found, key=lambda one: (one / MODEL).stat().st_mtime_ns)
        )


def kept_run(runs: Path, run: str) -> KeptModel:
    """A run that was kept.

    Raises:
        DataError: there is none of that name, or it is damaged.
    """
    path = runs / _name(runs, run) / MODEL
    if not path.exists():
        known = ", ".join(kept_runs(runs)) or "none"
        raise DataError(runs, f"has no run {run}: expected one of those that were kept ({known})")
    said = _said(path)
    try:
        with safe_open(path, "pt") as file:
            return KeptModel(file.get_tensor(VECTOR), said["experiment"], json.loads(said["facts"]))
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(path, f"is damaged ({error})") from None


def experiment_of(kept: KeptModel) -> Experiment:
    """What ran."""
    return from_table(parse(kept.experiment, "experiment"))


def tensors_of(kept: KeptModel, data: Dataset | None, data_dir: Path | None) -> dict[str, Tensor]:
    """The parameters by the names that the network has for them.

    Args:
        kept: the run.
        data: the site's own; None for the data set that the experiment names. The network has its shape.
        data_dir: where that is looked for first.

    Raises:
        UserError: the network cannot be built as it was, or has other parameters now.
    """
    learner = _learner(experiment_of(kept), data, data_dir)
    network, features = learner.network, kept.facts.get("features")
    if kept.vector is not None and features is not None:
        return named_part(network, kept.vector, len(features), learner.dimensions)
    if kept.vector is None or kept.vector.shape != (network.count,):
        raise DataError("model", f"has other parameters than the network, which has {network.count:,}")
    return network.unflatten(kept.vector)


def card_of(kept: KeptModel, entries: Sequence[Entry], settings: SiteSettings, delta: float | None) -> Card:
    """What a model card says.

    Args:
        kept: the run.
        entries: the site's ledger.
        settings: which site it is.
        delta: at which its owner counts; None for the experiment's.
    """
    experiment, facts = experiment_of(kept), kept.facts
    scheme = experiment.scheme
    at = delta or (USUAL_DELTA if experiment.privacy is None else experiment.privacy.delta)
    own = [entry for entry in entries if entry.run.hex() == facts["run"]]
    alone = isinstance(scheme, Local)
    return Card(
        scheme=experiment.scheme_name,
        model=experiment.model.name,
        dataset=settings.data.source if settings.data.own else experiment.data.name,
        parameters=0 if kept.vector is None else len(kept.vector),
        rounds=facts["rounds"],
        examples=facts["examples"],
        site=settings.name,
        number=settings.number,
        sites=facts["sites"],
        run=facts["run"],
        features=tuple(facts.get("features", ())),
        kind="alone" if alone else "confined" if isinstance(scheme, Confined) else "global",
        secure=_summed(experiment),
        unit=protected_unit(scheme),
        spent=cost_of(own, at, groups_of(scheme)),
        spent_in_all=cost_of(entries, at),
        rehearsal=facts["rehearsal"],
        experiment=kept.experiment,
        versions=versions(),
    )


def cost_of(entries: Sequence[Entry], delta: float, groups: int = 1) -> Cost:
    """What some entries of a ledger come to.

    Args:
        entries: some, or all.
        delta: in (0, 1).
        groups: into which the clients of a round were dealt.
    """
    ledger = NOTHING
    for entry in entries:
        if entry.released is not None:
            ledger = ledger.add(entry.released, entry.count)
    found = cost(ledger, delta)
    return Cost(
        epsilon=found.to_dict()["epsilon"],
        delta=delta,
        adjacency=adjacency_among(groups, found.adjacency),
        releases=found.releases,
        unprotected=unprotected(entries),
    )


def _summed(experiment: Experiment) -> str:
    """How contributions were added up, where the experiment leaves it open too."""
    if not is_secure(experiment):
        return "none"
    return "additive" if experiment.secure == "additive" else "masked"


def _learner(experiment: Experiment, data: Dataset | None, data_dir: Path | None) -> Learner:
    """What an experiment trains: that of the same one without a federation."""
    alone = replace(
        experiment,
        scheme=Local(),
        privacy=None,
        secure="none",
        adversary=None,
        patience=0,
        given=[],
        data=replace(experiment.data, partition="iid", clients=1, holdout=0.0),
        engine=replace(experiment.engine, device="cpu"),
    )
    found = preparation.prepare(alone, data=data, data_dir=data_dir, keep=data is None)
    return found.task.learner


def _name(runs: Path, run: object) -> str:
    if not isinstance(run, str) or _RUN.fullmatch(run) is None:
        raise DataError(runs, f"run {run!r:.80}: expected the name of a run, 32 hexadecimal digits")
    return run


def _said(path: Path) -> dict[str, str]:
    with files.access(path, "read"):
        try:
            with safe_open(path, "pt") as file:
                return dict(file.metadata() or {})
        except SafetensorError as error:
            raise DataError(path, f"is damaged ({error})") from None
