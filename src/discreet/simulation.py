"""A federation on one machine: the driver that plays the rounds of any scheme.

Clients are worked on in stacks, several at a time; what they contribute is encoded as it would be on the wire,
counted, decoded and added up in the order of the clients' numbers. Memory is bounded by the stacks and not by the
cohort, and results depend neither on the number of workers nor on the order in which they finish.

Stated rules, the same in every scheme:

* A client with no examples brings nothing to a round; a round in which nobody has any leaves the state as it was.
* A client that falls silent (`dropouts`) before it has sent its contribution takes no part in the round at all.
* A client whose update is NaN or infinite is dropped from the sum, named in the metrics and counted.
* If that happens to every client that has examples, or the new state or its loss is not finite, the run has
  diverged: it stops, and the last good round is kept.
* An evaluation with no rows gives None.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from discreet import preparation
from discreet.cohort import Examples
from discreet.config import Experiment
from discreet.data.dataset import Dataset, no_progress
from discreet.data.dataset import Progress as DataProgress
from discreet.data.partition import Partition
from discreet.errors import ConfigError, Diverged, RunFolderError
from discreet.evaluation import Evaluation, Map
from discreet.losses import Loss
from discreet.preparation import Federation
from discreet.privacy.releases import NOTHING, Ledger
from discreet.results import Best, Run, so_far, summarise
from discreet.rounds import play_round
from discreet.runs import CHECKPOINT, Checkpoint, RunFolder, check_out, open_run
from discreet.sampling import attend
from discreet.schemes.base import Confined, Measured, releases_a_round
from discreet.sums import Tally, answer, check_releases
from discreet.view import View
from discreet.watching import Witness

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


def simulate(
    experiment: Experiment,
    *,
    data: Dataset | None = None,
    partition: Partition | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    loss: Loss | None = None,
    data_dir: Path | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_data: DataProgress = no_progress,
    on_round: OnRound | None = None,
    watch: Sequence[str] = (),
) -> Run:
    """Run an experiment on this machine.

    Args:
        experiment: what to run.
        data: instead of the data set that the experiment names.
        partition: instead of the one that the experiment names.
        model: a module, or a factory, instead of the one that the experiment names.
        loss: instead of the one that the experiment names.
        data_dir: where data sets are looked for first.
        out: run folder to write while the run goes on; None for none (`Run.save` writes one later).
        resume: go on with the run folder `out`.
        on_data: called while data that takes long to read is read.
        on_round: called after every round.
        watch: parties of which all that they receive is kept in memory, for attacks on it: ``server``, ``aggregator``,
            ``participant:K``. With `resume`, of the rounds that are played now.

    Returns:
        The result.

    Raises:
        UserError: something in what was asked cannot be done; nothing is left half-written.
        Diverged: training became NaN or infinite; the run folder keeps the last good round, and the error says how good
            its model is.
    """
    if out is not None:
        check_out(Path(out), resume=resume)
    elif resume:
        raise ConfigError("out", None, "the run folder to go on with")
    federation = preparation.prepare(experiment, data, partition, model, loss, data_dir, on_data)
    experiment = federation.experiment
    check_releases(federation)
    witness = Witness(federation, watch) if watch else None
    opened = nullcontext() if out is None else open_run(Path(out), experiment, resume=resume)
    with opened as folder, _workers(experiment) as parallel:
        progress, history = _start(federation, folder)
        while not _is_over(federation, progress) and not _patience_is_over(experiment, progress):
            try:
                progress, metrics = _round(federation, progress, parallel, witness)
            except Diverged as error:
                found = _measured(federation, progress, parallel)
                last = so_far(federation, progress.round, found, progress.best)
                raise Diverged(error.round, error.cause, last) from None
            history.append(metrics)
            if folder:
                folder.append(metrics)
                folder.save(_checkpoint(federation, progress))
            if on_round:
                on_round(metrics, experiment.rounds)
        result = summarise(federation, history, progress.best, progress.ledger, parallel)
        if folder:
            folder.finish(result)
    vector = federation.scheme.vector(progress.state)
    return Run(
        experiment=experiment,
        metrics=tuple(history),
        result=result,
        network=federation.task.learner.network,
        vector=vector,
        best_vector=progress.best.vector if progress.best else vector,
        checkpoint=_checkpoint(federation, progress),
        confined=partial(federation.scheme.confined, federation.task, progress.state)
        if isinstance(federation.scheme, Confined)
        else None,
        views=witness.views() if witness else {},
    )


@dataclass(frozen=True, eq=False)
class Observed:
    """Rounds that were played to be looked at.

    Attributes:
        views: what watched parties received, by their names.
        states: the server's state at the beginning of each round, by its number. No party's view: attacks are judged by
            it.
        kept: what participants keep for themselves before the first of them, by their numbers; likewise.
        ledgers: what had been released when each round began, by its number: all that its state came from.
    """

    views: Mapping[str, View]
    states: Mapping[int, Any]
    kept: Mapping[int, Tensor]
    ledgers: Mapping[int, Ledger]

    def until(self, round: int) -> Observed:
        """The rounds up to one of them."""
        views = {
            name: replace(view, seen=tuple(one for one in view.seen if one.round <= round))
            for name, view in self.views.items()
        }
        states = {number: state for number, state in self.states.items() if number <= round}
        return replace(self, views=views, states=states)


def observe(federation: Federation, saved: Checkpoint | None, watch: Sequence[str], rounds: int) -> Observed:
    """Play rounds that follow on a checkpoint, as the run would go on, and see what parties receive.

    Nothing is written or evaluated. Rounds beyond the experiment's are played all the same, and beyond its privacy
    budget too: what is released in them is released to whoever runs the simulation.

    Args:
        federation: of the run.
        saved: where it stands; None for its beginning.
        watch: the parties, as for `simulate`.
        rounds: how many.

    Raises:
        RunFolderError: the checkpoint belongs to other data, or to another model.
        Diverged: training became NaN or infinite.
    """
    witness = Witness(federation, watch)
    state = federation.scheme.init(federation.task)
    progress = Progress(0, state, {}, None)
    if saved is not None:
        progress = restored(federation, Path(CHECKPOINT), state, saved)
    # evaluations are for the run's own results
    rare = replace(federation.experiment, eval_every=2**62, rounds=2**62)
    unjudged, kept = replace(federation, experiment=rare, releases=None), progress.kept
    states, ledgers = {}, {}
    with _workers(federation.experiment) as parallel:
        for _ in range(rounds):
            states[progress.round + 1] = progress.state
            ledgers[progress.round + 1] = progress.ledger
            progress, _ = _round(unjudged, progress, parallel, witness)
    return Observed(witness.views(), states, kept, ledgers)


def _is_over(federation: Federation, progress: Progress) -> bool:
    """Whether all rounds are played, or one more would pass the privacy budget."""
    if progress.round >= federation.experiment.rounds:
        return True
    if federation.releases is None:
        return False
    one_more = progress.ledger.releases + releases_a_round(federation.scheme, federation.task)
    return one_more > federation.releases


def _patience_is_over(experiment: Experiment, progress: Progress) -> bool:
    return 0 < experiment.patience <= progress.waiting


def _start(federation: Federation, folder: RunFolder | None) -> tuple[Progress, list[Metrics]]:
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


def _checkpoint(federation: Federation, progress: Progress) -> Checkpoint:
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


def _round(
    federation: Federation, progress: Progress, parallel: Map, witness: Witness | None = None
) -> tuple[Progress, Metrics]:
    """Play one round and evaluate it."""
    experiment, scheme, task = federation.experiment, federation.scheme, federation.task
    number = progress.round + 1
    started = time.perf_counter()
    there = attend(experiment, federation.partition.clients, number)
    infiltration = federation.infiltration
    malicious = frozenset() if infiltration is None else frozenset(infiltration.clients.tolist())
    tally = Tally(malicious)
    kept = dict(progress.kept) if progress.kept else {}
    playing = play_round(scheme, task, progress.state, number)
    try:
        ask = next(playing)
        while True:
            arrived = witness.arrivals(ask.phase) if witness else None
            total = answer(federation, ask, there, kept, tally, parallel, arrived)
            if witness:
                witness.saw(ask, there, arrived, total)
            ask = playing.send(total)
    except StopIteration as end:
        state = end.value
    seconds = time.perf_counter() - started
    if tally.diverged:
        raise Diverged(
            number,
            f"the updates of all {len(tally.dropped)} clients are NaN or infinite; {_remedy(federation)}",
        )
    for field in fields(state):
        if not getattr(state, field.name).isfinite().all():
            raise Diverged(number, f"the model became NaN or infinite; {_remedy(federation)}")
    metrics: Metrics = {
        "round": number,
        "participants": len(tally.accepted),
        "empty": len(tally.empty),
        "lost": there.lost,
        "dropped": [str(client) for client in sorted(tally.dropped)],
        "seconds": seconds,
        "uplink_bytes": tally.uplink,
        "downlink_bytes": tally.downlink,
        "train_loss": tally.loss(),
    }
    if infiltration is not None:
        metrics["malicious"] = len(tally.accepted & malicious)
    if isinstance(scheme, Measured) and state is not progress.state:
        metrics |= scheme.figures(state)
    if task.modular and task.promise is None:
        metrics["saturated"] = tally.saturated
    ledger = progress.ledger
    if task.promise is not None:
        metrics["released"] = tally.released
        release = scheme.release(task).weakened(_noise_kept(federation, tally, len(there.drawn)))
        ledger = ledger.add(release, tally.released * releases_a_round(scheme, task))
    elif not tally.released:
        metrics["released"] = False  # too few were left to unmask the sum
    after = replace(progress, round=number, state=state, kept=kept, ledger=ledger)
    if number % experiment.eval_every == 0 or _is_over(federation, after):
        after = _evaluate(federation, after, metrics, parallel)
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


def _remedy(federation: Federation) -> str:
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


def _measure(federation: Federation, progress: Progress, parallel: Map) -> Callable[[Examples], Evaluation]:
    """Tells how good the models of a round are on some examples."""
    return partial(
        federation.scheme.evaluate, federation.task, progress.state, progress.kept, parallel=parallel
    )


def _measured(federation: Federation, progress: Progress, parallel: Map) -> Evaluation:
    """How good they are on the test set, and how far malicious clients have got."""
    measure = _measure(federation, progress, parallel)
    found = measure(federation.test)
    if federation.infiltration is None:
        return found
    figures = federation.infiltration.yardstick.figures(found, measure)
    return replace(found, extras={**found.extras, **figures})


def _evaluate(federation: Federation, progress: Progress, metrics: Metrics, parallel: Map) -> Progress:
    """Evaluate after a round, add the figures to its metrics, and keep the best model."""
    scheme = federation.scheme
    started = time.perf_counter()
    judged = found = _measured(federation, progress, parallel)
    if federation.holdout is not None:
        judged = _measure(federation, progress, parallel)(federation.holdout)
        metrics |= {"holdout_accuracy": judged.accuracy, "holdout_loss": judged.loss}
    for one in (found, judged):
        if one.loss is not None and not math.isfinite(one.loss):
            raise Diverged(progress.round, f"the loss is {one.loss}; {_remedy(federation)}")
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


@contextmanager
def _workers(experiment: Experiment) -> Iterator[Map]:
    """A parallel map whose results come in order and which runs only a little ahead of its reader."""
    workers = int(experiment.engine.workers)
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.engine.threads)
    try:
        if workers == 1:
            yield map
            return
        # a new thread has a number of its own
        threads_of_one = experiment.engine.threads
        with ThreadPoolExecutor(workers, "discreet", torch.set_num_threads, (threads_of_one,)) as pool:
            try:
                yield partial(_map, pool, workers + 1)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)


def _map(
    pool: ThreadPoolExecutor, ahead: int, function: Callable[[Any], Any], arguments: Iterable[Any]
) -> Iterator[Any]:
    """`map` in a pool, in order, with at most `ahead` results waiting: memory stays bounded."""
    waiting: deque[Future[Any]] = deque()
    for argument in arguments:
        waiting.append(pool.submit(function, argument))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
