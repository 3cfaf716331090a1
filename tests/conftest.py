import importlib
import signal
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

from command_server import Command, Ended
from discreet import cli
from federations import dataset

# `ci` repeats itself run after run; `pytest --hypothesis-profile=deep` looks further
settings.register_profile("ci", derandomize=True, max_examples=25, deadline=None)
settings.register_profile(
    "deep", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

# one thread: small tensors gain nothing from more, and bit-for-bit laws are stated at equal thread counts
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def blobs():
    """90 training examples of 3 classes in 6 dimensions, 30 to test on."""
    return dataset()


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Runs commands in processes of their own."""
    server = Command(tmp_path_factory.mktemp("command"))
    yield server
    server.close()


@pytest.fixture
def inside(monkeypatch, capsys):
    """Runs a command in this process: much faster, where neither signals nor descriptors are at stake."""
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()

    def run(*arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["discreet", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    for one, handler in handlers.items():
        signal.signal(one, handler)
    sys.modules.pop("mine", None)  # what tests call a user's module
