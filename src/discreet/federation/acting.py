"""What acts for the site in a folder: ``discreet site FOLDER``, and the relay where that does not run."""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

from discreet.config import Experiment
from discreet.federation.home import Home
from discreet.federation.journal import Journal
from discreet.federation.resident import Acting, serve
from discreet.preparation import prepare

LOG = logging.getLogger(__name__)


def open_site(folder: Path, *, with_data: bool = False) -> Acting:
    """Load the site in a folder, with torch and all that it needs; it takes seconds.

    Args:
        folder: the site's.
        with_data: whether its own data is read now, and not when a run begins.

    Raises:
        UserError: the folder is no site's, or something in it, or its data, cannot be read.
    """
    home, journal = Home.open(folder), Journal()
    site = home.site(journal.note)
    if with_data:
        site.holdings.load()
    answer = partial(home.answer, site)
    return Acting(home.settings.number, partial(journal.answered, answer), home.limits.largest_message)


def act(folder: Path) -> None:
    """Act for the site in a folder until SIGTERM or SIGINT; every message is a line of the log.

    Raises:
        UserError: the folder is no site's, or another process acts for it.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, _end)
    try:
        serve(folder, _opened)
    except KeyboardInterrupt:
        LOG.info("ends")


def main() -> None:
    """Act for the site in the folder that this process is given."""
    act(Path(sys.argv[1]))


def warm() -> None:
    """Load what the first message would: much of torch and scikit-learn waits until it is used."""
    prepare(Experiment())


def _opened(folder: Path) -> Acting:
    one = open_site(folder, with_data=True)
    LOG.info("acts for site %d in %s", one.number, folder)
    return one


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second signal does not wait
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
