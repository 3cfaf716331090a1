"""What the command line prints: progress, results, tables, complaints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.data.dataset import Progress as DataProgress
    from discreet.progress import OnRound


def complain(text: str) -> None:
    """One line on stderr."""
    print("discreet: " + " ".join(text.split()), file=sys.stderr)


def free_folder(experiment: str, resume: bool) -> Path:
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
def round_bar(*, hidden: bool, title: str = "round") -> Iterator[tuple[DataProgress, OnRound]]:
    """A progress bar of the data that is read, then of rounds, with accuracy, time a round and time left."""
    columns = (
        TextColumn(title, markup=False),
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


def print_result(result: dict[str, Any], folder: Path) -> None:
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
    if result["adversary"]:
        under = dict(result["adversary"])
        attack, malicious = under.pop("attack"), under.pop("malicious")
        figures = [f"{name.replace('_', ' ')} {value:.2%}" for name, value in under.items()]
        rows["adversary"] = ", ".join([f"{attack}, {malicious:,} malicious", *figures])
    if result["dropped_updates"]:
        rows["dropped"] = (
            f"{result['dropped_updates']:,} updates that were NaN or infinite; see metrics.jsonl"
        )
    if result["privacy"]:
        spent = result["privacy"]
        epsilon = "no bound" if spent["epsilon"] is None else f"epsilon {spent['epsilon']:.3g}"
        rows["privacy"] = (
            f"{epsilon}, delta {spent['delta']:g} ({spent['adjacency']}, one {spent['unit']}), "
            f"noise multiplier {spent['noise_multiplier']:.4g}, sums: {result['secure']}"
        )
    if result["notes"]:
        rows["note"] = "; ".join(result["notes"])
    rows |= {
        "uplink": f"{result['bits_per_parameter']:.4g} bits a parameter, {result['uplink_bytes'] / 1e6:,.1f} MB",
        "downlink": f"{result['downlink_bytes'] / 1e6:,.1f} MB",
        "time": f"{result['seconds_per_round']:.3g} s a round",
        "run folder": f"{folder} (to see it: {shlex.join(['discreet', 'report', str(folder)])})",
    }
    print_columns(list(rows.items()))


def print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows of text in columns that line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _figures(scores: dict[str, Any]) -> str:
    loss = "no test rows" if scores["loss"] is None else f"loss {scores['loss']:.4f}"
    return loss if scores["accuracy"] is None else f"accuracy {scores['accuracy']:.2%}, {loss}"
