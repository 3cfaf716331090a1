"""Several runs audited side by side: one table, and one picture of all curves of membership."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from discreet.audits.curves import ADVANTAGE, AUC, RATES, found_at
from discreet.audits.running import OnAudit, audit, choose, is_run
from discreet.audits.table import AUDITS
from discreet.audits.words import shown
from discreet.data.dataset import Progress as DataProgress
from discreet.data.dataset import no_progress
from discreet.errors import ConfigError
from discreet.plots import LIGHT, line_style
from discreet.progress import OnRound
from discreet.runs import write_whole

RECORD, TABLE, ROC = "audits.json", "audits.md", "membership-roc.png"

LOWEST = 1e-3
"""Where the axes of the curves begin."""

Records = Mapping[str, Mapping[str, Any]]
"""What ``audit.json`` holds, by the runs' names."""


@dataclass(frozen=True)
class Compared:
    """Audits side by side.

    Attributes:
        folder: holds ``audits.json``, ``audits.md``, ``membership-roc.png``, and a folder for each run.
        records: of each run, by its name.
    """

    folder: Path
    records: Records


def compare(
    sources: Sequence[str],
    *,
    out: Path,
    settings: Sequence[str] = (),
    attacks: Sequence[str] = (),
    party: str | None = None,
    quick: bool = False,
    data_dir: Path | None = None,
    on_data: DataProgress = no_progress,
    on_round: OnRound | None = None,
    on_audit: OnAudit = lambda name, number, count: None,
) -> Compared:
    """Audit several runs, and put what comes out side by side. Finished runs are not run again.

    Args:
        sources: run folders and experiments, as `discreet.audits.audit` takes one; all of other names.
        out: the folder for everything that is written.
        settings: changes of all experiments among them.
        attacks: names in `AUDITS`; one that does not fit a scheme is left out there.
        party: likewise, as the rest.
        quick: likewise.
        data_dir: likewise.
        on_data: likewise.
        on_round: likewise.
        on_audit: likewise.

    Raises:
        UserError: something in what was asked cannot be done.
    """
    names = [Path(source).stem if source.endswith(".toml") else Path(source).name for source in sources]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError("audit", sources[number], f"no second run called {name}")
    records: dict[str, Mapping[str, Any]] = {}
    asked: dict[str, Any] = {"attacks": attacks, "party": party, "quick": quick, "lenient": True}
    asked |= {"data_dir": data_dir, "on_data": on_data}
    changes = {source: () if is_run(source) else settings for source in sources}
    for source in sources:  # what cannot be done is said before one of the others is trained
        choose(source, settings=changes[source], **asked)
    for name, source in zip(names, sources, strict=True):
        records[name] = audit(
            source,
            settings=changes[source],
            out=out / name,
            on_round=on_round,
            on_audit=on_audit,
            **asked,
        ).record
    write_whole(out / RECORD, json.dumps(records, indent=1, allow_nan=False) + "\n")
    write_whole(out / TABLE, _markdown(records))
    if (figure := roc(records)) is not None:
        figure.savefig(out / ROC, dpi=150, metadata={"Software": None})
    return Compared(out, records)


def compared_rows(records: Records) -> list[tuple[str, ...]]:
    """One row for each run and attack on membership; the first row holds the columns' names."""
    found: list[tuple[str, ...]] = [
        ("run", "audit", "attack", ADVANTAGE, "by chance", AUC, *map(_short, RATES), "promised")
    ]
    for run, audit_name, attack, figures in _attacks(records):
        if (advantage := figures.get(ADVANTAGE)) is None:
            continue
        told = [advantage["measured"], advantage["chance"], figures[AUC]["measured"]]
        told += [figures[found_at(rate)]["measured"] for rate in RATES]
        found.append((run, audit_name, attack, *map(shown, told), advantage["promise"]))
    return found


def other_rows(records: Records) -> list[tuple[str, ...]]:
    """One row for each run and figure of all other attacks; the first row holds the columns' names."""
    found: list[tuple[str, ...]] = [
        ("run", "audit", "attack", "figure", "measured", "by chance", "unprotected", "promised")
    ]
    for run, audit_name, attack, figures in _attacks(records):
        if ADVANTAGE in figures:
            continue
        for name, one in figures.items():
            told = (shown(one[key]) for key in ("measured", "chance", "unprotected"))
            found.append((run, audit_name, attack, name, *told, one["promise"]))
    return found


def roc(records: Records) -> Figure | None:
    """The curves of membership of all runs, a panel for each audit, on logarithmic axes; None where there are none."""
    audits = [name for name in AUDITS if any(_curves(record, name) for record in records.values())]
    if not audits:
        return None
    figure = Figure(figsize=(4.6 * len(audits), 5.2), layout="constrained")
    for name, axes in zip(audits, np.atleast_1d(figure.subplots(1, len(audits))), strict=True):
        axes.set_title(name)
        for number, (run, record) in enumerate(records.items()):
            _draw(axes, number, run, _curves(record, name))
        axes.plot([LOWEST, 1], [LOWEST, 1], color="#8a8a8a", linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(LOWEST, 1), ylim=(LOWEST, 1))
        axes.set(xlabel="others taken for members", ylabel="members found")
        axes.set_box_aspect(1)
        axes.grid(True, color="#d9d9d9", linewidth=0.6)
    handles = {
        text: handle
        for axes in figure.axes
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return figure


def _draw(axes: Axes, number: int, run: str, curves: Mapping[str, Any]) -> None:
    """Of a run's curves that of the strongest attack, which is the one with the largest advantage."""
    for one in sorted(curves.values(), key=_advantage)[-1:]:
        style = line_style(number)
        axes.step(
            np.maximum(one["false_positive"], LOWEST / 10),
            np.maximum(one["true_positive"], LOWEST / 10),
            where="post",
            color=LIGHT[style.colour],
            linestyle=(0, style.dash) if style.dash else "-",
            linewidth=1.5,
            label=run.replace("$", r"\$"),
        )


def _advantage(one: Mapping[str, Any]) -> float:
    """Of a curve as it was written down."""
    return float((np.asarray(one["true_positive"]) - np.asarray(one["false_positive"])).max())


def _curves(record: Mapping[str, Any], audit_name: str) -> Mapping[str, Any]:
    """The curves of an audit of membership, by attack."""
    series = record["audits"].get(audit_name, {}).get("series", {})
    return {name: one for name, one in series.items() if isinstance(one, Mapping) and "false_positive" in one}


def _attacks(records: Records) -> list[tuple[str, str, str, dict[str, Mapping[str, Any]]]]:
    """Of each run, audit and attack the findings, by figure."""
    found: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for audit_name in AUDITS:
        for run, record in records.items():
            for one in record["audits"].get(audit_name, {"findings": ()})["findings"]:
                found.setdefault((run, audit_name, one["attack"]), {})[one["figure"]] = one
    return [(*key, figures) for key, figures in found.items()]


def _short(rate: float) -> str:
    return f"found at {rate:.1%}"


def _markdown(records: Records) -> str:
    parts = ["# Audits side by side\n"]
    for title, rows in (("Membership", compared_rows(records)), ("Other audits", other_rows(records))):
        if len(rows) > 1:
            head, *body = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
            parts.append("\n".join([f"## {title}\n", head, "|" + "---|" * len(rows[0]), *body]) + "\n")
    return "\n".join(parts)
