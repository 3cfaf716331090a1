"""HTML and SVG elements as values; text is escaped unless it is already markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Not allowed in HTML, and lone surrogates (from file names that are not UTF-8) cannot be written as UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_VOID = frozenset({"meta", "input", "br"})


class Markup(str):
    """Text that is markup already. Everything else that `tag` is given is escaped."""

    __slots__ = ()


Child = str | Iterable[str]


def text(value: object) -> Markup:
    """``value`` as text, safe between tags and in a quoted attribute."""
    return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(value))))


def join(children: Iterable[str], between: str = "") -> Markup:
    """Children one after the other, each escaped unless it is `Markup`."""
    return Markup(
        text(between).join(child if isinstance(child, Markup) else text(child) for child in children)
    )


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """One element.

    Args:
        name: the element's name.
        children: text (escaped), `Markup`, or an iterable of them.
        attributes: ``class_`` is written as ``class`` and ``stroke_width`` as ``stroke-width``. None and False
            leave an attribute out, True writes it without a value.
    """
    written = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {key}")
        elif value is not None and value is not False:
            written.append(f' {key}="{text(value)}"')
    opening = f"<{name}{''.join(written)}>"
    if name in _VOID:
        return Markup(opening)
    inner = join(join([child]) if isinstance(child, str) else join(child) for child in children)
    return Markup(f"{opening}{inner}</{name}>")
