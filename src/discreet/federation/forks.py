"""What a fork of a process does to be a program of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def become(run: Callable[[], object], name: str, arguments: list[str]) -> NoReturn:
    """Be a program from here on, and end with it.

    Args:
        run: the program; it reads `sys.argv`.
        name: what `sys.argv` begins with.
        arguments: the rest of it.
    """
    for one in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [name, *arguments]
    code = 1
    try:
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # nothing of the process that was forked may run on
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
