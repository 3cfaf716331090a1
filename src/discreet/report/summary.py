"""The figures of one run that the page shows, taken from its result or, while there is none, from its rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from discreet.adversaries.success import FIGURES
from discreet.report.records import RunRecord, finite


@dataclass(frozen=True)
class Point:
    """An evaluated round.

    Attributes:
        round: counted from 1.
        accuracy: a fraction; None for regression, NaN where it was not a finite number.
        loss: None where it was not computed, NaN where it was not a finite number.
        megabytes: 10^6 bytes sent by all clients together, up to and with this round; None if unknown.
        attack: how far malicious clients have got: shares of test examples by the names in `FIGURES`.
    """

    round: int
    accuracy: float | None
    loss: float | None
    megabytes: float | None
    attack: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Accuracy (a fraction) and loss after a round; None where unknown."""

    round: int | None
    accuracy: float | None
    loss: float | None


@dataclass(frozen=True)
class Summary:
    """One run, ready to be shown; None stands for unknown throughout.

    Attributes:
        name: the run's label on the page.
        finished: whether ``result.json`` is there.
        played: rounds that ended.
        planned: rounds asked for.
        clients: all clients of the federation.
        cohort: the usual (median) number that takes part in a round.
        dropped: how many contributions were dropped, over all rounds.
        megabytes_up: 10^6 bytes that all clients sent, in all rounds.
        megabytes_down: 10^6 bytes that all clients were sent.
        seconds: the median time of a round.
        points: the evaluated rounds.
        settings: the configuration and versions, by dotted key, as text.
    """

    name: str
    finished: bool
    scheme: str
    dataset: str
    model: str
    parameters: int | None
    played: int
    planned: int | None
    clients: int | None
    cohort: int | None
    dropped: int
    final: Score | None
    best: Score | None
    worst: Score | None
    bits_per_parameter: float | None
    megabytes_up: float | None
    megabytes_down: float | None
    seconds: float | None
    privacy: Mapping[str, Any] | None
    adversary: Mapping[str, Any] | None
    points: tuple[Point, ...]
    settings: Mapping[str, str]


def summarize(run: RunRecord) -> Summary:
    """The figures of a run: those of its ``result.json`` where it has them, else worked out from its rounds."""
    result = run.result or {}
    points = _points(run)
    settings = dict(_flatten(run.config)) | {
        f"versions.{key}": str(value) for key, value in sorted((result.get("versions") or {}).items())
    }
    return Summary(
        name=run.name,
        finished=run.result is not None,
        scheme=_label(result.get("scheme"), run.config, "scheme"),
        dataset=_label(result.get("dataset"), run.config, "data"),
        model=_label(result.get("model"), run.config, "model"),
        parameters=result.get("parameters"),
        played=run.metrics[-1]["round"] if run.metrics else result.get("rounds") or 0,
        planned=_count(run.config.get("rounds")),
        clients=_clients(run),
        cohort=_median_count(line.get("participants") for line in run.metrics),
        dropped=sum(len(line.get("dropped") or ()) for line in run.metrics),
        final=_score(result.get("final")) or _last(points),
        best=_score(result.get("best")) or _best(points),
        worst=_score(result.get("worst")),
        bits_per_parameter=finite(result.get("bits_per_parameter")),
        megabytes_up=_megabytes(run, "uplink_bytes"),
        megabytes_down=_megabytes(run, "downlink_bytes"),
        seconds=_seconds(run),
        privacy=result.get("privacy"),
        adversary=result.get("adversary"),
        points=points,
        settings=settings,
    )


def _label(named: object, config: Mapping[str, Any], table: str) -> str:
    return str(named or config[table].get("name") or "unnamed")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _clients(run: RunRecord) -> int | None:
    data = run.config["data"]
    asked = _count(data.get("clients"))
    rows, columns = _count(data.get("rows")), _count(data.get("columns"))
    if rows and columns and rows * columns > 1:
        return rows * columns
    return asked or (run.result or {}).get("participants")


def _median_count(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def _megabytes(run: RunRecord, key: str) -> float | None:
    total = finite((run.result or {}).get(key))
    if total is None:
        each = [finite(line.get(key)) for line in run.metrics]
        known = [number for number in each if number is not None]
        total = math.fsum(known) if known else None
    return None if total is None else total / 1e6


def _seconds(run: RunRecord) -> float | None:
    median = finite((run.result or {}).get("seconds_per_round"))
    if median is not None:
        return median
    known = [seconds for line in run.metrics if (seconds := finite(line.get("seconds"))) is not None]
    return statistics.median(known) if known else None


def _points(run: RunRecord) -> tuple[Point, ...]:
    sent = [finite(line.get("uplink_bytes")) for line in run.metrics]
    totals = list(accumulate(number or 0.0 for number in sent))
    counted = all(number is not None for number in sent)
    return tuple(
        Point(
            line["round"],
            _value(line.get("accuracy")),
            _value(line.get("loss")),
            total / 1e6 if counted else None,
            {name: known for name in FIGURES if (known := finite(line.get(name))) is not None},
        )
        for line, total in zip(run.metrics, totals, strict=True)
        if line.get("accuracy") is not None or line.get("loss") is not None
    )


def _value(number: object) -> float | None:
    if number is None:
        return None
    known = finite(number)
    return math.nan if known is None else known


def _known(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number


def _score(table: Mapping[str, Any] | None) -> Score | None:
    if not table:
        return None
    return Score(table.get("round"), finite(table.get("accuracy")), finite(table.get("loss")))


def _at(point: Point) -> Score:
    return Score(point.round, _known(point.accuracy), _known(point.loss))


def _last(points: tuple[Point, ...]) -> Score | None:
    return _at(points[-1]) if points else None


def _best(points: tuple[Point, ...]) -> Score | None:
    """The first point of highest accuracy; of lowest loss where there is no accuracy."""
    by_accuracy: Callable[[Point], float] = lambda point: _or(point.accuracy, -math.inf)  # noqa: E731
    by_loss: Callable[[Point], float] = lambda point: -_or(point.loss, math.inf)  # noqa: E731
    if not points:
        return None
    has_accuracy = any(_known(point.accuracy) is not None for point in points)
    return _at(max(points, key=by_accuracy if has_accuracy else by_loss))


def _or(number: float | None, otherwise: float) -> float:
    known = _known(number)
    return otherwise if known is None else known


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Dotted keys and their values as TOML writes them, near enough to read."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)
