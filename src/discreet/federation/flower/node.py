"""Flower's SuperNode, with shorter waits: ``discreet node`` takes the arguments of ``flower-supernode``.

Flower sleeps 3 seconds whenever no message is there, and starts a new Python for every message, which imports Flower
again: seconds of computing before a small message is answered. Both are changed here from outside, and only if Flower
looks as it did when this was written; otherwise its SuperNode runs as it is.

* The sleep of its loop becomes `POLL` seconds.
* ``flower-superexec`` and ``flwr-clientapp`` are looked up on the PATH by Flower. There they are small scripts that ask
  a process which has Flower loaded already to fork. Each message still gets a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import getsource
from pathlib import Path
from types import ModuleType, SimpleNamespace

from discreet.federation.forks import become

POLL = "DISCREET_NODE_POLL"
"""The environment variable with the seconds between two looks for a message; 0.3 if it is not set."""

LARGEST = 1 << 20
"""Bytes that a request to fork may have."""

ASK = """#!/bin/sh
''':'
exec {python} -IS "$0" "$@"
'''
import json, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({socket!r})
asked.sendall(json.dumps([{name!r}, sys.argv[1:]]).encode())
asked.shutdown(socket.SHUT_WR)
asked.recv(1)
"""


def main() -> None:
    """Run a SuperNode with the arguments of this process."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode, flwr_clientapp

    # for all forks: what Flower's HTTP client and the app of every message load when they are first used
    for name in ("httpcore", "discreet.federation.flower.client"):
        with suppress(ImportError):
            import_module(name)
    sys.argv[0] = "flower-supernode"
    shorten(start_client_internal, float(os.environ.get(POLL, "0.3")))
    commands: dict[str, Callable[[], object]] = {"flwr-clientapp": flwr_clientapp}
    with suppress(ImportError):
        from flwr.supercore.cli import flower_superexec

        commands["flower-superexec"] = flower_superexec
    with forking(commands):
        flower_supernode()


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


@contextmanager
def forking(commands: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """While the block runs, commands that are looked up on the PATH are forks of this process as it is now.

    Args:
        commands: what each does; it reads `sys.argv`.
    """
    if threading.active_count() > 1 or not hasattr(os, "fork"):
        yield  # a fork of a process with threads may hold a lock for ever
        return
    folder = Path(tempfile.mkdtemp(prefix="discreet-"))
    listener = socket.socket(socket.AF_UNIX)
    path = str(folder / "fork.sock")
    try:
        listener.bind(path)
    except OSError:  # the path is too long for a socket
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        yield
        return
    listener.listen(16)
    for name in commands:
        script = folder / name
        script.write_text(ASK.format(python=shlex.quote(sys.executable), socket=path, name=name))
        script.chmod(0o700)
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join((str(folder), before))  # before the fork: forks look commands up too
    parent = os.getpid()
    forker = os.fork()
    if forker == 0:
        _serve_forks(listener, commands, parent)
    listener.close()
    try:
        yield
    finally:
        os.environ["PATH"] = before
        with suppress(ProcessLookupError):
            os.kill(forker, signal.SIGTERM)
        os.waitpid(forker, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _serve_forks(listener: socket.socket, commands: Mapping[str, Callable[[], object]], parent: int) -> None:
    """Fork for every request, until the parent is gone. It never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener.settimeout(1.0)
    while os.getppid() == parent:
        with suppress(OSError, ValueError):
            asked, _ = listener.accept()
            with asked:
                asked.settimeout(1.0)
                name, arguments = json.loads(_read(asked))
                if name in commands and os.fork() == 0:
                    listener.close()
                    asked.close()
                    become(commands[name], name, arguments)
    os._exit(0)


def _read(asked: socket.socket) -> bytes:
    found = b""
    while part := asked.recv(65536):
        found += part
        if len(found) > LARGEST:
            raise ValueError("more than a command line")
    return found


if __name__ == "__main__":
    main()
