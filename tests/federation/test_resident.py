import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

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
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serve(folder, lambda _: one or Acting(7, reversing))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not (folder / SOCKET).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield failed


def test_the_sites_process_answers_many_messages(tmp_path):
    with served(tmp_path):
        assert ask(tmp_path, WHO, b"", 5.0, nobody) == b"7"
        for message in (b"", b"abc", os.urandom(3_000_000)):
            assert ask(tmp_path, STEP, message, 5.0, nobody) == message[::-1]


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
    with served(tmp_path) as failed:
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
            resident._serve_one(asked, Acting(7, failing))


def test_a_relay_that_has_gone_without_a_message_is_one_line(caplog):
    asked, relay = socket.socketpair()
    relay.close()
    with asked:
        resident._serve_one(asked, Acting(7, reversing))
    assert caplog.messages == ["a relay has sent no message: it ends before its end"]


@contextmanager
def dripping(folder, sent, pause):
    """A relay that begins a frame, and goes on with it a byte at a time."""
    stop = threading.Event()

    def drip(relay):
        with suppress(OSError):
            relay.sendall(sent)
            while not stop.wait(pause):
                relay.sendall(b"x")

    with socket.socket(socket.AF_UNIX) as relay:
        relay.connect(str(folder / SOCKET))
        thread = threading.Thread(target=drip, args=(relay,), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join()


@pytest.mark.parametrize("sent", [b"", HEAD.pack(STEP, 1000) + b"begun", HEAD.pack(STEP, 1 << 30)])
@pytest.mark.parametrize("pause", [0.1, 60.0])
def test_a_relay_that_is_slow_holds_the_next_up_for_a_moment_only(tmp_path, monkeypatch, caplog, sent, pause):
    monkeypatch.setattr(resident, "PATIENCE", 0.4)
    with served(tmp_path), dripping(tmp_path, sent, pause):
        begun = time.monotonic()
        assert ask(tmp_path, STEP, b"ab", 20.0, nobody) == b"ba"
        assert time.monotonic() - begun < 5.0  # a byte each 0.1 s would take 100 s
    assert caplog.messages == ["a relay is cut off before its message is there: timed out"]


def test_a_relay_that_does_not_take_its_answer_holds_the_next_up_for_a_moment_only(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(resident, "PATIENCE", 0.4)
    much = Acting(7, lambda message: bytes(3_000_000) if message == b"much" else message)
    with served(tmp_path, much), socket.socket(socket.AF_UNIX) as relay:
        relay.connect(str(tmp_path / SOCKET))
        relay.sendall(HEAD.pack(STEP, 4) + b"much")
        begun = time.monotonic()
        assert ask(tmp_path, STEP, b"ab", 20.0, nobody) == b"ab"
        assert time.monotonic() - begun < 5.0
    assert caplog.messages == ["a relay has not taken its answer: timed out"]


def test_a_frame_has_more_time_the_more_of_it_has_come(monkeypatch):
    """At 1,000 bytes a second 600 bytes are worth 0.6 s, beside the 0.3 s that every frame has."""
    monkeypatch.setattr(resident, "PACE", 1000)
    for begun, arrives in ((600, True), (1, False)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(HEAD.pack(STEP, 601) + bytes(begun))
            later = threading.Timer(0.6, theirs.sendall, (bytes(601 - begun),))
            later.start()
            if arrives:
                assert resident._receive(ours, 1000, 0.3) == (STEP, bytes(601))
            else:
                with pytest.raises(TimeoutError):
                    resident._receive(ours, 1000, 0.3)
            later.join()


def test_a_relay_waits_for_its_turn_where_many_wait(tmp_path):
    with acting(tmp_path), resident._listening(tmp_path) as listener, ExitStack() as waiting:
        listener.listen(1)
        for _ in range(2):
            waiting.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / SOCKET))
        with pytest.raises(NoAnswer, match=r"^unreachable$"):
            ask(tmp_path, STEP, b"ab", 0.3, nobody)


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


def test_the_sites_process_waits_for_a_relay_that_acts(tmp_path):
    with ExitStack() as relay:
        relay.enter_context(acting(tmp_path))
        threading.Timer(0.3, relay.close).start()
        with served(tmp_path) as failed:
            assert ask(tmp_path, STEP, b"ab", 5.0, nobody) == b"ba"
            assert not failed


def test_a_second_process_of_a_site_ends_at_once(tmp_path, monkeypatch):
    with served(tmp_path):
        begun = time.monotonic()
        with pytest.raises(DataError, match="another process acts for this site"):
            serve(tmp_path, nobody)
        assert time.monotonic() - begun < 5.0
        assert ask(tmp_path, STEP, b"ab", 5.0, nobody) == b"ba"
    monkeypatch.setattr(resident, "PATIENCE", 0.2)
    (tmp_path / "other").mkdir()
    with acting(tmp_path / "other"), pytest.raises(DataError, match="another process acts for this site"):
        serve(tmp_path / "other", nobody)


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

    thread = threading.Thread(target=serve, args=(tmp_path, load), daemon=True)
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
        f"serve(Path({str(tmp_path)!r}), lambda _: Acting(1, bytes))\n"
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
