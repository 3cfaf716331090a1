"""What a message asked of a site and what became of it, in words for the site's own log.

No payload, key, share or example is in them. Of an error that is not one of ours the text is left out, as it may be made
of data: its type is named, and where it arose. What a loader or a model of the owner's says of its own failure is told,
and so is a value in the data that cannot be used.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from discreet.errors import DiscreetError
from discreet.federation.parts import ADDITIVE, IN_CLEAR, MASKED, Asked, Holding, Masking, Work
from discreet.federation.refusal import Cause, Refusal
from discreet.secure.masking import Stage
from discreet.wire import Envelope

LONGEST = 400
"""Characters of a reason."""

HOW = {IN_CLEAR: "in the clear", MASKED: "masked", ADDITIVE: "additive"}


@dataclass(frozen=True, eq=False)
class Step:
    """What a message asked of a site, and what became of it.

    Attributes:
        envelope: the message.
        asked: its parts; none if they could not be read, or were not looked at.
        refused: of each part that was refused, what the server was told and why it was so.
    """

    envelope: Envelope
    asked: tuple[Asked, ...]
    refused: tuple[tuple[Cause, Exception], ...] = ()

    def __str__(self) -> str:
        it = self.envelope
        what = ", ".join(map(_named, self.asked)) or "a message"
        became = "; ".join(f"refused ({cause}): {reason(error)}" for cause, error in self.refused)
        return f"run {it.run.hex()[:8]} round {it.round} attempt {it.attempt}: {what}: {became or 'answered'}"


def _named(part: Asked) -> str:
    """What a part asks, in a few words."""
    name = type(part).__name__.lower()
    match part:
        case Work():
            return f"{name} of phase {part.phase}, {HOW.get(part.how, 'unknown')}"
        case Masking():
            return f"{name}, {tuple(Stage)[part.stage].value}"
        case Holding():
            return f"{name} of phase {part.phase}"
    return name


def reason(error: Exception) -> str:
    """Why something was refused, in one line."""
    if isinstance(error, Refusal):
        text = error.text
    elif isinstance(error, DiscreetError):
        text = str(error)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        text = f"{type(error).__name__}{where}"
    line = " ".join(text.split())[:LONGEST]
    # what a server has written must not move the cursor of who reads the log
    return "".join(one if one.isprintable() else "?" for one in line)
