"""``discreet federate``: real processes, over TLS, from the command line."""

import json
import os
import secrets
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs discreet[flower]")

import discreet
from discreet import config
from discreet.federation import local

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")

PATIENCE = 300.0
TOKEN = "DISCREET_TEST_TOKEN"
DIGITS = [
    "digits-fedavg",
    "--nodes",
    "2",
    "--set",
    "rounds=2",
    "--set",
    "fraction=1.0",
    "--set",
    "scheme.steps=2",
]


def ours(token):
    """All processes that were started by a test, however far down, by their command lines."""
    wanted = f"{TOKEN}={token}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


@pytest.fixture
def start(command, tmp_path):
    return lambda *arguments: Started(command, tmp_path, *arguments)


class Started:
    """The command, with a home of its own, and a token in the environment of all that it starts."""

    def __init__(self, command, folder, *arguments):
        self.token = secrets.token_hex(8)
        self.home = folder / f"home-{self.token}"
        self.home.mkdir()
        environment = {TOKEN: self.token, "HOME": str(self.home)}
        self.process = command.start("federate", *arguments, cwd=folder, clean=False, **environment)

    def end(self):
        """Exit code and what it said; all that it has started is gone."""
        ended = self.process.end()
        deadline = time.monotonic() + 10  # the watchdog ends a moment after its parent
        while ours(self.token) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ours(self.token) == {}
        return ended.code, ended.out, ended.err

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            said = self.process.err.read_text() if self.process.err.exists() else ""
            assert not said and time.monotonic() < deadline, said
            time.sleep(0.05)

    def find(self, word):
        """A process of it whose command line has a word in it."""
        return next((number for number, line in ours(self.token).items() if word in line), None)


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_a_rehearsal_is_the_simulation_bit_for_bit_and_leaves_nothing_behind(start, tmp_path):
    started = start(*DIGITS, "--rehearse", "--json", "--out", "run")
    code, out, err = started.end()
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    settings = [one for one in DIGITS if "=" in one] + ["data.clients=2"]
    run = discreet.simulate(config.load("digits-fedavg", settings))
    assert run.vector is not None
    ran = load_file(tmp_path / "run" / "checkpoint.safetensors")["state.vector"]
    assert torch.equal(ran, run.vector)
    assert result["final"] == run.final
    assert any("rehearsal" in note for note in result["notes"])
    assert not any(started.home.iterdir())  # nothing of the user's was touched
    private = tmp_path / "run" / ".federation"
    assert private.stat().st_mode & 0o777 == 0o700
    for key in (private / "server.pem", private / "sites" / "0" / "identity.pem"):
        assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_an_interrupt_stops_all_and_resume_goes_on(start, tmp_path):
    secure = ["digits-dp-signfed", "--nodes=3"]
    for setting in ("rounds=3", "fraction=1.0", "sampling=fixed", "eval_every=1"):
        secure += ["--set", setting]
    started = start(*secure, "--out", "run")
    started.wait_for(lambda: lines(tmp_path / "run") >= 1)
    started.process.signal(signal.SIGINT)
    code, out, err = started.end()
    assert (code, out) == (130, "")
    assert err.startswith(
        "discreet: interrupted, finished rounds are kept; to go on: discreet federate digits-dp-signfed"
    )
    played = lines(tmp_path / "run")
    assert 1 <= played < 3
    code, out, err = start(*secure, "--out", "run", "--resume").end()
    assert (code, err) == (0, "")
    assert "sums: masked" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["secure"] == "masked"
    # a round that was cut off after its entry in the ledger is paid for all the same: it may cost the last round
    entries = (tmp_path / "run" / "ledger.jsonl").read_text().count("\n")
    assert result["privacy"]["releases"] == entries == 3
    assert result["privacy"]["epsilon"] <= 8
    assert lines(tmp_path / "run") == result["rounds"] in (2, 3)
    assert not any("no roster" in note for note in result["notes"])


@pytest.mark.slow
def test_a_killed_parent_or_a_dead_superlink_leaves_nothing_behind(start, tmp_path):
    killed = start(*DIGITS, "--out", "killed")
    killed.wait_for(lambda: killed.find("flower.superlink"))
    killed.process.signal(signal.SIGKILL)
    assert killed.end()[0] == -signal.SIGKILL

    longer = [*DIGITS, "--set", "rounds=8"]
    broken = start(*longer, "--out", "broken")
    broken.wait_for(lambda: lines(tmp_path / "broken") >= 1)
    os.kill(broken.find("flower.superlink"), signal.SIGKILL)
    code, out, err = broken.end()
    assert (code, out) == (1, "")
    ended, hint = err.splitlines()
    assert ended.startswith("discreet: ") and "ended" in ended
    assert hint.startswith("discreet: finished rounds are kept; to go on: discreet federate")
    code, out, err = start(*longer, "--out", "broken", "--resume").end()
    assert (code, err) == (0, "") and lines(tmp_path / "broken") == 8


def test_every_round_is_shown_once_even_if_the_metrics_are_cut(tmp_path):
    trial = local.Trial(experiment=discreet.Experiment(rounds=4), sites=2, out=tmp_path)
    path, seen, shown = tmp_path / "metrics.jsonl", [], local.Shown()

    def show(content):
        nonlocal shown
        path.write_bytes(content)
        shown = local._show(trial, shown, lambda metrics, rounds: seen.append((metrics["round"], rounds)))

    first, second, third = (b'{"round": %d}\n' % number for number in (1, 2, 3))
    shown = local._show(trial, shown, lambda *_: seen.append(None))
    show(first + second + b'{"rou')  # a line is half written
    show(first)  # a resumed run cuts off what came after its checkpoint
    show(first + second)
    show(first + second + third)
    assert [number for number, _ in seen] in ([1, 2, 3], [1, 2, 2, 3])
    assert {rounds for _, rounds in seen} == {4}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("digits-fedavg", "--nodes", "0"), "--nodes"),
        (("digits-fedavg", "--nodes", "2", "--set", "dropouts.rate=0.1"), "dropouts"),
        (("no-such-preset", "--nodes", "2"), "no-such-preset"),
        (
            ("digits-fedavg", "--nodes", "3", "--set", "data.partition=grid", "--set", "data.rows=2"),
            "--nodes",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line_before_anything_is_started(start, tmp_path, arguments, said):
    code, out, err = start(*arguments, "--out", "run").end()
    assert (code, out) == (2, "")
    assert err.startswith("discreet: ") and err.count("\n") == 1 and said in err
    assert not (tmp_path / "run").exists()
