"""One round of any scheme, as a generator that does not know who adds or how.

`play_round` yields what it wants summed (`Ask`), is sent the sum (`Total`), and returns the next state. A driver
answers the asks: the simulator on one machine, or a server that talks to sites.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from discreet.errors import LocalProtocolError
from discreet.schemes.base import Phase, Scheme, Task, Total

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Ask:
    """A request to sum one phase of a round over its participants.

    Attributes:
        round: counted from 1.
        phase: what is summed, over which grouping, and how long a contribution is.
        payload: what every participant may see this round.
        received: the totals of the round's earlier phases.
    """

    round: int
    phase: Phase
    payload: Any
    received: tuple[Total, ...]


def play_round(
    scheme: Scheme[State, Any], task: Task, state: State, round: int
) -> Generator[Ask, Total, State]:
    """Play one round.

    Args:
        scheme: the scheme.
        task: the model and loss at hand.
        state: the server's state after the last round.
        round: counted from 1.

    Yields:
        An `Ask` for each phase, to be answered by the `Total` of that phase.

    Returns:
        The state after this round. A round to which nobody contributed leaves the state as it was.

    Raises:
        LocalProtocolError: the driver sent a total of the wrong length.
    """
    payload = scheme.broadcast(task, state, round)
    totals: tuple[Total, ...] = ()
    for phase in scheme.phases(task):
        total = yield Ask(round, phase, payload, totals)
        if total.values.shape[-1] != phase.length:
            raise LocalProtocolError(
                f"phase {phase.name!r} sums {phase.length} elements, got a total of {total.values.shape[-1]}"
            )
        totals = (*totals, total)
    if any(total.count == 0 for total in totals):
        return state
    return scheme.update(task, state, totals, round)
