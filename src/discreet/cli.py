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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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

from discreet.errors import ConfigError, UserError

if TYPE_CHECKING:
    from discreet.data.dataset import Progress as DataProgress
    from discreet.simulation import OnRound

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

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
        _complain(_usage(error))
        code = 2
    except UserError as error:
        _complain(str(error))
        code = 2
    except MemoryError as error:
        _complain(f"not enough memory: {error}")
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        _complain("interrupted")
    raise SystemExit(code or 0)


def _interrupt(signum: int, frame: object) -> NoReturn:
    """Unwind: workers finish the stack that they are at. A second signal does not wait for them."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _end_at_once)
    raise KeyboardInterrupt


def _end_at_once(signum: int, frame: object) -> NoReturn:
    os.write(2, b"discreet: interrupted; what is finished is on disk\n")
    os._exit(130)


def _complain(text: str) -> None:
    print("discreet: " + " ".join(text.split()), file=sys.stderr)


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
    folder = out or _free_folder(experiment, resume)
    # what a user's own model prints is no part of the JSON
    to_stderr = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with to_stderr, _round_bar(hidden=quiet or not sys.stderr.isatty()) as (on_data, on_round):
            run = simulate(
                chosen, data_dir=data_dir, out=folder, resume=resume, on_data=on_data, on_round=on_round
            )
    except KeyboardInterrupt:
        again = ["discreet", "run", experiment, *(f"--set={setting}" for setting in settings or ())]
        again += [f"--device={device}"] if device else []
        again += [f"--data-dir={data_dir}"] if data_dir else []
        again += [f"--out={folder}", "--resume"]
        _complain(f"interrupted, finished rounds are kept; to go on: {shlex.join(again)}")
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(run.result, indent=1))
    elif not quiet:
        _print_result(run.result, folder)


@app.command()
def presets() -> None:
    """List the built-in experiments."""
    from discreet import config

    _print_columns([("preset", "what it is"), *config.presets().items()])


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
def plan(
    clients: Annotated[int | None, typer.Option(help="How many clients there are.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of them in a round.")] = None,
    cohort: Annotated[int | None, typer.Option(help="How many in a round, instead of the fraction.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise, instead of the budget.")] = None,
    delta: Annotated[float, typer.Option(help="The chance left out of the promise.")] = 1e-5,
    sampling: Annotated[
        str, typer.Option(metavar="poisson|fixed", help="How clients are drawn.")
    ] = "poisson",
    accountant: Annotated[
        str, typer.Option(metavar="rdp|pld|best", help="Whose epsilon is promised.")
    ] = "rdp",
    dropout: Annotated[float, typer.Option(help="Expected share of a round that drops out.")] = 0.0,
    dishonest: Annotated[int, typer.Option(help="Clients a round taken to add no noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Work out privacy and bandwidth before anything is trained."""
    from discreet.privacy.planning import plan as make

    made = make(
        clients=clients,
        fraction=fraction,
        cohort=cohort,
        rounds=rounds,
        parameters=parameters,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        sampling=_choice("--sampling", sampling, ("poisson", "fixed")),
        accountant=_choice("--accountant", accountant, ("rdp", "pld", "best")),
        dropout=dropout,
        dishonest=dishonest,
    )
    if as_json:
        print(json.dumps(made.to_dict(), indent=1))
        return
    _print_columns(made.rows())
    print()
    rows: list[tuple[str, ...]] = [
        ("scheme", "bits a parameter", "MB a client and round", "MB a client", "MB in all")
    ]
    for one in made.traffic:
        amounts = (one.megabytes_a_round, one.megabytes_a_client, one.megabytes_total)
        rows.append((one.scheme, str(one.bits), *(f"{amount:,.4g}" for amount in amounts)))
    _print_columns(rows)
    print(f"\n{made.statement}")
    for warning in made.warnings:
        print(f"Warning: {warning}")


def _choice(option: str, value: str, known: Sequence[str]) -> Any:
    if value not in known:
        raise ConfigError(option, value, "one of " + ", ".join(known))
    return value


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
    _print_columns(rows)
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
            _complain("interrupted; the same command goes on with the download")
            raise SystemExit(130) from None
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
def _round_bar(*, hidden: bool) -> Iterator[tuple[DataProgress, OnRound]]:
    """A progress bar of the data that is read, then of rounds, with accuracy, time a round and time left."""
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

        def reading(done: int, total: int, what: str) -> None:
            bar.update(task, figures=f"reading {what}" + (f" {done / total:.0%}" if total else ""))

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

        yield reading, show


def _print_result(result: dict[str, Any], folder: Path) -> None:
    """A short table of a finished run."""
    rows = {
        "scheme": f"{result['scheme']} on {result['dataset']}, {result['model']}",
        "parameters": f"{result['parameters']:,}",
        "participants": f"{result['participants']:,}, {result['rounds']} rounds",
        "final": f"{_figures(result['final'])} (round {result['final']['round']})",
        "best": f"{_figures(result['best'])} (round {result['best']['round']})",
    }
    if "worst" in result:
        rows["worst"] = f"{_figures(result['worst'])} (of the participants' models)"
    if result["dropped_updates"]:
        rows["dropped"] = (
            f"{result['dropped_updates']:,} updates that were NaN or infinite; see metrics.jsonl"
        )
    if result["privacy"]:
        spent = result["privacy"]
        epsilon = "no bound" if spent["epsilon"] is None else f"epsilon {spent['epsilon']:.3g}"
        rows["privacy"] = (
            f"{epsilon}, delta {spent['delta']:g} ({spent['adjacency']}), "
            f"noise multiplier {spent['noise_multiplier']:.4g}, sums: {result['secure']}"
        )
    for note in result["notes"]:
        rows["note"] = note
    rows |= {
        "uplink": f"{result['bits_per_parameter']:.4g} bits a parameter, {result['uplink_bytes'] / 1e6:,.1f} MB",
        "downlink": f"{result['downlink_bytes'] / 1e6:,.1f} MB",
        "time": f"{result['seconds_per_round']:.3g} s a round",
        "run folder": f"{folder} (to see it: {shlex.join(['discreet', 'report', str(folder)])})",
    }
    _print_columns(list(rows.items()))


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows of text in columns that line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _figures(scores: dict[str, Any]) -> str:
    loss = "no test rows" if scores["loss"] is None else f"loss {scores['loss']:.4f}"
    return loss if scores["accuracy"] is None else f"accuracy {scores['accuracy']:.2%}, {loss}"
