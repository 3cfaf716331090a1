"""Why a site refuses: one of a few constants for the server, and a sentence for the site's own log.

A text made from data could carry data. So the server is told a cause, and nothing else.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from discreet.errors import DiscreetError, LocalProtocolError

Cause: TypeAlias = Literal[
    "stale", "replayed", "state-missing", "limits", "budget", "scheme", "data", "malformed", "internal"
]
"""All that a site ever says of why it refused:

* ``stale``: of a run, session or round that is over; ``replayed``: seen before.
* ``state-missing``: the site has not begun this run, or has lost what it knew.
* ``limits``: its owner does not allow it; ``budget``: its owner's epsilon is spent; ``scheme``: its owner does not
  allow this scheme.
* ``data``: its data does not fit the experiment.
* ``malformed``: the request cannot be read; ``internal``: a failure of the site's own.
"""

CAUSES: tuple[Cause, ...] = get_args(Cause)


class Refusal(DiscreetError):
    """A site will not do what it is asked.

    Attributes:
        cause: what the server is told.
        text: what the site's own log says; it never leaves the site.
    """

    def __init__(self, cause: Cause, text: str) -> None:
        self.cause, self.text = cause, text
        super().__init__(f"refused ({cause}): {text}")


def require(cause: Cause, holds: bool, text: str) -> None:
    """Refuse, unless something holds."""
    if not holds:
        raise Refusal(cause, text)


def check_request(holds: bool, what: str) -> None:
    """Refuse a request that makes no sense.

    Raises:
        LocalProtocolError: something does not hold.
    """
    if not holds:
        raise LocalProtocolError(what)
