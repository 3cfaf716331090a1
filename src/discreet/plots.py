"""Curves of runs as a matplotlib figure, and the line styles that tell runs apart.

The styles are shared with the HTML report, so that a run looks the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

Curves = Mapping[str, NDArray[np.floating[Any] | np.integer[Any]]]
"""Arrays of one length: ``round``, ``accuracy`` (a fraction) and ``loss``; NaN where nothing was evaluated."""

LIGHT = ("#074bbd", "#c08404", "#941370", "#209a82", "#6b3714", "#2b2b2b")
"""Line colours on white. Lightness differs as well as hue: any two stay at least 20 CIELAB units apart for full
colour vision, protanopia, deuteranopia and tritanopia, and each has a contrast of 3:1 or more with the page."""

DARK = ("#327cf5", "#f0d471", "#d75cbf", "#27cf94", "#ea6235", "#ececec")
"""The same for a dark page."""

DASHES = ((), (7, 3), (2, 2.5), (9, 3, 2, 3), (13, 4))
"""Dash patterns, on and off, in points; the first is solid."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Marker shapes by their names in matplotlib."""


@dataclass(frozen=True)
class LineStyle:
    """How one run is drawn.

    Attributes:
        colour: index into `LIGHT` and `DARK`.
        dash: lengths on and off, in points; empty for a solid line.
        marker: one of `MARKERS`.
    """

    colour: int
    dash: tuple[float, ...]
    marker: str


def line_style(index: int) -> LineStyle:
    """The style of run number ``index`` (from 0).

    The numbers of colours, dashes and markers have no common divisor. So the first 35 runs differ without any
    colour, in dash or marker, and the first 210 differ at all.
    """
    return LineStyle(index % len(LIGHT), DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)])


def plot_runs(runs: Mapping[str, Curves], *, title: str | None = None) -> Figure:
    """Accuracy and loss by round, all runs on shared axes.

    Args:
        runs: for each run's name, arrays ``round``, ``accuracy`` and ``loss`` of one length. Accuracy is a
            fraction; NaN (or a missing array) means not evaluated.
        title: a heading over the whole figure.

    Returns:
        A figure with the panels accuracy and loss; only loss where no run has an accuracy. It belongs to no
        pyplot state: save it with ``figure.savefig(...)``, or return it from a notebook's cell.
    """
    keys = [
        key for key in ("accuracy", "loss") if key == "loss" or any(_known(run, key) for run in runs.values())
    ]
    figure = Figure(figsize=(5.2 * len(keys), 3.9), layout="constrained")
    for key, axes in zip(keys, np.atleast_1d(figure.subplots(1, len(keys))), strict=True):
        _draw_panel(axes, runs, key)
    if runs:
        handles, labels = figure.axes[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 4), frameon=False)
    if title is not None:
        figure.suptitle(_literal(title), x=0.01, ha="left", fontweight="bold")
    return figure


def _known(run: Curves, key: str) -> bool:
    return key in run and bool(np.isfinite(run[key]).any())


def _literal(text: str) -> str:
    """Text that matplotlib takes as it stands: a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _draw_panel(axes: Axes, runs: Mapping[str, Curves], key: str) -> None:
    for index, (name, run) in enumerate(runs.items()):
        style = line_style(index)
        rounds = np.asarray(run["round"], dtype=np.float64)
        values = np.asarray(run[key], dtype=np.float64) if key in run else np.full(len(rounds), np.nan)
        shown = np.isfinite(values)
        axes.plot(
            rounds[shown],
            values[shown],
            color=LIGHT[style.colour],
            linestyle=(0, style.dash) if style.dash else "-",
            marker=style.marker,
            markevery=max(1, int(shown.sum()) // 7),
            markersize=4.5,
            linewidth=1.5,
            # A leading underscore would hide the run from the legend.
            label=_literal(f"\u200b{name}" if name.startswith("_") else name),
        )
    axes.set_xlabel("round")
    axes.set_ylabel(key)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    if key == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.grid(True, color="#d9d9d9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
