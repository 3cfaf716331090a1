"""Arguments and options that several commands take, and how they are written once more to go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Experiment = Annotated[
    str, typer.Argument(metavar="FILE.toml|PRESET", help="An experiment; discreet presets lists some.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as scheme.learning_rate=0.2; repeatable."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the experiment; repeatable."),
]
"""`Settings` of a command that may do without an experiment."""
RunFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Run folder to write; runs/NAME, or the next free one, if not given."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run folder, from its last finished round.")
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder where data sets are looked for first.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
ResultAsJson = Annotated[bool, typer.Option("--json", help="Print result.json on stdout, and nothing else.")]


def resuming(
    *command: str,
    settings: Sequence[str] | None,
    others: Sequence[str] = (),
    data_dir: Path | None,
    out: Path,
) -> str:
    """The command, for a shell, that goes on with an interrupted run.

    Args:
        command: its name and arguments.
        settings: what it was asked to change.
        others: options of this command only.
        data_dir: where it was told to look for data.
        out: the run folder.
    """
    words = ["discreet", *command, *(f"--set={setting}" for setting in settings or ()), *others]
    words += [f"--data-dir={data_dir}"] if data_dir else []
    return shlex.join([*words, f"--out={out}", "--resume"])
