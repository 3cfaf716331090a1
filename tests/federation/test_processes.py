import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discreet.federation.processes import MARKER, ChildEnded, carriers, family, lives, stop

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")

SLEEPS = [sys.executable, "-IS", "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-IS",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
DETACHES = [
    sys.executable,
    "-IS",
    "-c",
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print('up', flush=True); time.sleep(600)",
]


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def up(one, *names):
    wait_for(lambda: all(b"up" in one.log(name).read_bytes() for name in names))


def test_all_are_gone_when_the_block_is_left(tmp_path):
    with family(tmp_path) as one:
        one.start("plain", SLEEPS, os.environ)
        one.start("detaches", DETACHES, os.environ)
        up(one, "plain", "detaches")
        assert len(carriers(one.marker)) == 3
    assert carriers(one.marker) == []


def test_all_are_gone_when_the_block_raises(tmp_path):
    with pytest.raises(KeyboardInterrupt), family(tmp_path) as one:
        one.start("plain", SLEEPS, os.environ)
        up(one, "plain")
        raise KeyboardInterrupt
    assert carriers(one.marker) == []


def test_one_that_ignores_sigterm_is_killed(tmp_path):
    with family(tmp_path) as one:
        one.start("stubborn", STUBBORN, os.environ)
        up(one, "stubborn")
        begun = time.monotonic()
        stop(one, patience=0.5)
        assert time.monotonic() - begun < 3
        assert carriers(one.marker) == []


def test_the_watchdog_stops_them_when_the_parent_is_killed(tmp_path):
    program = (
        "import os, sys, time; from pathlib import Path; from discreet.federation.processes import family\n"
        f"with family(Path({str(tmp_path)!r})) as one:\n"
        f"    one.start('plain', {SLEEPS!r}, os.environ)\n"
        f"    one.start('detaches', {DETACHES!r}, os.environ)\n"
        "    print(one.marker, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout
        marker = parent.stdout.readline().strip()
        wait_for(lambda: len(carriers(marker)) == 3)
        parent.kill()
    wait_for(lambda: carriers(marker) == [])


def test_a_child_that_ends_is_reported_with_its_last_words(tmp_path):
    with family(tmp_path) as one:
        one.start(
            "fails", [sys.executable, "-IS", "-c", "print('no\\nport'); raise SystemExit(3)"], os.environ
        )
        wait_for(lambda: one.ended("fails"))
        with pytest.raises(
            ChildEnded, match=r"^fails ended with exit code 3: no port \(all of it in .*fails.log\)$"
        ):
            one.check()


def test_a_brief_child_may_end_well_and_not_badly(tmp_path):
    with family(tmp_path) as one:
        one.start("well", [sys.executable, "-IS", "-c", "pass"], os.environ, brief=True)
        wait_for(lambda: one.ended("well"))
        one.check()
        one.start("badly", [sys.executable, "-IS", "-c", "raise SystemExit(1)"], os.environ, brief=True)
        wait_for(lambda: one.ended("badly"))
        with pytest.raises(ChildEnded, match="badly"):
            one.check()


def test_others_processes_are_left_alone(tmp_path):
    other = subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL, env={**os.environ, MARKER: "another"})
    try:
        with family(tmp_path) as one:
            one.start("plain", SLEEPS, os.environ)
        assert lives(other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_zombie_does_not_live():
    child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"])
    assert lives(child.pid)
    child.send_signal(signal.SIGKILL)
    wait_for(lambda: not lives(child.pid))  # nobody has waited for it yet
    child.wait()
    assert not lives(child.pid)
