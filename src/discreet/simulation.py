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

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet import preparation
from discreet.config import Experiment
from discreet.data.dataset import Dataset, no_progress
from discreet.data.dataset import Progress as DataProgress
from discreet.data.partition import Partition
from discreet.errors import ConfigError, Diverged
from discreet.evaluation import Map
from discreet.losses import Loss
from discreet.preparation import Federation
from discreet.privacy.releases import Ledger
from discreet.progress import (
    Metrics,
    OnRound,
    Outcome,
    Progress,
    beginning,
    checkpoint,
    is_over,
    measured,
    patience_is_over,
    restored,
    settled,
)
from discreet.results import Run, so_far, summarise
from discreet.rounds import play_round
from discreet.runs import CHECKPOINT, Checkpoint, check_out, open_run
from discreet.sampling import attend
from discreet.schemes.traits import Confined
from discreet.sums import answer
from discreet.tally import Tally
from discreet.tolerance import check_releases
from discreet.view import View
from discreet.watching import Witness


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
    with opened as folder, workers(experiment) as parallel:
        progress, history = beginning(federation, folder)
        while not is_over(federation, progress) and not patience_is_over(experiment, progress):
            try:
                progress, metrics = _round(federation, progress, parallel, witness)
            except Diverged as error:
                found = measured(federation, progress, parallel)
                last = so_far(federation, progress.round, found, progress.best)
                raise Diverged(error.round, error.cause, last) from None
            history.append(metrics)
            if folder:
                folder.append(metrics)
                folder.save(checkpoint(federation, progress))
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
        checkpoint=checkpoint(federation, progress),
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
    with workers(federation.experiment) as parallel:
        for _ in range(rounds):
            states[progress.round + 1] = progress.state
            ledgers[progress.round + 1] = progress.ledger
            progress, _ = _round(unjudged, progress, parallel, witness)
    return Observed(witness.views(), states, kept, ledgers)


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
    played = Outcome(state, kept, tally, len(there.drawn), there.lost, seconds)
    return settled(
        federation, progress, played, lambda after: measured(federation, after, parallel), parallel
    )


@contextmanager
def workers(experiment: Experiment) -> Iterator[Map]:
    """A parallel map whose results come in order and which runs only a little ahead of its reader."""
    count = int(experiment.engine.workers)
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.engine.threads)
    try:
        if count == 1:
            yield map
            return
        # a new thread has a number of its own
        threads_of_one = experiment.engine.threads
        with ThreadPoolExecutor(count, "discreet", torch.set_num_threads, (threads_of_one,)) as pool:
            try:
                yield partial(_map, pool, count + 1)
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
