"""Runs the cells of a table, those that are not finished, and writes the table."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discreet.audits import AUDITS, audit
from discreet.audits.running import AUDIT
from discreet.config import Experiment, to_table
from discreet.data.dataset import Progress, no_progress
from discreet.data.named import named_sets
from discreet.data.places import find, roots
from discreet.errors import ConfigError, DataError, Diverged, ModelError, RunFolderError
from discreet.names import did_you_mean
from discreet.progress import OnRound
from discreet.report import Plot, RunRecord, read_run, write_report
from discreet.reproduce.cells import Cell, cells
from discreet.reproduce.record import heading, markdown, record
from discreet.reproduce.tables import Table, TableError, TableFile
from discreet.runs import CONFIG, MAY_DIFFER, RESULT, check_out, write_whole
from discreet.simulation import simulate

OUT = Path("reproductions")
"""Where tables are written if no folder is named."""

Watch = Callable[[Cell, int, int], AbstractContextManager[tuple[Progress, OnRound | None]]]
"""``watch(cell, number, count)``: entered around each run that is started, to show how it goes."""


@dataclass(frozen=True)
class Reproduction:
    """A table that was made.

    Attributes:
        folder: holds ``table.json``, ``table.md``, ``report.html`` and the run folders.
        record: the contents of ``table.json``.
        markdown: the contents of ``table.md``.
    """

    folder: Path
    record: Mapping[str, Any]
    markdown: str


@contextmanager
def unwatched(cell: Cell, number: int, count: int) -> Iterator[tuple[Progress, OnRound | None]]:
    """Shows nothing."""
    yield no_progress, None


def reproduce(
    file: TableFile,
    *,
    quick: bool = False,
    out: Path = OUT,
    data_dir: Path | None = None,
    watch: Watch = unwatched,
) -> Reproduction:
    """Make a table: run what is not finished of it, and write it down.

    Everything that can be checked is, before the first run. A run that diverges has the figures of its last good model,
    and the table says so. An interruption leaves run folders with which the next call goes on.

    Args:
        file: the table.
        quick: its quick variant, in a folder of its own.
        out: the folder for the table's folder.
        data_dir: where data sets are looked for first.
        watch: see `Watch`.

    Raises:
        TableError: the settings of a run have a mistake.
        DataError: a data set is not there.
        RunFolderError: a run folder belongs to another experiment, is damaged, or cannot be written.
    """
    if unknown := [name for name in file.table.audits if name not in AUDITS]:
        known = f"one of: {', '.join(AUDITS)}{did_you_mean(unknown[0], AUDITS)}"
        raise TableError(file.path, ConfigError("audits", unknown[0], known))
    wanted = cells(file, quick=quick)
    folder = out / (f"{file.name}-quick" if quick else file.name)
    folders = [folder / cell.folder for cell in wanted]
    left = [not is_finished(path, cell.experiment) for path, cell in zip(folders, wanted, strict=True)]
    check_data([cell.experiment for cell, open_ in zip(wanted, left, strict=True) if open_], data_dir)
    failures: dict[Path, Diverged] = {}
    for number, (cell, path, open_) in enumerate(zip(wanted, folders, left, strict=True), start=1):
        if not open_ and is_audited(path, file.table.audits):
            continue
        with watch(cell, number, len(wanted)) as (on_data, on_round):
            try:
                if open_:
                    simulate(
                        cell.experiment,
                        data_dir=data_dir,
                        out=path,
                        resume=True,
                        on_data=on_data,
                        on_round=on_round,
                    )
                if file.table.audits:
                    audit(
                        path,
                        attacks=file.table.audits,
                        quick=quick,
                        lenient=True,
                        data_dir=data_dir,
                        on_data=on_data,
                    )
            except Diverged as error:
                failures[path] = error
            except (ConfigError, DataError, ModelError) as error:
                raise TableError(file.path, f"{cell.place}: {error}") from None
    done = [(cell, _read(path), failures.get(path)) for cell, path in zip(wanted, folders, strict=True)]
    made = record(file, done, quick=quick, command=command(file, quick=quick, out=out, data_dir=data_dir))
    text = markdown(made)
    write_whole(folder / "table.json", json.dumps(made, indent=1, allow_nan=False) + "\n")
    write_whole(folder / "table.md", text)
    write_report(folders, folder / "report.html", plots(file.table, made))
    return Reproduction(folder, made, text)


def command(file: TableFile, *, quick: bool, out: Path, data_dir: Path | None) -> str:
    """The command that makes a table, or goes on with it."""
    words = ["discreet", "reproduce", file.asked, *(["--quick"] if quick else [])]
    words += [f"--out={out}"] if out != OUT else []
    words += [f"--data-dir={data_dir}"] if data_dir else []
    return shlex.join(words)


def is_audited(path: Path, wanted: Sequence[str]) -> bool:
    """Whether a run folder holds what all of these audits found, or why they do not fit."""
    record = _audit_of(path)
    return all(name in record.get("audits", {}) or name in record.get("unfit", {}) for name in wanted)


def _audit_of(path: Path) -> Mapping[str, Any]:
    """What stands in a run folder's ``audit.json``; nothing where there is none, or it cannot be read."""
    try:
        found = json.loads((path / AUDIT).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> RunRecord:
    """A run folder, whose result also holds what audits measured: by audit, attack and figure."""
    run = read_run(path)
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for name, entry in _audit_of(path).get("audits", {}).items():
        for one in entry["findings"]:
            measured.setdefault(name, {}).setdefault(one["attack"], {})[one["figure"]] = one["measured"]
    return replace(run, result={**(run.result or {}), "audits": measured}) if measured else run


def plots(table: Table, made: Mapping[str, Any]) -> list[Plot]:
    """What a table draws of its figures, each row a line over its columns' places.

    Args:
        table: the table.
        made: the contents of ``table.json``.
    """
    found = []
    width = len(table.columns)
    for path in table.plots:
        series = {}
        for number, row in enumerate(table.rows):
            own = made["cells"][number * width : (number + 1) * width]
            ours = [cell["figures"][path]["ours"] for cell in own]
            points = [
                (column.at, float(one))
                for column, one in zip(table.columns, ours, strict=True)
                if column.at is not None and isinstance(one, int | float) and math.isfinite(one)
            ]
            if points:
                series[row.name] = sorted(points)
        if series:
            found.append(Plot(heading(path), table.across, series))
    return found


def is_finished(path: Path, asked: Experiment) -> bool:
    """Whether a run folder holds the result of this very experiment.

    Args:
        path: the run folder; it may be absent.
        asked: as it was asked for: what is ``auto`` in it, or follows from a budget, is settled in the folder.

    Raises:
        RunFolderError: it belongs to another experiment for sure, is damaged, or is no run folder.
    """
    check_out(path, resume=True)
    if not (path / CONFIG).exists():
        return False
    run = read_run(path)
    same = True
    for key, there, here in _differences(run.config, _expected(asked)):
        if key in MAY_DIFFER - {"rounds"} or here == "auto":
            continue
        if key == "privacy.noise_multiplier" and here is None:
            continue  # it follows from the budget
        same = False
        if there is not None and here is not None and not (key == "rounds" and there < here):
            raise RunFolderError(
                path,
                f"belongs to another experiment: {key} is {there!r} there and {here!r} in the table; "
                "remove it, or give another --out",
            )
    return same and (path / RESULT).exists()


def _expected(asked: Experiment) -> dict[str, Any]:
    """The settings that a run folder is to have, as far as they are known."""
    table = to_table(asked)
    if asked.secure == "auto":
        table["secure"] = "masked" if asked.scheme.private and asked.scheme.modular else "none"
    for key in ("path", "test_path"):
        if key in table["data"]:
            table["data"][key] = os.path.abspath(table["data"][key])
    return table


def _differences(
    there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """The keys whose values differ, as ``data.clients``, with both values; None where one has none."""
    for key in sorted(there.keys() | here.keys()):
        left, right = there.get(key), here.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differences(left, right, f"{prefix}{key}.")
        elif left != right:
            yield prefix + key, left, right


def check_data(experiments: Sequence[Experiment], data_dir: Path | None) -> None:
    """Refuse experiments whose data is not there, without reading any.

    Raises:
        DataError: a data set, a file or `data_dir` does not exist.
    """
    roots(data_dir)
    named = named_sets()
    for name in dict.fromkeys(experiment.data.name for experiment in experiments):
        if name in named:
            find(name, named[name].forms, roots(data_dir, named[name].system))
    for path in dict.fromkeys(
        path for one in experiments for path in (one.data.path, one.data.test_path) if path is not None
    ):
        if not Path(path).exists():
            raise DataError(path, f"no such file or folder, as seen from {Path.cwd()}")
