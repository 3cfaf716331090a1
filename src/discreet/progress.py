"""Where a run stands: from round to round, in a checkpoint, and on the examples that it is judged by.

What the drivers have in common: a simulation, and the server of a federation between sites.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from discreet.cohort import Examples
from discreet.config import Experiment
from discreet.errors import Diverged, RunFolderError
from discreet.evaluation import Evaluation, Map
from discreet.preparation import Federation
from discreet.privacy.releases import NOTHING, Ledger
from discreet.results import Best
from discreet.runs import Checkpoint, RunFolder
from discreet.schemes.traits import Measured, releases_a_round
from discreet.tally import Tally

Metrics = dict[str, Any]


class OnRound(Protocol):
    """Called after every round, as to draw a progress bar."""

    def __call__(self, metrics: Metrics, rounds: int) -> None:
        """The round's metrics, and how many rounds there will be at most."""
        ...


@dataclass(frozen=True, eq=False)
class Progress:
    """A run after some round.

    Attributes:
        round: the last round that was played.
        state: the server's.
        kept: what participants keep for themselves, by their numbers.
        best: the best round so far.
        waiting: evaluations since the best one.
        ledger: what was released.
    """

    round: int
    state: Any
    kept: dict[int, Tensor]
    best: Best | None
    waiting: int = 0
    ledger: Ledger = NOTHING


def is_over(federation: Federation, progress: Progress) -> bool:
    """Whether all rounds are played, or one more would pass the privacy budget."""
    if progress.round >= federation.experiment.rounds:
        return True
    if federation.releases is None:
        return False
    one_more = progress.ledger.releases + releases_a_round(federation.scheme, federation.task)
    return one_more > federation.releases


def patience_is_over(experiment: Experiment, progress: Progress) -> bool:
    """Whether so many evaluations without a better one have gone by that the run stops."""
    return 0 < experiment.patience <= progress.waiting


def beginning(federation: Federation, folder: RunFolder | None) -> tuple[Progress, list[Metrics]]:
    """Where the run stands: at its beginning, or at the folder's checkpoint."""
    beginning = Progress(0, federation.scheme.init(federation.task), {}, None)
    if folder is None:
        return beginning, []
    saved, progress = folder.load(), beginning
    if saved is not None:
        try:
            progress = restored(federation, folder.path, beginning.state, saved)
        except (KeyError, TypeError, ValueError) as error:
            raise folder.damaged(error) from None
    # only now, when nothing is left to refuse, is the folder changed
    history = folder.metrics(progress.round)
    folder.adopt(federation.experiment)
    folder.unfinish()
    return progress, history


def restored(federation: Federation, path: Path, state: Any, saved: Checkpoint) -> Progress:
    """Where a run stands that is saved at `path`; `state` is the scheme's first one.

    Raises:
        RunFolderError: it was made with other data, or another model, than there is now.
        KeyError, TypeError, ValueError: something is missing, or of the wrong kind.
    """
    if saved.facts["data"] != federation.fingerprint:
        raise RunFolderError(
            path,
            "was made with other training data, or with another partition of it: give another --out",
        )
    device = federation.task.learner.device
    tensors = {name: tensor.to(device) for name, tensor in saved.tensors.items()}
    found = {field.name: tensors[f"state.{field.name}"] for field in fields(state)}
    for name, tensor in found.items():
        wanted = getattr(state, name)
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise RunFolderError(
                path,
                f"was made with another model ({name} of shape {tuple(tensor.shape)} there and "
                f"{tuple(wanted.shape)} here): give another --out",
            )
    facts = saved.facts
    kept = {int(client): row for client, row in zip(facts["kept"], tensors.get("kept", ()), strict=True)}
    best = Best.restored(facts["best"], tensors.get("best")) if facts["best"] else None
    ledger = Ledger.from_facts(facts["ledger"])
    return Progress(saved.round, replace(state, **found), kept, best, int(facts["waiting"]), ledger)


def checkpoint(federation: Federation, progress: Progress) -> Checkpoint:
    """What the next round would start from."""
    state = progress.state
    tensors = {f"state.{field.name}": getattr(state, field.name) for field in fields(state)}
    clients = sorted(progress.kept)
    if clients:
        tensors["kept"] = torch.stack([progress.kept[client] for client in clients])
    best = progress.best
    if best is not None and best.vector is not None:
        tensors["best"] = best.vector.clone()  # often the state's own vector, which is saved already
    facts = {
        "data": federation.fingerprint,
        "kept": clients,
        "best": best.facts() if best else None,
        "waiting": progress.waiting,
        "ledger": progress.ledger.to_facts(),
    }
    return Checkpoint(progress.round, tensors, facts)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What playing a round came to, before anybody has looked at it.

    Attributes:
        state: the server's state after it.
        kept: what participants keep for themselves.
        tally: what was counted.
        drawn: how many were drawn.
        lost: of how many the contributions did not arrive.
        seconds: how long it took.
        ledger: what was released up to now, where the driver has written it down itself; None to count it here.
    """

    state: Any
    kept: dict[int, Tensor]
    tally: Tally
    drawn: int
    lost: int
    seconds: float
    ledger: Ledger | None = None


def settled(
    federation: Federation,
    progress: Progress,
    played: Outcome,
    judge: Callable[[Progress], Evaluation],
    parallel: Map,
) -> tuple[Progress, Metrics]:
    """Take a round in: check it, count it, evaluate it.

    Args:
        federation: of the run.
        progress: before the round.
        played: the round.
        judge: tells how good the models are on the test examples.
        parallel: maps over pieces of the held-out examples.

    Raises:
        Diverged: something became NaN or infinite.
    """
    experiment, scheme, task = federation.experiment, federation.scheme, federation.task
    number, tally, state = progress.round + 1, played.tally, played.state
    if tally.diverged:
        raise Diverged(
            number,
            f"the updates of all {len(tally.dropped)} clients are NaN or infinite; {remedy(federation)}",
        )
    for field in fields(state):
        if not getattr(state, field.name).isfinite().all():
            raise Diverged(number, f"the model became NaN or infinite; {remedy(federation)}")
    metrics: Metrics = {
        "round": number,
        "participants": len(tally.accepted),
        "empty": len(tally.empty),
        "lost": played.lost,
        "dropped": [str(client) for client in sorted(tally.dropped)],
        "seconds": played.seconds,
        "uplink_bytes": tally.uplink,
        "downlink_bytes": tally.downlink,
        "train_loss": tally.loss(),
    }
    if federation.infiltration is not None:
        metrics["malicious"] = len(tally.accepted & tally.malicious)
    if isinstance(scheme, Measured) and state is not progress.state:
        metrics |= scheme.figures(state)
    if task.modular and task.promise is None:
        metrics["saturated"] = tally.saturated
    ledger = progress.ledger if played.ledger is None else played.ledger
    if task.promise is not None:
        metrics["released"] = tally.released
        if played.ledger is None:
            release = scheme.release(task).weakened(_noise_kept(federation, tally, played.drawn))
            ledger = ledger.add(release, tally.released * releases_a_round(scheme, task))
    elif not tally.released:
        metrics["released"] = False  # too few were left to unmask the sum
    after = replace(progress, round=number, state=state, kept=played.kept, ledger=ledger)
    if number % experiment.eval_every == 0 or is_over(federation, after):
        after = _evaluate(federation, after, metrics, judge, parallel)
    return after, metrics


def _noise_kept(federation: Federation, tally: Tally, drawn: int) -> float:
    """Of the deviation of the noise that a round's sum promises, the part that is there; 1 where nobody leaves noise out.

    Of several sums, the one that all malicious clients of the round may be in.
    """
    promise, infiltration = federation.task.promise, federation.infiltration
    if promise is None or infiltration is None or not infiltration.adversary.omit_noise:
        return 1.0
    there, cheating = len(tally.accepted), len(tally.accepted & tally.malicious)
    return promise.kept_by(there // promise.groups - cheating, drawn // promise.groups)


def remedy(federation: Federation) -> str:
    """What to change in a run that has diverged."""
    rates = [
        f"scheme.{name} (now {value})"
        for name, value in vars(federation.scheme).items()
        if name in ("learning_rate", "server_learning_rate")
    ]
    if federation.infiltration is not None:
        rates.append(
            f"adversary.boost (now {federation.infiltration.adversary.boost}), if the attack is not to win"
        )
    return "lower " + " or ".join(rates)


def measure(federation: Federation, progress: Progress, parallel: Map) -> Callable[[Examples], Evaluation]:
    """Tells how good the models of a round are on some examples."""
    return partial(
        federation.scheme.evaluate, federation.task, progress.state, progress.kept, parallel=parallel
    )


def measured(federation: Federation, progress: Progress, parallel: Map) -> Evaluation:
    """How good they are on the test set, and how far malicious clients have got."""
    judge = measure(federation, progress, parallel)
    found = judge(federation.test)
    if federation.infiltration is None:
        return found
    figures = federation.infiltration.yardstick.figures(found, judge)
    return replace(found, extras={**found.extras, **figures})


def _evaluate(
    federation: Federation,
    progress: Progress,
    metrics: Metrics,
    judge: Callable[[Progress], Evaluation],
    parallel: Map,
) -> Progress:
    """Evaluate after a round, add the figures to its metrics, and keep the best model."""
    scheme = federation.scheme
    started = time.perf_counter()
    judged = found = judge(progress)
    if federation.holdout is not None:
        judged = measure(federation, progress, parallel)(federation.holdout)
        metrics |= {"holdout_accuracy": judged.accuracy, "holdout_loss": judged.loss}
    for one in (found, judged):
        if one.loss is not None and not math.isfinite(one.loss):
            raise Diverged(progress.round, f"the loss is {one.loss}; {remedy(federation)}")
    metrics |= {
        "accuracy": found.accuracy,
        "loss": found.loss,
        "evaluation_seconds": time.perf_counter() - started,
        **found.extras,
    }
    if found.worst_loss is not None:
        metrics |= {"worst_accuracy": found.worst_accuracy, "worst_loss": found.worst_loss}
    best = progress.best
    if best is None or best.is_beaten_by(judged):
        return replace(
            progress, best=Best(progress.round, found, judged, scheme.vector(progress.state)), waiting=0
        )
    return replace(progress, waiting=progress.waiting + 1)
