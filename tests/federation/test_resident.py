import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from discreet.errors import DataError, RemoteProtocolError
from discreet.federation import resident
from discreet.federation.resident import HEAD, SOCKET, STEP, WHO, Acting, NoAnswer, acting, ask, serve


def reversing(message: bytes) -> bytes:
    if message == b"bad":
        raise RemoteProtocolError("server", 1, "signature")
    if message == b"bug":
        raise ZeroDivisionError("a secret in an error's text")
    return message[::-1]


def nobody(folder):
    raise AssertionError("the relay acts by itself")


@contextmanager
def served(folder, one=None):
    """A site's process, as a thread; it ends with the test's own process if it does not end before."""
    log: list[tuple[bytes, bytes]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serve(folder, lambda _: one or Acting(7, reversing), lambda a, b, _: log.append((a, b)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not (folder / SOCKET).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield log, failed


def test_the_sites_process_answers_many_messages(tmp_path):
    with served(tmp_path) as (log, _):
        assert ask(tmp_path, WHO, b"", 5.0, nobody) == b"7"
        for message in (b"", b"abc", os.urandom(3_000_000)):
            assert ask(tmp_path, STEP, message, 5.0, nobody) == message[::-1]
        assert [len(message) for message, _ in log] == [0, 3, 3_000_000]


def test_its_socket_is_for_its_owner_alone(tmp_path):
    with served(tmp_path):
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / resident.LOCK).stat().st_mode) == 0o600


def test_a_bad_message_is_answered_with_a_constant(tmp_path):
    with served(tmp_path):
        with pytest.raises(NoAnswer, match=r"^malformed$"):
            ask(tmp_path, STEP, b"bad", 5.0, nobody)
        with pytest.raises(NoAnswer, match=r"^malformed$"):
            ask(tmp_path, b"?", b"", 5.0, nobody)
        assert ask(tmp_path, STEP, b"ab", 5.0, nobody) == b"ba"


def test_a_bug_is_answered_with_a_constant_and_ends_the_process(tmp_path):
    with served(tmp_path) as (_, failed):
        with pytest.raises(NoAnswer, match=r"^crashed$"):
            ask(tmp_path, STEP, b"bug", 5.0, nobody)
        deadline = time.monotonic() + 5
        while not failed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert isinstance(failed[0], ZeroDivisionError)
        assert not (tmp_path / SOCKET).exists()


def test_a_bug_is_not_hidden_by_a_relay_that_has_gone():
    asked, relay = socket.socketpair()

    def failing(message):
        relay.close()
        raise ZeroDivisionError

    with asked:
        relay.sendall(HEAD.pack(STEP, 1) + b"m")
        with pytest.raises(ZeroDivisionError):
            resident._serve_one(asked, Acting(7, failing), lambda *_: None)


def test_a_message_larger_than_allowed_is_not_read(tmp_path):
    with served(tmp_path, Acting(0, reversing, largest=100)):
        with pytest.raises(NoAnswer, match=r"malformed|crashed"):
            ask(tmp_path, STEP, bytes(101), 5.0, nobody)
        assert ask(tmp_path, STEP, bytes(100), 5.0, nobody) == bytes(100)


@pytest.mark.parametrize(
    "sent", [b"", b"s", HEAD.pack(b"s", 10) + b"short", HEAD.pack(b"s", 2**63), bytes(64), os.urandom(40)]
)
def test_what_is_no_frame_does_not_stop_it(tmp_path, sent):
    with served(tmp_path):
        with resident._short(tmp_path) as place, socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(f"{place}/{SOCKET}")
            with suppress(OSError):
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                stranger.recv(64)
        assert ask(tmp_path, STEP, b"ab", 5.0, nobody) == b"ba"


def test_one_process_at_a_time_acts_for_a_site(tmp_path):
    with (
        acting(tmp_path),
        pytest.raises(DataError, match="another process acts for this site"),
        acting(tmp_path),
    ):
        raise AssertionError
    with acting(tmp_path):
        pass


def test_without_the_sites_process_the_relay_acts_itself(tmp_path):
    opened = []

    def opener(folder):
        opened.append(folder)
        return Acting(3, reversing)

    assert ask(tmp_path, STEP, b"abc", 5.0, opener) == b"cba"
    assert ask(tmp_path, WHO, b"", 5.0, opener) == b"3"
    assert opened == [tmp_path, tmp_path]
    (tmp_path / SOCKET).touch()  # a process was killed, and has left its socket
    assert ask(tmp_path, STEP, b"abc", 5.0, opener) == b"cba"


def test_the_relay_waits_for_a_process_that_is_still_loading(tmp_path):
    with acting(tmp_path), pytest.raises(NoAnswer, match="unreachable"):
        ask(tmp_path, STEP, b"abc", 0.3, nobody)

    def load(folder):
        time.sleep(0.5)
        return Acting(7, reversing)

    thread = threading.Thread(target=serve, args=(tmp_path, load, lambda *_: None), daemon=True)
    thread.start()
    while not (tmp_path / resident.LOCK).exists():
        time.sleep(0.01)
    time.sleep(0.05)
    assert ask(tmp_path, STEP, b"abc", 5.0, nobody) == b"cba"


def test_a_folder_that_is_none_is_unreachable_at_once(tmp_path):
    def opener(folder):
        raise DataError(folder, "a secret in an error's text")

    begun = time.monotonic()
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(NoAnswer, match=r"^unreachable$"):
            ask(folder, STEP, b"", 60.0, opener)
    assert time.monotonic() - begun < 30
    with pytest.raises(DataError, match="is no site's folder"), acting(tmp_path / "none"):
        pass


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system names no open folders")
def test_a_folder_with_a_long_name_will_do(tmp_path):
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    with served(folder):
        assert ask(folder, STEP, b"abc", 5.0, nobody) == b"cba"


def test_sigterm_ends_it_cleanly_and_the_lock_is_free(tmp_path):
    program = (
        "import signal, sys; from pathlib import Path; from discreet.federation.resident import *\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"serve(Path({str(tmp_path)!r}), lambda _: Acting(1, bytes), lambda *_: None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert ask(tmp_path, WHO, b"", 10.0, lambda _: Acting(9, bytes)) in (b"1", b"9")
        deadline = time.monotonic() + 10
        while not (tmp_path / SOCKET).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / SOCKET).exists()
    with acting(tmp_path):
        pass


def test_the_relay_loads_nothing_heavy():
    program = (
        "import sys, discreet.federation.resident\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'flwr', 'cryptography'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
