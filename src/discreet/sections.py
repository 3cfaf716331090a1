"""The sections of an experiment, but for the scheme's and the adversary's: each a frozen dataclass that is its own schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.augment import AUGMENTATIONS
from discreet.checked import STRICT, plain
from discreet.data.partitions import PARTITIONS
from discreet.data.sources import SOURCES, Features
from discreet.errors import ConfigError
from discreet.losses import LOSSES
from discreet.models import MODELS
from discreet.names import did_you_mean
from discreet.privacy.promise import NoiseName


def check_known(key: str, value: object, known: Iterable[str], what: str = "one of") -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    names = list(known)
    if value not in names:
        raise ConfigError(key, value, f"{what}: {', '.join(names)}{did_you_mean(str(value), names)}")


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
        check_known("data.name", self.name, SOURCES)
        check_known("data.partition", self.partition, PARTITIONS)
        check_known("data.augment", self.augment, AUGMENTATIONS)
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
            check_known("model.name", self.name, MODELS, what="package.module:factory, or one of")
        if self.loss != "auto" and ":" not in self.loss:
            check_known("model.loss", self.loss, ["auto", *LOSSES])


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
