"""Commands that run experiments on this machine, and tell of them."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from discreet import flags
from discreet.terminal import complain, free_folder, print_columns, print_result, round_bar

if TYPE_CHECKING:
    from discreet.data.dataset import Progress
    from discreet.progress import OnRound
    from discreet.reproduce import TableFile


def run(
    experiment: flags.Experiment,
    settings: flags.Settings = None,
    out: flags.RunFolder = None,
    resume: flags.Resume = False,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute.")] = None,
    data_dir: flags.DataDir = None,
    quiet: flags.Quiet = False,
    as_json: flags.ResultAsJson = False,
) -> None:
    """Train a federation on this machine and write a run folder."""
    from discreet import config
    from discreet.simulation import simulate

    changes = [*(settings or ()), *([f"engine.device={device}"] if device else ())]
    chosen = config.load(experiment, changes)
    folder = out or free_folder(experiment, resume)
    # what a user's own model prints is no part of the JSON
    to_stderr = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with to_stderr, round_bar(hidden=quiet or not sys.stderr.isatty()) as (on_data, on_round):
            run = simulate(
                chosen, data_dir=data_dir, out=folder, resume=resume, on_data=on_data, on_round=on_round
            )
    except KeyboardInterrupt:
        others = [f"--device={device}"] if device else []
        again = flags.resuming(
            "run", experiment, settings=settings, others=others, data_dir=data_dir, out=folder
        )
        complain(f"interrupted, finished rounds are kept; to go on: {again}")
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(run.result, indent=1))
    elif not quiet:
        print_result(run.result, folder)


def presets() -> None:
    """List the built-in experiments."""
    from discreet import config

    print_columns([("preset", "what it is"), *config.presets().items()])


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of run folders.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about some runs."""
    from discreet.report import write_report

    print(f"wrote {write_report(folders, out)}")


def audit(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FILE.toml|PRESET...",
            help="A run folder; or an experiment, run first. Several are put side by side.",
        ),
    ],
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="An audit, instead of all that fit; repeatable."),
    ] = None,
    party: Annotated[
        str | None,
        typer.Option(metavar="server|participant:K|...", help="Whose view is taken, by all audits that can."),
    ] = None,
    settings: flags.Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for audit.json, and of an experiment its run; else the run folder. Of several: audits.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rounds and examples: seconds, and figures that say nothing.")
    ] = False,
    data_dir: flags.DataDir = None,
    quiet: flags.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print audit.json on stdout, and nothing else.")
    ] = False,
) -> None:
    """Measure what a curious party of a run learns.

    With --out, the same command goes on with a run that was interrupted; without, an experiment gets a new folder.
    """
    from discreet import audits

    several = len(sources) > 1
    folder = out or (Path("audits") if several else None)
    if folder is None and not (Path(sources[0]) / "config.toml").is_file():
        folder = free_folder(sources[0], False)
    hidden = quiet or not sys.stderr.isatty()
    to_stderr = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with to_stderr, ExitStack() as shown:
            on_data, on_round = shown.enter_context(round_bar(hidden=hidden))

            def on_audit(name: str, number: int, count: int) -> None:
                shown.close()  # a terminal shows one thing at a time
                if not hidden:
                    shown.enter_context(Console(stderr=True).status(f"{number}/{count} {name}"))

            how: dict[str, Any] = {
                "settings": settings or (),
                "attacks": attacks or (),
                "party": party,
                "quick": quick,
                "data_dir": data_dir,
                "on_data": on_data,
                "on_round": on_round,
                "on_audit": on_audit,
            }
            if several and folder:
                records = audits.compare(sources, out=folder, **how).records
            else:
                made = audits.audit(sources[0], out=folder, **how)
    except KeyboardInterrupt:
        again = f"; to go on, the same command with --out={shlex.quote(str(folder))}" if folder else ""
        complain(f"interrupted, finished rounds are kept{again}")
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(records if several else made.record, indent=1))
    elif quiet:
        return
    elif several:
        for table in (audits.compared_rows(records), audits.other_rows(records)):
            if len(table) > 1:
                print_columns(table)
                print()
        print(f"wrote {folder}")
    else:
        for name, entry in made.record["audits"].items():
            print(f"{name} ({entry['party']}): {entry['summary']}")
            print_columns(audits.rows(entry))
            print()
        for name, reason in made.record["unfit"].items():
            print(f"{name}: left out, {reason}")
        print(f"wrote {made.path}")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE.toml]", help="A table; without one they are listed.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the tables, and run nothing.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The quick variant: seconds, and figures that say nothing.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder in which the table gets a folder of its own.")
    ] = Path("reproductions"),
    data_dir: flags.DataDir = None,
    quiet: flags.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print table.json on stdout, and nothing else.")
    ] = False,
) -> None:
    """Make a table of a paper, and put ours beside it. The same command goes on with one that was interrupted."""
    from discreet import reproduce as tables

    if name is None or listed:
        found = tables.tables() if name is None else [tables.find(name)]
        if as_json:
            keys = ("name", "title", "source", "runs")
            listing = [dict(zip(keys, row, strict=True)) for row in map(_table_row, found)]
            print(json.dumps(listing, indent=1))
        else:
            rows = [tuple(map(str, _table_row(file))) for file in found]
            print_columns([("table", "what it compares", "source", "runs"), *rows])
        return
    file = tables.find(name)

    def watch(cell: tables.Cell, number: int, count: int) -> AbstractContextManager[tuple[Progress, OnRound]]:
        title = f"{number}/{count} {cell.name}: round"
        return round_bar(hidden=quiet or not sys.stderr.isatty(), title=title)

    to_stderr = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with to_stderr:
            made = tables.reproduce(file, quick=quick, out=out, data_dir=data_dir, watch=watch)
    except KeyboardInterrupt:
        again = tables.command(file, quick=quick, out=out, data_dir=data_dir)
        complain(f"interrupted, finished runs and rounds are kept; to go on: {again}")
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(made.record, indent=1))
    elif not quiet:
        print(made.markdown)
        print(f"wrote table.md, table.json, report.html and the runs in {made.folder}")


def _table_row(file: TableFile) -> tuple[str, str, str, int]:
    """What the list of tables says of one."""
    return file.name, file.table.title, file.table.source, file.runs
