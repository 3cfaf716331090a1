"""The ledger: nothing that was given out is ever forgotten, whatever stops the process, and wherever."""

import itertools
import json
import multiprocessing
import os
import shutil
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import DataError, LocalProtocolError
from discreet.federation import files, spending
from discreet.federation.spending import Entry, MemorySpending, SpendingFile, unprotected
from discreet.privacy.releases import (
    DiscreteGaussianSum,
    FixedSize,
    Gaussian,
    Ledger,
    Poisson,
    Released,
    Skellam,
)

RUN = bytes(range(16))
ONE = Released(Poisson(1.0), Gaussian(2.0))
OTHER = Released(FixedSize(3, 10), DiscreteGaussianSum(1.5, 40.0, 1600, 3))


def entry(round=1, released=ONE, **fields):
    return Entry(**{"run": RUN, "session": 1, "round": round, "attempt": 1, "released": released, **fields})


releases = st.builds(
    Released,
    st.one_of(
        st.builds(Poisson, st.floats(0.01, 1.0)),
        st.builds(
            lambda cohort, more: FixedSize(cohort, cohort + more), st.integers(1, 9), st.integers(0, 9)
        ),
    ),
    st.one_of(
        st.builds(Gaussian, st.floats(0.1, 50.0)),
        st.builds(DiscreteGaussianSum, st.floats(0.1, 50.0), st.floats(1.0, 99.0), st.integers(1, 10**6)),
        st.builds(Skellam, st.floats(0.1, 50.0), st.floats(1.0, 99.0), st.floats(1.0, 99.0)),
    ),
)
entries = st.builds(
    Entry,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.none() | releases,
    st.integers(0, 1000),
)


@settings(max_examples=15)
@given(st.lists(entries, max_size=6))
def test_what_is_read_is_what_was_written(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    one, memory = SpendingFile(path), MemorySpending()
    expected = Ledger()
    for each in written:
        one.append(each)
        memory.append(each)
        if each.released is not None:
            expected = expected.add(each.released, each.count)
    for reader in (one, SpendingFile(path), memory):
        assert reader.entries() == tuple(written)
        assert dict(reader.ledger().entries) == dict(expected.entries)
    assert unprotected(written) == sum(each.count for each in written if each.released is None)


def test_one_line_of_json_for_each(tmp_path):
    one = SpendingFile(tmp_path / "ledger.jsonl")
    one.append(entry(1))
    one.append(entry(2, None, count=3))
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2]
    assert lines[1] == {
        "line": 2, "run": RUN.hex(), "session": 1, "round": 2, "attempt": 1, "count": 3, "released": None,
    }  # fmt: skip


def test_its_owner_alone_can_read_it(tmp_path):
    SpendingFile(tmp_path / "ledger.jsonl").append(entry())
    for name in ("ledger.jsonl", "ledger.jsonl.next"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_nothing_is_made_by_looking(tmp_path):
    one = SpendingFile(tmp_path / "ledger.jsonl")
    assert one.entries() == () and one.ledger() == Ledger()
    assert list(tmp_path.iterdir()) == []


def after_a_crash(folder, content, announced, going_on=True):
    """The entries that a new process finds; another one can add to them."""
    folder.mkdir()
    (folder / "ledger.jsonl").write_bytes(content)
    if announced is not None:
        (folder / "ledger.jsonl.next").write_bytes(announced)
    found = SpendingFile(folder / "ledger.jsonl").entries()
    if going_on:
        SpendingFile(folder / "ledger.jsonl").append(entry(99))
        assert SpendingFile(folder / "ledger.jsonl").entries() == (*found, entry(99))
    return found


def test_a_crash_at_any_byte_of_any_line_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        files.os, "fsync", lambda handle: None
    )  # a thousand of them take long, and show nothing here
    path = tmp_path / "ledger.jsonl"
    one = SpendingFile(path)
    written = [entry(1), entry(2, OTHER), entry(3, None)]
    announced = []
    for each in written:
        one.append(each)
        announced.append((tmp_path / "ledger.jsonl.next").read_bytes())
    content = path.read_bytes()
    ends = [0, *(end + 1 for end, byte in enumerate(content) if byte == ord("\n"))]
    tried = 0
    for line, (start, end) in enumerate(itertools.pairwise(ends)):
        for cut in range(start, end + 1):
            # the line was announced, and its bytes up to `cut` had got to the disk
            folder = tmp_path / f"cut-{line}-{cut}"
            found = after_a_crash(folder, content[:cut], announced[line], cut % 20 == 0)
            assert found == tuple(written[: line + 1])
            tried += 1
        # it was not announced yet: then it had not begun, and nothing that depends on it has left
        before = announced[line - 1] if line else None
        assert after_a_crash(tmp_path / f"before-{line}", content[:start], before) == tuple(written[:line])
    assert tried == len(content) + 3


def test_a_torn_line_that_nothing_completes_stops_everything(tmp_path):
    path = tmp_path / "ledger.jsonl"
    SpendingFile(path).append(entry(1))
    SpendingFile(path).append(entry(2))
    content = path.read_bytes()
    (tmp_path / "ledger.jsonl.next").unlink()
    for cut in (len(content) - 1, len(content) // 2 + 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"line 2 is torn"):
            SpendingFile(path).ledger()
        with pytest.raises(DataError, match=r"line 2 is torn"):
            SpendingFile(path).append(entry(3))


def test_an_old_copy_put_back_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    one = SpendingFile(path)
    one.append(entry(1))
    old = path.read_bytes()
    one.append(entry(2))
    one.append(entry(3))
    path.write_bytes(old)
    with pytest.raises(DataError, match="lost lines"):
        SpendingFile(path).entries()
    with pytest.raises(DataError, match="lost lines"):
        one.append(entry(4))
    path.unlink()
    with pytest.raises(DataError, match=r"lost lines|is gone"):
        one.entries()
    with pytest.raises(DataError, match="lost lines"):
        SpendingFile(path).entries()


def test_a_ledger_that_is_gone_altogether_is_noticed_by_who_has_read_it(tmp_path):
    one = SpendingFile(tmp_path / "ledger.jsonl")
    one.append(entry(1))
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(DataError, match="is gone"):
        one.ledger()


@pytest.mark.parametrize(
    "change",
    [
        lambda line: b"\n",
        lambda line: b"[]\n",
        lambda line: b"{}\n",
        lambda line: b"\xff\n",
        lambda line: line.replace(b'"line": 2', b'"line": 1'),
        lambda line: line.replace(b'"count": 1', b'"count": -1'),
        lambda line: line.replace(b'"count": 1', b'"count": true'),
        lambda line: line.replace(b'"round": 2', b'"round": 2, "more": 1'),
        lambda line: line.replace(b"2.0", b"NaN"),
        lambda line: line.replace(b"2.0", b"-2.0"),
        lambda line: line.replace(b"gaussian", b"laplace"),
        lambda line: line.replace(RUN.hex().encode(), b"00"),
    ],
)
def test_a_damaged_line_stops_everything(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    for round in (1, 2, 3):
        SpendingFile(path).append(entry(round))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    assert change(second) != second
    path.write_bytes(first + change(second) + third)
    with pytest.raises(DataError, match=r"ledger.jsonl: (line 2|has lost lines)"):
        SpendingFile(path).ledger()


def test_the_announced_line_must_be_the_last(tmp_path):
    path = tmp_path / "ledger.jsonl"
    SpendingFile(path).append(entry(1))
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b'"round": 1', b'"round": 7'))
    with pytest.raises(DataError, match="line 1 is not the one"):
        SpendingFile(path).ledger()


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("written", [0, 1, 30, None])
@pytest.mark.parametrize("call", range(1, 3))
def test_a_process_that_dies_while_it_writes_has_written_all_or_nothing(tmp_path, monkeypatch, call, written):
    path = tmp_path / "ledger.jsonl"
    one = SpendingFile(path)
    one.append(entry(1))
    calls = 0
    real = os.write

    def dying(handle, content):
        nonlocal calls
        calls += 1
        if calls == call:
            real(handle, content[:written])
            raise Stopped
        return real(handle, content)

    monkeypatch.setattr(files.os, "write", dying)
    with pytest.raises(Stopped):
        one.append(entry(2))
    monkeypatch.undo()
    # the first write announces, the second appends
    expected = (entry(1), entry(2)) if call == 2 else (entry(1),)
    assert SpendingFile(path).entries() == expected
    assert one.entries() == expected  # and so has who goes on in the same process
    one.append(entry(3))
    assert SpendingFile(path).entries() == (*expected, entry(3))


def test_a_full_disk_is_said_in_one_line_and_counts_nothing_twice(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    one = SpendingFile(path)
    one.append(entry(1))

    def full(handle, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        one.append(entry(2))
    monkeypatch.undo()
    assert one.entries() == (entry(1),)


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(files.os, "write", lambda handle, content: real(handle, content[:7]))
    one = SpendingFile(tmp_path / "ledger.jsonl")
    one.append(entry(1))
    one.append(entry(2))
    assert SpendingFile(tmp_path / "ledger.jsonl").entries() == (entry(1), entry(2))


def test_it_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def watched(handle):
        real(handle)
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(files.os, "fsync", watched)
    SpendingFile(tmp_path / "ledger.jsonl").append(entry(1))
    names = [os.path.basename(path) for path in synced]
    # the folder when the ledger appears; the announcement and its name; the line
    assert names == [tmp_path.name, ".ledger.jsonl.next.tmp", tmp_path.name, "ledger.jsonl"]


def test_what_decides_may_refuse_and_nothing_is_written(tmp_path):
    one = SpendingFile(tmp_path / "ledger.jsonl")
    one.append(entry(1))

    def refuse(entries, ledger):
        assert list(entries) == [entry(1)]
        assert ledger == Ledger().add(ONE)
        raise LookupError

    for each in (one, SpendingFile(tmp_path / "ledger.jsonl")):
        with pytest.raises(LookupError):
            each.write(refuse)
    assert one.entries() == (entry(1),)


def append_some(path, first, count, at_most):
    one = SpendingFile(path)

    def make(entries, ledger):
        if ledger.releases >= at_most:
            raise LookupError
        return entry(first + ledger.releases)

    for _ in range(count):
        try:
            one.write(make)
        except LookupError:
            return


def test_two_processes_take_turns_and_together_stay_within_a_budget(tmp_path):
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=append_some, args=(path, first, 30, 41)) for first in (1000, 2000)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert [one.exitcode for one in both] == [0, 0]
    found = SpendingFile(path).entries()
    # each entry says how many were there before it: no two decided at the same time
    assert [each.round % 1000 for each in found] == list(range(41))


def test_who_has_it_open_sees_what_others_add(tmp_path):
    one, other = (SpendingFile(tmp_path / "ledger.jsonl") for _ in range(2))
    one.append(entry(1))
    assert other.entries() == (entry(1),)
    other.append(entry(2))
    one.append(entry(3))
    assert other.ledger().releases == one.ledger().releases == 3


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def none(handle, what):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(spending.fcntl, "flock", none)
    SpendingFile(tmp_path / "ledger.jsonl").append(entry(1))
    assert SpendingFile(tmp_path / "ledger.jsonl").entries() == (entry(1),)


def test_a_folder_that_is_gone_is_said_in_one_line(tmp_path):
    (tmp_path / "site").mkdir()
    one = SpendingFile(tmp_path / "site" / "ledger.jsonl")
    shutil.rmtree(tmp_path / "site")
    with pytest.raises(DataError, match=r"ledger\.jsonl: cannot be opened: No such file"):
        one.append(entry(1))


@pytest.mark.parametrize(
    "fields", [{"run": b"short"}, {"round": -1}, {"attempt": True}, {"session": 1.0}, {"count": -1}]
)
def test_an_entry_that_cannot_be_is_refused(fields):
    with pytest.raises(LocalProtocolError):
        entry(**fields)
