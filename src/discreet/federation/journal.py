"""A site's own log: a line for every message, which says what was asked, what became of it, and what it took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from discreet.errors import RemoteProtocolError
from discreet.federation.step import Step, reason

LOG = logging.getLogger(__name__)


class Journal:
    """Writes the lines of a site's log."""

    def __init__(self) -> None:
        self._step: Step | None = None

    def note(self, step: Step) -> None:
        """Hear from the site what a message asked."""
        self._step = step

    def answered(self, answer: Callable[[bytes], bytes], message: bytes) -> bytes:
        """Have a message answered, and write its line.

        Args:
            answer: has the site answer, which calls `note`.
            message: what came.

        Returns:
            The reply.

        Raises:
            RemoteProtocolError: there is none; the line says why.
        """
        begun, self._step = time.perf_counter(), None
        try:
            reply = answer(message)
        except RemoteProtocolError as error:
            seconds = time.perf_counter() - begun
            LOG.warning("not answered: %s; %d bytes in, %.3f s", reason(error), len(message), seconds)
            raise
        seconds, step = time.perf_counter() - begun, self._step
        self._step = None  # the errors in it hold what was worked on
        level = logging.WARNING if step is None or step.refused else logging.INFO
        LOG.log(level, "%s; %d bytes in, %d bytes out, %.3f s", step, len(message), len(reply), seconds)
        return reply
