"""The page's tables: summary, privacy, settings, and the numbers behind each plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from discreet.report.axes import group_digits
from discreet.report.charts import swatch
from discreet.report.markup import Markup, join, tag, text
from discreet.report.records import finite
from discreet.report.summary import Score, Summary

NONE = "\u2013"
"""Stands where there is no value."""

_MOST_ROWS = 100


@dataclass(frozen=True)
class _Column:
    head: str
    cell: Callable[[Summary], str | None]
    numeric: bool = True
    score: Callable[[Summary], float | None] | None = None


def percent(fraction: float | None) -> str | None:
    """A fraction as ``95.21 %``."""
    return None if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.2f}\u202f%"


def number(value: float | None, significant: int = 4, *, padded: bool = False) -> str | None:
    """A number to that many significant digits, its thousands apart; ``padded`` keeps zeros at the end."""
    if value is None or not math.isfinite(value):
        return None
    if value and not 1e-4 <= abs(value) < 1e9:
        mantissa, exponent = f"{value:.{significant - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    whole = len(str(int(abs(value))))
    digits = (
        max(0, significant - whole)
        if abs(value) >= 1
        else significant - 1 - math.floor(math.log10(abs(value) or 1))
    )
    written = f"{value:.{digits}f}"
    return group_digits(written.rstrip("0").rstrip(".") if digits and not padded else written)


def megabytes(value: float | None) -> str | None:
    """10^6 bytes with a unit, three significant digits."""
    written = number(value, 3)
    return None if written is None else f"{written}\u202fMB"


def run_label(index: int, run: Summary) -> Markup:
    """A run's swatch and name, and a mark if it is unfinished."""
    name = tag("bdi", run.name, class_="name")
    return tag(
        "span", swatch(index), tag("span", name, "" if run.finished else _unfinished(run)), class_="run-label"
    )


def scrolling(table: Markup, label: str) -> Markup:
    """A table in a box of its own, which scrolls sideways where the page is narrow."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def summary_table(runs: Sequence[Summary]) -> Markup:
    """One row a run; columns that no run has a value for are left out, the best accuracies are bold."""
    columns = [column for column in _COLUMNS if any(column.cell(run) is not None for run in runs)]
    head = [_head("Run", numeric=False), *(_head(column.head, numeric=column.numeric) for column in columns)]
    best = {
        column.head: max((value for run in runs if (value := column.score(run)) is not None), default=None)
        for column in columns
        if column.score
    }
    rows = []
    for index, run in enumerate(runs):
        cells = [tag("th", run_label(index, run), scope="row")]
        for column in columns:
            top = (
                len(runs) > 1
                and column.score is not None
                and column.score(run) == best[column.head] is not None
            )
            shown = column.cell(run)
            if shown is not None and not column.numeric:
                shown = _breakable(shown)
            cells.append(_cell(shown, numeric=column.numeric, strong=top))
        rows.append(tag("tr", cells))
    return scrolling(_table(head, rows), "Summary of the runs")


def privacy_table(runs: Sequence[Summary]) -> Markup | None:
    """Epsilon with all that gives it a meaning, for the runs that spent any; None if no run did."""
    keys = ("epsilon", "delta", "noise_multiplier", "unit", "adjacency", "accountant")
    labels = ("Run", "Epsilon", "Delta", "Noise multiplier", "Promised to a", "Adjacency", "Accountant")
    head = [_head(label, numeric=at in (1, 2, 3)) for at, label in enumerate(labels)]
    rows = []
    for index, run in enumerate(runs):
        if run.privacy:
            cells = [tag("th", run_label(index, run), scope="row")]
            for key in keys:
                value = run.privacy.get(key)
                if key == "unit" and value is None:
                    value = "client"  # older runs had no other
                shown = value if isinstance(value, str) else number(value)
                cells.append(_cell(shown, numeric=key in keys[:3]))
            rows.append(tag("tr", cells))
    return scrolling(_table(head, rows), "Privacy spent") if rows else None


def settings_tables(runs: Sequence[Summary]) -> Markup:
    """Settings that differ, a row a run, then those that all runs share."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    known = {
        # The versions of a run that has no result yet are unknown, which is no difference.
        key: [run.settings.get(key) for run in runs if run.finished or not key.startswith("versions.")]
        for key in keys
    }
    shared = [key for key in keys if len(set(known[key])) == 1]
    differing = [key for key in keys if key not in set(shared)]
    parts = []
    if differing:
        parts.append(tag("h3", "Where the runs differ"))
        parts.append(
            tag(
                "p",
                "Marked: not what most of the runs have (or, in a tie, not what the first run has).",
                class_="note",
            )
        )
        parts.append(_differing(runs, differing))
    if shared:
        parts.append(tag("h3", "The same in all runs" if len(runs) > 1 else "All settings"))
        entries = (
            tag("div", tag("dt", _breakable(key)), tag("dd", _breakable(known[key][0] or '""')))
            for key in shared
        )
        parts.append(tag("dl", entries, class_="settings"))
    return join(parts)


def curve_table(
    runs: Sequence[tuple[int, Summary]], cell: Callable[[Summary], Mapping[int, str]], label: str
) -> Markup:
    """The numbers behind a plot: a row a round, a column a run.

    Args:
        runs: the runs drawn, with their numbers.
        cell: what a run shows in each of its evaluated rounds.
        label: what the table holds.
    """
    values = [cell(run) for _, run in runs]
    rounds = sorted({number for known in values for number in known})
    every = math.ceil(len(rounds) / _MOST_ROWS)
    kept = sorted({*rounds[:: every or 1], *rounds[-1:]})
    head = [_head("Round"), *(_head(tag("bdi", run.name)) for _, run in runs)]
    rows = [
        tag(
            "tr",
            tag("th", str(number), scope="row", class_="n"),
            [_cell(known.get(number)) for known in values],
        )
        for number in kept
    ]
    thinned = f"One evaluated round in {every}; all of them are in metrics.jsonl." if every > 1 else ""
    return tag(
        "details",
        tag("summary", f"{label} as a table"),
        tag("p", thinned, class_="note") if thinned else "",
        scrolling(_table(head, rows), f"{label}, as a table"),
    )


def reach_table(runs: Sequence[tuple[int, Summary]], goals: Sequence[float]) -> Markup:
    """What each run had sent, in how many rounds, when it first reached each accuracy in ``goals``."""
    head = [_head("Run", numeric=False), *(_head(f"{100 * goal:.4g}\u202f%") for goal in goals)]
    rows = []
    for index, run in runs:
        cells = [tag("th", run_label(index, run), scope="row")]
        for goal in goals:
            first = next((p for p in run.points if p.accuracy is not None and p.accuracy >= goal), None)
            if first is None:
                cells.append(_cell(None))
            else:
                sent = megabytes(first.megabytes) or NONE
                cells.append(tag("td", sent, tag("small", f" ({first.round})"), class_="n"))
        rows.append(tag("tr", cells))
    return scrolling(_table(head, rows), "Megabytes sent until an accuracy was reached")


def _differing(runs: Sequence[Summary], keys: Sequence[str]) -> Markup:
    usual = {key: Counter(run.settings.get(key) for run in runs).most_common(1)[0][0] for key in keys}
    # One value for each run, as with seeds, has no "usual" one: then nothing stands out.
    all_differ = {
        key for key in keys if len(runs) > 2 and len({run.settings.get(key) for run in runs}) == len(runs)
    }
    rows = []
    for index, run in enumerate(runs):
        cells = [tag("th", run_label(index, run), scope="row")]
        for key in keys:
            value = run.settings.get(key)
            shown = NONE if value is None else _breakable(value or '""')
            marked = value != usual[key] and key not in all_differ
            cells.append(tag("td", tag("mark", shown) if marked and value is not None else shown))
        rows.append(tag("tr", cells))
    head = [_head("Run", numeric=False), *(_head(_breakable(key), numeric=False) for key in keys)]
    return scrolling(_table(head, rows, class_="settings-table"), "Settings that differ between the runs")


def _breakable(words: str) -> Markup:
    """Text, with places at which it may wrap if it is long, as keys and paths are."""
    escaped = text(words)
    if len(words) < 12:
        return escaped
    for sign in "._/:":
        escaped = Markup(escaped.replace(sign, f"{sign}<wbr>"))
    return escaped


def _unfinished(run: Summary) -> Markup:
    of = "" if run.planned is None else f" of {run.planned}"
    return tag("span", f"unfinished, round {run.played}{of}", class_="unfinished")


def _table(head: Sequence[Markup], rows: Sequence[Markup], **attributes: str) -> Markup:
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), **attributes)


def _head(label: str, *, numeric: bool = True) -> Markup:
    return tag("th", label, scope="col", class_="n" if numeric else None)


def _cell(value: str | None, *, numeric: bool = True, strong: bool = False) -> Markup:
    shown = NONE if value is None else value
    return tag("td", tag("strong", shown) if strong else shown, class_="n" if numeric else None)


def _rounds(run: Summary) -> str:
    return f"{run.played} of {run.planned}" if run.planned not in (None, run.played) else str(run.played)


def _accuracy_of(score: Score | None) -> float | None:
    return score.accuracy if score else None


def _best_round(run: Summary) -> str | None:
    return None if run.best is None or run.best.round is None else str(run.best.round)


def _cohort(run: Summary) -> str | None:
    if run.clients is None or run.cohort is None:
        return _count(run.clients if run.cohort is None else run.cohort)
    return f"{_count(run.cohort)} of {_count(run.clients)}"


def _loss_without_accuracy(run: Summary) -> str | None:
    without = run.final is not None and run.final.accuracy is None
    return number(run.final.loss, padded=True) if run.final and without else None


def _count(value: int | None) -> str | None:
    return None if value is None else group_digits(str(value))


def _reached(run: Summary, figure: str) -> str | None:
    return percent(finite((run.adversary or {}).get(figure)))


def _worst_of(run: Summary) -> str | None:
    return percent(_accuracy_of(run.worst)) or (number(run.worst.loss) if run.worst else None)


_COLUMNS = (
    _Column("Scheme", lambda run: run.scheme, numeric=False),
    _Column("Data", lambda run: run.dataset, numeric=False),
    _Column("Model", lambda run: run.model, numeric=False),
    _Column("Para\u00admeters", lambda run: _count(run.parameters)),
    _Column("Clients a round", _cohort),
    _Column("Rounds", _rounds),
    _Column(
        "Final accuracy",
        lambda run: percent(_accuracy_of(run.final)),
        score=lambda run: _accuracy_of(run.final),
    ),
    _Column(
        "Best accuracy", lambda run: percent(_accuracy_of(run.best)), score=lambda run: _accuracy_of(run.best)
    ),
    _Column("in round", _best_round),
    _Column("Worst model", _worst_of),
    _Column("Attack", lambda run: (run.adversary or {}).get("attack"), numeric=False),
    _Column("Malicious", lambda run: _count((run.adversary or {}).get("malicious"))),
    _Column("Main accuracy", lambda run: _reached(run, "main_accuracy")),
    _Column("Source class", lambda run: _reached(run, "source_accuracy")),
    _Column("taken for target", lambda run: _reached(run, "source_to_target")),
    _Column("Pattern taken for target", lambda run: _reached(run, "pattern_to_target")),
    _Column("Final loss", _loss_without_accuracy),
    _Column("Bits / para\u00admeter", lambda run: number(run.bits_per_parameter)),
    _Column("MB up", lambda run: number(run.megabytes_up, 3)),
    _Column("MB down", lambda run: number(run.megabytes_down, 3)),
    _Column("s / round", lambda run: number(run.seconds, 2)),
    _Column("Epsilon", lambda run: number(run.privacy.get("epsilon")) if run.privacy else None),
    _Column("Dropped", lambda run: _count(run.dropped) if run.dropped else None),
)
