"""The page itself: which sections it has, and in what words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.resources import files

from discreet.plots import DARK, LIGHT
from discreet.report import tables
from discreet.report.axes import Axis, accuracy_axis, linear_axis, log_axis
from discreet.report.charts import Line, chart
from discreet.report.markup import Markup, join, tag
from discreet.report.plotted import Plot, plotted
from discreet.report.summary import Point, Summary

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

Quantity = Callable[[Point], float | None]
Numbered = Sequence[tuple[int, Summary]]


def page(runs: Sequence[Summary], plots: Sequence[Plot] = ()) -> str:
    """The whole HTML document, with no script in it and nothing to fetch.

    Args:
        runs: at least one, in the order in which they are listed and coloured.
        plots: of all runs together.
    """
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    title = f"{_and(datasets)}: {_count(len(runs), 'federated run')}"
    privacy = tables.privacy_table(runs)
    drawn = [plotted(f"plot-{number}", plot) for number, plot in enumerate(plots)]
    body = [
        tag("header", tag("h1", title), tag("p", _lead(runs), class_="lead")),
        _section("Summary", tables.summary_table(runs), tag("p", _summary_note(runs), class_="note")),
        _section("Comparison", tag("div", drawn, class_="figures")) if drawn else "",
        _section("Curves", *_curves(runs), class_="curves"),
        _section("Privacy", privacy, tag("p", _PRIVACY_NOTE, class_="note")) if privacy else "",
        _section("Settings", tables.settings_tables(runs)),
        tag(
            "footer",
            tag("p", "Written by discreet from the run folders. This page loads nothing from the network."),
        ),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} \u00b7 discreet report"),
        # An empty icon: without it a browser asks the server for one.
        Markup('<link rel="icon" href="data:,">'),
        tag("style", Markup(_style(len(runs)))),
    ]
    document = tag("html", tag("head", head), tag("body", tag("main", body)), lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


_ATTACKS = {
    "main_accuracy": "Accuracy of the classes not attacked, by round",
    "source_accuracy": "Accuracy of the attacked class, by round",
    "source_to_target": "Attacked class taken for the target, by round",
    "pattern_to_target": "Images with the pattern taken for the target, by round",
}
"""Titles of the figures of attacks."""

_PRIVACY_NOTE = (
    "Epsilon and delta hold for the stated adjacency (what two neighbouring data sets differ in) and for the "
    "rounds that ran. Smaller is more private."
)


def _style(runs: int) -> str:
    sheet = files("discreet.report").joinpath("page.css").read_text(encoding="utf-8")
    light = "".join(f".c{at}{{--line:{colour}}}" for at, colour in enumerate(LIGHT))
    dark = "".join(f".c{at}{{--line:{colour}}}" for at, colour in enumerate(DARK))
    picks = "".join(
        f".curves:has(#pick-{at}:checked) .run-{at},.curves:has(.pick-{at}:hover) .run-{at}{{opacity:1}}"
        for at in range(runs)
    )
    return f"{sheet}{light}@media screen and (prefers-color-scheme:dark){{{dark}}}{picks}"


def _section(heading: str, *children: str | Markup, class_: str | None = None) -> Markup:
    key = heading.lower()
    return tag("section", tag("h2", heading, id=key), *children, class_=class_, aria_labelledby=key)


def _lead(runs: Sequence[Summary]) -> Markup:
    schemes = _and(list(dict.fromkeys(run.scheme for run in runs)))
    models = _and(list(dict.fromkeys(run.model for run in runs)))
    words = [f"{_count(len(runs), 'run')} of {schemes}, training {models}."]
    scored = [(run.final.accuracy, run) for run in runs if run.final and run.final.accuracy is not None]
    if scored:
        accuracy, best = max(scored, key=lambda pair: pair[0])
        named = f", by {best.name}" if len(runs) > 1 else ""
        words.append(f"Highest final accuracy: {tables.percent(accuracy)}{named}.")
    open_runs = sum(not run.finished for run in runs)
    if open_runs:
        verb = "is" if open_runs == 1 else "are"
        words.append(
            f"{_count(open_runs, 'run')} {verb} unfinished and shown as far as {'it' if open_runs == 1 else 'they'} got."
        )
    return join(words, " ")


def _summary_note(runs: Sequence[Summary]) -> str:
    note = "MB up and down: 10\u2076 bytes, all clients and rounds together. s / round: median."
    if len(runs) > 1 and any(run.final and run.final.accuracy is not None for run in runs):
        note += " Bold: the highest accuracy."
    if any(run.worst for run in runs):
        note += " Worst model: the least accurate of the participants' own models."
    if any(run.adversary for run in runs):
        note += (
            " Under attack, after the last round: main accuracy is that of all classes but the source class; "
            "the source class's accuracy, and the share of it that was taken for the target class."
        )
    if any(run.dropped for run in runs):
        note += " Dropped: updates that were left out of a sum."
    return note


def _curves(runs: Sequence[Summary]) -> Iterable[Markup]:
    numbered = list(enumerate(runs))
    with_accuracy = [(at, run) for at, run in numbered if any(_finite(p.accuracy) for p in run.points)]
    with_loss = [(at, run) for at, run in numbered if any(_finite(p.loss) for p in run.points)]
    if not with_accuracy and not with_loss:
        return [tag("p", "No round has been evaluated yet.")]
    figures = []
    if with_accuracy:
        figures.append(_by_round("accuracy", "Accuracy by round", with_accuracy, _accuracy, percent=True))
    if with_loss:
        figures.append(_by_round("loss", "Loss by round", with_loss, _loss, percent=False))
    figures.extend(_of_attacks(numbered))
    if with_accuracy:
        figures.extend(_by_megabytes("Accuracy by megabytes sent", with_accuracy, _accuracy, percent=True))
    else:
        figures.extend(_by_megabytes("Loss by megabytes sent", with_loss, _loss, percent=False))
    return [_key(numbered), tag("div", figures, class_="figures")]


def _of_attacks(runs: Numbered) -> Iterable[Markup]:
    """How far malicious clients got: a figure for each measure that says more than the accuracy."""
    for name, title in _ATTACKS.items():
        measured = [(at, run) for at, run in runs if any(name in p.attack for p in run.points)]
        told = all(p.attack.get(name, p.accuracy) == p.accuracy for _, run in measured for p in run.points)
        if measured and not (name == "main_accuracy" and told):
            quantity = partial(_share, name)
            yield _by_round(
                name.replace("_", "-"), title, measured, quantity, percent=True, best="is highest at"
            )


def _share(name: str, point: Point) -> float | None:
    return point.attack.get(name)


def _key(runs: Numbered) -> Markup:
    """What each line means; picking runs here fades the others, by style sheet alone."""
    entries = (
        tag(
            "label",
            tag("input", type="checkbox", id=f"pick-{at}", class_="pick", autocomplete="off")
            if len(runs) > 1
            else "",
            tables.run_label(at, run),
            class_=f"pick-{at}",
        )
        for at, run in runs
    )
    legend = tag("legend", "Tick runs to bring them out" if len(runs) > 1 else "Key")
    return tag("fieldset", legend, tag("div", entries), class_="key")


def _by_round(
    key: str, title: str, runs: Numbered, quantity: Quantity, *, percent: bool, best: str = "is best at"
) -> Markup:
    lines = [_line(at, run, quantity, lambda p: float(p.round), percent=percent) for at, run in runs]
    x = linear_axis("Round", (value for line in lines for value in line.x), from_zero=True, whole=True)
    y = _vertical(lines, percent=percent)
    words = _in_words(title, runs, quantity, percent=percent, best=best)
    plot = chart(key, title, words, x, y, lines, shared=True)
    table = tables.curve_table(runs, lambda run: _values(run, quantity, percent=percent), title)
    return _figure(title, plot, table, _scale_note(y))


def _by_megabytes(title: str, runs: Numbered, quantity: Quantity, *, percent: bool) -> list[Markup]:
    counted = [(at, run) for at, run in runs if any(p.megabytes is not None for p in run.points)]
    sending = [(at, run) for at, run in counted if run.points[-1].megabytes]
    if not sending:
        return []
    totals = [run.points[-1].megabytes or 0.0 for _, run in sending]
    log = max(totals) > 10 * min(totals)
    shown = sending if log else counted
    lines = [_line(at, run, quantity, lambda p: p.megabytes, percent=percent) for at, run in shown]
    places = [value for line in lines for value in line.x]
    label = "Megabytes sent by all clients"
    x = log_axis(label, places) if log else linear_axis(label, places, from_zero=True)
    words = _in_words(title, shown, quantity, percent=percent, sent=True)
    y = _vertical(lines, percent=percent)
    plot = chart("sent", title, words, x, y, lines, shared=False)
    table = tables.curve_table(shown, lambda run: _values(run, quantity, percent=percent, sent=True), title)
    silent = "Runs that send nothing are left out." if len(shown) < len(runs) else ""
    figures = [_figure(title, plot, table, " ".join(filter(None, (_scale_note(y), silent))))]
    goals = (
        [tick for tick in y.ticks() if any(_reaches(run, tick) for _, run in shown)][-3:] if percent else []
    )
    if goals:
        heading = "Megabytes sent until an accuracy was reached"
        figures.append(
            tag(
                "figure",
                tag("figcaption", tag("h3", heading), tag("p", "In brackets: the round.", class_="note")),
                tables.reach_table(shown, goals),
                class_="reach",
            )
        )
    return figures


def _reaches(run: Summary, goal: float) -> bool:
    return any(p.accuracy is not None and p.accuracy >= goal for p in run.points)


def _figure(title: str, plot: Markup, table: Markup, note: str) -> Markup:
    caption = tag("figcaption", tag("h3", title), tag("p", note, class_="note") if note else "")
    return tag("figure", caption, tag("div", plot, class_="plot"), table)


def _scale_note(axis: Axis) -> str:
    if axis.cut:
        return f"The axis starts at {axis.write(axis.low)}: the climb up to there is cut off."
    return "Logarithmic scale." if axis.log else ""


def _vertical(lines: Sequence[Line], *, percent: bool) -> Axis:
    if percent:
        return accuracy_axis(line.y for line in lines)
    values = [value for line in lines for value in line.y if math.isfinite(value)]
    if min(values) > 0 and max(values) > 8 * min(values):
        return log_axis("", values)
    return linear_axis("", values)


def _line(at: int, run: Summary, quantity: Quantity, place: Quantity, *, percent: bool) -> Line:
    points = [(place(p), quantity(p), p) for p in run.points]
    known = [(x, y, p) for x, y, p in points if x is not None and y is not None]
    return Line(
        run=at,
        name=run.name,
        x=[x for x, _, _ in known],
        y=[y for _, y, _ in known],
        tips=[_tip(p, y, percent=percent, sent=x != p.round) for x, y, p in known],
    )


def _tip(point: Point, value: float, *, percent: bool, sent: bool) -> str:
    shown = _shown(value, percent=percent)
    return f"{shown} after {tables.megabytes(point.megabytes)}, round {point.round}" if sent else shown


def _values(run: Summary, quantity: Quantity, *, percent: bool, sent: bool = False) -> dict[int, str]:
    found = {}
    for point in run.points:
        value = quantity(point)
        if value is not None:
            at = f"{tables.megabytes(point.megabytes) or tables.NONE}: " if sent else ""
            found[point.round] = at + _shown(value, percent=percent)
    return found


def _in_words(
    title: str,
    runs: Numbered,
    quantity: Quantity,
    *,
    percent: bool,
    sent: bool = False,
    best: str = "is best at",
) -> str:
    """What the curves show, for those who cannot see them: start, best and end of each run."""
    choose = max if percent else min
    sentences = [f"{title}, {_count(len(runs), 'run')}."]
    for _, run in runs:
        known = [
            (p, value) for p in run.points if (value := quantity(p)) is not None and math.isfinite(value)
        ]
        if not known:
            continue
        start, end = known[0], known[-1]
        top = choose(known, key=lambda pair: pair[1])
        spots = [
            f"{verb} {_shown(value, percent=percent)} ({_place(p, sent=sent)})"
            for verb, (p, value) in (("starts at", start), (best, top), ("ends at", end))
        ]
        sentences.append(f"{run.name} {spots[0]}, {spots[1]} and {spots[2]}.")
    return " ".join(sentences)


def _place(point: Point, *, sent: bool) -> str:
    return f"{tables.megabytes(point.megabytes)}, round {point.round}" if sent else f"round {point.round}"


def _shown(value: float, *, percent: bool) -> str:
    return (tables.percent(value) if percent else tables.number(value, padded=True)) or "not a number"


def _accuracy(point: Point) -> float | None:
    return point.accuracy


def _loss(point: Point) -> float | None:
    return point.loss


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
