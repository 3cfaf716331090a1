"""What a site holds: data of its own, or its part of the data that the experiment names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from discreet.config import Experiment
from discreet.data.dataset import Dataset
from discreet.federation.party import Facts, prepared
from discreet.federation.refusal import require
from discreet.preparation import Federation


@dataclass(frozen=True, eq=False)
class OwnData:
    """A site's data, where it is not that of the experiment.

    Attributes:
        load: gives the data set: its training examples are the site's own, its test examples judge models.
        features: which input features the site holds, of data split by columns; None for all.
    """

    load: Callable[[], Dataset]
    features: tuple[int, ...] | None = None


class Holdings:
    """What a site holds, loaded when it is first needed.

    Args:
        number: of the site.
        data: its own; None for the part of the experiment's data that has its number.
        data_dir: where the experiment's data is looked for first.
    """

    def __init__(self, number: int, data: OwnData | None, data_dir: str | None) -> None:
        self.number, self.data, self.data_dir = number, data, data_dir
        self._own: Dataset | None = None
        self._prepared: tuple[str, Federation] | None = None

    def of(self, experiment: Experiment, text: str, sites: int) -> tuple[int, tuple[int, ...]]:
        """How many examples the site holds, and which features; none where it has all.

        Args:
            experiment: that it is asked about.
            text: the same, as the server sent it.
            sites: how many there are.

        Raises:
            UserError: the data cannot be read.
            Refusal: it is dealt to another number of sites.
        """
        if self.data is not None:
            return len(self._loaded(self.data).train), self.data.features or ()
        found = self._of_the_experiment(experiment, text)
        require("data", found.partition.clients == sites, "the experiment's data is dealt to others")
        return Facts.of(found.partition).of_site(self.number)

    def federation(self, experiment: Experiment, text: str, facts: Facts) -> Federation:
        """The site's federation, with what it holds.

        Args:
            experiment: that runs.
            text: the same, as the server sent it.
            facts: what all sites were said to hold.

        Raises:
            UserError: the data cannot be read, or does not fit the experiment.
            Refusal: this site, or another one, holds other data than that.
        """
        held = self.of(experiment, text, facts.sites)
        known = facts.known_to(self.number, held[0])
        if self.data is not None:
            found = prepared(experiment, known, self._loaded(self.data), None)
        else:
            found = self._of_the_experiment(experiment, text)
            dealt = Facts.of(found.partition).told_under(experiment.scheme)
            require("data", dealt == facts, "others hold other data than here")
        told = known.told_under(experiment.scheme)
        same = told == facts and held == known.of_site(self.number)
        require("data", same, "this site holds other data than was said")
        return found

    def load(self) -> None:
        """Read the site's own data now, if it has some, rather than when it is needed.

        Raises:
            UserError: it cannot be read.
        """
        if self.data is not None:
            self._loaded(self.data)

    def _loaded(self, data: OwnData) -> Dataset:
        if self._own is None:
            self._own = data.load()
        return self._own

    def _of_the_experiment(self, experiment: Experiment, text: str) -> Federation:
        if self._prepared is None or self._prepared[0] != text:
            self._prepared = (text, prepared(experiment, None, None, self.data_dir))
        return self._prepared[1]
