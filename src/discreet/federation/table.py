"""Where rounds are played, from one to the next: who is drawn for them, and whose keys are shared ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discreet.errors import ConfigError
from discreet.federation.masked import MaskedSum, Sums
from discreet.federation.spending import Spending
from discreet.federation.standing import Sites
from discreet.federation.terms import agreement, masking_terms
from discreet.preparation import Federation
from discreet.progress import Progress, is_over
from discreet.randomness import SERVER
from discreet.sampling import Attendance, grouped, sample
from discreet.schemes.base import Phase
from discreet.schemes.references import Local
from discreet.secure.masking import STAGES


@dataclass(frozen=True)
class Deadlines:
    """How long the server waits for sites, in seconds.

    Attributes:
        gathering: for all sites to be there and to have read their data, at the beginning; and for those who failed in a
            round to come back, before it is tried for the last time.
        work: for sites to train, or to add up.
        keys: for everything else.
    """

    gathering: float = 600.0
    work: float = 600.0
    keys: float = 120.0


PATIENT = Deadlines()
"""What is waited unless something else is said."""


@dataclass(eq=False)
class Table:
    """Where rounds are played.

    Attributes:
        federation: the server's.
        sites: those that play.
        spending: what is written down before it is released.
        deadlines: how long to wait.
        serial: of the last masked sum.
        ahead: the next round's masked sums, whose keys are shared already.
    """

    federation: Federation
    sites: Sites
    spending: Spending
    deadlines: Deadlines
    serial: int = 0
    ahead: Sums | None = None

    def prepared(self, progress: Progress, number: int) -> Sums | None:
        """The masked sums of a round that is still to come; None if it will not be played, or nobody is there for it."""
        before = replace(progress, round=number - 1, ledger=self.spending.ledger())
        if is_over(self.federation, before):
            return None
        cohort = self.there(self.drawn(number))
        return self.sums(number, cohort)

    @property
    def agreed(self) -> bytes:
        """What masked sums are bound to, see `discreet.federation.terms.agreement`."""
        hello = self.sites.hello
        return agreement(hello.rehearse, hello.experiment, self.sites.begin())

    def sums(self, number: int, cohort: NDArray[np.int64]) -> Sums:
        """New masked sums of a cohort's groups; who is in too small a group is in none."""
        (phase,) = self.federation.scheme.phases(self.federation.task)
        agreed, found = self.agreed, []
        for group in self.groups(number, cohort, phase):
            self.serial += 1
            words = self.federation.task.hidden.words(number, SERVER, f"masking graph {self.serial}", 4)
            try:
                terms = masking_terms(
                    self.federation,
                    self.sites.run,
                    agreed,
                    self.sites.session,
                    self.serial,
                    number,
                    tuple(group.drawn.tolist()),
                    words.astype("<u8").tobytes(),
                )
            except ConfigError:
                continue  # a cohort too small to hide anyone in
            keys = {site: its.key for site, its in self.sites.all.items() if its.key is not None}
            found.append(MaskedSum.of(self.serial, terms, keys, self.sites.minima))
        return Sums(number, tuple(cohort.tolist()), agreed, found)

    def groups(self, number: int, cohort: NDArray[np.int64], phase: Phase) -> list[Attendance]:
        """The cohort in its groups."""
        everyone = Attendance(cohort, np.full(len(cohort), len(STAGES)))
        clients = self.federation.partition.clients
        return grouped(self.federation.experiment, everyone, clients, number, phase.groups)

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The sites drawn for a round."""
        return sample(self.federation.experiment, self.federation.partition.clients, number)

    def there(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some sites who are there and whose owners ask for no more in a sum than there are.

        Of rows that predict together, whole rows alone.
        """
        return self.willing(drawn, np.isin(drawn, sorted(self.sites.here)))

    def willing(self, drawn: NDArray[np.int64], here: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The same if those are there of whom that is said, shape (K,)."""
        federation, minima = self.federation, self.sites.minima
        columns = federation.partition.column_count
        whole = any(phase.scope == "row" for phase in federation.scheme.phases(federation.task))
        asked = np.array([minima.get(site, 0) for site in drawn.tolist()], dtype=np.int64)
        if isinstance(federation.scheme, Local):
            asked[:] = 0  # nothing is summed
        before = -1
        while here.sum() != before:  # who is left out may be one too few for another
            before = here.sum()
            if columns > 1 and whole:
                here = here.reshape(-1, columns).all(1).repeat(columns)
            here = here & (asked <= np.bincount(drawn[here] % columns, minlength=columns)[drawn % columns])
        return drawn[here]
