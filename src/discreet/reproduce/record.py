"""What a table has come to: as JSON, and from that as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from discreet.errors import Diverged
from discreet.report import RunRecord
from discreet.reproduce.cells import Cell
from discreet.reproduce.tables import TableFile
from discreet.reproduce.wants import Want

QUICK = "Quick variant: it shows that everything runs. Its figures say nothing about the paper's."


def record(
    file: TableFile,
    done: Sequence[tuple[Cell, RunRecord, Diverged | None]],
    *,
    quick: bool,
    command: str,
) -> dict[str, Any]:
    """The contents of ``table.json``.

    Args:
        file: the table.
        done: all its cells in their order, each with its run folder, and how it diverged, or None.
        quick: whether this is the quick variant: nothing is wanted of it.
        command: what makes the table.
    """
    table = file.table
    found = [_cell(file, number, *one, quick) for number, one in enumerate(done)]
    verdicts = [figure["reached"] for cell in found for figure in cell["figures"].values()]
    return {
        "name": file.name,
        "title": table.title,
        "source": table.source,
        "description": " ".join(table.description.split()),
        "quick": quick,
        "command": command,
        "seconds": sum(cell["seconds"] for cell in found),
        "show": list(table.show),
        "columns": [column.name for column in table.columns],
        "rows": [
            {
                "name": row.name,
                "paper": {path: said for path, said in row.paper.items() if isinstance(said, str)},
            }
            for row in table.rows
        ],
        "reached": verdicts.count(True),
        "missed": verdicts.count(False),
        "cells": found,
    }


def _cell(
    file: TableFile, number: int, cell: Cell, run: RunRecord, failure: Diverged | None, quick: bool
) -> dict[str, Any]:
    position = number % len(file.table.columns)
    result: Mapping[str, Any] = (run.result or {}) if failure is None else failure.last
    figures = {}
    for path in file.table.show:
        ours, said, want = figure(result, path), cell.row.paper.get(path), None
        paper = said[position] if isinstance(said, list) else ""
        if path in cell.row.want and not quick:
            want = Want.read(path, cell.row.want[path][position])
        figures[path] = {
            "ours": ours,
            "paper": None if paper == "" else paper,
            "want": None if want is None else f"{want.way} {want.bound:g}",
            # what diverges is good for nothing, whatever it was good for before
            "reached": None
            if want is None
            else want.is_reached_by(ours) and (failure is None or want.way == "<="),
        }
    changes = [f"--set={setting}" for setting in cell.settings]
    return {
        "row": cell.row.name,
        "column": cell.column.name,
        "folder": cell.folder,
        "command": shlex.join(["discreet", "run", cell.source, *changes]),
        "seconds": sum(
            line.get(key) or 0 for line in run.metrics for key in ("seconds", "evaluation_seconds")
        ),
        "failure": None if failure is None else str(failure),
        "figures": figures,
    }


def figure(result: Mapping[str, Any], path: str) -> Any:
    """One figure of a result by its path, as ``best.accuracy`` or ``audits.0.error``; None where there is none."""
    found: Any = result
    for part in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return None if isinstance(found, Mapping | list) else found


def heading(path: str) -> str:
    """What a figure is called, from its path."""
    return path.replace(".", " ").replace("_", " ")


def markdown(record: Mapping[str, Any]) -> str:
    """The table as Markdown: for each figure ours, and beneath it what was wanted and what the paper has.

    Args:
        record: the contents of ``table.json``.
    """
    parts = [f"# {record['title']}", record["source"], record["description"]]
    if record["quick"]:
        parts.append(QUICK)
    parts += [_figures(record, path) for path in record["show"]]
    failed = [cell for cell in record["cells"] if cell["failure"]]
    parts += [f"{cell['row']}, {cell['column']}: {cell['failure']}" for cell in failed]
    if failed:
        parts.append("The figures of a run that diverged are those of its last finite model.")
    finished = [cell for cell in record["cells"] if not cell["failure"]]
    absent = [
        path for path in record["show"] if all(one["figures"][path]["ours"] is None for one in finished)
    ]
    if finished and absent:
        parts.append(f"No result has {' or '.join(absent)}.")
    if wanted := record["reached"] + record["missed"]:
        parts.append(f"{record['reached']} of {wanted} wanted figures reached.")
    parts.append(f"`{record['command']}`: {_duration(record['seconds'])} of rounds and evaluations.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(record: Mapping[str, Any], path: str) -> str:
    columns = record["columns"]
    lines = [[heading(path), *columns], ["---", *("---:" for _ in columns)]]
    notes = []
    for number, row in enumerate(record["rows"]):
        own = record["cells"][number * len(columns) : (number + 1) * len(columns)]
        figures = [cell["figures"][path] for cell in own]
        lines.append([row["name"], *(_ours(path, cell) for cell in own)])
        if any(figure["want"] for figure in figures):
            lines.append([f"{row['name']}, wanted", *(_verdict(path, figure) for figure in figures)])
        if any(figure["paper"] is not None for figure in figures):
            papers = (figure["paper"] for figure in figures)
            lines.append(
                [f"{row['name']}, paper", *("" if one is None else shown(path, one) for one in papers)]
            )
        if said := row["paper"].get(path):
            notes.append(f"* {row['name']}, paper: {said}")
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join(rows) + "".join(
        f"\n\n{note}" if number == 0 else f"\n{note}" for number, note in enumerate(notes)
    )


def _ours(path: str, cell: Mapping[str, Any]) -> str:
    ours = cell["figures"][path]["ours"]
    return shown(path, ours) + (", diverged" if cell["failure"] and ours is not None else "")


def _verdict(path: str, figure: Mapping[str, Any]) -> str:
    if figure["want"] is None:
        return ""
    way, bound = figure["want"].split()
    return f"{way} {shown(path, float(bound))}, {'reached' if figure['reached'] else 'MISSED'}"


def shown(path: str, value: object) -> str:
    """A figure as text: accuracies and what attacks got in per cent, other numbers to four digits, ``-`` for none."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if path.endswith(("accuracy", "to_target")):
        return f"{100 * value:.2f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
