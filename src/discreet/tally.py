"""The tally of a round: who took part in it, who was left out, and what was sent."""

from __future__ import annotations

import numpy as np

from discreet.cohort import Cohort
from discreet.schemes.base import Contribution


class Tally:
    """What is counted while a round is played.

    Args:
        malicious: clients whose training losses mean nothing.
    """

    def __init__(self, malicious: frozenset[int] = frozenset()) -> None:
        self.malicious = malicious
        self.accepted: set[int] = set()
        self.empty: set[int] = set()
        self.rejected: set[int] = set()
        self.withheld: set[int] = set()
        self.released = True
        self.losses: list[float] = []
        self.saturated = 0
        self.uplink = 0
        self.downlink = 0

    def count(self, cohort: Cohort, given: Contribution, uplink: int) -> None:
        """Count what some clients brought."""
        accepted, sizes = given.accepted.cpu().numpy(), cohort.sizes
        losses = given.losses.cpu().double().numpy()
        self.empty |= set(cohort.ids[sizes == 0].tolist())
        self.rejected |= set(cohort.ids[~accepted & (sizes > 0)].tolist())
        # who is dropped in one phase of a round is no participant of it; who sends noise without an update is one
        self.accepted |= set(cohort.ids[accepted].tolist())
        self.accepted -= self.rejected
        if given.withheld is not None:
            self.withheld |= set(cohort.ids[given.withheld.cpu().numpy()].tolist())
        if given.saturated is not None:
            self.saturated += int(given.saturated.sum())
        counted = np.isfinite(losses) & accepted
        if self.malicious:
            counted &= [client not in self.malicious for client in cohort.ids.tolist()]
        self.losses += losses[counted].tolist()
        self.uplink += uplink

    @property
    def dropped(self) -> set[int]:
        """Who had examples, and no update to send that is finite."""
        return self.rejected | (self.withheld - self.empty)

    @property
    def diverged(self) -> bool:
        """Whether clients had examples, and none of them a finite update."""
        return bool(self.dropped) and not self.accepted - self.withheld

    def loss(self) -> float | None:
        """Mean training loss over the clients that had one."""
        return sum(self.losses) / len(self.losses) if self.losses else None
