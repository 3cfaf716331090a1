"""Records what named parties of a simulation receive, while it runs; where nobody is named, nothing is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from discreet.preparation import Federation
from discreet.rounds import Ask
from discreet.sampling import Attendance
from discreet.schemes.base import Phase, Total
from discreet.schemes.traits import Narrowed
from discreet.secure.ring import Ring
from discreet.view import Party, Seen, View


class Witness:
    """Stands beside some parties and writes down what reaches them.

    Where the server or an aggregator is watched and sums are in the clear, single contributions are kept in memory,
    and a scheme that could add them up without writing them down does write them down: floating-point totals may then
    differ in their last bits.

    Args:
        federation: whose rounds are played.
        names: of the parties, as `discreet.view.Party.named` takes them.

    Raises:
        ConfigError: there is no party of that name.
    """

    def __init__(self, federation: Federation, names: Sequence[str]) -> None:
        self.federation = federation
        self.parties = tuple(Party.named(name, federation.partition.clients) for name in names)
        self._seen: dict[Party, list[Seen]] = {party: [] for party in self.parties}

    def arrivals(self, phase: Phase) -> dict[int, Tensor] | None:
        """An empty record of single contributions, where somebody sees them."""
        adding = any(party.role != "participant" for party in self.parties)
        return {} if adding and phase.length and not self._hidden(phase) else None

    def saw(self, ask: Ask, there: Attendance, arrived: Mapping[int, Tensor] | None, total: Total) -> None:
        """A phase has been played.

        Args:
            ask: what was summed.
            there: who was there.
            arrived: what `arrivals` gave, filled.
            total: what was answered.
        """
        for party in self.parties:
            if party.number is None:
                self._adds(party, ask, arrived, total)
            else:
                self._takes_part(party, party.number, ask, there)

    def views(self) -> Mapping[str, View]:
        """What each party has received up to now, by its name."""
        return {str(party): View(party, tuple(self._seen[party])) for party in self.parties}

    def _adds(self, party: Party, ask: Ask, arrived: Mapping[int, Tensor] | None, total: Total) -> None:
        if not ask.phase.length:
            return  # nothing leaves a participant
        payload = ask.payload if party.role == "server" and not ask.received else None
        shown = total if total.count else None
        self._seen[party].append(Seen(ask.round, ask.phase.name, payload, arrived, shown))

    def _takes_part(self, party: Party, number: int, ask: Ask, there: Attendance) -> None:
        seen, sending = self._seen[party], number in there.sending
        if ask.received:
            if sending:
                seen[-1] = replace(seen[-1], total=self._own_part(ask, number))
                seen.append(Seen(ask.round, ask.phase.name, None))
        elif ask.phase.length and number in there.drawn:
            payload, scheme = ask.payload, self.federation.scheme
            if isinstance(scheme, Narrowed):
                payload = scheme.sent_to(self.federation.task, payload, number)
            seen.append(Seen(ask.round, ask.phase.name, payload))

    def _own_part(self, ask: Ask, number: int) -> Total:
        """What the participant is told of the sum before this phase."""
        total, partition = ask.received[-1], self.federation.partition
        scope = self.federation.scheme.phases(self.federation.task)[len(ask.received) - 1].scope
        if scope == "all":
            return total
        place = int((partition.row_of if scope == "row" else partition.column_of)(number))
        return replace(total, values=total.values[place])

    def _hidden(self, phase: Phase) -> bool:
        """Whether who adds up sees nothing but the sum."""
        return self.federation.experiment.secure in ("masked", "additive") and isinstance(phase.group, Ring)
