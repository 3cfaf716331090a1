"""The command line: parses, calls, prints. Everything it does can be done from Python as well.

Exit codes: 0 done; 1 a failure of the program; 2 a mistake in what was asked, told in one line on stderr;
130 interrupted (Ctrl-C, or SIGTERM), with a run folder that can be resumed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from discreet.errors import ConfigError, UserError
from discreet.federation import commands as federation
from discreet.terminal import complain, free_folder, print_columns, print_result, round_bar

if TYPE_CHECKING:
    from discreet.data.dataset import Progress as DataProgress
    from discreet.progress import OnRound
    from discreet.reproduce import TableFile

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
federation.add_to(app)

DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder where data sets are looked for first.")
]

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Every mistake in how a command is written; typer has no public name for it."""


def main() -> None:
    """The entry point of the ``discreet`` command."""
    sys.path.append("")  # package.module:factory may lie in the current folder
    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(one, _interrupt)
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        complain(_usage(error))
        code = 2
    except UserError as error:
        complain(str(error))
        code = 2
    except MemoryError as error:
        complain(f"not enough memory: {error}")
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        complain("interrupted")
    raise SystemExit(code or 0)


def _interrupt(signum: int, frame: object) -> NoReturn:
    """Unwind: workers finish the stack that they are at. A second signal does not wait for them."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _end_at_once)
    raise KeyboardInterrupt


def _end_at_once(signum: int, frame: object) -> NoReturn:
    os.write(2, b"discreet: interrupted; what is finished is on disk\n")
    os._exit(130)


def _usage(error: Exception) -> str:
    """What is wrong with a command, and where to look."""
    context, said = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    command = "discreet" if context is None else context.command_path
    where = f"{command} --help, or discreet presets" if command == "discreet run" else f"{command} --help"
    return f"{said.rstrip('.')}; see {where}"


@app.callback()
def discreet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Private, robust federated learning for PyTorch. To begin: discreet run digits-fedavg."""
    if version:
        from discreet.results import versions

        print(" ".join(f"{name} {number}" for name, number in versions().items()))
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="FILE.toml|PRESET", help="An experiment; discreet presets lists some.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key, as scheme.learning_rate=0.2; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run folder to write; runs/NAME, or the next free one, if not given."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run folder, from its last finished round.")
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute.")] = None,
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json on stdout, and nothing else.")
    ] = False,
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
        again = ["discreet", "run", experiment, *(f"--set={setting}" for setting in settings or ())]
        again += [f"--device={device}"] if device else []
        again += [f"--data-dir={data_dir}"] if data_dir else []
        again += [f"--out={folder}", "--resume"]
        complain(f"interrupted, finished rounds are kept; to go on: {shlex.join(again)}")
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(run.result, indent=1))
    elif not quiet:
        print_result(run.result, folder)


@app.command()
def presets() -> None:
    """List the built-in experiments."""
    from discreet import config

    print_columns([("preset", "what it is"), *config.presets().items()])


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of run folders.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about some runs."""
    from discreet.report import write_report

    print(f"wrote {write_report(folders, out)}")


@app.command()
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
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the experiment; repeatable."),
    ] = None,
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
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
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


@app.command()
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
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
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

    def watch(
        cell: tables.Cell, number: int, count: int
    ) -> AbstractContextManager[tuple[DataProgress, OnRound]]:
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


@app.command()
def plan(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.toml|PRESET]", help="An experiment; options take the place of what it says."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the experiment; repeatable."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients there are.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of them in a round.")] = None,
    cohort: Annotated[int | None, typer.Option(help="How many in a round, instead of the fraction.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model, instead of its parameters.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="The data set that the model is for. [default: digits]")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise, instead of the budget.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The chance left out of the promise. [default: 1e-5]")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(metavar="poisson|fixed", help="How clients are drawn. [default: poisson]"),
    ] = None,
    accountant: Annotated[
        str | None, typer.Option(metavar="rdp|pld|best", help="Whose epsilon is promised. [default: rdp]")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Share of a round that may drop out. [default: 0]")
    ] = None,
    dishonest: Annotated[
        int | None, typer.Option(help="Clients a round taken to add no noise. [default: 0]")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--timings/--no-timings", help="Measure what masks and noise take here.")
    ] = True,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Work out privacy and bandwidth before anything is trained: of an experiment, or from options alone."""
    from discreet import config, forecast

    if settings and experiment is None:
        raise ConfigError("--set", settings[0], "an experiment beside it, whose keys it changes")
    wishes = {
        "clients": clients,
        "fraction": fraction,
        "cohort": cohort,
        "rounds": rounds,
        "parameters": parameters,
        "model": model,
        "data": data,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "sampling": sampling,
        "accountant": accountant,
        "dropout": dropout,
        "dishonest": dishonest,
    }
    chosen = None if experiment is None else config.load(experiment, settings or ())
    with redirect_stdout(sys.stderr):  # what a user's own model prints is no part of the plan
        try:
            made = forecast.plan(chosen, data_dir=data_dir, **wishes)
        except ConfigError as error:
            raise _about_an_option(error, wishes) from None
        if measure and isinstance(made, forecast.Plan):
            made = replace(made, timings=forecast.timings(made))
    if as_json:
        print(json.dumps(made.to_dict(), indent=1, allow_nan=False))
        return
    print_columns(made.rows())
    print()
    print_columns(made.traffic_rows())
    print(f"\n{made.statement}")
    for warning in made.warnings if isinstance(made, forecast.Plan) else ():
        print(f"Warning: {warning}")


def _about_an_option(error: ConfigError, options: Iterable[str]) -> ConfigError:
    """The same error with the option's name as it is written, where it is about an option."""
    if error.key not in options:
        return error
    option = "--" + error.key.replace("_", "-")
    return ConfigError(option, error.value, error.expected)


@data_app.callback()
def data(context: typer.Context, data_dir: DataDir = None) -> None:
    """Show which data sets are found, and where."""
    if context.invoked_subcommand is not None:
        return
    from discreet.data.sources import available

    rows = [("data set", "train", "test", "where")]
    for found in available(data_dir):
        train, test = (f"{count:,}" if count is not None else "-" for count in (found.train, found.test))
        place = str(found.path or f"not found: discreet data fetch {found.name}")
        rows.append((found.name, train, test, place))
    print_columns(rows)
    print("Your own table or images: data.name = table | images, data.path = FILE. See docs/guide.md.")


@data_app.command()
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The data set.")],
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Download a named data set from its public mirrors, checked and resumable."""
    before = (
        context.parent.params.get("data_dir") if context.parent else None
    )  # as in: data --data-dir DIR fetch
    from discreet.data.fetch import fetch as download

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def on_progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        try:
            files = download(name, data_dir or before, on_progress=on_progress)
        except KeyboardInterrupt:
            complain("interrupted; the same command goes on with the download")
            raise SystemExit(130) from None
    for file in files:
        print(file)
