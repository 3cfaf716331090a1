"""The result of a run: its figures, its model, and how to look at them."""

from __future__ import annotations

import math
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discreet.adversaries.success import FIGURES
from discreet.config import Experiment, Privacy
from discreet.errors import RunFolderError
from discreet.evaluation import Evaluation, Map
from discreet.infiltration import Infiltration
from discreet.network import Network, notes
from discreet.preparation import Federation
from discreet.privacy.accounting import adjacency_among, spent
from discreet.privacy.releases import Ledger
from discreet.runs import Checkpoint, DiskFull, open_run
from discreet.schemes.traits import Described, Measured, groups_of, protected_unit, releases_a_round
from discreet.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Best:
    """The best round of a run so far.

    Attributes:
        round: its number.
        test: how good it was on the test set, which is what is reported.
        judged: how good it was on the examples that decide: the held-out ones, or without them the test set.
        vector: the global model after it, or None.
    """

    round: int
    test: Evaluation
    judged: Evaluation
    vector: Tensor | None

    def is_beaten_by(self, other: Evaluation) -> bool:
        """Whether `other` is better: by accuracy, or by loss where there is no accuracy."""
        if self.judged.loss is None:
            return True  # nothing to judge by: the last round is as good as any
        if self.judged.accuracy is not None and other.accuracy is not None:
            return other.accuracy > self.judged.accuracy
        return self.judged.loss is not None and other.loss is not None and other.loss < self.judged.loss

    def facts(self) -> dict[str, Any]:
        """What of it goes into JSON."""
        return {"round": self.round, "test": asdict(self.test), "judged": asdict(self.judged)}

    @classmethod
    def restored(cls, facts: Mapping[str, Any], vector: Tensor | None) -> Best:
        """The inverse of `facts`."""
        return cls(facts["round"], Evaluation(**facts["test"]), Evaluation(**facts["judged"]), vector)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """The result of a run.

    Attributes:
        experiment: what ran, complete.
        metrics: for each round its figures, as in ``metrics.jsonl``.
        result: the summary, as in ``result.json``.
        network: the model as a function of its parameters.
        vector, best_vector: parameters of the last and of the best round, shape (n,); None without a global model.
        checkpoint: what the next round would start from.
        confined: gives the parameters of a participant's confined model after the last round; None where there are none.
        views: what watched parties received in the rounds that were played, by their names.
    """

    experiment: Experiment
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any]
    network: Network
    vector: Tensor | None
    best_vector: Tensor | None
    checkpoint: Checkpoint
    confined: Callable[[int], Tensor] | None = None
    views: Mapping[str, View] = field(default_factory=dict)

    def series(self, name: str) -> NDArray[np.float64]:
        """One figure of every round, NaN where a round has none: ``"accuracy"``, ``"loss"``, ``"seconds"``..."""
        values = [line.get(name) for line in self.metrics]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def rounds(self) -> NDArray[np.float64]:
        """The rounds' numbers."""
        return self.series("round")

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Accuracy on the test set after each round; NaN where it was not evaluated."""
        return self.series("accuracy")

    @property
    def loss(self) -> NDArray[np.float64]:
        """Loss on the test set after each round; NaN where it was not evaluated."""
        return self.series("loss")

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluated round: ``round``, ``accuracy``, ``loss``."""
        return dict(self.result["final"])

    @property
    def best(self) -> dict[str, Any]:
        """The best evaluated round: ``round``, ``accuracy``, ``loss``."""
        return dict(self.result["best"])

    def model(self, *, best: bool = False, participant: int | None = None) -> nn.Module:
        """The trained model, in evaluation mode.

        Args:
            best: that of the best round instead of the last.
            participant: whose confined model it is to be, of a scheme that has no global one.

        Raises:
            ValueError: the scheme has no global model and no participant is named, or the other way round.
            ConfigError: there is no such participant, or it holds a part of a model only.
        """
        name = self.experiment.scheme_name
        if participant is not None:
            if self.confined is None:
                raise ValueError(f"{name} has no confined models: ask for none of a participant")
            return self.network.to_module(self.confined(participant).cpu())
        vector = self.best_vector if best else self.vector
        if vector is None:
            hint = (
                "" if self.confined is None else ": ask for a participant's, as in run.model(participant=0)"
            )
            raise ValueError(f"{name} has no global model{hint}")
        return self.network.to_module(vector.cpu())

    def plot(self) -> Figure:
        """Accuracy and loss by round, as a matplotlib figure."""
        from discreet.plots import plot_runs  # matplotlib takes a while to import

        name = f"{self.result['dataset']}, {self.result['scheme']}"
        curves = {key: self.series(key) for key in ("round", "accuracy", "loss")}
        return plot_runs({name: curves})

    def save(self, path: Path | str) -> Path:
        """Write a run folder, as ``discreet run`` does: all of it, or where that fails nothing.

        Raises:
            RunFolderError: it exists and is not empty, or cannot be written.
        """
        try:
            with open_run(Path(path), self.experiment) as folder:
                try:
                    folder.append(*self.metrics)
                    folder.save(self.checkpoint)
                    folder.finish(self.result)
                except BaseException:
                    folder.remove()
                    raise
        except DiskFull as error:
            # nothing is left to resume
            raise RunFolderError(error.path, f"{error.refusal}: free some space and save again") from None
        return folder.path


def summarise(
    federation: Federation,
    history: Sequence[Mapping[str, Any]],
    best: Best | None,
    ledger: Ledger,
    parallel: Map = map,
    *,
    simulated: bool = True,
) -> dict[str, Any]:
    """The contents of ``result.json``.

    Args:
        federation: of the run.
        history: the metrics of all rounds.
        best: the best round of those that were evaluated.
        ledger: what was released.
        parallel: maps over pieces of the work.
        simulated: whether all parties' private values are known here; without it the figures that take them are left out.
    """
    experiment, count = federation.experiment, federation.task.parameters
    evaluated = [line for line in history if "loss" in line]
    last = evaluated[-1]
    uplink = sum(line["uplink_bytes"] for line in history)
    sent = sum(line["participants"] for line in history)
    result: dict[str, Any] = {
        "scheme": experiment.scheme_name,
        "dataset": federation.dataset_name,
        "model": experiment.model.name,
        "parameters": count,
        "seed": experiment.seed,
        "rounds": len(history),
        "final": {key: last[key] for key in ("round", "accuracy", "loss")},
        "best": None if best is None else _scores(best.round, best.test),
        "bits_per_parameter": 8 * uplink / (sent * count) if sent else 0.0,
        "uplink_bytes": uplink,
        "downlink_bytes": sum(line["downlink_bytes"] for line in history),
        "seconds_per_round": statistics.median(line["seconds"] for line in history),
        "peak_memory_bytes": peak_memory(),
        "secure": experiment.secure,
        "privacy": None if experiment.privacy is None else _privacy(federation, experiment.privacy, ledger),
        "adversary": None if federation.infiltration is None else _attack(federation.infiltration, last),
        "participants": federation.partition.clients,
        "notes": [*notes(federation.task.learner.network), *_remarks(federation, history, ledger)],
        "dropped_updates": sum(len(line["dropped"]) for line in history),
        "lost_contributions": sum(line.get("lost", 0) for line in history),  # older folders count none
        "versions": versions(),
    }
    if "worst_loss" in last:
        result["worst"] = {"accuracy": last["worst_accuracy"], "loss": last["worst_loss"]}
    if simulated and isinstance(federation.scheme, Described):
        result |= federation.scheme.constants(federation.task, len(history), parallel)
    if isinstance(federation.scheme, Measured):
        result |= federation.scheme.summed_up(history)
    return result


def so_far(federation: Federation, round: int, found: Evaluation, best: Best | None) -> dict[str, Any]:
    """Of what ``result.json`` would hold, how good the models of a run are that has diverged.

    Args:
        federation: of the run.
        round: the last good one; 0 for none.
        found: how good the model after it is on the test set.
        best: the best round of those that were evaluated, or None.
    """
    final = _scores(round, found)
    result = {"final": final, "best": final if best is None else _scores(best.round, best.test)}
    if federation.infiltration is not None:
        result["adversary"] = _attack(federation.infiltration, found.extras)
    return result


def _scores(round: int, found: Evaluation) -> dict[str, Any]:
    loss = found.loss if found.loss is not None and math.isfinite(found.loss) else None
    return {"round": round, "accuracy": found.accuracy, "loss": loss}


def _attack(infiltration: Infiltration, last: Mapping[str, Any]) -> dict[str, Any]:
    """What malicious clients did, how many there are, and how far they had got in the last evaluated round."""
    figures = {name: last[name] for name in FIGURES if name in last}
    return {"attack": infiltration.adversary.attack, "malicious": len(infiltration.clients), **figures}


def _remarks(federation: Federation, history: Sequence[Mapping[str, Any]], ledger: Ledger) -> list[str]:
    """What a reader of the result has to know of how it came about."""
    found, asked, rounds = [], federation.experiment.privacy, federation.experiment.rounds
    idle = sum(line.get("released") is False for line in history)
    if idle:
        found.append(f"{idle:,} of {len(history):,} rounds released nothing: too few took part")
    most = federation.releases
    if most is not None and len(history) < rounds:
        one_more = ledger.releases + releases_a_round(federation.scheme, federation.task)
        if one_more > most:
            found.append(f"the privacy budget ended the run after {len(history):,} of {rounds:,} rounds")
    if (scaling := federation.target_scaling) is not None:
        found.append(f"targets are scaled, and outputs and losses with them: {scaling}")
    if any(phase.gathered for phase in federation.scheme.phases(federation.task)):
        found.append(
            f"{federation.experiment.scheme_name}: the server sees every client's update in the clear"
        )
    infiltration = federation.infiltration
    if infiltration is not None and infiltration.adversary.omit_noise and asked is not None:
        missing = max(line.get("malicious", 0) for line in history)
        if missing > asked.assumed_dishonest:
            found.append(
                f"up to {missing} malicious clients a round added no noise, more than privacy.assumed_dishonest "
                f"({asked.assumed_dishonest}): epsilon counts the noise of the others alone"
            )
    cut = sum(line.get("saturated", 0) for line in history)
    if cut:
        scheme, keys = federation.scheme, ("largest_gradient", "largest_activation", "headroom")
        known = [f"scheme.{key} (now {getattr(scheme, key):g})" for key in keys if hasattr(scheme, key)]
        hit = [line["round"] for line in history if line.get("saturated", 0)]
        found.append(
            f"{cut:,} numbers were too large for fixed point and were cut, in {len(hit):,} rounds, the first {hit[0]}: "
            f"raise {' or '.join(known)}"
        )
    if isinstance(federation.scheme, Measured):
        found += federation.scheme.remarks(history)
    if asked is not None:
        unit = protected_unit(federation.scheme)
        count = federation.partition.clients if unit == "client" else len(federation.partition.order)
        if asked.delta * count >= 1:
            found.append(
                f"delta {asked.delta:g} is not below 1 / {count:,} {unit}s: it allows for one whose data is given away"
            )
    return found


def _privacy(federation: Federation, asked: Privacy, ledger: Ledger) -> dict[str, Any]:
    """What the rounds that ran have cost, which noise they had, and whose data is promised something."""
    noise = federation.scheme.release(federation.task).mechanism.removesuffix("-sum")
    unit = protected_unit(federation.scheme)
    cost = spent(ledger, asked.delta, asked.accountant)
    adjacency = adjacency_among(groups_of(federation.scheme), cost.adjacency)
    return {**cost.to_dict(), "adjacency": adjacency, "noise": noise, "unit": unit}


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, str]:
    """Versions of what decides the figures."""
    try:
        own = version("discreet")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "discreet": own,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
