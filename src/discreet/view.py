"""What one party of a run receives: the only thing that an attack on it may be given, beside the party's own data.

Parties are called ``server``, ``participant:K`` (client number K) and ``aggregator`` (who adds up, and does nothing
else). All of them know the public facts: the experiment's settings, the model's layers, who takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from discreet.errors import ConfigError
from discreet.schemes.base import Total

Role = Literal["server", "aggregator", "participant"]


@dataclass(frozen=True)
class Party:
    """Who looks.

    Attributes:
        role: its part in the protocol.
        number: a participant's number; None for the others.
    """

    role: Role
    number: int | None = None

    def __str__(self) -> str:
        return self.role if self.number is None else f"{self.role}:{self.number}"

    @classmethod
    def named(cls, name: str, participants: int, key: str = "watch") -> Party:
        """The party of that name.

        Args:
            name: ``server``, ``aggregator`` or ``participant:K``.
            participants: how many there are.
            key: what the name was given as, for errors.

        Raises:
            ConfigError: there is no such party.
        """
        role, _, number = name.partition(":")
        if role == "participant" and number.isascii() and number.isdecimal() and int(number) < participants:
            return cls("participant", int(number))
        if name == "server":
            return cls("server")
        if name == "aggregator":
            return cls("aggregator")
        last = participants - 1
        some = f"one of participant:0 to participant:{last}" if last else "participant:0"
        raise ConfigError(key, name, f"server, aggregator, or {some}")


@dataclass(frozen=True, eq=False)
class Seen:
    """What a party received in one phase of a round.

    Attributes:
        round: counted from 1.
        phase: its name.
        payload: what the round began with, as it is sent to this party (for the server: what it sends); None in later
            phases, and for an aggregator.
        contributions: of each client the group elements that arrived from it, shape (length,), by its number; None
            where the party receives none, or the sum is secure and shows none. What a secure sum shows instead (masked
            vectors, partial sums) is uniform, and is not recorded.
        total: the sum, with how many are in it; None for a party that is not told. A participant is told the sums of
            its own row or column, and of a round's last phase only what the next payload says of it.
    """

    round: int
    phase: str
    payload: Any
    contributions: Mapping[int, Tensor] | None = None
    total: Total | None = None


@dataclass(frozen=True, eq=False)
class View:
    """Everything that one party received, in order, and nothing else.

    Attributes:
        party: who.
        seen: what, a record for each phase in which it received something.
    """

    party: Party
    seen: tuple[Seen, ...]

    def payloads(self) -> Mapping[int, Any]:
        """The payloads it was sent, by round."""
        return {one.round: one.payload for one in self.seen if one.payload is not None}
