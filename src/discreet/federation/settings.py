"""``site.toml``: which site a folder is, and where its data comes from."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import tomllib
from typing import Any, Literal

import tomli_w
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.checked import STRICT, plain
from discreet.data import sources
from discreet.data.checks import check_dataset
from discreet.data.dataset import Dataset
from discreet.errors import ConfigError, DataError, ModelError, UnknownKey
from discreet.federation.roster import check_name
from discreet.names import did_you_mean
from discreet.probe import users_code

EXPERIMENT = "experiment"


@plain("data.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class SiteData:
    """Where a site's examples come from.

    Attributes:
        source: ``experiment``: the part of the experiment's own data set that has the site's number, for trying out; a name
            in `discreet.data.sources.SOURCES`, as ``table``; or ``package.module:function``, which returns a `Dataset`
            whose training examples are the site's own.
        options: what the source is asked for, as ``path`` and ``target`` of a table.
        features: which input features the site holds, where data is split by columns, counted from 0.
        folder: where named data sets are looked for first.
    """

    source: str = EXPERIMENT
    options: dict[str, Any] = Field(default_factory=dict)
    features: list[int] | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.source == EXPERIMENT:
            for key in ("options", "features"):
                if getattr(self, key):
                    raise ConfigError(f"data.{key}", getattr(self, key), "nothing: the experiment says it")
        elif ":" not in self.source and self.source not in sources.SOURCES:
            raise ConfigError(
                "data.source",
                self.source,
                f"'experiment', package.module:function, or one of {', '.join(sources.SOURCES)}"
                + did_you_mean(self.source, sources.SOURCES),
            )

    @property
    def own(self) -> bool:
        """Whether the data is not the experiment's."""
        return self.source != EXPERIMENT

    def load(self) -> Dataset:
        """The data set, of a source that is not the experiment.

        Raises:
            UserError: it cannot be loaded, or cannot be trained on.
        """
        if ":" not in self.source:
            options = {"data_dir": self.folder, **self._known_options(), "keep": False}
            data: object = sources.load(self.source, **options)
        else:
            data = self._called()
        if not isinstance(data, Dataset):
            raise DataError(self.source, f"returned a {type(data).__name__}: expected a discreet.Dataset")
        check_dataset(data)
        return data

    def _known_options(self) -> dict[str, Any]:
        """The options, if `sources.load` takes them all."""
        takes = set(inspect.signature(sources.load).parameters) - {"name", "on_progress", "keep"}
        for key in self.options:
            if key not in takes:
                raise UnknownKey(
                    f"data.options.{key}", f"{self.source} takes some of {', '.join(sorted(takes))}"
                )
        return self.options

    def _called(self) -> object:
        """What the site's own function returns."""
        module, _, name = self.source.partition(":")
        try:
            with users_code("its loader fails"):
                return getattr(importlib.import_module(module), name)(**self.options)
        except ModelError as error:
            raise DataError(self.source, str(error)) from error


@plain("site.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class SiteSettings:
    """Which site a folder is, and where its data comes from.

    Attributes:
        number: the site's, from 0; in the roster too, if there is one.
        name: likewise.
        device: where it trains.
        data: where its examples come from.
    """

    number: int = Field(ge=0)
    name: str
    device: Literal["cpu", "cuda"] = "cpu"
    data: SiteData = Field(default_factory=SiteData)

    def __post_init__(self) -> None:
        check_name(self.name, "site.toml")

    def to_toml(self) -> str:
        """The settings as a file; `from_toml` gives the same again."""
        table = dataclasses.asdict(self)
        table["data"] = {key: value for key, value in table["data"].items() if value is not None}
        return tomli_w.dumps(table)

    @classmethod
    def from_toml(cls, text: str, source: object = "site.toml") -> SiteSettings:
        """The settings in a file.

        Raises:
            DataError: it is not TOML, or misses a key.
            ConfigError: a key is unknown, or its value impossible.
        """
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(source, f"is not TOML: {error}") from None
        for key in ("number", "name"):
            if key not in table:
                raise DataError(source, f"has no {key}: expected the one that the site has in the roster")
        data = table.get("data", {})
        if not isinstance(data, dict):
            raise ConfigError("site.data", data, "a section [data]")
        return cls(**{**table, "data": SiteData(**data)})
