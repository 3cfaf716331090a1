import contextlib
import hashlib
import http.server
import re
import resource
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from discreet.data import fetch as module
from discreet.data.fetch import REMOTE, Remote, download, fetch
from discreet.data.named import named_sets
from discreet.errors import ConfigError, DataError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Mirror:
    """What the server does, and what it was asked."""

    files: dict = field(default_factory=lambda: {"/a/file.gz": CONTENT})
    ranges: bool = True
    cuts: list = field(default_factory=list)
    wrong_range: bool = False
    length: bool = True
    asked: list = field(default_factory=list)
    url: str = ""


@pytest.fixture
def mirror():
    state = Mirror()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if self.path not in state.files:
                self.send_error(404)
                return
            content, start = state.files[self.path], 0
            if wanted and state.ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                shown = start - 1 if state.wrong_range else start
                self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if state.length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = state.cuts.pop(0) if state.cuts else len(content)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content[start:end])
            self.close_connection = True

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}/a/file.gz"
        yield state
        server.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "deep" / "file.gz"


def part(place):
    return place.with_name("file.gz.part")


def start(place, content):
    place.parent.mkdir(parents=True)
    part(place).write_bytes(content)


def test_plain(mirror, place):
    seen = []
    assert download([mirror.url], place, SHA256, lambda *report: seen.append(report)) == place
    assert place.read_bytes() == CONTENT and not part(place).exists()
    assert seen[-1] == (len(CONTENT), len(CONTENT), "file.gz")
    assert [report[0] for report in seen] == sorted({report[0] for report in seen})
    assert mirror.asked == [("/a/file.gz", None)]


def test_what_is_there_is_not_fetched_again(mirror, place):
    download([mirror.url], place, SHA256)
    download([mirror.url], place, SHA256)
    assert len(mirror.asked) == 1


def test_another_file_in_its_place_is_kept(mirror, place):
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    with pytest.raises(DataError, match="is there already with another SHA-256"):
        download([mirror.url], place, SHA256)
    assert place.read_text() == "mine" and not mirror.asked


def test_resumed_after_a_cut_connection(mirror, place):
    mirror.cuts = [400_000]
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT
    assert mirror.asked == [("/a/file.gz", None), ("/a/file.gz", "bytes=400000-")]


def test_part_is_kept_for_the_next_call(mirror, place):
    mirror.cuts = [300_000, 300_000]
    with pytest.raises(DataError, match=r"the connection was cut after 300000 of 1000000 bytes") as caught:
        download([mirror.url], place, SHA256)
    assert mirror.url in str(caught.value) and "\n" not in str(caught.value)
    assert part(place).read_bytes() == CONTENT[:300_000] and not place.exists()
    mirror.asked.clear()
    download([mirror.url], place, SHA256)
    assert mirror.asked == [("/a/file.gz", "bytes=300000-")] and place.read_bytes() == CONTENT


def test_wrong_checksum(mirror, place):
    mirror.files["/a/file.gz"] = b"something else"
    with pytest.raises(DataError, match=rf"{re.escape(mirror.url)}: its SHA-256 is not {SHA256}"):
        download([mirror.url], place, SHA256)
    assert list(place.parent.iterdir()) == [] and len(mirror.asked) == 1


def test_server_without_ranges_starts_over(mirror, place):
    mirror.ranges = False
    start(place, CONTENT[:5000])
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT and mirror.asked == [("/a/file.gz", "bytes=5000-")]


def test_content_that_changed_since_starts_over(mirror, place):
    start(place, b"x" * 5000)
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT
    assert mirror.asked == [("/a/file.gz", "bytes=5000-"), ("/a/file.gz", None)]


def test_part_that_is_complete(mirror, place):
    start(place, CONTENT)
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT and mirror.asked == [("/a/file.gz", "bytes=1000000-")]


def test_part_that_is_longer_than_the_file(mirror, place):
    start(place, CONTENT + b"more")
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT and len(mirror.asked) == 2


def test_server_that_answers_with_another_range(mirror, place):
    mirror.wrong_range = True
    start(place, CONTENT[:5000])
    with pytest.raises(DataError, match="another part of the file"):
        download([mirror.url], place, SHA256)
    assert not place.exists()
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT


def test_without_a_length_the_checksum_finds_the_cut(mirror, place):
    mirror.length, mirror.cuts = False, [1000]
    with pytest.raises(DataError, match="its SHA-256 is not"):
        download([mirror.url], place, SHA256)
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT


def test_second_mirror_after_404(mirror, place):
    missing = mirror.url.replace("/a/", "/b/")
    download([missing, mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT and [path for path, _ in mirror.asked] == [
        "/b/file.gz",
        "/a/file.gz",
    ]


def test_second_mirror_goes_on_where_the_first_was_cut(mirror, place):
    mirror.files["/b/file.gz"] = CONTENT
    mirror.cuts = [300_000, 300_000]
    download([mirror.url, mirror.url.replace("/a/", "/b/")], place, SHA256)
    assert mirror.asked[-1] == ("/b/file.gz", "bytes=300000-") and place.read_bytes() == CONTENT


def test_no_mirror_has_it(mirror, place):
    urls = [mirror.url.replace("/a/", "/b/"), "http://127.0.0.1:9/file.gz", "ftp://127.0.0.1/file.gz"]
    with pytest.raises(DataError) as caught:
        download(urls, place, SHA256)
    message = str(caught.value)
    assert all(url in message for url in urls) and "\n" not in message
    assert "404" in message and "refused" in message and "not an http or https address" in message


def test_silent_server(place, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/file.gz"
        with pytest.raises(DataError, match="timed out"):
            download([url], place, SHA256)


def test_full_disk(mirror, place):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limits[1]))
    try:
        with pytest.raises(
            DataError, match=r"file.gz.part: cannot be written: .*kept, to be resumed"
        ) as caught:
            download([mirror.url], place, SHA256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value) and not place.exists()
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT and mirror.asked[-1][1] == "bytes=600000-"


def test_interrupt_keeps_the_part(mirror, place):
    def stop(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download([mirror.url], place, SHA256, stop)
    assert 0 < part(place).stat().st_size < len(CONTENT) and not place.exists()
    download([mirror.url], place, SHA256)
    assert place.read_bytes() == CONTENT


def test_folder_that_cannot_be_made(mirror, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        download([mirror.url], tmp_path / "file" / "below" / "x", SHA256)


def test_fetch_puts_every_file_in_its_place(mirror, tmp_path):
    mirror.files["/a/other.gz"] = b"other"
    catalogue = {
        "set": (
            Remote("set/file.gz", SHA256, ("http://127.0.0.1:9",)),
            Remote("set/other.gz", hashlib.sha256(b"other").hexdigest(), (), "http://127.0.0.1:9/x"),
        )
    }
    base = mirror.url.removesuffix("file.gz")
    files = fetch("set", tmp_path, mirrors=[base], catalogue=catalogue)
    assert files == (tmp_path / "set/file.gz", tmp_path / "set/other.gz")
    assert files[1].read_bytes() == b"other"


def test_fetch_into_the_users_cache_folder(mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    remote = Remote("set/renamed.gz", SHA256, (), mirror.url)
    (file,) = fetch("set", catalogue={"set": (remote,)})
    assert tmp_path in file.parents and file.name == "renamed.gz"


def test_unknown_set():
    with pytest.raises(ConfigError, match=r"name = 'mnits': .*did you mean 'mnist'\?"):
        fetch("mnits")


def test_catalogue_is_complete_and_found_where_it_is_put(tmp_path):
    assert REMOTE.keys() == named_sets().keys()
    for name, remotes in REMOTE.items():
        root = tmp_path / name
        for remote in remotes:
            assert re.fullmatch(r"[0-9a-f]{64}", remote.sha256)
            assert remote.urls(None) and all(url.startswith("http") for url in remote.urls(None))
            (root / remote.place).parent.mkdir(parents=True, exist_ok=True)
            (root / remote.place).write_bytes(b"")
        from discreet.data.places import find

        assert find(name, named_sets()[name].forms, [root]).members
