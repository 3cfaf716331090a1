"""What a table is: rows times columns of runs, the figures shown of them, and what a paper has in their place.

The dataclasses are the schema of the TOML files, as in `discreet.config`::

    title = "Accuracy under differential privacy"
    source = "arXiv 2010.07808, table 2"
    show = ["best.accuracy", "bits_per_parameter"]
    experiment = "mnist-{row}"
    set = ["rounds=200"]
    quick = ["rounds=3", "data.clients=40"]

    [[columns]]
    name = "epsilon 1"
    set = ["privacy.epsilon=1"]

    [[rows]]
    name = "DP-StdFed"
    id = "dp-fedavg"
    paper = { "best.accuracy" = "0.86 to 0.93 over the paper's epsilons" }
    want = { "best.accuracy" = [0.81] }
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.checked import STRICT, plain
from discreet.config import parse
from discreet.errors import ConfigError, UserError
from discreet.names import did_you_mean
from discreet.reproduce.wants import Want

Finite = Annotated[float, Field(allow_inf_nan=False)]


class TableError(UserError):
    """The file of a table has a mistake, or is none.

    Attributes:
        path: the file.
        fault: where in it, what is wrong, and what would be right.
    """

    def __init__(self, path: Path, fault: object) -> None:
        self.path, self.fault = path, str(fault)
        super().__init__(f"{path}: {fault}")


@plain("columns.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Column:
    """What the runs of a column have in common.

    Attributes:
        name: as it is shown.
        id: as it stands in the names of run folders and in ``{column}``; made from the name if it is not given.
        experiment: a preset, or a TOML file beside the table's. ``{row}`` and ``{column}`` stand for the ids.
        set: settings, as of ``discreet run --set``.
        quick: settings of the quick variant.
        at: where a column lies on the horizontal axis of the table's plots; None for not in them.
    """

    SECTION: ClassVar[str] = "columns"

    name: str = ""
    id: str = ""
    experiment: str | None = None
    set: list[str] = Field(default_factory=list)
    quick: list[str] = Field(default_factory=list)
    at: Finite | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError(f"{self.SECTION}.name", self.name, "a name to show")
        if not re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", self.key):
            raise ConfigError(
                f"{self.SECTION}.id", self.id, "small letters, digits and points, with single -"
            )

    @property
    def key(self) -> str:
        """The id."""
        return self.id or re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")


@plain("rows.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Row(Column):
    """What the runs of a row have in common, and what they are held against.

    Lists of figures have one for each column, in their order, and ``""`` where there is none.

    Attributes:
        cells: more settings for single cells, by the column's id.
        paper: what the paper has, by the path of the figure: a list, or one text about the whole row.
        want: what this program is held to, by the path of the figure: a number is the least that will do;
            ``"<= 16"`` and ``">= 0.9"`` say which way.
    """

    SECTION: ClassVar[str] = "rows"

    cells: dict[str, list[str]] = Field(default_factory=dict)
    paper: dict[str, str | list[Finite | str]] = Field(default_factory=dict)
    want: dict[str, list[Finite | str]] = Field(default_factory=dict)


@plain("")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Table:
    """A table.

    Attributes:
        title: its heading.
        source: the paper, and which table or figure of it.
        description: what is compared, and which of its settings are the paper's.
        show: paths into ``result.json``, as ``best.accuracy``; each becomes a table. Below ``audits`` are what audits
            measured: ``audits.lossless-shift.projection.relative error``.
        audits: of each finished run, as ``discreet audit`` knows them; those that do not fit a run's scheme are left out.
        plots: paths in `show` that are drawn in the report, a line for each row.
        across: what the plots' horizontal axis is; the columns' `at` lie on it.
        experiment: see `Column`; a row's comes before a column's, and that before this one.
        set: settings of all runs. A run's settings are these, then its column's, its row's, its cell's.
        quick: settings of the quick variant of all runs; then its column's and its row's. They come last.
        columns, rows: at least one of each.
    """

    title: str = ""
    source: str = ""
    description: str = ""
    show: list[str] = Field(default_factory=list)
    audits: list[str] = Field(default_factory=list)
    plots: list[str] = Field(default_factory=list)
    across: str = ""
    experiment: str | None = None
    set: list[str] = Field(default_factory=list)
    quick: list[str] = Field(default_factory=list)
    columns: list[Column] = Field(default_factory=list)
    rows: list[Row] = Field(default_factory=list)

    def __post_init__(self) -> None:
        for key in ("title", "show", "columns", "rows"):
            if not getattr(self, key):
                raise ConfigError(key, getattr(self, key), "at least one" if key != "title" else "a heading")
        for key, ids in (
            ("columns", [one.key for one in self.columns]),
            ("rows", [one.key for one in self.rows]),
        ):
            if twice := [one for one in ids if ids.count(one) > 1]:
                raise ConfigError(f"{key}.id", twice[0], "ids that differ from each other")
        columns = [column.key for column in self.columns]
        _known("plots", dict.fromkeys(self.plots), self.show, "a path in show")
        if any(row.at is not None for row in self.rows):
            raise ConfigError(
                "rows.at", [row.at for row in self.rows], "nothing: it is columns that lie on an axis"
            )
        if self.plots and (not self.across or all(column.at is None for column in self.columns)):
            raise ConfigError("plots", self.plots, "across, and columns with a number at, beside them")
        for row in self.rows:
            _known(f"rows.{row.key}.cells", row.cells, columns, "a column's id")
            for name, given in (("paper", row.paper), ("want", row.want)):
                _known(f"rows.{row.key}.{name}", given, self.show, "a path in show")
                for path, figures in given.items():
                    if isinstance(figures, list) and len(figures) != len(columns):
                        expected = f'{len(columns)} figures, one a column ("" for none)'
                        raise ConfigError(f"rows.{row.key}.{name}.{path}", figures, expected)
            for path, wants in row.want.items():
                for want in wants:
                    Want.read(f"rows.{row.key}.want.{path}", want)


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A table and where it came from.

    Attributes:
        path: the file.
        asked: what to ask ``discreet reproduce`` for: a name, or a path.
        table: what it holds.
    """

    path: Path
    asked: str
    table: Table

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def runs(self) -> int:
        """How many runs it takes."""
        return len(self.table.rows) * len(self.table.columns)


def tables() -> list[TableFile]:
    """The tables of the papers, sorted by name.

    Raises:
        TableError: one of them has a mistake.
    """
    return [read(path, path.stem) for path in _files()]


def find(asked: str) -> TableFile:
    """A table of the papers by its name, or any by the path of a file that ends in ``.toml``.

    Raises:
        ConfigError: there is no such table.
        TableError: it has a mistake.
    """
    if asked.endswith(".toml"):
        return read(Path(asked), asked)
    files = {path.stem: path for path in _files()}
    if asked not in files:
        known = f"a TOML file, or one of: {', '.join(files) or 'none is here'}{did_you_mean(asked, files)}"
        raise ConfigError("reproduce", asked, known)
    return read(files[asked], asked)


def read(path: Path, asked: str) -> TableFile:
    """Read the file of a table and check it, but for the settings of its runs; see `discreet.reproduce.cells`.

    Raises:
        TableError: it cannot be read, or has a mistake.
    """
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise TableError(path, "no such file; discreet reproduce --list names the tables") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(path, f"cannot be read: {error}") from None
    content = parse(text, str(path))
    lists = {
        key: _made(path, kind, content.get(key, [])) for key, kind in (("columns", Column), ("rows", Row))
    }
    try:
        return TableFile(path, asked, Table(**{**content, **lists}))
    except ConfigError as error:
        raise TableError(path, error) from None


def _made(path: Path, kind: type[Column], given: object) -> list[Column]:
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise TableError(path, f"{kind.SECTION}: expected sections [[{kind.SECTION}]]")
    made = []
    for number, fields in enumerate(given, start=1):
        try:
            made.append(kind(**fields))
        except ConfigError as error:
            raise TableError(path, f"[[{kind.SECTION}]] {number}: {error}") from None
    return made


def _known(key: str, given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(key, name, f"{what}: {', '.join(known)}{did_you_mean(name, known)}")


def _files() -> list[Path]:
    """The files of the papers' tables: in the installed package, or beside the sources."""
    package = Path(str(resources.files("discreet")))
    installed = package / "experiments"
    folder = installed if installed.is_dir() else package.parents[1] / "experiments"
    return sorted(folder.glob("*.toml"), key=lambda path: path.stem)
