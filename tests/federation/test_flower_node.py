import os
import subprocess
import sys
import time
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="needs discreet[flower]")

from discreet.federation.flower import node

LOOP = """
import time

def loop():
    while True:
        time.sleep(3)
        while True:
            time.sleep(0.5)
"""


def module(tmp_path, text):
    path = tmp_path / "loop.py"
    path.write_text(text)
    made = ModuleType("loop")
    made.__file__ = str(path)
    exec(compile(text, str(path), "exec"), made.__dict__)
    return made


def test_the_sleeps_that_are_known_become_shorter(tmp_path):
    loop = module(tmp_path, LOOP)
    assert node.shorten(loop, 0.01)
    begun = time.monotonic()
    loop.time.sleep(3)
    loop.time.sleep(0.5)
    assert time.monotonic() - begun < 0.4
    assert time.sleep is not loop.time.sleep


@pytest.mark.parametrize(
    "text",
    [
        LOOP.replace("sleep(3)", "sleep(4)"),
        LOOP.replace("time.sleep(0.5)", "pass"),
        LOOP.replace("while True:\n        time", "while time.monotonic():\n        time"),
    ],
)
def test_a_loop_that_looks_different_is_left_alone(tmp_path, text):
    loop = module(tmp_path, text)
    assert not node.shorten(loop, 0.01)
    assert loop.time is time


def test_flowers_loop_is_the_known_one():
    from flwr.supernode import start_client_internal

    before = start_client_internal.time
    try:
        assert node.shorten(start_client_internal, 0.3), (
            "Flower has changed: nodes poll every 3 seconds again"
        )
    finally:
        start_client_internal.time = before


FORKING = """
import os, subprocess, sys
from discreet.federation.flower.forking import forking

loaded = {"by": os.getpid()}

def said():
    path = os.environ["SAID"] + sys.argv[1]
    with open(path + ".part", "w") as file:
        file.write(f"{sys.argv} {loaded['by']} {os.getpid()} {os.getppid()}")
    os.rename(path + ".part", path)
    if sys.argv[1] == "nested":
        subprocess.run(["said-app", "inner"], check=True)
    if sys.argv[1] == "raises":
        raise ValueError("no")

with forking({"said-app": said}):
    print(os.getpid(), flush=True)
    for argument in ("first", "a b", "raises", "nested"):
        subprocess.run(["said-app", argument], check=True, env={**os.environ})
    input()
"""


def test_commands_are_forks_of_the_process(tmp_path):
    said = {**os.environ, "SAID": f"{tmp_path}/", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=said,
    )
    with process:
        assert process.stdout and process.stdin and process.stderr
        loader = int(process.stdout.readline())
        names = ("first", "a b", "raises", "nested", "inner")
        deadline = time.monotonic() + 20
        while not all((tmp_path / name).exists() for name in names):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        own = set()
        for name in names:
            arguments, by, number, parent = (tmp_path / name).read_text().rsplit(" ", 2 + 1)
            assert arguments == str(["said-app", name])
            assert int(by) == loader  # what was loaded once is there in all of them
            assert int(parent) != loader
            own.add(int(number))
        assert len(own | {loader}) == len(names) + 1
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(10) == 0
        assert "ValueError: no" in process.stderr.read()
    assert not list(tmp_path.glob("discreet-*"))


def test_a_process_with_threads_does_not_fork(tmp_path):
    program = (
        "import os, threading; from discreet.federation.flower.forking import forking\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "before = os.environ['PATH']\n"
        "with forking({'said-app': print}): print(os.environ['PATH'] == before)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"
