"""Programs that Flower starts, as forks of a process that has loaded what they need.

Flower looks ``flower-superexec``, ``flwr-clientapp`` and ``flwr-serverapp`` up on the PATH, and each of them loads Flower
again: seconds of computing, for every message that a node gets. `forking` puts small scripts with these names first on
the PATH, which ask a process that is loaded already to fork. What runs is the same code, in a process of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from discreet.federation.forks import become

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


@contextmanager
def forking(
    commands: Mapping[str, Callable[[], object]], warm: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """While the block runs, commands that are looked up on the PATH are forks of this process as it is now.

    Where a process cannot be forked safely, or has no place for a socket, the block runs and nothing else happens.

    Args:
        commands: what each does; it reads `sys.argv`.
        warm: loads what they need and this process does not; it must start no threads.
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
        warm()
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
