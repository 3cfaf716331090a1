"""Flower's ServerApp: reads what ``flwr run`` was given, and plays the experiment over Flower.

Keys of ``--run-config`` are those of the app's ``pyproject.toml``; all paths are on this machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from discreet.errors import DiscreetError, UserError
from discreet.federation.flower.orphans import end_when_orphaned

if TYPE_CHECKING:
    from discreet.data.dataset import Dataset
    from discreet.results import Run

LOG = logging.getLogger(__name__)

GONE = "the SuperLink, or what started this process for it, is gone"


def server_app() -> ServerApp:
    """The app, as Flower takes it."""
    app = ServerApp()
    app.main()(main)
    return app


def main(grid: Grid, context: Context) -> None:
    """Play the run, and write down how it ended."""
    asked = context.run_config
    _log_to(_path(asked, "log"))
    ending: dict[str, Any] = {"ended": "failed", "error": "", "usage": False}
    over = threading.Event()

    def orphaned() -> None:
        if not over.is_set():
            LOG.error("ended: %s", GONE)
            _write(_path(asked, "ending"), ending | {"error": GONE})

    _write(_path(asked, "ending"), {"ended": "running", "pid": os.getpid()})
    end_when_orphaned(orphaned)
    try:
        ending = {"ended": "done", "result": play(grid, asked).result}
    except DiscreetError as error:
        ending |= {"error": str(error), "usage": isinstance(error, UserError)}
        raise
    except BaseException as error:
        ending |= {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        over.set()
        _write(_path(asked, "ending"), ending)
        if ending["ended"] == "done":
            LOG.info("done")
        else:
            LOG.error("ended: %s", ending["error"])


def play(grid: Grid, asked: Mapping[str, Any]) -> Run:
    """Run the experiment between the sites that are on the grid."""
    from discreet import config
    from discreet.federation.flower.link import FlowerLink
    from discreet.federation.home import load_identity
    from discreet.federation.identity import Identity
    from discreet.federation.roster import Roster
    from discreet.federation.server import federate
    from discreet.federation.table import Deadlines

    sys.path.append("")  # package.module:factory may lie in the current folder
    roster, key = _path(asked, "roster"), _path(asked, "identity")
    return federate(
        config.load(str(asked["experiment"])),
        FlowerLink(grid),
        sites=int(asked["sites"]) or None,
        identity=load_identity(key) if key else Identity.generate(),
        roster=Roster.from_toml(roster.read_text(), roster) if roster else None,
        out=str(asked["out"]),
        resume=bool(asked["resume"]),
        rehearse=bool(asked["rehearse"]),
        data=_data(asked),
        data_dir=_path(asked, "data-dir"),
        deadlines=Deadlines(
            gathering=float(asked["gathering"]), work=float(asked["work"]), keys=float(asked["keys"])
        ),
    )


def _data(asked: Mapping[str, Any]) -> Dataset | None:
    """The server's test examples, where the experiment does not name them."""
    if not asked["data-source"]:
        return None
    from discreet.federation.settings import SiteData

    options = tomllib.loads(str(asked["data-options"]))
    return SiteData(source=str(asked["data-source"]), options=options).load()


def _path(asked: Mapping[str, Any], key: str) -> Path | None:
    return Path(str(asked[key])).expanduser() if asked.get(key) else None


def _log_to(path: Path | None) -> None:
    """Have what discreet logs in a file: nobody sees what Flower's processes print."""
    if path is not None:
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("discreet").addHandler(handler)
        logging.getLogger("discreet").setLevel(logging.INFO)


def _write(path: Path | None, facts: Mapping[str, Any]) -> None:
    """Write facts into a file, whole or not at all."""
    if path is not None:
        unfinished = path.with_name(f".{path.name}.tmp")
        unfinished.write_text(json.dumps(facts))
        os.replace(unfinished, path)
