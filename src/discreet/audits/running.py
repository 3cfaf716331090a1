"""Audits a run: plays a few more rounds, takes a party's view of them, attacks, and writes down what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from discreet import config, preparation
from discreet.audits.case import Audit, Case, Illustrated
from discreet.audits.table import AUDITS
from discreet.config import Experiment
from discreet.data.dataset import Dataset, no_progress
from discreet.data.dataset import Progress as DataProgress
from discreet.data.partition import Partition
from discreet.errors import ConfigError, RunFolderError
from discreet.losses import Loss
from discreet.names import did_you_mean
from discreet.preparation import Federation
from discreet.progress import OnRound
from discreet.results import versions
from discreet.runs import CONFIG, Checkpoint, read_checkpoint, write_whole
from discreet.sampling import attend
from discreet.simulation import observe, simulate
from discreet.view import Party

AUDIT = "audit.json"

QUICK_ROUNDS, QUICK_EXAMPLES, EXAMPLES = 20, 300, 10_000
"""Rounds that are trained, and examples of a kind that are asked about, at most."""

OnAudit = Callable[[str, int, int], None]
"""``on_audit(name, number, count)``: called before each audit."""


@dataclass(frozen=True)
class Audited:
    """What audits have found.

    Attributes:
        path: of ``audit.json``.
        record: its contents.
    """

    path: Path
    record: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Choice:
    """What an audit is to do.

    Attributes:
        federation: of the run.
        fitting: the audits that say something about it.
        unfit: why the others do not.
    """

    federation: Federation
    fitting: Sequence[str]
    unfit: Mapping[str, str]


def choose(
    source: Path | str,
    *,
    settings: Sequence[str] = (),
    attacks: Sequence[str] = (),
    party: str | None = None,
    quick: bool = False,
    lenient: bool = False,
    data: Dataset | None = None,
    partition: Partition | None = None,
    model: Any = None,
    loss: Loss | None = None,
    data_dir: Path | None = None,
    on_data: DataProgress = no_progress,
) -> Choice:
    """What `audit` would do if it were given the same, before anything is trained.

    Raises:
        UserError: something in what was asked cannot be done.
    """
    for name in attacks:
        if name not in AUDITS:
            raise ConfigError(
                "--attack", name, f"one of: {', '.join(AUDITS)}{did_you_mean(name, list(AUDITS))}"
            )
    given: dict[str, Any] = {"data": data, "partition": partition, "model": model, "loss": loss}
    if not is_run(source):
        experiment = config.load(str(source), settings)
        if quick:
            experiment = replace(experiment, rounds=min(experiment.rounds, QUICK_ROUNDS))
    elif settings:
        raise ConfigError("--set", settings[0], "an experiment: a run folder has its settings")
    else:
        experiment = _settings(Path(source), [name for name, one in given.items() if one is not None])
        _finished(Path(source))
    federation = preparation.prepare(experiment, **given, data_dir=data_dir, on_data=on_data)
    return Choice(federation, *_chosen(federation, attacks, party, lenient))


def is_run(source: Path | str) -> bool:
    """Whether this is a run folder; else it is an experiment."""
    return (Path(source) / CONFIG).is_file()


def audit(
    source: Path | str,
    *,
    settings: Sequence[str] = (),
    attacks: Sequence[str] = (),
    party: str | None = None,
    out: Path | None = None,
    quick: bool = False,
    lenient: bool = False,
    data: Dataset | None = None,
    partition: Partition | None = None,
    model: Any = None,
    loss: Loss | None = None,
    data_dir: Path | None = None,
    on_data: DataProgress = no_progress,
    on_round: OnRound | None = None,
    on_audit: OnAudit = lambda name, number, count: None,
) -> Audited:
    """Measure what curious parties learn.

    A run folder is left as it is, but for ``audit.json``: the rounds in which a party is watched are played in memory,
    and follow on the run's last one. Of an experiment the run comes first, in `out`, and can be resumed like any run.

    Args:
        source: a run folder, or an experiment, as `discreet.config.load` takes it.
        settings: changes of an experiment, likewise.
        attacks: names in `AUDITS`; none for all that fit the scheme.
        party: whose view is taken, by all audits that can take it; None for what each audit takes by itself.
        out: the folder for ``audit.json``, and of an experiment the run folder; None for the run folder that is audited.
        quick: few rounds and few examples: figures that say nothing.
        lenient: of the attacks that were named, leave out those that do not fit the scheme.
        data: what the run got from Python, as for `discreet.simulate`.
        partition: likewise.
        model: likewise.
        loss: likewise.
        data_dir: where data sets are looked for first.
        on_data: called while data that takes long to read is read.
        on_round: called after every round that is trained.
        on_audit: called before every audit.

    Raises:
        UserError: something in what was asked cannot be done.
    """
    given: dict[str, Any] = {"data": data, "partition": partition, "model": model, "loss": loss}
    where: dict[str, Any] = {"data_dir": data_dir, "on_data": on_data}
    if out is None and not is_run(source):
        raise ConfigError("out", None, "the folder of the run that is audited")
    choice = choose(
        source,
        settings=settings,
        attacks=attacks,
        party=party,
        quick=quick,
        lenient=lenient,
        **given,
        **where,
    )
    federation, fitting, experiment = choice.federation, choice.fitting, choice.federation.experiment
    folder = Path(source)
    if out is not None and not is_run(source):
        folder = out
        simulate(experiment, **given, **where, out=out, resume=True, on_round=on_round)
    saved = _finished(folder)
    parties = {name: _party(federation, saved, AUDITS[name], party) for name in fitting}
    rounds = max((AUDITS[name].rounds for name in fitting), default=0)
    observed = observe(federation, saved, list(dict.fromkeys(parties.values())), rounds)
    found = {}
    for number, name in enumerate(fitting, start=1):
        on_audit(name, number, len(fitting))
        most = QUICK_EXAMPLES if quick else EXAMPLES
        seen = observed.until(saved.round + AUDITS[name].rounds)  # no more than where it is the only audit
        case = Case(federation, seen, seen.views[parties[name]], most, quick)
        found[name] = _entry(name, case, out or folder)
    record = {
        "run": str(folder),
        "scheme": experiment.scheme_name,
        "dataset": federation.dataset_name,
        "model": experiment.model.name,
        "secure": experiment.secure,
        "seed": experiment.seed,
        "rounds": saved.round,
        "quick": quick,
        "audits": found,
        "unfit": choice.unfit,
        "versions": versions(),
    }
    path = (out or folder) / AUDIT
    write_whole(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return Audited(path, record)


def _finished(folder: Path) -> Checkpoint:
    """The last finished round of a run folder."""
    if (saved := read_checkpoint(folder)) is None:
        raise RunFolderError(folder, "has no finished round: run it, or go on with it, first")
    return saved


def _settings(folder: Path, given: Sequence[str]) -> Experiment:
    """The experiment of a run folder; what it got from Python must be given again."""
    if not given:
        return config.load(str(folder / CONFIG))
    try:
        text = (folder / CONFIG).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(folder / CONFIG, f"cannot be read ({error})") from None
    table = config.parse(text, str(folder / CONFIG))
    return config.from_table(table)


def _chosen(
    federation: Federation, attacks: Sequence[str], party: str | None, lenient: bool
) -> tuple[list[str], dict[str, str]]:
    """The audits that say something about a federation, and why the others do not.

    Raises:
        ConfigError: an audit that was asked for is none of them, or there is no such party, or nothing to do for it.
    """
    looking = None if party is None else Party.named(party, federation.partition.clients, "--party")
    reasons = {name: AUDITS[name].fits(federation) for name in attacks or AUDITS}
    for name in () if lenient else attacks:
        if (reason := reasons[name]) is not None:
            scheme = federation.experiment.scheme_name
            raise ConfigError("--attack", name, f"an audit that fits {scheme}: {reason}")
    fitting = [name for name, reason in reasons.items() if reason is None]
    blind = [name for name in fitting if looking is not None and looking.role not in AUDITS[name].roles]
    if blind and (attacks or (len(blind) == len(fitting) and not lenient)):
        raise ConfigError("--party", party, f"{' or '.join(AUDITS[blind[0]].roles)} for {blind[0]}")
    for name in blind:
        reasons[name] = f"its view is that of {' or '.join(AUDITS[name].roles)}"
    fitting = [name for name in fitting if name not in blind]
    return fitting, {name: reason for name, reason in reasons.items() if reason is not None}


def _party(federation: Federation, saved: Checkpoint, chosen: Audit, asked: str | None) -> str:
    """Whose view an audit takes."""
    first, last = saved.round + 1, saved.round + chosen.rounds
    there = _there(federation, range(first, last + 1))
    if asked is not None:
        party = Party.named(asked, federation.partition.clients, "--party")
        if party.number is not None and party.number not in there:
            some = ", ".join(map(str, there[:5]))
            raise ConfigError(
                "--party",
                asked,
                f"a participant that is drawn in the rounds from {first} to {last}, as {some}",
            )
        return str(party)
    role = "server" if federation.scheme.pooled and "server" in chosen.roles else chosen.roles[0]
    if role != "participant":
        return role
    sizes = federation.partition.sizes
    holding = [client for client in there if sizes[int(federation.partition.row_of(client))]]
    return f"participant:{next(iter(holding or there), 0)}"


def _there(federation: Federation, rounds: Iterable[int]) -> list[int]:
    """Participants from the one that is there in most of some rounds to the one that is there in fewest."""
    count: dict[int, int] = {}
    for round in rounds:
        for client in attend(federation.experiment, federation.partition.clients, round).drawn.tolist():
            count[client] = count.get(client, 0) + 1
    return sorted(count, key=lambda client: (-count[client], client))


def _entry(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """What an audit found, for ``audit.json``; its pictures go into the folder."""
    chosen = AUDITS[name]
    measured = chosen.measure(case)
    made = measured if isinstance(measured, Illustrated) else Illustrated(measured)
    findings = [asdict(finding) for finding in made.findings]
    entry: dict[str, Any] = {"summary": chosen.summary, "party": str(case.view.party), "findings": findings}
    if made.series:
        entry["series"] = dict(made.series)
    if made.pictures:
        folder.mkdir(parents=True, exist_ok=True)
        entry["pictures"] = []
        for short, figure in made.pictures.items():
            file = f"audit-{name}-{short}.png"
            figure.savefig(folder / file, dpi=150, metadata={"Software": None})
            entry["pictures"].append(file)
    return entry
