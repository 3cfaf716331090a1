"""The command line: parses, calls, prints. Everything it does can be done from Python as well.

Exit codes: 0 done; 1 a failure of the program; 2 a mistake in what was asked, told in one line on stderr;
130 interrupted, with a run folder that can be resumed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from discreet.errors import ConfigError, UserError

app = typer.Typer(
    help="Private, robust federated learning for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

DataDir = Annotated[Path | None, typer.Option(help="Folder where data sets are looked for first.")]


def main() -> None:
    """The entry point of the ``discreet`` command."""
    sys.path.insert(0, os.getcwd())  # so that package.module:factory finds the user's own model
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except UserError as error:
        print(f"discreet: {_one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _one_line(error: UserError) -> str:
    return " ".join(str(error).split())


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(metavar="FILE.toml|PRESET", help="What to run.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a key; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder to write; runs/NAME, or the next free one, if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run folder.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json on stdout.")] = False,
) -> None:
    """Train a federation on this machine and write a run folder."""
    from discreet import config
    from discreet.simulation import simulate

    changes = [*(settings or ()), *([f"engine.device={device}"] if device else ())]
    chosen = config.load(experiment, changes)
    folder = out or _free_folder(experiment, resume)
    rounds_done = 0
    with _round_bar(hidden=quiet or not sys.stderr.isatty()) as show:

        def on_round(metrics: dict[str, Any], rounds: int) -> None:
            nonlocal rounds_done
            rounds_done = metrics["round"]
            show(metrics, rounds)

        try:
            result = simulate(chosen, data_dir=data_dir, out=folder, resume=resume, on_round=on_round).result
        except KeyboardInterrupt:
            _leave_interrupted(experiment, folder, rounds_done, settings)
    if as_json:
        print(json.dumps(result, indent=1))
    elif not quiet:
        _print_result(result, folder)


def _leave_interrupted(experiment: str, folder: Path, rounds: int, settings: list[str] | None) -> NoReturn:
    again = "".join(f" --set {setting}" for setting in settings or ())
    print(
        f"discreet: interrupted after round {rounds}; go on with: "
        f"discreet run {experiment}{again} --out {folder} --resume",
        file=sys.stderr,
    )
    # a worker thread may be in the middle of a step; what counts is on disk
    sys.stderr.flush()
    os._exit(130)


@app.command()
def presets() -> None:
    """List the built-in experiments."""
    from discreet import config

    table = Table("preset", "what it is", box=None, pad_edge=False)
    for name, summary in config.presets().items():
        table.add_row(name, summary)
    Console().print(table)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of run folders.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about some runs."""
    from discreet.report import write_report

    print(f"wrote {write_report(folders, out)}")


@data_app.callback()
def data(context: typer.Context, data_dir: DataDir = None) -> None:
    """List which data sets are found, where, and with how many examples."""
    if context.invoked_subcommand is not None:
        return
    from discreet.data.sources import available

    table = Table("data set", "train", "test", box=None, pad_edge=False)
    table.add_column("where", overflow="fold")
    for found in available(data_dir):
        counts = [f"{count:,}" if count is not None else "-" for count in (found.train, found.test)]
        table.add_row(found.name, *counts, str(found.path or f"not found: discreet data fetch {found.name}"))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
    print("Your own table or images: data.name = table | images, data.path = FILE. See docs/guide.md.")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The data set.")],
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Download a named data set from its public mirrors, checked and resumable."""
    from discreet.data.fetch import fetch as download

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def on_progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        try:
            files = download(name, data_dir, on_progress=on_progress)
        except KeyboardInterrupt:
            print("discreet: interrupted; the same command goes on with the download", file=sys.stderr)
            raise typer.Exit(130) from None
    for file in files:
        print(file)


def _free_folder(experiment: str, resume: bool) -> Path:
    """The run folder where none is named: runs/NAME, or runs/NAME-2, and so on; the last one to resume."""
    name = Path(experiment).stem
    taken = None
    for number in range(1, 100_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return taken if resume and taken else folder
        taken = folder
    raise ConfigError("--out", None, f"a folder: runs/{name}-... are all taken")


@contextmanager
def _round_bar(*, hidden: bool) -> Iterator[Callable[[dict[str, Any], int], None]]:
    """A progress bar of rounds, with accuracy, time a round and time left."""
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=None, figures="preparing")
        figures = ""

        def show(metrics: dict[str, Any], rounds: int) -> None:
            nonlocal figures
            if metrics.get("accuracy") is not None:
                figures = f"accuracy {metrics['accuracy']:.2%}"
            elif metrics.get("loss") is not None:
                figures = f"loss {metrics['loss']:.4g}"
            bar.update(
                task,
                completed=metrics["round"],
                total=rounds,
                figures=f"{figures}  {metrics['seconds']:.2f} s a round",
            )

        yield show


def _print_result(result: dict[str, Any], folder: Path) -> None:
    """A short table of a finished run."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("scheme", f"{result['scheme']} on {result['dataset']}, {result['model']}")
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("participants", f"{result['participants']:,}, {result['rounds']} rounds")
    for name in ("final", "best"):
        table.add_row(name, _figures(result[name]) + f" (round {result[name]['round']})")
    if "worst" in result:
        table.add_row("worst participant", _figures(result["worst"]))
    table.add_row(
        "uplink",
        f"{result['bits_per_parameter']:.4g} bits a parameter, {result['uplink_bytes'] / 1e6:,.1f} MB",
    )
    table.add_row("downlink", f"{result['downlink_bytes'] / 1e6:,.1f} MB")
    table.add_row("time", f"{result['seconds_per_round']:.3g} s a round")
    table.add_row("run folder", str(folder))
    Console(soft_wrap=True).print(table)


def _figures(scores: dict[str, Any]) -> str:
    loss = "no test rows" if scores["loss"] is None else f"loss {scores['loss']:.4f}"
    return loss if scores["accuracy"] is None else f"accuracy {scores['accuracy']:.2%}, {loss}"
