"""Run folders become one self-contained HTML page: ``write_report``.

The page holds tables, curves and settings of all the runs. It has no script, asks the network for nothing, and
the same run folders give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from discreet.errors import RunFolderError
from discreet.report.page import page
from discreet.report.plotted import Plot
from discreet.report.records import RunRecord, find_runs, read_run
from discreet.report.summary import summarize
from discreet.runs import write_whole

__all__ = ["Plot", "RunRecord", "find_runs", "read_run", "write_report"]


def write_report(dirs: Sequence[Path], out: Path, plots: Sequence[Plot] = ()) -> Path:
    """Write the report of some runs.

    Args:
        dirs: run folders, or folders that hold run folders; at least one.
        out: the HTML file to write. It is replaced whole or not at all; folders on the way are made.
        plots: of the runs together, to stand before their curves.

    Returns:
        ``out``.

    Raises:
        RunFolderError: a folder holds no run or is damaged, or ``out`` cannot be written.
    """
    out = Path(out)
    runs = find_runs(dirs)
    if not runs:
        raise RunFolderError(out, "no run to report; expected at least one run folder")
    _replace(out, page([summarize(run) for run in runs], plots))
    return out


def _replace(out: Path, content: str) -> None:
    if out.exists() and not out.is_file():
        raise RunFolderError(out, "is not a file; expected the name of an HTML file to write")
    write_whole(out, content)
