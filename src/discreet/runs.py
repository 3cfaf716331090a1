"""The run folder: settings, metrics, checkpoint and result, written so that a crash at any moment loses no round.

| file | what | how it is written |
|---|---|---|
| ``config.toml`` | the experiment, resolved and complete | once, atomically |
| ``metrics.jsonl`` | a line a round | appended and flushed; lines after the checkpoint are cut off on resume |
| ``checkpoint.safetensors`` | the state after a round | atomically; it says itself of which round it is |
| ``state.json`` | where the run stands, for people and programs to read | after each checkpoint |
| ``result.json`` | the result | at the end, atomically |
| ``federation.json`` | between sites: which run it is, and how often its server has started | at each start, atomically |

Atomically means: into a hidden file beside it, which then takes its name. A kill may leave such a hidden file; it
counts for nothing, and the next run in the folder removes it.

One process at a time: the folder itself is locked while a run writes to it. The lock goes with the process, however
that ends. File systems without locks have none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
PARTICIPANTS = "federation.json"

PARTIES = ".federation"
"""The folder in which the parties of a federation on one machine keep what is theirs; it is no part of the run."""

TEMPORARY = {name: f".{name}.tmp" for name in (CONFIG, METRICS, RESULT, CHECKPOINT, STATE, PARTICIPANTS)}
"""The hidden files into which the others are written first."""

MAY_DIFFER = {"rounds", "engine.device", "engine.workers"}
"""Keys that may change between a run and its resumption: more rounds, or another machine."""


class DiskFull(RunFolderError):
    """There is no space for a run folder, or for what is to be added to it.

    Attributes:
        refusal: what could not be done.
    """

    def __init__(self, path: Path, refusal: str) -> None:
        self.refusal = refusal
        super().__init__(path, f"{refusal}: free some space and run again with --resume")


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


def check_out(path: Path, *, resume: bool) -> None:
    """Refuse a run folder that cannot be started, or resumed; for a look before anything that takes long.

    Raises:
        RunFolderError: it holds something already, or (to resume) something else than a run, or cannot be read.
    """
    with _access(path):
        found = _contents(path) if path.exists() else set()
    if found and not resume:
        raise RunFolderError(
            path, "exists and is not empty: give another --out, or --resume to go on with it"
        )
    if found and CONFIG not in found:
        raise RunFolderError(path, f"is not a run folder (no {CONFIG}): give another --out")


@contextmanager
def open_run(path: Path, experiment: Experiment, *, resume: bool = False) -> Iterator[RunFolder]:
    """Start a run folder, or go on with one, and keep other processes from it until the end.

    Args:
        path: the folder; it and its parents are made if they are absent.
        experiment: resolved and complete.
        resume: go on with what is there; an absent or empty folder is started.

    Raises:
        RunFolderError: see `check_out`; or the folder belongs to another experiment, another process is writing to
            it, or it cannot be written.
    """
    config = to_toml(experiment).encode()  # before anything is made, as it may fail
    check_out(path, resume=resume)
    with _access(path):
        new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        check_out(path, resume=resume)
        folder = RunFolder(path, new)
        started = bool(_contents(path))
        if started:
            folder.compare(experiment)
        try:
            folder.clear_temporary()
            if not started:
                folder.replace(CONFIG, config)
        except RunFolderError:
            if new:
                with suppress(OSError):
                    path.rmdir()
            raise
        yield folder


@dataclass(frozen=True)
class RunFolder:
    """A run folder that may be written to; get one from `open_run`.

    Attributes:
        path: the folder.
        new: whether it was made for this run.
    """

    path: Path
    new: bool

    def compare(self, experiment: Experiment) -> bool:
        """Whether the settings that are there differ from the experiment's, where they may.

        Raises:
            RunFolderError: the folder belongs to another experiment.
        """
        try:
            with _access(self.path / CONFIG, "read"):
                table = tomllib.loads((self.path / CONFIG).read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(self.path / CONFIG, f"is damaged ({error}): give another --out") from None
        there, here = _flat(table), _flat(to_table(experiment))
        for key in sorted((there.keys() | here.keys()) - MAY_DIFFER):
            if there.get(key) != here.get(key):
                raise RunFolderError(
                    self.path,
                    f"belongs to another experiment: {key} is {there.get(key)!r} there and {here.get(key)!r} here; "
                    "give another --out",
                )
        # the last round of a run is evaluated whatever eval_every says, so a run cannot end before its plan
        planned = there.get("rounds")
        if isinstance(planned, int) and planned > experiment.rounds:
            raise RunFolderError(
                self.path,
                f"has rounds = {planned}, which can be raised but not lowered to {experiment.rounds}",
            )
        return there != here

    def adopt(self, experiment: Experiment) -> None:
        """Write down the settings of a run that goes on, where they may have changed."""
        if self.compare(experiment):
            self.replace(CONFIG, to_toml(experiment).encode())

    def append(self, *rounds: Mapping[str, Any]) -> None:
        """Add lines to the metrics, one for each round."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in rounds)
        path = self.path / METRICS
        with _access(path), path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that counts on these lines must not be there before them

    def metrics(self, last_round: int) -> list[dict[str, Any]]:
        """The lines up to `last_round`; what was written after it, whole or in part, is cut off the file."""
        path = self.path / METRICS
        if not path.exists():
            if last_round:
                raise RunFolderError(
                    path, f"is missing, but the checkpoint is of round {last_round}: give another --out"
                )
            return []
        with _access(path, "read"):
            content = path.read_bytes()
        lines = content.split(b"\n")[:last_round]
        try:
            found: list[Any] = [json.loads(line) for line in lines]
        except ValueError:
            found = []
        if [isinstance(line, dict) and line.get("round") for line in found] != list(range(1, last_round + 1)):
            raise RunFolderError(
                path,
                f"is damaged: expected a line of JSON for each of the rounds 1 to {last_round}; give another --out",
            )
        whole = b"".join(line + b"\n" for line in lines)
        if whole != content:
            self.replace(METRICS, whole)
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint in place of the last one."""
        facts = {"round": checkpoint.round, **checkpoint.facts}
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
        self.replace(CHECKPOINT, save(contiguous, {"facts": json.dumps(facts)}))
        self._state(facts)

    def load(self) -> Checkpoint | None:
        """The last checkpoint, or None before the first.

        Raises:
            RunFolderError: it is damaged.
        """
        found = read_checkpoint(self.path)
        if found is not None:
            self._state(found.facts)  # a kill may have come between the two
        return found

    def damaged(self, error: Exception) -> RunFolderError:
        """What to raise where the checkpoint does not hold what it should."""
        return damaged(self.path, error)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        self.replace(RESULT, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())

    def _state(self, facts: Mapping[str, Any]) -> None:
        self.replace(STATE, (json.dumps(facts, indent=1) + "\n").encode(), sync=False)

    def unfinish(self) -> None:
        """Remove the result of a run that is about to go on."""
        with _access(self.path / RESULT):
            (self.path / RESULT).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all that a run has written, and the folder if it was made for it, as far as can be."""
        for name in (*TEMPORARY, *TEMPORARY.values()):
            with suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
        if self.new:
            with suppress(OSError):
                self.path.rmdir()

    def clear_temporary(self) -> None:
        """Remove what a killed process left half-written."""
        for name in TEMPORARY.values():
            with _access(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def replace(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Write a file whole or not at all.

        Args:
            name: of the file.
            content: all of it.
            sync: wait until the content is on the disk, so that it outlives a power failure too.
        """
        temporary = self.path / TEMPORARY[name]
        with _access(self.path / name):
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())
                temporary.replace(self.path / name)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a run folder, or None where there is none yet; the folder stays as it is.

    Raises:
        RunFolderError: it is damaged, or cannot be read.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with _access(path, "read"), safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            names = file.keys()
            return Checkpoint(int(facts["round"]), {name: file.get_tensor(name) for name in names}, facts)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise damaged(folder, error) from None


def damaged(folder: Path, error: Exception) -> RunFolderError:
    """What to raise where a checkpoint does not hold what it should."""
    said = f"no {error}" if isinstance(error, KeyError) else str(error)
    return RunFolderError(folder / CHECKPOINT, f"is damaged ({said}): give another --out")


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all; folders on the way are made.

    Raises:
        RunFolderError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunFolderError(path, f"cannot be written: {error.strerror or error}") from error


def _contents(path: Path) -> set[str]:
    """The names in a folder, but for those that do not count."""
    if not path.is_dir():
        raise RunFolderError(path, "is a file: expected a folder, new or empty; give another --out")
    return {file.name for file in path.iterdir()} - {PARTIES, *TEMPORARY.values()}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Refuse to go on while another process holds the folder."""
    with _access(path):
        handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                path, "is being written by another process: wait for it, or give another --out"
            ) from None
        except OSError:
            pass  # this file system has no locks
        yield
    finally:
        os.close(handle)


@contextmanager
def _access(path: Path, doing: str = "written") -> Iterator[None]:
    """Turn the operating system's refusals into one clear line."""
    try:
        yield
    except OSError as error:
        refusal = f"cannot be {doing} ({error.strerror or error})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path, refusal) from None
        raise RunFolderError(path, f"{refusal}: give an --out that can be {doing}") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
