"""The end of a server whose SuperLink is gone: Flower's own calls would try for ever to reach it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

GRACE = 1.0
"""Seconds between that and the end: fewer than Flower, which notices too, takes to end the process without a word."""


def end_when_orphaned(last: Callable[[], object], *, grace: float = GRACE, pause: float = 1.0) -> None:
    """Watch the parent of this process, and end the process when that is gone, as a signal 9 would.

    Args:
        last: what is done just before, such as to say so in a file.
        grace: seconds between both.
        pause: seconds between two looks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(pause)
        time.sleep(grace)
        try:
            last()
        finally:
            os._exit(1)

    if parent > 1:
        threading.Thread(target=watch, name="parent", daemon=True).start()
