"""The commands of Flower's programs: what a SuperLink, its nodes and its command line are given."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import tomli_w

APP = Path(__file__).with_name("app")
"""The folder of the app, as ``flwr run`` takes it."""

LINK = "federation"
"""What the SuperLink is called in Flower's configuration."""


def environment(home: Path, temporary: Path, nodes: int) -> dict[str, str]:
    """The environment of Flower's programs: nothing in the user's home is touched, and nothing is reported to anybody.

    Args:
        home: Flower's own folder.
        temporary: for short-lived files.
        nodes: how many there are on this machine: the more, the less often each looks for messages.
    """
    pause = max(0.2, nodes / 20)
    programs = str(Path(sys.executable).parent)  # Flower looks its programs up on the PATH
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PATH": os.pathsep.join((programs, os.environ.get("PATH", ""))),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{pause:g}",
        "DISCREET_NODE_POLL": f"{pause:g}",
        "TMPDIR": str(temporary),
    }


def configure(home: Path, address: str, authority: Path) -> None:
    """Write the configuration of Flower's command line: where the SuperLink is, and who vouches for it."""
    link = {"address": address, "root-certificates": str(authority), "insecure": False}
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": LINK, LINK: link}}))


def superlink(port: int, authority: Path, certificate: Path, key: Path) -> list[str]:
    """The command of a SuperLink that only nodes with a registered key reach, over TLS, on this machine."""
    return [
        *(sys.executable, "-m", "discreet.federation.flower.superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(authority)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def node_arguments(link: str, port: int, authority: Path, key: Path, site: Path) -> list[str]:
    """The arguments of a SuperNode whose site is in a folder."""
    return [
        *("--superlink", link, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"site={json.dumps(str(site))}"),
    ]


def control(port: int, keys: Sequence[Path], run: Path) -> list[str]:
    """The command that waits for a SuperLink, registers nodes by their public keys, and starts a run.

    Args:
        port: the SuperLink's.
        keys: files with the nodes' public keys.
        run: file with the run's settings.
    """
    commands: list[list[object]] = [["wait", port]]
    commands += [["supernode", "register", str(key)] for key in keys]
    commands += [["run", str(APP), "--run-config", str(run)]]
    return [sys.executable, "-m", "discreet.federation.flower.control", *map(json.dumps, commands)]


def write_settings(path: Path, settings: Mapping[str, str | int | float | bool]) -> None:
    """Write the settings of a run, as ``--run-config`` takes them."""
    path.write_text(tomli_w.dumps(settings))


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, all different."""
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) == 0
