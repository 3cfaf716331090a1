"""The runs of a table, with all their settings."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from discreet import config
from discreet.config import Experiment
from discreet.errors import ConfigError
from discreet.names import did_you_mean
from discreet.reproduce.tables import Column, Row, TableError, TableFile


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes:
        row, column: where it stands.
        source: what ``discreet run`` takes: a preset, or the path of a TOML file.
        settings: changes to it, in their order.
        experiment: what both make.
    """

    row: Row
    column: Column
    source: str
    settings: tuple[str, ...]
    experiment: Experiment

    @property
    def name(self) -> str:
        """As it is shown."""
        return f"{self.row.name}, {self.column.name}"

    @property
    def place(self) -> str:
        """Where it stands, for errors."""
        return f"row {self.row.name!r}, column {self.column.name!r}"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.row.key}--{self.column.key}"


def cells(file: TableFile, *, quick: bool = False) -> list[Cell]:
    """All runs of a table, row after row.

    Args:
        file: the table.
        quick: its quick variant.

    Raises:
        TableError: the settings of one of them have a mistake; it names the row and the column.
    """
    return [_cell(file, row, column, quick) for row in file.table.rows for column in file.table.columns]


def _cell(file: TableFile, row: Row, column: Column, quick: bool) -> Cell:
    table = file.table
    settings = [*table.set, *column.set, *row.set, *row.cells.get(column.key, ())]
    if quick:
        settings += [*table.quick, *column.quick, *row.quick]
    asked = row.experiment or column.experiment or table.experiment
    try:
        if asked is None:
            raise ConfigError(
                "experiment", None, "a preset or a TOML file, at the top, of the column or of the row"
            )
        asked = asked.replace("{row}", row.key).replace("{column}", column.key)
        source, path = _found(file.path.parent, asked)
        return Cell(row, column, source, tuple(settings), config.load(str(path), settings))
    except ConfigError as error:
        raise TableError(file.path, f"row {row.name!r}, column {column.name!r}: {error}") from None


def _found(folder: Path, asked: str) -> tuple[str, Path]:
    """What to call an experiment, and its file: whatever lies in the current folder, a preset is a preset."""
    if asked.endswith(".toml"):
        path = folder / asked
        return str(path), path
    known = config.presets()
    if asked not in known:
        wanted = f"a TOML file, or a preset: {', '.join(known)}{did_you_mean(asked, known)}"
        raise ConfigError("experiment", asked, wanted)
    return asked, Path(str(resources.files("discreet"))) / "presets" / f"{asked}.toml"
