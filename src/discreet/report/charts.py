"""Curves as inline SVG: text stays text, colours follow the page, and no script is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from discreet.plots import line_style
from discreet.report.axes import Axis
from discreet.report.markup import Markup, tag

WIDTH, HEIGHT = 480, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 18, 14, 62
_MOST_VERTICES = 400
_MOST_STOPS = 100
_MARKERS_A_LINE = 6
_MANY = 8

_SHAPES = {
    "o": "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "s": "M-3.8-3.8h7.6v7.6h-7.6z",
    "^": "M0-4.8L4.8 3.6H-4.8z",
    "D": "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "v": "M0 4.8L4.8-3.6H-4.8z",
    "P": "M-1.7-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "X": "M-4.8-2.6L-2.6-4.8L0-2.2L2.6-4.8L4.8-2.6L2.2 0L4.8 2.6L2.6 4.8L0 2.2L-2.6 4.8L-4.8 2.6L-2.2 0z",
}


@dataclass(frozen=True)
class Line:
    """One run's curve.

    Attributes:
        run: the run's number, which sets its style.
        name: the run's label.
        x: ascending; finite.
        y: one for each x; NaN leaves a gap.
        tips: what pointing at each point shows.
    """

    run: int
    name: str
    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str]


def swatch(run: int) -> Markup:
    """A short piece of a run's line with its marker, for keys and tables."""
    style = line_style(run)
    return tag(
        "svg",
        tag("path", d="M2 8H42", class_="line", stroke_dasharray=_dash(run)),
        tag("path", d=_SHAPES[style.marker], class_="mark", transform="translate(22 8)"),
        viewBox="0 0 44 16",
        class_=f"swatch c{style.colour}",
        aria_hidden="true",
    )


def chart(
    key: str, title: str, describe: str, x: Axis, y: Axis, lines: Sequence[Line], *, shared: bool
) -> Markup:
    """A line chart.

    Args:
        key: makes the ids of this chart's title and description unique on the page.
        title: its accessible name.
        describe: in words, what the curves show.
        x: the horizontal axis.
        y: the vertical axis.
        lines: the curves; points outside a logarithmic axis are left out.
        shared: whether the lines have x values in common, so that one tip can tell of all of them.
    """
    drawn = [(line, _visible(line, x, y)) for line in lines]
    tips = _column_tips(drawn, x) if shared else _point_tips(drawn, x, y)
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", describe, id=f"{key}-desc"),
        _frame(x, y),
        tag("clipPath", tag("rect", x=_LEFT, width=WIDTH - _LEFT, height=HEIGHT - _BOTTOM), id=f"{key}-clip"),
        tag(
            "g",
            (_curve(line, points, x, y, len(lines)) for line, points in drawn),
            clip_path=f"url(#{key}-clip)" if y.cut else None,
        ),
        tag("g", tips),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{key}-title",
        aria_describedby=f"{key}-desc",
    )


def _across(axis: Axis, value: float) -> float:
    return axis.place(value, _LEFT, WIDTH - _RIGHT)


def _up(axis: Axis, value: float) -> float:
    return axis.place(value, HEIGHT - _BOTTOM, _TOP)


def _frame(x: Axis, y: Axis) -> Markup:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for tick in y.ticks():
        at = _number(_up(y, tick))
        parts.append(tag("path", d=f"M{_LEFT} {at}H{right}", class_="grid"))
        parts.append(tag("text", y.write(tick), x=_LEFT - 8, y=at, dy="0.35em", text_anchor="end"))
    for tick in x.ticks():
        at = _number(_across(x, tick))
        parts.append(tag("path", d=f"M{at} {bottom}v5", class_="axis"))
        parts.append(tag("text", x.write(tick), x=at, y=bottom + 9, dy="0.8em", text_anchor="middle"))
    parts.append(tag("path", d=f"M{_LEFT} {bottom}H{right}", class_="axis"))
    parts.append(
        tag("text", x.label, x=(_LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle", class_="label")
    )
    return tag("g", parts, class_="frame")


def _visible(line: Line, x: Axis, y: Axis) -> list[int | None]:
    """Indices of the points to draw, None for a gap, thinned so that the page stays small."""
    points: list[int | None] = []
    for index in _thinned(line.y):
        shown = (
            math.isfinite(line.y[index])
            and (not x.log or line.x[index] > 0)
            and (not y.log or line.y[index] > 0)
        )
        if shown:
            points.append(index)
        elif points and points[-1] is not None:
            points.append(None)
    return points


def _thinned(values: Sequence[float]) -> list[int]:
    """At most `_MOST_VERTICES` indices: of each stretch, where it is lowest and highest; and both ends."""
    count = len(values)
    if count <= _MOST_VERTICES:
        return list(range(count))
    kept = {0, count - 1}
    filled = np.asarray(values, dtype=np.float64)
    for stretch in np.array_split(np.arange(count), _MOST_VERTICES // 2 - 1):
        part = filled[stretch]
        if np.isfinite(part).any():
            kept.update((int(stretch[np.nanargmin(part)]), int(stretch[np.nanargmax(part)])))
        else:
            kept.add(int(stretch[0]))
    return sorted(kept)


def _curve(line: Line, points: Sequence[int | None], x: Axis, y: Axis, lines: int) -> Markup:
    style = line_style(line.run)
    steps, pen = [], "M"
    for index in points:
        if index is None:
            pen = "M"
            continue
        steps.append(f"{pen}{_number(_across(x, line.x[index]))} {_number(_up(y, line.y[index]))}")
        pen = "L"
    known = [index for index in points if index is not None]
    # Runs that lie on each other still show both, since each puts its markers elsewhere.
    every = max(1, len(known) // (_MARKERS_A_LINE if lines <= _MANY else 2))
    marked = sorted({*known[int(line.run * 0.382 % 1 * every) :: every], *known[-1:]})
    marks = (
        tag("path", d=_SHAPES[style.marker], class_="mark", transform=_translate(x, y, line, index))
        for index in marked
    )
    return tag(
        "g",
        tag("path", d="".join(steps), class_="line", stroke_dasharray=_dash(line.run)) if steps else "",
        marks,
        class_=f"run run-{line.run} c{style.colour}{' fine' if lines > _MANY else ''}",
    )


def _translate(x: Axis, y: Axis, line: Line, index: int) -> str:
    return f"translate({_number(_across(x, line.x[index]))} {_number(_up(y, line.y[index]))})"


def _column_tips(drawn: Sequence[tuple[Line, list[int | None]]], x: Axis) -> list[Markup]:
    """For each x, an invisible column that tells every run's value there when it is pointed at."""
    told: dict[float, list[tuple[float, str]]] = {}
    for line, points in drawn:
        for index in points:
            if index is not None:
                told.setdefault(line.x[index], []).append((line.y[index], f"{line.name}: {line.tips[index]}"))
    stops = sorted(told)
    stops = stops[:: max(1, math.ceil(len(stops) / _MOST_STOPS))]
    places = [_across(x, stop) for stop in stops]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(places)]
    edges = [float(_LEFT), *middles, float(WIDTH - _RIGHT)]
    columns = []
    for number, stop in enumerate(stops):
        left, right = edges[number], edges[number + 1]
        rows = sorted(told[stop], reverse=True)
        columns.append(
            tag(
                "g",
                tag("title", "\n".join([f"round {stop:g}", *(words for _, words in rows)])),
                tag(
                    "rect",
                    x=_number(left),
                    y=_TOP,
                    width=_number(right - left),
                    height=HEIGHT - _TOP - _BOTTOM,
                ),
                tag("path", d=f"M{_number(places[number])} {_TOP}V{HEIGHT - _BOTTOM}"),
                class_="tip",
            )
        )
    return columns


def _point_tips(drawn: Sequence[tuple[Line, list[int | None]]], x: Axis, y: Axis) -> list[Markup]:
    """Round each point, an invisible disc that tells its run and value when it is pointed at."""
    tips = []
    for line, points in drawn:
        known = [index for index in points if index is not None]
        for index in known[:: max(1, math.ceil(len(known) / (_MOST_STOPS // 2)))]:
            circle = tag("circle", r=9, transform=_translate(x, y, line, index))
            tips.append(tag("g", tag("title", f"{line.name}\n{line.tips[index]}"), circle, class_="tip"))
    return tips


def _dash(run: int) -> str | None:
    return " ".join(f"{length:g}" for length in line_style(run).dash) or None


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
