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
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from discreet.adversaries.settings import Adversary
from discreet.augment import AUGMENTATIONS
from discreet.checked import plain
from discreet.data.partitions import PARTITIONS
from discreet.data.sources import SOURCES, Features
from discreet.errors import ConfigError
from discreet.losses import LOSSES
from discreet.models import MODELS
from discreet.names import did_you_mean
from discreet.privacy.promise import NoiseName
from discreet.schemes import SCHEMES
from discreet.schemes.base import misdeeds_under

STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

DEFAULT_SCHEME = "fedavg"


@plain("data.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """Which examples, and who holds them.

    Attributes:
        name: a data set in `discreet.data.sources.SOURCES`.
        task: ``auto``: what the data set is for, classes or values; ``reconstruct``: targets are the inputs
            themselves, flattened, as for an autoencoder.
        path, test_path: the user's own table, or folder of images.
        target: the column that is learnt (tables).
        ignore: columns of a table that are left out: identifiers, texts, dates.
        client_column: the column that says whose row it is (tables, with ``partition = "column"``).
        test_fraction: share of the rows that is held for testing where the data has no test set of its own.
        standardise: scale the columns of a table, and the targets of a regression, to mean 0 and variance 1.
        features: of images: ``none`` for the images themselves; ``scattering`` for vectors of wavelet coefficients,
            which are public (`discreet.data.scattering`).
        image_size: side in pixels to which the user's own images are scaled; 0 for as they are.
        min_faces: of ``lfw``: people with fewer images are left out.
        max_tokens, vocabulary: of a text: how many tokens are kept, and how many token numbers there are.
        partition: how examples are dealt to clients, a name in `discreet.data.partitions.PARTITIONS`.
        clients: how many clients (N).
        alpha: of ``dirichlet``: small is skewed.
        labels_per_client: of ``shards``.
        sigma: of ``lognormal``: spread of the sizes' logarithms.
        examples_per_client: of ``resampled``.
        rows, columns: of ``grid``.
        holdout: share of the training examples kept from all clients, to choose the best round and to stop early.
        augment: for images: ``none``, ``flip``, ``crop`` or ``flip-crop``.
    """

    name: str = "digits"
    task: Literal["auto", "reconstruct"] = "auto"
    path: str | None = None
    test_path: str | None = None
    target: str | None = None
    client_column: str | None = None
    ignore: list[str] = Field(default_factory=list)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    standardise: bool = True
    features: Features = "none"
    image_size: int = Field(default=0, ge=0)
    min_faces: int = Field(default=20, ge=2)
    max_tokens: int = Field(default=256, ge=1)
    vocabulary: int = Field(default=10_000, ge=2)
    partition: str = "iid"
    clients: int = Field(default=10, ge=1)
    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    labels_per_client: int = Field(default=2, ge=1)
    sigma: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    examples_per_client: int = Field(default=60, ge=1)
    rows: int = Field(default=1, ge=1)
    columns: int = Field(default=1, ge=1)
    holdout: float = Field(default=0.0, ge=0, lt=1)
    augment: str = "none"

    def __post_init__(self) -> None:
        _known("data.name", self.name, SOURCES)
        _known("data.partition", self.partition, PARTITIONS)
        _known("data.augment", self.augment, AUGMENTATIONS)
        if self.task == "reconstruct" and self.augment != "none":
            raise ConfigError(
                "data.augment", self.augment, "none with data.task = 'reconstruct': targets are not augmented"
            )
        if self.partition == "column" and self.client_column is None:
            raise ConfigError("data.client_column", None, "the column that says whose row it is")


@plain("model.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Model:
    """Which network is trained.

    Attributes:
        name: ``linear``, ``mlp``, ``cnn``, ``resnet``, ``text``, ``autoencoder``, or ``package.module:factory``.
        loss: ``auto`` (cross-entropy for classes, mean squared error for regression), a name in
            `discreet.losses.LOSSES`, or ``package.module:function``.
        options: the network's own options; in TOML they stand beside ``name``, as ``widths = [200]``.
    """

    name: str = "mlp"
    loss: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if ":" not in self.name:
            _known("model.name", self.name, MODELS, what="package.module:factory, or one of")
        if self.loss != "auto" and ":" not in self.loss:
            _known("model.loss", self.loss, ["auto", *LOSSES])


@plain("privacy.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Privacy:
    """The differential privacy of a run, for schemes that give it: a budget, or an amount of noise, or both.

    Attributes:
        epsilon: the budget. Without a noise multiplier the noise is chosen so that all rounds fit in it; with one, the
            run stops before the round that would pass it.
        delta: the chance left out of the promise, in (0, 1); below 1 / clients, or 1 / records, to mean anything.
        noise_multiplier: standard deviation of the sum's noise over the L2 norm of one client's contribution
            (``dp-sgd``: of one record's).
        noise: ``discrete-gaussian``, or ``skellam``: shares of which add up to Skellam noise exactly. Only for noise
            that clients add: that of ``dp-sgd`` is Gaussian.
        accountant: ``rdp``, ``pld``, or ``best`` of those that there are; for ``skellam`` there is only ``rdp``.
        dropout_tolerance: share of a round's clients that may drop out without the noise falling short.
        assumed_dishonest: clients in a round who are taken to add no noise.
    """

    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    noise_multiplier: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    noise: NoiseName = "discrete-gaussian"
    accountant: Literal["rdp", "pld", "best"] = "rdp"
    dropout_tolerance: float = Field(default=0.0, ge=0, lt=1)
    assumed_dishonest: int = Field(default=0, ge=0)

    def __post_init__(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigError("privacy.epsilon", None, "a budget, or privacy.noise_multiplier")
        if self.noise == "skellam" and self.accountant == "pld":
            raise ConfigError(
                "privacy.accountant", "pld", "rdp or best: there are no loss distributions for skellam noise"
            )


@plain("dropouts.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Dropouts:
    """Clients that fall silent in a simulated round, each on its own, and stay so until the round is over.

    The steps are those of a masked sum. Each rate, in [0, 1), is the chance that a client which is still there sends
    nothing in that step. A sum in the clear has one message a client: lost where a masked sum would not get it.

    Attributes:
        advertise, share, mask: before the client's contribution is sent, which is lost.
        unmask: after it: the client is in the sum, and gives no share to unmask it. In the clear nothing is lost.
    """

    advertise: float = Field(default=0.0, ge=0, lt=1)
    share: float = Field(default=0.0, ge=0, lt=1)
    mask: float = Field(default=0.0, ge=0, lt=1)
    unmask: float = Field(default=0.0, ge=0, lt=1)

    @property
    def lost(self) -> float:
        """The chance that a client's contribution is lost."""
        return 1 - (1 - self.advertise) * (1 - self.share) * (1 - self.mask)

    @property
    def silent(self) -> float:
        """The chance that a client falls silent in some step, after its contribution included."""
        return 1 - (1 - self.lost) * (1 - self.unmask)


@plain("engine.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Engine:
    """How a run is computed, not what.

    `workers` never changes a result. `device`, `lanes`, `gradients` and `threads` can change the last bits of
    floating-point numbers.

    Attributes:
        device: ``cpu`` or ``cuda``.
        lanes: clients stacked at once; ``auto`` is resolved from the model and the cohort, and written down.
        gradients: ``layers``, ``vmap`` or ``autograd``; ``auto`` is resolved from the model, and written down.
        workers: stacks computed at the same time; ``auto`` is the number of processors.
        threads: torch threads of each worker.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    lanes: Literal["auto"] | int = "auto"
    gradients: Literal["auto", "layers", "vmap", "autograd"] = "auto"
    workers: Literal["auto"] | int = "auto"
    threads: int = Field(default=1, ge=1)

    def __post_init__(self) -> None:
        for name, value in (("lanes", self.lanes), ("workers", self.workers)):
            if value != "auto" and value < 1:
                raise ConfigError(f"engine.{name}", value, "'auto' or a number of at least 1")


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
        _known("scheme.name", name, SCHEMES)
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
    _known("experiment", source, list(known), what="a TOML file, or a preset")
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
        _known(key, value, SCHEMES)
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


def _known(key: str, value: object, known: Iterable[str], what: str = "one of") -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    names = list(known)
    if value not in names:
        raise ConfigError(key, value, f"{what}: {', '.join(names)}{did_you_mean(str(value), names)}")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
