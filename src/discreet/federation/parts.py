"""What a message to a site can ask, and what a site can answer: the parts of `discreet.wire.Envelope`.

| asked | answered |
|---|---|
| `Hello` | `Welcome` |
| `Begin` | `Ready` |
| `Work` | `Contributed` (in the clear), `Masked` (a masked sum), `Shared` (additive sharing) |
| `Masking` | `Masked` |
| `Holding` | `PartialSum` |
| `Evaluate` | `Evaluated` |
| `End` | `Done` |

Any of them may be answered by `Refused`. A reply has an answer to each part of its request, in their order; in a
rehearsal `Told` comes after them. A request that is refused as a whole is answered by `Refused` alone.

`LEAVES` says what leaves a site, part by part. **The length of an answer depends on the request and on what is public**,
never on the site's data.
"""

from __future__ import annotations

from collections.abc import Mapping

from discreet.errors import LocalProtocolError
from discreet.federation.replies import (
    Answered,
    Contributed,
    Done,
    Evaluated,
    Masked,
    PartialSum,
    Ready,
    Refused,
    Shared,
    Told,
    Welcome,
)
from discreet.federation.requests import (
    ADDITIVE,
    IN_CLEAR,
    LONGEST_EXPERIMENT,
    MASKED,
    MOST_FEATURES,
    Asked,
    Begin,
    End,
    Evaluate,
    Features,
    Hello,
    Holding,
    Masking,
    Member,
    Work,
)
from discreet.wire import Part

__all__ = [
    "ADDITIVE",
    "ANSWERED",
    "ASKED",
    "IN_CLEAR",
    "LEAVES",
    "LONGEST_EXPERIMENT",
    "MASKED",
    "MOST_FEATURES",
    "Answered",
    "Asked",
    "Begin",
    "Contributed",
    "Done",
    "End",
    "Evaluate",
    "Evaluated",
    "Features",
    "Hello",
    "Holding",
    "Masked",
    "Masking",
    "Member",
    "PartialSum",
    "Ready",
    "Refused",
    "Shared",
    "Told",
    "Welcome",
    "Work",
    "answered",
    "asked",
    "vouching",
]

ASKED: Mapping[int, type[Asked]] = {
    one.kind: one for one in (Hello, Begin, Work, Masking, Holding, Evaluate, End)
}
ANSWERED: Mapping[int, type[Answered]] = {
    one.kind: one
    for one in (
        Welcome,
        Ready,
        Contributed,
        Masked,
        Shared,
        PartialSum,
        Evaluated,
        Done,
        Refused,
        Told,
    )
}
LEAVES: Mapping[str, str] = {one.__name__: one.leaves for one in ANSWERED.values()}
"""What leaves a site, by the part that it leaves in. Nothing else does."""


def asked(part: Part) -> Asked:
    """What a part of a request asks.

    Raises:
        LocalProtocolError: nothing that there is.
    """
    if part.kind not in ASKED:
        raise LocalProtocolError(f"parts: nothing is asked by the kind {part.kind}")
    return ASKED[part.kind].from_bytes(part.body)


def answered(part: Part) -> Answered:
    """What a part of a reply answers.

    Raises:
        LocalProtocolError: nothing that there is.
    """
    if part.kind not in ANSWERED:
        raise LocalProtocolError(f"parts: nothing is answered by the kind {part.kind}")
    return ANSWERED[part.kind].from_bytes(part.body)


def vouching(run: bytes, number: int, share_key: bytes, minimum: int) -> bytes:
    """What a site signs to say that a share key is its own, and of how many sites a secure sum must be at least."""
    of_site = number.to_bytes(4, "little") + minimum.to_bytes(4, "little")
    return b"discreet share key 2" + run + of_site + share_key
