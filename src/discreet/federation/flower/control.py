"""Ask Flower's command line several things in one process: ``python -m discreet.federation.flower.control``.

Every argument is one command as a list in JSON; its answers are printed as Flower prints them. Flower takes more than a
second to load, so that a command a process would be slow with many sites. One command is ours: ``["wait", PORT]`` waits
until somebody listens on a port of this machine.
"""

from __future__ import annotations

import json
import sys
import time

from discreet.federation.flower import deployment


def main() -> None:
    """Run the commands of this process's arguments, until one fails."""
    from flwr.cli.app import app

    for command in map(json.loads, sys.argv[1:]):
        if command[0] == "wait":
            while not deployment.listens(command[1]):
                time.sleep(0.1)
        elif code := app(command, standalone_mode=False):
            raise SystemExit(code)


if __name__ == "__main__":
    main()
