"""Figures of many runs over what sets them apart, as a table's columns do: one line for each of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from discreet.report.axes import Axis, linear_axis, log_axis
from discreet.report.charts import Line, chart, swatch
from discreet.report.markup import Markup, tag
from discreet.report.tables import scrolling

MUCH = 8
"""Numbers above 0 of which the largest is so many times the smallest have a logarithmic axis."""


@dataclass(frozen=True)
class Plot:
    """A figure over another.

    Attributes:
        title: what it is.
        across: what the horizontal axis is.
        series: by the lines' names their points, ascending; all numbers are finite, and there is at least one point.
    """

    title: str
    across: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def plotted(key: str, plot: Plot) -> Markup:
    """A plot with its key, and the numbers behind it.

    Args:
        key: makes the ids on the page unique.
        plot: what to draw.
    """
    lines = [
        Line(
            run=number,
            name=name,
            x=[x for x, _ in points],
            y=[y for _, y in points],
            tips=[f"{y:.4g} at {x:g}" for x, y in points],
        )
        for number, (name, points) in enumerate(plot.series.items())
    ]
    x = _axis(plot.across, [one for line in lines for one in line.x])
    y = _axis("", [one for line in lines for one in line.y])
    words = " ".join(f"{line.name}: {', '.join(line.tips)}." for line in lines)
    names = (tag("p", swatch(line.run), " ", line.name) for line in lines)
    drawn = chart(key, plot.title, words, x, y, lines, shared=False)
    note = tag("p", "Logarithmic scale.", class_="note") if y.log else ""
    caption = tag("figcaption", tag("h3", plot.title), note, tag("div", names))
    return tag("figure", caption, tag("div", drawn, class_="plot"), _numbers(plot))


def _axis(label: str, values: Sequence[float]) -> Axis:
    if min(values) > 0 and max(values) > MUCH * min(values):
        return log_axis(label, values)
    return linear_axis(label, values)


def _numbers(plot: Plot) -> Markup:
    places = sorted({x for points in plot.series.values() for x, _ in points})
    head = tag("tr", tag("th", plot.across, scope="col"), [tag("th", f"{x:g}", scope="col") for x in places])
    rows = []
    for name, points in plot.series.items():
        known = dict(points)
        cells = [tag("td", f"{known[x]:.4g}" if x in known else "-", class_="n") for x in places]
        rows.append(tag("tr", tag("th", name, scope="row"), cells))
    table = tag("table", tag("thead", head), tag("tbody", rows))
    label = f"{plot.title} as a table"
    return tag("details", tag("summary", label), scrolling(table, label))
