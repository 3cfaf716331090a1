"""Reads run folders back: ``config.toml``, ``metrics.jsonl`` and ``result.json``, checked on the way in."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from discreet.errors import RunFolderError


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says about a run.

    Attributes:
        path: the folder.
        name: the folder's name, with as many of its parents as tell it from the other runs read with it.
        config: the resolved experiment, as nested tables.
        metrics: a table for each round that ended, by ascending round.
        result: the figures of the finished run; None while it goes on, or if it was interrupted.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any] | None


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Scores(_Checked):
    round: int | None = None
    accuracy: float | None = None
    loss: float | None = None


class _Line(_Checked):
    round: int = Field(ge=0, le=10**12)
    participants: int | None = Field(default=None, ge=0)
    dropped: list[str | int] | None = None
    seconds: float | None = None
    uplink_bytes: float | None = None
    downlink_bytes: float | None = None
    accuracy: float | None = None
    loss: float | None = None


class _Privacy(_Checked):
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    accountant: str | None = None
    adjacency: str | None = None
    unit: str | None = None


class _Adversary(_Checked):
    attack: str | None = None
    malicious: int | None = None
    main_accuracy: float | None = None
    source_accuracy: float | None = None
    source_to_target: float | None = None
    pattern_to_target: float | None = None


class _Result(_Checked):
    scheme: str | None = None
    dataset: str | None = None
    model: str | None = None
    parameters: int | None = None
    rounds: int | None = None
    participants: int | None = None
    final: _Scores | None = None
    best: _Scores | None = None
    worst: _Scores | None = None
    bits_per_parameter: float | None = None
    uplink_bytes: float | None = None
    downlink_bytes: float | None = None
    seconds_per_round: float | None = None
    privacy: _Privacy | None = None
    adversary: _Adversary | None = None
    versions: dict[str, str] | None = None


class _Config(_Checked):
    data: dict[str, Any]
    model: dict[str, Any]
    scheme: dict[str, Any]


def find_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Read run folders, and all run folders that lie directly in the other folders.

    Args:
        folders: run folders, or folders that hold run folders; those are taken sorted by name. A folder that is
            named twice is read once.

    Raises:
        RunFolderError: a folder does not exist, holds no run, or is damaged.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        found.update(dict.fromkeys(path.resolve() for path in _run_folders(Path(folder))))
    paths = list(found)
    return [replace(read_run(path), name=name) for path, name in zip(paths, _names(paths), strict=True)]


def read_run(folder: Path) -> RunRecord:
    """Read one run folder.

    A run that goes on or was killed is read as far as it got: ``result.json`` may be missing, so may
    ``metrics.jsonl`` before the first round ended, and a last line that is cut off is left out. Where a resumed
    run played a round again, the later line counts.

    Args:
        folder: the run folder.

    Raises:
        RunFolderError: there is no such folder, it is not a run folder, or one of its files is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunFolderError(folder, "no such folder; expected a run folder")
    if not (folder / "config.toml").is_file():
        raise RunFolderError(folder, "not a run folder: config.toml is missing")
    finished, started = (folder / "result.json").exists(), (folder / "metrics.jsonl").exists()
    if finished and not started:
        raise RunFolderError(folder, "result.json is there but metrics.jsonl is missing")
    return RunRecord(
        path=folder,
        name=folder.resolve().name,
        config=_read_config(folder / "config.toml"),
        metrics=_read_metrics(folder / "metrics.jsonl") if started else (),
        result=_read_result(folder / "result.json") if finished else None,
    )


def finite(value: object) -> float | None:
    """The number as a float; None where it is missing, NaN, infinite or so large (1e100) that it means no more."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e100 else None


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise RunFolderError(folder, "no such folder; expected a run folder, or a folder of run folders")
    if (folder / "config.toml").exists():
        return [folder]
    inside = sorted(path.parent for path in folder.glob("*/config.toml"))
    if not inside:
        raise RunFolderError(folder, "not a run folder: config.toml is missing, and no folder in it has one")
    return inside


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other."""
    names = [path.name or str(path) for path in paths]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        twice = {name for name in names if names.count(name) > 1}
        names = [
            "/".join(path.parts[-depth:]) if name in twice else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunFolderError(path, f"cannot be read: {error.strerror or error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads(_read(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunFolderError(path, f"damaged: expected TOML, but {_one_line(error)}") from error
    _check(_Config, config, path, "not the config.toml of a run: ")
    return config


def _read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    rounds: list[dict[str, Any]] = []
    for line in _json_lines(path):
        while rounds and rounds[-1]["round"] >= line["round"]:
            rounds.pop()
        rounds.append(line)
    return tuple(rounds)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    *whole, rest = _read(path).split(b"\n")
    for number, line in enumerate(whole, start=1):
        if line.strip():
            yield _parse(_Line, line, f"{path}, line {number}")
    if rest.strip():
        try:
            last = json.loads(rest)
        except (ValueError, RecursionError):
            return  # the run was stopped, or is just now writing, in the middle of this line
        _check(_Line, last, f"{path}, line {len(whole) + 1}", "damaged: ")
        yield last


def _read_result(path: Path) -> dict[str, Any]:
    return _parse(_Result, _read(path), path)


def _parse(model: type[_Checked], raw: bytes, where: object) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(where, f"damaged: expected a JSON object, but {_one_line(error)}") from error
    _check(model, value, where, "damaged: ")
    return dict(value)


def _check(model: type[_Checked], value: object, where: object, complaint: str) -> None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the whole"
        raise RunFolderError(where, f"{complaint}{key}: {_one_line(first['msg'])}") from error


def _one_line(message: object) -> str:
    words = " ".join(str(message).split())
    return words[:1].lower() + words[1:]
