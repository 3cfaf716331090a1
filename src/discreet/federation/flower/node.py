"""Flower's SuperNode, with shorter waits: ``discreet node`` takes the arguments of ``flower-supernode``.

Flower sleeps 3 seconds whenever no message is there, and starts a new Python for every message, which imports Flower
again: seconds of computing before a small message is answered. Both are changed here from outside, and only if Flower
looks as it did when this was written; otherwise its SuperNode runs as it is.

* The sleep of its loop becomes `POLL` seconds.
* The process of a message is a fork of one that has Flower loaded already: see `forking`. Each message still gets a
  process of its own.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from inspect import getsource
from types import ModuleType, SimpleNamespace

from discreet.federation.flower.forking import forking

POLL = "DISCREET_NODE_POLL"
"""The environment variable with the seconds between two looks for a message; 0.3 if it is not set."""


def main() -> None:
    """Run a SuperNode with the arguments of this process."""
    warm()
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode, flwr_clientapp

    sys.argv[0] = "flower-supernode"
    shorten(start_client_internal, float(os.environ.get(POLL, "0.3")))
    commands: dict[str, Callable[[], object]] = {"flwr-clientapp": flwr_clientapp}
    with suppress(ImportError):
        from flwr.supercore.cli import flower_superexec

        commands["flower-superexec"] = flower_superexec
    with forking(commands):
        flower_supernode()


def warm() -> None:
    """Load Flower's SuperNode, and what its HTTP client and the app of every message load when they are first used."""
    for name in ("flwr.supernode.cli", "httpcore", "discreet.federation.flower.client"):
        with suppress(ImportError):
            import_module(name)


def shorten(loop: ModuleType, poll: float) -> bool:
    """Shorten the sleeps of the module with the SuperNode's loop.

    Args:
        loop: the module.
        poll: seconds to sleep where no message waits.

    Returns:
        Whether it was done: not if the module uses `time` for anything else than the two sleeps that are known.
    """
    uses = sorted(set(re.findall(r"\btime\.\w+(?:\([^)]*\))?", getsource(loop))))
    if uses != ["time.sleep(0.5)", "time.sleep(3)"]:
        return False
    pauses = {3: poll, 0.5: 0.05}
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(pauses[seconds]))  # type: ignore[attr-defined]
    return True


if __name__ == "__main__":
    main()
