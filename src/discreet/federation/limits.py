"""What a site's owner allows, whatever the server asks."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Literal

import tomli_w
from pydantic import Field
from pydantic.dataclasses import dataclass

from discreet.checked import STRICT, plain
from discreet.config import Experiment
from discreet.errors import ConfigError, DataError
from discreet.federation.refusal import Refusal
from discreet.names import did_you_mean
from discreet.sampling import fixed_cohort
from discreet.schemes import SCHEMES
from discreet.schemes.references import Local
from discreet.schemes.traits import groups_of

MEBIBYTE = 2**20


@plain("limits.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """What a site's owner allows.

    Attributes:
        schemes: names of schemes that may run, or ``"all"``.
        minimum_cohort: the site adds to no sum that fewer sites are drawn for, and lets none be read that has fewer
            in it; on a grid, of any column. In the clear the server sees every contribution anyway.
        epsilon: what all runs together may cost; None for no limit. With one, schemes that promise no privacy are
            refused, and sums in the clear: what the server sees of one site has only that site's share of the noise.
        delta: at which `epsilon` is counted, in (0, 1); None only without an epsilon.
        require_private: whether schemes that promise no privacy are refused, whatever `epsilon` is.
        require_secure: whether sums are refused of which the server sees every part.
        code: names of models and losses, as ``package.module:name``, that may be imported when the server names them.
        paths: files and folders of this machine that the server may name as the data.
        allow_rehearsal: whether runs are allowed in which nothing is secret: noise and masks come from a seed.
        report_evaluation: whether the site says how good a model is on its own data; never with an `epsilon`, as no
            noise covers it.
        trust_sampling: whether the server is trusted to draw sites as the experiment says. A site cannot check the
            draw; without this it counts every round as if all sites took part, which costs more.
        largest_message: in bytes; larger ones are not read.
    """

    schemes: Literal["all"] | list[str] = "all"
    minimum_cohort: int = Field(default=3, ge=1)
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    delta: float | None = Field(default=None, gt=0, lt=1)
    require_private: bool = False
    require_secure: bool = False
    code: list[str] = Field(default_factory=list)
    paths: list[str] = Field(default_factory=list)
    allow_rehearsal: bool = False
    report_evaluation: bool = False
    trust_sampling: bool = False
    largest_message: int = Field(default=1024 * MEBIBYTE, ge=1024)

    def __post_init__(self) -> None:
        if self.schemes != "all":
            for name in self.schemes:
                if name not in SCHEMES:
                    raise ConfigError(
                        "limits.schemes",
                        name,
                        f"'all', or some of {', '.join(SCHEMES)}{did_you_mean(name, SCHEMES)}",
                    )
        for name in self.code:
            module, colon, attribute = name.partition(":")
            if not (module and colon and attribute):
                raise ConfigError("limits.code", name, "package.module:name")
        if (self.epsilon is None) != (self.delta is None):
            missing, there = ("delta", "epsilon") if self.delta is None else ("epsilon", "delta")
            raise ConfigError(f"limits.{missing}", None, f"a number: limits.{there} means nothing without it")

    def check(
        self,
        experiment: Experiment,
        sites: int,
        *,
        rehearse: bool = False,
        own_data: bool = False,
        columns: int = 1,
    ) -> None:
        """Refuse an experiment that the owner does not allow; for a look before anything is built.

        What is spent is another question: see `discreet.federation.spending`.

        Args:
            experiment: what the server asks.
            sites: how many there are.
            rehearse: whether nothing in it is to be secret.
            own_data: whether the site has data of its own, so that no path in the experiment is read.
            columns: of a grid of sites, whose sums are over one site of each row; if that is not known yet, 1.

        Raises:
            Refusal: it is not allowed.
        """
        scheme, name = experiment.scheme, experiment.scheme_name
        if rehearse and not self.allow_rehearsal:
            raise Refusal("limits", "a rehearsal, with noise and masks from a seed: allow_rehearsal is false")
        if self.schemes != "all" and name not in self.schemes:
            raise Refusal("scheme", f"{name} is not among the schemes allowed: {', '.join(self.schemes)}")
        if scheme.pooled:
            raise Refusal("scheme", f"{name} needs everybody's data in one place")
        if isinstance(scheme, Local):
            self._check_named(experiment, own_data)
            return  # nothing is ever sent
        if self.require_private and not scheme.private:
            raise Refusal("scheme", f"{name} promises no differential privacy: require_private is true")
        if self.epsilon is not None and not scheme.private:
            raise Refusal("scheme", f"{name} promises no differential privacy, and epsilon is limited")
        if (self.require_secure or self.epsilon is not None) and not is_secure(experiment):
            why = "require_secure is true" if self.require_secure else "epsilon is limited"
            raise Refusal(
                "limits", f"secure = {experiment.secure!r}, where the server sees every part: {why}"
            )
        self.check_cohort(_expected(experiment, sites) // groups_of(scheme) // columns)
        self._check_named(experiment, own_data)

    def check_cohort(self, drawn: int) -> None:
        """Refuse a sum over too few sites.

        Args:
            drawn: how many sites are in the sum, with this one.

        Raises:
            Refusal: fewer than `minimum_cohort`.
        """
        if drawn < self.minimum_cohort:
            raise Refusal("limits", f"a sum over {drawn} sites: minimum_cohort is {self.minimum_cohort}")

    def _check_named(self, experiment: Experiment, own_data: bool) -> None:
        """Refuse to import, or to read, what the owner has not named."""
        for key, name in (("model.name", experiment.model.name), ("model.loss", experiment.model.loss)):
            if ":" in name and name not in self.code:
                raise Refusal("limits", f"{key} = {name!r} is not among the code allowed")
        if own_data:
            return
        for key, path in (("data.path", experiment.data.path), ("data.test_path", experiment.data.test_path)):
            if path is not None and path not in self.paths:
                raise Refusal("limits", f"{key} = {path!r} is not among the paths allowed")

    def to_toml(self) -> str:
        """The limits as a file for the owner to edit; ``from_toml`` gives the same limits again."""
        table = dataclasses.asdict(self)
        return _HEAD + tomli_w.dumps({key: value for key, value in table.items() if value is not None})

    @classmethod
    def from_toml(cls, text: str, source: object = "limits") -> Limits:
        """The limits in a file; what it leaves out is as in `Limits`.

        Raises:
            DataError: the file is not TOML.
            ConfigError: a key is unknown, or its value impossible.
        """
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(source, f"is not TOML: {error}") from None
        return cls(**table)


def check_minimum(minimum: int, site: int, there: int) -> None:
    """Refuse a sum over fewer sites than one in it asks for.

    Args:
        minimum: how many that one asks for.
        site: its number.
        there: how many are in the sum.

    Raises:
        Refusal: fewer.
    """
    if there < minimum:
        raise Refusal("limits", f"a sum over {there} sites: site {site} asks for {minimum}")


_HEAD = """\
# What the owner of this site allows, whatever the server asks. To limit what all private runs together may cost:
#   epsilon = 8.0
#   delta = 1e-5

"""


def is_secure(experiment: Experiment) -> bool:
    """Whether the server sees sums only."""
    if experiment.secure == "auto":
        return bool(experiment.scheme.private and experiment.scheme.modular)
    return experiment.secure != "none"


def _expected(experiment: Experiment, sites: int) -> int:
    """How many sites a round is drawn for: exactly so many, or (Poisson) so many on average."""
    if experiment.scheme.everyone:
        return sites
    if experiment.sampling == "poisson":
        return int(experiment.fraction * sites)
    return fixed_cohort(experiment, sites)
