"""A whole federation on this machine, for trying out: ``discreet federate``.

The server's side and every site are processes of their own, with keys of their own, and talk over TLS as they would
between machines. One user owns them all, so that nothing here is secret from that user.

In the run folder, the folder `HIDDEN` holds what the parties keep: certificates, a folder for each site, and logs. With
``--resume`` they go on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from discreet import config
from discreet.config import Experiment
from discreet.errors import ConfigError, DiscreetError, UserError
from discreet.federation import together
from discreet.federation.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY, make_certificates
from discreet.federation.files import NewFile, make_folder, write_new
from discreet.federation.flower import deployment
from discreet.federation.home import Home
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.party import check_playable
from discreet.federation.processes import ChildEnded, Family, family, last_words, lives
from discreet.federation.roster import Member, Roster
from discreet.federation.settings import SiteData, SiteSettings
from discreet.runs import METRICS, PARTIES, check_out

if TYPE_CHECKING:
    from discreet.progress import OnRound

STARTING = 180.0
"""Seconds that a program has to start."""


class FederationFailed(DiscreetError):
    """A federation on this machine has failed, by no fault of what was asked."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be run on this machine.

    Attributes:
        experiment: with as many clients as there are sites: see `between`.
        sites: how many.
        out: run folder.
        resume: go on with it.
        rehearse: draw everything from the experiment's seed, as a simulation does: nothing is secret.
        data_dir: where data sets are looked for first.
    """

    experiment: Experiment
    sites: int
    out: Path
    resume: bool = False
    rehearse: bool = False
    data_dir: Path | None = None


@dataclass(frozen=True)
class Shown:
    """What was shown of a run: so many rounds, when the file of metrics had so many bytes."""

    size: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Places:
    """Where the parties keep what is theirs.

    Attributes:
        folder: holds it all.
    """

    folder: Path

    @property
    def certificates(self) -> Path:
        """The authority, the server's certificate and the keys of nodes."""
        return self.folder / "certificates"

    @property
    def identity(self) -> Path:
        """The server's key."""
        return self.folder / "server.pem"

    @property
    def roster(self) -> Path:
        """Who takes part."""
        return self.folder / "roster.toml"

    @property
    def logs(self) -> Path:
        """What the processes say."""
        return self.folder / "logs"

    def site(self, number: int) -> Path:
        """A site's own folder."""
        return self.folder / "sites" / str(number)

    def node_key(self, number: int) -> Path:
        """The private key of a site's node; the public one has the suffix ``.pub``."""
        return self.certificates / "nodes" / f"{name(number)}.key"


def name(number: int) -> str:
    """What a site on this machine is called."""
    return f"site-{number}"


def between(experiment: Experiment, sites: int) -> Experiment:
    """An experiment with as many clients as there are sites.

    Raises:
        ConfigError: its data is divided otherwise.
    """
    data = experiment.data
    if data.partition == "grid":
        if data.rows * data.columns != sites:
            raise ConfigError(
                "--nodes", sites, f"{data.rows * data.columns}: data.rows * data.columns of the experiment"
            )
        return experiment
    return replace(experiment, data=replace(data, clients=sites))


def federate(
    trial: Trial,
    *,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Run an experiment between processes of this machine.

    Args:
        trial: what to run.
        on_round: called after every round.

    Returns:
        The result, as in ``result.json``.

    Raises:
        UserError: something in what was asked cannot be done.
        FederationFailed: a process has failed.
    """
    check_playable(trial.experiment)
    check_out(trial.out, resume=trial.resume)
    places = Places(trial.out.resolve() / PARTIES)
    settle(trial, places)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="discreet-") as temporary,
            family(places.logs) as processes,
        ):
            ending = Path(temporary) / "ending.json"
            _start(processes, trial, places, Path(temporary), ending)
            return _watch(processes, trial, ending, on_round)
    except ChildEnded as error:
        raise FederationFailed(str(error)) from error


def settle(trial: Trial, places: Places) -> None:
    """Make what the parties need: keys, certificates, a roster, and a folder for each site; to resume, what is missing.

    Raises:
        DataError: it cannot be written.
    """
    if not trial.resume and places.folder.exists():
        shutil.rmtree(places.folder)  # of a run that never began
    make_folder(places.folder)
    make_folder(places.logs)
    if places.roster.exists():
        return
    hosts = ("localhost", "127.0.0.1", "::1")
    make_certificates(places.certificates, hosts, [name(number) for number in range(trial.sites)])
    server = Identity.generate()
    identities = [Identity.generate() for _ in range(trial.sites)]
    roster = Roster(
        server.public,
        tuple(Member(number, name(number), identity.public) for number, identity in enumerate(identities)),
    )
    make_folder(places.folder / "sites")
    for number, identity in enumerate(identities):
        data = SiteData(folder=str(trial.data_dir.resolve()) if trial.data_dir else None)
        settings = SiteSettings(number=number, name=name(number), device=_device(trial.experiment), data=data)
        Home.create(places.site(number), settings, _limits(trial), roster, identity)
    write_new({places.identity: NewFile(server.to_pem()), places.roster: NewFile(roster.to_toml().encode())})


def _limits(trial: Trial) -> Limits:
    """What the sites allow: all that the experiment asks, as its user owns them all."""
    model, data = trial.experiment.model, trial.experiment.data
    return Limits(
        minimum_cohort=1,
        allow_rehearsal=trial.rehearse,
        report_evaluation=True,
        trust_sampling=True,
        code=[one for one in (model.name, model.loss) if ":" in one],
        paths=[path for path in (data.path, data.test_path) if path is not None],
    )


def _device(experiment: Experiment) -> Literal["cpu", "cuda"]:
    return "cuda" if str(experiment.engine.device).startswith("cuda") else "cpu"


def _start(
    processes: Family,
    trial: Trial,
    places: Places,
    temporary: Path,
    ending: Path,
) -> None:
    """Start every process, and the run."""
    numbers = range(trial.sites)
    link, *ports = deployment.free_ports(trial.sites + 1)
    flower = deployment.environment(temporary / "flower", temporary, trial.sites)
    sites = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # they share the machine; and a process with threads cannot fork
    authority = places.certificates / CA_CERTIFICATE
    settings = _settings(trial, places, temporary, ending)
    deployment.configure(temporary / "flower", f"127.0.0.1:{link}", authority)
    certificate, key = places.certificates / SERVER_CERTIFICATE, places.certificates / SERVER_KEY
    processes.start("superlink", deployment.superlink(link, authority, certificate, key), flower)
    residents = {name(number): [str(places.site(number))] for number in numbers}
    nodes = {
        f"node-{number}": deployment.node_arguments(
            f"127.0.0.1:{link}", ports[number], authority, places.node_key(number), places.site(number)
        )
        for number in numbers
    }
    registered = temporary / "registered"
    keys = [places.node_key(number).with_suffix(".pub") for number in numbers]
    processes.start("control", deployment.control(link, keys, settings), flower, brief=True)
    processes.start("nodes", _together("discreet.federation.flower.node", nodes, places, registered), flower)
    processes.start("sites", _together("discreet.federation.acting", residents, places), sites)
    _until(lambda: processes.ended("control"), processes, "the nodes cannot be registered")
    registered.touch()


def _together(
    module: str, entries: dict[str, list[str]], places: Places, after: Path | None = None
) -> list[str]:
    text = together.plan(entries, places.logs, after=after)
    return [sys.executable, "-m", "discreet.federation.together", module, text]


def _settings(trial: Trial, places: Places, temporary: Path, ending: Path) -> Path:
    """What ``flwr run`` is given, as a file."""
    experiment, settings = temporary / "experiment.toml", temporary / "run.toml"
    experiment.write_text(config.to_toml(trial.experiment))
    deployment.write_settings(
        settings,
        {
            "experiment": str(experiment),
            "out": str(trial.out.resolve()),
            "resume": trial.resume,
            "sites": trial.sites,
            "gathering": STARTING,
            "identity": str(places.identity),
            "roster": str(places.roster),
            "data-dir": str(trial.data_dir.resolve()) if trial.data_dir else "",
            "rehearse": trial.rehearse,
            "ending": str(ending),
            "log": str(places.logs / "server.log"),
        },
    )
    return settings


def _watch(processes: Family, trial: Trial, ending: Path, on_round: OnRound | None) -> dict[str, Any]:
    """Wait for the end, and show the rounds on the way."""
    shown = Shown()
    _until(ending.exists, processes, "the server does not start")
    while True:
        processes.check()
        said: dict[str, Any] = json.loads(ending.read_text())
        gone = said["ended"] == "running" and not lives(said["pid"])
        shown = _show(trial, shown, on_round)
        if said["ended"] == "done":
            result: dict[str, Any] = said["result"]
            return result
        if said["ended"] == "failed":
            raise (UserError if said["usage"] else FederationFailed)(said["error"])
        if gone and json.loads(ending.read_text()) == said:
            log = processes.log("server")
            raise FederationFailed(f"the server's process has ended: {last_words(log)} (all of it in {log})")
        time.sleep(0.1)


def _show(trial: Trial, shown: Shown, on_round: OnRound | None) -> Shown:
    """Show the rounds that are new in the run folder, whose file may be cut where a run goes on."""
    path = trial.out / METRICS
    size = path.stat().st_size if on_round is not None and path.exists() else shown.size
    if on_round is None or size == shown.size:
        return shown
    *lines, _ = path.read_bytes().split(b"\n")
    for line in lines[shown.rounds :]:
        on_round(json.loads(line), trial.experiment.rounds)
    return Shown(size, len(lines))


def _until(done: Callable[[], bool], processes: Family, otherwise: str) -> None:
    """Wait for something to happen.

    Raises:
        ChildEnded: a process has ended instead.
        FederationFailed: it takes too long.
    """
    end = time.monotonic() + STARTING
    while not done():
        processes.check()
        if time.monotonic() > end:
            raise FederationFailed(f"{otherwise} within {STARTING:g} s; see {processes.folder}")
        time.sleep(0.1)
