"""Many processes of one program, which load it once: ``python -m discreet.federation.together MODULE PLAN.json``.

The parent imports the module, calls its ``warm``, and forks a child for each entry of the plan: loading torch or Flower
takes seconds and hundreds of megabytes, which the children share. Each child leads a session of its own, writes to a log of its own, and
calls the module's ``main`` with its own arguments. The parent does nothing more than wait for them: SIGTERM to it goes
to all, and it ends when the last has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from discreet.federation.forks import become


def plan(entries: dict[str, list[str]], folder: Path, *, after: Path | None = None) -> str:
    """A plan, for the command line.

    Args:
        entries: for each child its name and its arguments.
        folder: of the logs, ``NAME.log``, and of the files ``NAME.pid`` with each child's number.
        after: a file that has to be there before any child starts; the module is loaded meanwhile.
    """
    return json.dumps({"folder": str(folder), "entries": entries, "after": str(after) if after else None})


def main(module: str, text: str) -> None:
    """Start the children, and wait for all of them."""
    asked: dict[str, Any] = json.loads(text)
    sys.path.append("")  # as the command line does: the user's own modules may lie in the current folder
    program = import_module(module)
    program.warm()
    folder = Path(asked["folder"])
    while asked["after"] and not Path(asked["after"]).exists():
        time.sleep(0.1)
    children: dict[int, str] = {}
    for name, arguments in asked["entries"].items():
        child = os.fork()
        if child == 0:
            _speak(folder, name)
            become(program.main, name, arguments)
        children[child] = name
        (folder / f"{name}.pid").write_text(str(child))

    def pass_on(number: int, _: object) -> None:
        for child in list(children):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, pass_on)
    while children:
        child, status = os.wait()
        name = children.pop(child, "a child")
        print(f"{name} ended with exit code {os.waitstatus_to_exitcode(status)}", flush=True)  # noqa: T201


def _speak(folder: Path, name: str) -> None:
    """Lead a session, and write to a log."""
    os.setsid()
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    main(*sys.argv[1:])
