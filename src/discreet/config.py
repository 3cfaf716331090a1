"""An experiment: everything that decides what a run computes, as frozen dataclasses and as TOML.

The dataclasses are the schema: a key in TOML is a field here or in the scheme's class. Mistakes are answered by one
line that names the key and says what would be right.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.adversaries.settings import Adversary
from discreet.checked import STRICT, plain
from discreet.errors import ConfigError
from discreet.models import MODELS
from discreet.schemes import SCHEMES
from discreet.schemes.traits import misdeeds_under
from discreet.sections import Data, Dropouts, Engine, Model, Privacy, check_known

__all__ = [
    "SECTIONS",
    "Adversary",
    "Data",
    "Dropouts",
    "Engine",
    "Experiment",
    "Model",
    "Privacy",
    "from_table",
    "load",
    "parse",
    "presets",
    "to_table",
    "to_toml",
]

DEFAULT_SCHEME = "fedavg"


@plain("")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Experiment:
    """A whole experiment.

    Attributes:
        data, model, scheme, engine: see their classes; `scheme` is an instance of a class in
            `discreet.schemes.SCHEMES`.
        rounds: how many rounds are played.
        fraction: of the clients that take part in a round (C), in (0, 1].
        sampling: ``fixed``: exactly ``round(fraction * clients)``, at least one; ``poisson``: each client
            independently with probability `fraction`.
        seed: decides everything random in a simulation.
        eval_every: rounds between evaluations; the last round is always evaluated.
        patience: stop after so many evaluations without a better one on the held-out examples; 0 for never.
        secure: how contributions are added up: ``none``, in the clear; ``masked``, so that the server learns the sum
            and nothing else; ``additive``, by shares that `share_holders` parties add up, of whom all but one may
            collude; ``auto`` is ``masked`` for differentially private schemes whose clients add the noise, which are
            nothing without.
        share_holders: for ``additive`` sums (s), from 2 to all participants.
        dropouts: which clients fall silent in a round, under any scheme.
        given: what was handed over as Python objects (``data``, ``partition``, ``model``, ``loss``): such a run can
            only be repeated from Python. Written by a run, not by hand.
        privacy: for differentially private schemes, and only for them.
        adversary: which clients are malicious, and what they do; None for nobody.
    """

    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    scheme: Any = Field(default_factory=lambda: SCHEMES[DEFAULT_SCHEME]())
    rounds: int = Field(default=50, ge=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    sampling: Literal["fixed", "poisson"] = "fixed"
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    eval_every: int = Field(default=1, ge=1)
    patience: int = Field(default=0, ge=0)
    secure: Literal["auto", "none", "masked", "additive"] = "auto"
    share_holders: int = Field(default=3, ge=2)
    privacy: Privacy | None = None
    dropouts: Dropouts = Field(default_factory=Dropouts)
    adversary: Adversary | None = None
    given: list[str] = Field(default_factory=list)
    engine: Engine = Field(default_factory=Engine)

    def __post_init__(self) -> None:
        if type(self.scheme) not in SCHEMES.values():
            raise ConfigError("scheme", self.scheme, "an instance of a scheme: " + ", ".join(SCHEMES))
        if self.patience and not self.data.holdout:
            raise ConfigError(
                "patience", self.patience, "0, or data.holdout above 0: it is judged on held-out data"
            )
        if self.scheme.private and self.privacy is None:
            raise ConfigError(
                "privacy.epsilon", None, f"a budget for {self.scheme_name}, or privacy.noise_multiplier"
            )
        if self.privacy is not None and not self.scheme.private:
            private = ", ".join(name for name, kind in SCHEMES.items() if kind.private)
            raise ConfigError(
                "privacy", f"with {self.scheme_name}", f"none: it adds no noise; these do: {private}"
            )
        if self.secure in ("masked", "additive") and not self.scheme.modular:
            raise ConfigError(
                "secure", self.secure, f"none: {self.scheme_name} does not sum integers modulo 2^b"
            )
        if self.adversary is not None:
            _check_adversary(self.adversary, self.scheme, self.scheme_name)

    @property
    def scheme_name(self) -> str:
        """The scheme's name in `SCHEMES`."""
        return next(name for name, kind in SCHEMES.items() if type(self.scheme) is kind)


def _check_adversary(adversary: Adversary, scheme: object, name: str) -> None:
    """Refuse what has no place in a scheme."""
    possible = misdeeds_under(scheme)
    if not possible:
        raise ConfigError("adversary", f"with {name}", "none: its clients send nothing that is summed")
    for misdeed, key in adversary.misdeeds.items():
        if misdeed not in possible:
            why = {
                "data": "no data can be poisoned",
                "update": "no update can be put in another's place",
                "common": "malicious clients cannot agree on one update",
                "boost": "no update can be boosted",
                "noise": "clients add no noise",
                "clip": "clients clip nothing",
            }[misdeed]
            right = {"attack": "another attack", "boost": "1"}.get(key, "false")
            raise ConfigError(f"adversary.{key}", getattr(adversary, key), f"{right}: under {name} {why}")


class NotToml(ConfigError):
    """A file that should be TOML is not."""

    def __init__(self, source: str, fault: str) -> None:
        super().__init__(source, None, "TOML")
        self.args = (f"{source} is not TOML: {fault}; expected lines such as key = 1, or [section]",)


INSTEAD = {"scheme.steps": "scheme.epochs", "scheme.epochs": "scheme.steps"}
"""Keys of which a table holds one at most, and the other of the two."""

SECTIONS: Mapping[str, type[Any]] = {
    "data": Data,
    "model": Model,
    "privacy": Privacy,
    "dropouts": Dropouts,
    "adversary": Adversary,
    "engine": Engine,
}


def from_table(table: Mapping[str, Any]) -> Experiment:
    """An experiment from a nested table, as TOML gives it.

    Raises:
        ConfigError: an unknown key (with the nearest right one) or an impossible value.
    """
    fields = dict(table)
    for name, kind in SECTIONS.items():
        if name in fields:
            section = _section(name, fields[name])
            if name == "model":
                section = _model_table(section)
            fields[name] = kind(**section)
    if "scheme" in fields:
        section = _section("scheme", fields["scheme"])
        name = section.pop("name", DEFAULT_SCHEME)
        check_known("scheme.name", name, SCHEMES)
        fields["scheme"] = SCHEMES[name](**section)
    experiment: Experiment = Experiment(**fields)
    return experiment


def to_table(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a nested table, complete: `from_table` gives the same experiment again.

    Only what older versions did not know is left out where it changes nothing, so that their runs can be resumed:
    `dropouts` where nobody drops out, the data's task where it is ``auto``, and its features where there are none.
    """
    table = _without_none(dataclasses.asdict(experiment))
    if experiment.dropouts == Dropouts():
        del table["dropouts"]
    if experiment.data.task == "auto":
        del table["data"]["task"]
    if experiment.data.features == "none":
        del table["data"]["features"]
    model = table["model"]
    table["model"] = {**{key: model[key] for key in ("name", "loss")}, **model["options"]}
    table["scheme"] = {"name": experiment.scheme_name, **table["scheme"]}
    order = [key for key, value in table.items() if not isinstance(value, dict)]
    return {key: table[key] for key in order} | {key: table[key] for key in table if key not in order}


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML text.

    Raises:
        ConfigError: an option of the model or of the optimizer is nothing that TOML can hold.
    """
    try:
        return tomli_w.dumps(to_table(experiment))
    except TypeError as error:
        options = experiment.model.options
        raise ConfigError(
            "model", options, f"options that TOML can hold, to write them down ({error})"
        ) from None


def load(source: str, settings: Iterable[str] = ()) -> Experiment:
    """Load an experiment from a TOML file, or a preset by name, and change some keys.

    Args:
        source: a path that ends in ``.toml``, or a preset's name.
        settings: changes, as ``"scheme.learning_rate=0.2"``; a value is read as TOML, else as a string. One that sets
            ``scheme.steps`` takes the file's ``scheme.epochs`` away, and the other way round.

    Raises:
        ConfigError: the file or preset does not exist, is not TOML, or holds a mistake.
    """
    table = parse(_text(source), source)
    # names first: they clear the file's fields away, and not those that are set beside them
    chosen = sorted(settings, key=lambda setting: _key(setting) not in ("scheme.name", "model.name"))
    for key in {_key(setting) for setting in chosen} & INSTEAD.keys():
        _remove(table, INSTEAD[key])
    for setting in chosen:
        _apply(table, setting)
    if given := table.get("given"):
        raise ConfigError(
            "given", given, "nothing: this run got them from Python, and can only be repeated there"
        )
    return from_table(table)


def parse(text: str, source: str) -> dict[str, Any]:
    """TOML text as a table; `source` names it in errors."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotToml(source, str(error)) from None


def presets() -> dict[str, str]:
    """The built-in experiments: name -> what its first line says."""
    files = sorted(resources.files("discreet").joinpath("presets").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".toml"): file.read_text("utf-8").splitlines()[0].lstrip("# ")
        for file in files
        if file.name.endswith(".toml")
    }


def _text(source: str) -> str:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text("utf-8-sig")  # some editors put a mark before the text
        except FileNotFoundError:
            raise ConfigError("experiment", source, "a TOML file that exists, or a preset's name") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("experiment", source, f"a readable TOML file ({error})") from None
    if (path / "config.toml").is_file():
        raise ConfigError("experiment", source, f"a TOML file, as {path / 'config.toml'}")
    known = presets()
    check_known("experiment", source, list(known), what="a TOML file, or a preset")
    return resources.files("discreet").joinpath("presets", f"{source}.toml").read_text("utf-8")


def _apply(table: dict[str, Any], setting: str) -> None:
    """Apply one ``key.path=value``."""
    key = _key(setting)
    _, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError("--set", setting, "key.path=value, as scheme.learning_rate=0.2")
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:
        value = text.strip()
    *sections, last = key.split(".")
    place = table
    for name in sections:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(key, value, f"{name} to be a section, but it is the value {inner!r}")
        place = inner
    if key == "scheme.name" and place.get("name", DEFAULT_SCHEME) != value:
        # another scheme has other fields: keep those that it knows too
        check_known(key, value, SCHEMES)
        known = {field.name for field in dataclasses.fields(SCHEMES[value])}
        for stale in [name for name in place if name not in known]:
            del place[stale]
    if key == "model.name" and isinstance(value, str) and value in MODELS and place.get("name") != value:
        # and another model has other options
        takes = inspect.signature(MODELS[value]).parameters
        for stale in [name for name in place if name not in ("name", "loss", *takes)]:
            del place[stale]
    place[last] = value


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _remove(table: dict[str, Any], key: str) -> None:
    """Take a key of a section away, where there is one."""
    name, _, last = key.partition(".")
    section = table.get(name)
    if isinstance(section, dict):
        section.pop(last, None)


def _section(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, f"a section [{name}]")
    return dict(value)


def _model_table(section: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in section.items() if key not in ("name", "loss")}
    return {key: section[key] for key in ("name", "loss") if key in section} | {"options": options}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
