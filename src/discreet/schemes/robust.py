"""Robust averaging: servers that look at every update to tell honest ones from others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from discreet.adversaries.settings import Misdeed
from discreet.checked import STRICT, plain
from discreet.cohort import Cohort
from discreet.errors import ConfigError
from discreet.optimizers import LocalTraining
from discreet.schemes.base import Contribution, GlobalModel, Phase, SharedModel, Task, Total
from discreet.schemes.stepping import ServerStep, moved
from discreet.secure.groups import Reals

ASSUMED = 0.2
"""Share of a round's clients that is taken to be malicious, if nothing else is said."""

COORDINATES = 1 << 14
"""So many coordinates of all updates are looked at together: they stay in a processor's cache."""


@plain("scheme.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class RobustFedAvg(SharedModel, ServerStep, LocalTraining):
    """FedAvg whose server puts something else in the mean's place, to withstand malicious clients.

    Nobody is weighted by examples, which a client could lie about. With K updates a round, of which
    f = ceil(assumed_malicious * K) are taken to be malicious (always fewer than half), `aggregate` is

    * ``mean``: the plain mean, which withstands nobody: what the others are read against.
    * ``median``: of each coordinate (Yin et al. 2018, arXiv 1803.01498, definition 1).
    * ``trimmed-mean``: of each coordinate without its f largest and its f smallest values (there, definition 2).
    * ``krum``: the one update that is nearest to its K - f - 2 nearest others, by the sum of the squared distances
      (Blanchard et al. 2017, arXiv 1703.02757).
    * ``multi-krum``: the mean of the K - f updates that come first in that order.
    * ``norm-clip``: the mean of updates that are each scaled down to `clip_norm` in L2 (Sun et al. 2019,
      arXiv 1911.07963).

    Guarantees: no privacy, and none can be added by a secure sum. **The server needs every update in the clear**, and
    sees it; participants see the global model of every round.

    Attributes:
        aggregate: what takes the mean's place.
        assumed_malicious: of ``trimmed-mean``, ``krum`` and ``multi-krum``: share of a round's clients, below a half.
        clip_norm: of ``norm-clip``: above 0; None for the median of the round's norms.
    """

    summary: ClassVar[str] = "a robust mean of updates that the server sees in the clear (median, Krum, ...)"
    misdeeds: ClassVar[frozenset[Misdeed]] = frozenset({"data", "update", "common", "boost"})

    aggregate: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "norm-clip"] = "median"
    assumed_malicious: float = Field(default=ASSUMED, ge=0, lt=0.5)
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_norm is not None and self.aggregate != "norm-clip":
            raise ConfigError(
                "scheme.clip_norm", self.clip_norm, "to be left out unless scheme.aggregate is norm-clip"
            )
        counting = ("trimmed-mean", "krum", "multi-krum")
        if self.assumed_malicious != ASSUMED and self.aggregate not in counting:
            raise ConfigError(
                "scheme.assumed_malicious",
                self.assumed_malicious,
                f"to be left out unless scheme.aggregate is one of: {', '.join(counting)}",
            )

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The updates, gathered and not added."""
        return (Phase("update", Reals(), task.parameters, gathered=True),)

    def contribute(
        self, task: Task, phase: Phase, payload: GlobalModel, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """The changes as they are."""
        trained = task.boosted(task.train(self, payload.vector, cohort), cohort)
        return Contribution(trained.changes, trained.accepted, trained.losses)

    def update(self, task: Task, state: GlobalModel, totals: tuple[Total, ...], round: int) -> GlobalModel:
        """Move along what takes the mean's place."""
        return GlobalModel(moved(state.vector, self.aggregated(totals[0].values), self.step_size(round)))

    def aggregated(self, updates: Tensor) -> Tensor:
        """What takes the mean's place, float64, shape (n,).

        Args:
            updates: shape (K, n), K at least 1.
        """
        count = len(updates)
        malicious = min(math.ceil(self.assumed_malicious * count - 1e-9), (count - 1) // 2)
        match self.aggregate:
            case "mean":
                return updates.mean(0, dtype=torch.float64)
            case "median":
                return trimmed_mean(updates, (count - 1) // 2)
            case "trimmed-mean":
                return trimmed_mean(updates, malicious)
            case "krum":
                return updates[krum_order(updates, malicious)[0]].double()
            case "multi-krum":
                chosen = krum_order(updates, malicious)[: count - malicious]
                return updates[chosen.sort().values].mean(0, dtype=torch.float64)
            case "norm-clip":
                return clipped_mean(updates, self.clip_norm)


def trimmed_mean(updates: Tensor, cut: int) -> Tensor:
    """Of each coordinate, the mean without the `cut` largest and the `cut` smallest values; float64, shape (n,).

    Args:
        updates: shape (K, n).
        cut: below K / 2; (K - 1) // 2 gives the median.
    """
    count = len(updates)

    def middle(values: Tensor) -> Tensor:
        ordered = values.T.contiguous().sort(dim=1).values
        return ordered[:, cut : count - cut].mean(1, dtype=torch.float64)

    return torch.cat([middle(values) for values in _by_coordinates(updates)])


def krum_order(updates: Tensor, malicious: int) -> Tensor:
    """Updates from the one with the nearest neighbours to the one with the farthest; of equal ones the first comes first.

    Args:
        updates: shape (K, n).
        malicious: how many are taken to be malicious (f). Neighbours are the K - f - 2 nearest others, at least one
            where there is one.

    Returns:
        Shape (K,), their places.
    """
    count = len(updates)
    squares = torch.zeros(count, count, dtype=torch.float64, device=updates.device)
    for values in _by_coordinates(updates):
        some = values.double()
        # the usual shortcut by products loses small distances where one update is huge
        squares += torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = squares.sort(dim=1).values[:, 1 : 1 + max(1, count - malicious - 2)]
    return nearest.sum(1).sort(stable=True).indices


def clipped_mean(updates: Tensor, clip_norm: float | None) -> Tensor:
    """The mean of updates that are each scaled down to a norm; float64, shape (n,).

    Args:
        updates: shape (K, n).
        clip_norm: the norm; None for the median of theirs, the lower one of two.
    """
    norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    limit = norms.median() if clip_norm is None else norms.new_tensor(clip_norm)
    factors = torch.where(norms > limit, limit / norms, 1.0)
    total = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    for update, factor in zip(updates, factors, strict=True):
        total += update.double() * factor
    return total / len(updates)


def _by_coordinates(updates: Tensor) -> Iterator[Tensor]:
    """The updates in pieces of some coordinates, in order."""
    for first in range(0, updates.shape[1], COORDINATES):
        yield updates[:, first : first + COORDINATES]
