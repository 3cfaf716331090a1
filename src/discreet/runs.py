"""The run folder: settings, metrics, checkpoint and result, written so that a crash at any moment loses no round.

| file | what | how it is written |
|---|---|---|
| ``config.toml`` | the experiment, resolved and complete | once, atomically |
| ``metrics.jsonl`` | a line a round | appended and flushed; lines after the checkpoint are cut off on resume |
| ``checkpoint.safetensors`` | the state after a round | atomically; it says itself of which round it is |
| ``state.json`` | where the run stands, for people and programs to read | after each checkpoint |
| ``result.json`` | the result | at the end, atomically |
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from discreet.config import Experiment, to_table, to_toml
from discreet.errors import RunFolderError

CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"
CHECKPOINT, STATE = "checkpoint.safetensors", "state.json"

MAY_DIFFER = {"rounds", "engine.device", "engine.workers", "engine.threads"}
"""Keys that may change between a run and its resumption: more rounds, or another machine."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run after some round.

    Attributes:
        round: the last round that was played.
        tensors: everything the next round needs, by name.
        facts: small values that are needed too, as JSON takes them.
    """

    round: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A run folder that may be written to."""

    path: Path

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> RunFolder:
        """Start a new run folder.

        Raises:
            RunFolderError: the folder holds something already, or cannot be written.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(
                path, "exists and is not empty: give another --out, or --resume to go on with it"
            )
        folder = cls(path)
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
        folder._replace(CONFIG, to_toml(experiment).encode())
        return folder

    @classmethod
    def resume(cls, path: Path, experiment: Experiment) -> RunFolder:
        """Go on with a run folder; an absent or empty one is started.

        Raises:
            RunFolderError: the folder belongs to another experiment, or is no run folder.
        """
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return cls.create(path, experiment)
        if not (path / CONFIG).is_file():
            raise RunFolderError(path, f"is not a run folder (no {CONFIG}): give another --out")
        try:
            table = tomllib.loads((path / CONFIG).read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(path / CONFIG, f"is damaged ({error})") from None
        there, here = _flat(table), _flat(to_table(experiment))
        for key in sorted((there.keys() | here.keys()) - MAY_DIFFER):
            if there.get(key) != here.get(key):
                raise RunFolderError(
                    path,
                    f"belongs to another experiment: {key} is {there.get(key)!r} there and {here.get(key)!r} here; "
                    "give another --out",
                )
        folder = cls(path)
        if there.get("rounds") != here.get("rounds"):
            folder._replace(CONFIG, to_toml(experiment).encode())
        return folder

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a round's line to the metrics."""
        with _writing(self.path / METRICS), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")

    def metrics(self, last_round: int) -> list[dict[str, Any]]:
        """The lines up to `last_round`; what was written after it, whole or in part, is cut off the file."""
        path = self.path / METRICS
        if not path.exists():
            if last_round:
                raise RunFolderError(path, f"is missing, but the checkpoint is of round {last_round}")
            return []
        lines = path.read_bytes().split(b"\n")[:last_round]
        try:
            found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        except ValueError:
            raise RunFolderError(path, "is damaged: a line is not JSON") from None
        if [line.get("round") for line in found] != list(range(1, last_round + 1)):
            raise RunFolderError(
                path, f"is damaged: expected a line for each of the rounds 1 to {last_round}"
            )
        self._replace(METRICS, b"".join(line + b"\n" for line in lines))
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint in place of the last one."""
        facts = {"round": checkpoint.round, **checkpoint.facts}
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
        self._replace(CHECKPOINT, save(contiguous, {"facts": json.dumps(facts)}))
        self._replace(STATE, (json.dumps(facts, indent=1) + "\n").encode())

    def load(self) -> Checkpoint | None:
        """The last checkpoint, or None before the first."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return Checkpoint(facts["round"], tensors, facts)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(path, f"is damaged ({error})") from None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        self._replace(RESULT, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())

    def unfinish(self) -> None:
        """Remove the result of a run that is about to go on."""
        (self.path / RESULT).unlink(missing_ok=True)

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        target = self.path / name
        with _writing(target):
            handle, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space and run again with --resume"
        else:
            remedy = "give an --out that can be written"
        raise RunFolderError(path, f"cannot be written ({error.strerror or error}): {remedy}") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
