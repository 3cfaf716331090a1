import os
import resource
import stat

import numpy as np
import pytest

from discreet.data.cache import cache_folder, prepared
from discreet.data.dataset import Arrays

ARRAYS = Arrays(
    np.arange(6, dtype=np.uint8), np.arange(6), np.zeros((2, 3), np.int32), np.ones(2), ("a", "ä")
)


class Maker:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DISCREET_CACHE", str(folder))
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("data")
    return path


def same(arrays):
    for field in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        ours, theirs = getattr(arrays, field), getattr(ARRAYS, field)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert arrays.classes == ARRAYS.classes


def test_made_once(cache, source):
    make = Maker()
    for _ in range(3):
        same(prepared("x", [source], {"a": 1}, make))
    assert make.calls == 1
    (file,) = cache.iterdir()
    assert file.name.startswith("x-") and file.suffix == ".npz"


def test_made_anew_when_anything_changes(cache, source, tmp_path):
    make = Maker()
    prepared("x", [source], {"a": 1}, make)
    prepared("x", [source], {"a": 2}, make)
    prepared("y", [source], {"a": 1}, make)
    other = tmp_path / "other"
    other.write_text("data")
    prepared("x", [other], {"a": 1}, make)
    os.utime(source, ns=(1, 1))
    prepared("x", [source], {"a": 1}, make)
    source.write_text("longer data")
    os.utime(source, ns=(1, 1))
    prepared("x", [source], {"a": 1}, make)
    assert make.calls == 6


def test_folders_are_known_by_their_files(cache, tmp_path):
    make = Maker()
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    prepared("x", [folder], {}, make)
    prepared("x", [folder], {}, make)
    assert make.calls == 1
    (folder / "deep" / "new").write_text("")
    prepared("x", [folder], {}, make)
    assert make.calls == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "other"])
def test_damaged_file_is_made_again(cache, source, damage):
    make = Maker()
    prepared("x", [source], {}, make)
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        # A value of test_targets, the last array but one: the last byte 0x3f of a float64 1.0.
        content[content.rindex(b"\xf0\x3f")] ^= 1
    file.write_bytes(
        {"truncate": content[:-40], "flip": content, "empty": b"", "other": b"\x80\x04N."}[damage]
    )
    same(prepared("x", [source], {}, make))
    same(prepared("x", [source], {}, make))
    assert make.calls == 2


def test_nothing_is_left_of_an_interrupted_write(cache, source, monkeypatch):
    def interrupt(*args, **kwargs):
        args[0].write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepared("x", [source], {}, Maker())
    assert list(cache.iterdir()) == []


def test_full_disk_is_no_error(cache, source):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        same(prepared("x", [source], {}, Maker()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(cache.iterdir()) == []


def test_folder_that_cannot_be_made_is_no_error(source, monkeypatch):
    monkeypatch.setenv("DISCREET_CACHE", str(source / "below a file"))
    same(prepared("x", [source], {}, Maker()))


def test_where(monkeypatch, tmp_path):
    monkeypatch.delenv("DISCREET_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "prepared"


def test_file_is_for_its_user_alone(cache, source):
    prepared("x", [source], {}, Maker())
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
