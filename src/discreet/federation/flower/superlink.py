"""Flower's SuperLink, whose ServerApp is a fork of a process that has torch loaded: see `forking`."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from discreet.federation.flower.forking import forking

NEEDED = (
    "flwr.server.run_serverapp",
    "discreet.federation.flower.link",
    "discreet.federation.server",
    "sklearn.datasets",
    "torch.fx.experimental.symbolic_shapes",
)
"""What a ServerApp loads when it is first used; an entry that is not there is none that it needs."""


def main() -> None:
    """Run a SuperLink with the arguments of this process."""
    from flwr.supercore.cli import flower_superexec
    from flwr.superlink.cli import flower_superlink, flwr_serverapp

    sys.argv[0] = "flower-superlink"
    with forking({"flwr-serverapp": flwr_serverapp, "flower-superexec": flower_superexec}, warm):
        flower_superlink()


def warm() -> None:
    """Load what a ServerApp needs."""
    for name in NEEDED:
        with suppress(ImportError):
            import_module(name)


if __name__ == "__main__":
    main()
