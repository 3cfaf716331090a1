"""A terminal that tests draw on."""

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """A pseudo-terminal's file descriptor, and what has been drawn on it: all of it, once the block has ended."""
    ours, theirs = pty.openpty()
    drawn = bytearray()

    def read() -> None:  # all the while: who draws waits when a terminal's buffer is full
        try:
            while piece := os.read(ours, 10_000):
                drawn.extend(piece)
        except OSError:  # how Linux says that nobody has the terminal any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, drawn
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
