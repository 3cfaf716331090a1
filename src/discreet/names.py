"""What a mistyped name may have meant, for the errors that refuse it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like a word, whatever their case; None where none is near.

    Near is a similarity of at least 0.6 as `difflib` measures it: for words of equal length, six letters in ten.
    """
    spelt = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), spelt, n=1)
    return spelt[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error's sentence, ``"; did you mean 'fedavg'?"``; empty where no known name is near."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near!r}?"
