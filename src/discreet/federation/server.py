"""The server of a federation: plays the rounds of any scheme with sites behind a link.

A round is all or nothing. Where too many sites fail, or a secure sum cannot be finished, it is tried again with fresh
secrets and without those who failed; after some attempts the run stops, and its folder stays resumable. What is released
is in the ledger, on the disk, before it is.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discreet.config import Experiment, to_toml
from discreet.data.dataset import Dataset
from discreet.errors import ConfigError, Diverged, RoundAborted, RunAborted, RunFolderError
from discreet.evaluation import Evaluation, Map, combined
from discreet.federation.identity import Identity
from discreet.federation.link import Link
from discreet.federation.parts import End, Evaluate, Evaluated, Hello, Told
from discreet.federation.party import Facts, check_playable, deployed, prepared, with_streams, written
from discreet.federation.playing import play
from discreet.federation.roster import Roster
from discreet.federation.spending import MemorySpending, Spending, SpendingFile
from discreet.federation.standing import Plan, Sites
from discreet.federation.table import PATIENT, Deadlines, Table
from discreet.federation.traffic import in_all
from discreet.preparation import Federation
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
    settled,
)
from discreet.randomness import Seeded, SystemRandom
from discreet.results import Run, so_far, summarise
from discreet.runs import PARTICIPANTS, RunFolder, check_out, open_run
from discreet.sampling import sample
from discreet.schemes.references import Local
from discreet.schemes.traits import Narrowed
from discreet.simulation import workers
from discreet.tolerance import check_releases
from discreet.wire import MOST_SITES, RUN_BYTES

LOG = logging.getLogger(__name__)

LEDGER = "ledger.jsonl"

REHEARSED = "rehearsal: noise and masks were drawn from a seed, nothing was secret"
TRUSTED = "no roster: the server is trusted for key exchange"


def federate(
    experiment: Experiment,
    link: Link,
    *,
    sites: int | None = None,
    identity: Identity,
    roster: Roster | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    rehearse: bool = False,
    data: Dataset | None = None,
    data_dir: Path | None = None,
    deadlines: Deadlines = PATIENT,
    on_round: OnRound | None = None,
    attempts: int = 3,
) -> Run:
    """Run an experiment between sites.

    Args:
        experiment: what to run.
        link: to the sites.
        sites: how many there are; None for what the roster, or else the experiment, says.
        identity: signs what the server sends; to go on with a run without a roster it must be the same.
        roster: who the sites are; None to take those who answer.
        out: run folder to write while the run goes on; None for none.
        resume: go on with the run folder `out`.
        rehearse: draw everything from the experiment's seed, as a simulation does: nothing is secret.
        data: test examples to judge the global model by, in a data set whose training examples show what they look
            like; None for the data set that the experiment names.
        data_dir: where data sets are looked for first.
        deadlines: how long to wait for sites.
        on_round: called after every round.
        attempts: how often a round is tried.

    Returns:
        The result.

    Raises:
        UserError: something in what was asked cannot be done, or sites are missing.
        Diverged: training became NaN or infinite; the run folder keeps the last good round.
        RunAborted: a round failed in every attempt; the run folder can be resumed.
    """
    if out is not None:
        check_out(Path(out), resume=resume)
    elif resume:
        raise ConfigError("out", None, "the run folder to go on with")
    check_playable(experiment)
    federation = prepared(deployed(experiment), None, data, data_dir)
    count = _how_many(federation, sites, roster)
    hello = Hello(identity.public, rehearse, count, to_toml(federation.experiment))
    opened = nullcontext() if out is None else open_run(Path(out), federation.experiment, resume=resume)
    with opened as folder, workers(federation.experiment) as parallel:
        named = _named(folder, federation.experiment, rehearse)
        LOG.info("run %s, session %d: %d sites are expected", named.run.hex(), named.session, count)
        met = Sites(link, identity, roster, named.run, named.session, hello)
        met.gather(deadlines.gathering)
        gathering = in_all(met.passed)
        met.missed.clear()
        facts = met.gathered()
        federation = _with_facts(federation, facts, data, data_dir)
        secrets = None if rehearse else SystemRandom()
        federation = with_streams(federation, Seeded(federation.experiment.seed), secrets)
        _check(federation, rehearse)
        spending: Spending = (
            MemorySpending() if folder is None else SpendingFile(folder.path / LEDGER, mode=0o666)
        )
        table = Table(federation, met, spending, deadlines)
        course = Course(table, parallel, attempts, rehearse)
        progress, history = beginning(federation, folder)
        if folder and progress.ledger.releases > spending.ledger().releases:
            raise RunFolderError(
                folder.path / LEDGER,
                f"has lost lines: expected the {progress.ledger.releases} releases, or more, that the checkpoint counts; "
                "put the newest copy back, or give another --out",
            )
        progress = replace(progress, ledger=spending.ledger())
        while not is_over(federation, progress) and not patience_is_over(federation.experiment, progress):
            try:
                progress, metrics = course.round(progress)
            except Diverged as error:
                last = so_far(federation, progress.round, course.judged(progress), progress.best)
                raise Diverged(error.round, error.cause, last) from None
            history.append(metrics)
            if folder:
                folder.append(metrics)
                folder.save(checkpoint(federation, progress))
            if on_round:
                on_round(metrics, federation.experiment.rounds)
        met.passed.clear()
        course.end(progress)
        result = summarise(federation, history, progress.best, progress.ledger, parallel, simulated=rehearse)
        result["notes"] += [REHEARSED] * rehearse + [TRUSTED] * (roster is None)
        result["federation"] = {
            "session": named.session,
            "gathering": gathering,
            "end": in_all(met.passed),
        }
        if folder:
            folder.finish(result)
    vector = federation.scheme.vector(progress.state)
    return Run(
        experiment=federation.experiment,
        metrics=tuple(history),
        result=result,
        network=federation.task.learner.network,
        vector=vector,
        best_vector=progress.best.vector if progress.best else vector,
        checkpoint=checkpoint(federation, progress),
    )


@dataclass(eq=False)
class Course:
    """The rounds of a run, one after another.

    Attributes:
        table: where they are played.
        parallel: maps over pieces of the test examples.
        attempts: how often a round is tried.
        rehearse: whether nothing is secret.
    """

    table: Table
    parallel: Map
    attempts: int
    rehearse: bool

    def round(self, progress: Progress) -> tuple[Progress, Metrics]:
        """Play a round, and evaluate it.

        Raises:
            Diverged: see `settled`.
            RunAborted: it failed in every attempt.
        """
        sites = self.table.sites
        sites.missed.clear()
        sites.passed.clear()
        played, tried = self._played(progress)
        federation = self.table.federation
        after, metrics = settled(federation, progress, played, self.judged, self.parallel)
        metrics |= {
            "attempts": tried,
            "failures": [one.to_facts() for one in sites.missed],
            "phases": [one.to_facts() for one in sites.passed],
            "sites": in_all(sites.passed)["sites"],
        }
        LOG.info(
            "round %d: %d sites, %d attempts, %.3f s, %d bytes up, %d bytes down",
            metrics["round"],
            metrics["participants"],
            tried,
            metrics["seconds"],
            metrics["uplink_bytes"],
            metrics["downlink_bytes"],
        )
        return after, metrics

    def _played(self, progress: Progress) -> tuple[Outcome, int]:
        """The round, and how many attempts it took."""
        number, cause = progress.round + 1, ""
        began_with = self.table.sites.here
        for attempt in range(self.attempts):
            if attempt:
                self.table.ahead = None
                deadlines = self.table.deadlines
                awaited = self._awaited(number, began_with) if attempt + 1 == self.attempts else ()
                self.table.sites.recall(number, attempt, deadlines.keys, awaited, deadlines.gathering)
                spent = replace(progress, ledger=self.table.spending.ledger())
                if is_over(self.table.federation, spent):
                    raise RunAborted(number, attempt, f"{cause}; no more attempts fit in the privacy budget")
            try:
                return play(self.table, progress, attempt), attempt + 1
            except RoundAborted as error:
                sites = self.table.sites
                failed = [
                    f"{sites.name(one.site)} in {one.stage}: {one.failure.cause} {one.failure.detail}".strip()
                    for one in sites.missed
                ]
                cause = "; ".join([str(error), *failed[-8:]])
        raise RunAborted(number, self.attempts, cause)

    def _awaited(self, number: int, began_with: frozenset[int]) -> frozenset[int]:
        """Whom to wait for before a round is tried for the last time, since the run ends if that fails too.

        Those who failed in it; if nobody did, too few were there to begin with: then all who are drawn.
        """
        drawn = frozenset(self.table.drawn(number).tolist())
        failed = {one.site for one in self.table.sites.missed}
        return drawn & began_with & failed or drawn

    def judged(self, progress: Progress) -> Evaluation:
        """How good the models after a round are.

        A global model is judged here. Models that only sites have are judged by them; in a rehearsal, those that come
        from the seed here too.
        """
        federation = self.table.federation
        scheme = federation.scheme
        global_model = scheme.vector(progress.state) is not None
        if global_model or (self.rehearse and not isinstance(scheme, Local)):
            return measured(federation, progress, self.parallel)
        if federation.partition.column_count > 1:
            return Evaluation(None, None)  # nobody there has a whole model
        found: dict[int, Evaluated] = {}
        plan = Plan()
        trained = sample(federation.experiment, federation.partition.clients, max(1, progress.round))
        for site in sorted(self.table.sites.here & set(trained.tolist())):

            def take(answer: Evaluated, told: Told | None, site: int = site) -> None:
                found[site] = answer

            plan.add(site, Evaluate(self._payload(progress, site)), take)
        if plan.asked:
            seconds = self.table.deadlines.work
            self.table.sites.ask(plan, seconds, "evaluate", progress.round, 0, keeps=True)
        judged = [Evaluation(one.accuracy, one.loss) for _, one in sorted(found.items())]
        return combined(judged) if len(judged) != 1 else judged[0]

    def end(self, progress: Progress) -> None:
        """Tell the sites that the run is over, so that each keeps its model."""
        plan = Plan()
        for site in sorted(self.table.sites.here):
            plan.add(site, End(self._payload(progress, site)), lambda answer, told: None)
        if plan.asked:
            self.table.sites.ask(plan, self.table.deadlines.keys, "end", progress.round, 0)

    def _payload(self, progress: Progress, site: int) -> bytes:
        """What another round would begin with."""
        federation = self.table.federation
        scheme, task = federation.scheme, federation.task
        payload = scheme.broadcast(task, progress.state, progress.round + 1)
        return written(scheme.sent_to(task, payload, site) if isinstance(scheme, Narrowed) else payload)


@dataclass(frozen=True)
class Named:
    """Which run it is, and which process of it.

    Attributes:
        run: 16 bytes.
        session: higher than in all processes before: the seconds since 1970, so that a copy of the run folder that was put
            back does not lead to one that was there; in a rehearsal, counted from 1.
    """

    run: bytes
    session: int


def _named(folder: RunFolder | None, experiment: Experiment, rehearse: bool) -> Named:
    """The run's name and the session, written down before anybody hears of them."""
    found: dict[str, Any] = {}
    now = 1 if rehearse else int(time.time())
    if folder is not None and (folder.path / PARTICIPANTS).exists():
        try:
            found = json.loads((folder.path / PARTICIPANTS).read_text("utf-8"))
            named = Named(bytes.fromhex(found["run"]), max(now, int(found["session"]) + 1))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise RunFolderError(
                folder.path / PARTICIPANTS, f"is damaged ({error}): give another --out"
            ) from None
    else:
        source = Seeded(experiment.seed) if rehearse else SystemRandom()
        words = source.words(0, -1, "run", RUN_BYTES // 8)
        named = Named(words.astype("<u8").tobytes(), now)
    if folder is not None:
        facts = {"run": named.run.hex(), "session": named.session}
        folder.replace(PARTICIPANTS, (json.dumps(facts) + "\n").encode())
    return named


def _how_many(federation: Federation, sites: int | None, roster: Roster | None) -> int:
    """How many sites there are.

    Raises:
        ConfigError: it is not clear.
    """
    count = sites or (len(roster) if roster is not None else federation.partition.clients)
    if roster is not None and count != len(roster):
        raise ConfigError("sites", count, f"{len(roster)}, those of the roster")
    if not 1 <= count <= MOST_SITES:
        raise ConfigError("sites", count, f"from 1 to {MOST_SITES}")
    return count


def _with_facts(
    federation: Federation, facts: Facts, data: Dataset | None, data_dir: Path | None
) -> Federation:
    """The federation of sites that hold what they say."""
    if Facts.of(federation.partition) == facts:
        return federation
    return prepared(federation.experiment, facts, data, data_dir)


def _check(federation: Federation, rehearse: bool) -> None:
    """Refuse what cannot be done between these sites.

    Raises:
        ConfigError: it names the key.
    """
    check_releases(federation)
    columns = federation.partition.column_count
    if columns > 1 and not rehearse and getattr(federation.scheme, "heads", "own") == "row":
        raise ConfigError(
            "scheme.heads", "row", "own: between sites, the server would know a head that a row has in common"
        )
