import dataclasses
import errno
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from discreet import runs
from discreet.config import Data, Experiment, Model
from discreet.errors import ConfigError, RunFolderError
from discreet.runs import Checkpoint, open_run
from discreet.simulation import simulate
from federations import assert_same_run, experiment, without_times
from killed_runs import Wrapped

PLAN = Experiment(rounds=3, data=Data(clients=4), model=Model(options={"widths": [3]}))
CHECKPOINT = Checkpoint(2, {"state.vector": torch.arange(3.0)}, {"kept": [], "waiting": 1})


@pytest.fixture
def folder(tmp_path):
    with open_run(tmp_path / "run", PLAN) as folder:
        yield folder


def names(path):
    return {file.name for file in path.iterdir()}


# --- the files


def test_a_new_folder_holds_its_experiment(folder):
    assert names(folder.path) == {"config.toml"}
    assert tomllib.loads((folder.path / "config.toml").read_text())["data"]["clients"] == 4
    assert folder.load() is None and folder.metrics(0) == []


def test_its_parents_are_made_and_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "empty"):
        with open_run(path, PLAN):
            assert names(path) == {"config.toml"}


def test_a_checkpoint_is_read_as_it_was_written(folder):
    tensors = {
        "bits": torch.tensor([float("inf"), -0.0, 1e-45]),
        "part": torch.arange(12).reshape(3, 4)[:, 1::2],
    }
    folder.save(Checkpoint(7, tensors, {"kept": [3], "words": "ä"}))
    found = folder.load()
    assert found.round == 7 and found.facts == {"round": 7, "kept": [3], "words": "ä"}
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype and found.tensors[name].tolist() == tensor.tolist()
    assert json.loads((folder.path / "state.json").read_text()) == found.facts


def test_a_later_checkpoint_takes_the_place_of_the_last(folder):
    folder.save(CHECKPOINT)
    folder.save(dataclasses.replace(CHECKPOINT, round=3))
    assert folder.load().round == 3
    assert names(folder.path) == {"config.toml", "checkpoint.safetensors", "state.json"}


def test_state_json_follows_the_checkpoint_after_a_kill_between_the_two(folder):
    folder.save(CHECKPOINT)
    (folder.path / "state.json").write_text('{"round": 1')
    folder.load()
    assert json.loads((folder.path / "state.json").read_text())["round"] == 2


@pytest.mark.parametrize("tail", ["", '{"round": 3}\n', '{"round": 3}\n{"rou', '{"rou', "\0\0\0"])
def test_metrics_after_the_checkpoint_are_cut_off(folder, tail):
    folder.append({"round": 1}, {"round": 2, "loss": None})
    path = folder.path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + tail)
    assert folder.metrics(2) == [{"round": 1}, {"round": 2, "loss": None}]
    assert path.read_text() == whole
    folder.append({"round": 3})
    assert path.read_text() == whole + '{"round": 3}\n'


@pytest.mark.parametrize(
    "content",
    ["", '{"round": 1}\n', '{"round": 1}\n{"round"', '{"round": 1}\n7\n', '{"round": 2}\n{"round": 1}\n'],
)
def test_metrics_that_lack_a_round_of_the_checkpoint_are_damaged(folder, content):
    (folder.path / "metrics.jsonl").write_text(content)
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: is damaged: expected a line .* rounds 1 to 2"):
        folder.metrics(2)
    (folder.path / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="is missing, but the checkpoint is of round 2"):
        folder.metrics(2)


def test_metrics_hold_no_nan(folder):
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append({"round": 1, "loss": float("nan")})
    assert folder.metrics(0) == []


def test_files_are_as_open_as_the_user_has_it(tmp_path):
    before = os.umask(0o027)
    try:
        with open_run(tmp_path / "run", PLAN) as folder:
            folder.save(CHECKPOINT)
        assert {file.stat().st_mode & 0o777 for file in folder.path.iterdir()} == {0o640}
    finally:
        os.umask(before)


# --- whose folder it is


def test_a_folder_that_holds_anything_is_not_started_anew(folder, tmp_path):
    with pytest.raises(
        RunFolderError, match=r"run: exists and is not empty: give another --out, or --resume"
    ):
        open_run(tmp_path / "run", PLAN).__enter__()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    for resume, said in ((False, "not empty"), (True, r"not a run folder \(no config\.toml\)")):
        with pytest.raises(RunFolderError, match=said):
            open_run(tmp_path / "other", PLAN, resume=resume).__enter__()
    assert names(tmp_path / "other") == {"thesis.tex"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"seed": 1, "eval_every": 2}, "eval_every is 1 there and 2 here"),
        ({"data": Data(clients=4, path="x")}, "data.path is None there and 'x' here"),
        ({"model": Model(options={"widths": [3, 3]})}, r"model.widths is \[3\] there and \[3, 3\] here"),
        ({"rounds": 2}, "has rounds = 3, which can be raised but not lowered to 2"),
    ],
)
def test_another_experiment_is_refused_with_the_first_key_that_differs(tmp_path, change, said):
    path = tmp_path / "run"
    with open_run(path, PLAN):
        pass
    before = (path / "config.toml").read_bytes()
    with pytest.raises(RunFolderError, match=said):
        open_run(path, dataclasses.replace(PLAN, **change), resume=True).__enter__()
    assert (path / "config.toml").read_bytes() == before


def test_more_rounds_or_another_machine_are_the_same_experiment(tmp_path):
    path = tmp_path / "run"
    with open_run(path, PLAN):
        pass
    engine = dataclasses.replace(PLAN.engine, workers=7)
    longer = dataclasses.replace(PLAN, rounds=9, engine=engine)
    before = (path / "config.toml").read_bytes()
    with open_run(path, longer, resume=True) as folder:
        assert (path / "config.toml").read_bytes() == before  # the checkpoint may yet be refused
        folder.adopt(longer)
        settings = tomllib.loads((path / "config.toml").read_text())
    assert settings["rounds"] == 9 and settings["engine"]["workers"] == 7


def test_other_threads_are_another_experiment(tmp_path):
    """Sums within a matrix product depend on how many threads share it, so a resumed run would differ."""
    with open_run(tmp_path, PLAN):
        pass
    engine = dataclasses.replace(PLAN.engine, threads=2)
    with pytest.raises(RunFolderError, match=r"engine\.threads is 1 there and 2 here"):
        open_run(tmp_path, dataclasses.replace(PLAN, engine=engine), resume=True).__enter__()


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe", b"rounds = 'x'", b"[data]\n", b""])
def test_a_damaged_config_is_refused(tmp_path, content):
    path = tmp_path / "run"
    with open_run(path, PLAN):
        pass
    (path / "config.toml").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"is damaged|belongs to another experiment"):
        open_run(path, PLAN, resume=True).__enter__()
    assert (path / "config.toml").read_bytes() == content


def test_what_toml_cannot_hold_is_refused_before_a_folder_is_made(tmp_path):
    odd = dataclasses.replace(PLAN, model=Model(options={"activation": torch.relu}))
    with pytest.raises(ConfigError, match="TOML can hold"):
        open_run(tmp_path / "run", odd).__enter__()
    assert not names(tmp_path)


@pytest.mark.parametrize("resume", [False, True])
def test_hidden_files_of_a_killed_process_count_for_nothing(tmp_path, resume):
    path = tmp_path / "run"
    path.mkdir()
    for name in runs.TEMPORARY.values():
        (path / name).write_bytes(b"half")
    with open_run(path, PLAN, resume=resume):
        assert names(path) == {"config.toml"}


def test_one_process_at_a_time(folder):
    with pytest.raises(RunFolderError, match="run: is being written by another process"):
        open_run(folder.path, PLAN, resume=True).__enter__()
    folder.save(CHECKPOINT)


def test_the_lock_goes_with_the_run(tmp_path):
    for error in (KeyboardInterrupt, RunFolderError("x", "y")):
        with (
            pytest.raises((KeyboardInterrupt, RunFolderError)),
            open_run(tmp_path / "run", PLAN, resume=True),
        ):
            raise error
    with open_run(tmp_path / "run", PLAN, resume=True):
        pass


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def none_here(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none_here)
    with open_run(tmp_path / "run", PLAN) as folder:
        folder.save(CHECKPOINT)
    assert folder.load().round == 2


# --- refusals of the operating system


def test_a_checkpoint_that_is_no_checkpoint(folder):
    folder.save(CHECKPOINT)
    path = folder.path / "checkpoint.safetensors"
    whole = path.read_bytes()
    for damage in (b"", whole[:7], whole[:-1], whole[: len(whole) // 2], b"\0" * len(whole), b"PK" + whole):
        path.write_bytes(damage)
        with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors: is damaged \(.+\): give another"):
            folder.load()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    del header["__metadata__"]
    bare = json.dumps(header).encode()
    path.write_bytes(len(bare).to_bytes(8, "little") + bare + whole[8 + length :])
    with pytest.raises(RunFolderError, match=r"is damaged \(no 'facts'\)"):
        folder.load()


class FullDisk:
    """A disk that takes so many more bytes."""

    def __init__(self, monkeypatch, room):
        self.room, really_open = room, io.open

        def opened(file, mode="r", *arguments, **keywords):
            found = really_open(file, mode, *arguments, **keywords)
            return Limited(found, self) if mode[0] in "wa" else found

        monkeypatch.setattr(io, "open", opened)


class Limited(Wrapped):
    def __init__(self, file, disk):
        super().__init__(file)
        self.disk = disk

    def write(self, content):
        taken = content[: self.disk.room]
        self.disk.room -= len(taken)
        self.file.write(taken)
        self.file.flush()
        if len(taken) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_a_run_to_resume(blobs, tmp_path, monkeypatch):
    plan = experiment("fedavg")
    whole = simulate(plan, data=blobs, out=tmp_path / "whole")
    needed = sum(file.stat().st_size for file in (tmp_path / "whole").iterdir())
    seen = set()
    for room in range(0, 3 * needed, 211):
        out = tmp_path / f"{room}"
        with monkeypatch.context() as patched:
            FullDisk(patched, room)
            try:
                simulate(plan, data=blobs, out=out)
            except RunFolderError as error:
                said = str(error)
                assert "cannot be written (No space left on device): free some space" in said
                seen.add(Path(said.split(": ")[0]).name)
            else:
                break
        if out.exists():
            assert not any(name.startswith(".") for name in names(out))
        else:
            assert "config.toml" in said  # nothing was there yet
        assert_same_run(simulate(plan, data=blobs, out=out, resume=True), whole)
    assert seen == {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "state.json", "result.json"}


def test_a_full_disk_leaves_nothing_of_a_run_that_is_saved(blobs, tmp_path, monkeypatch):
    run = simulate(experiment("fedavg"), data=blobs)
    whole = run.save(tmp_path / "whole")
    needed = sum(file.stat().st_size for file in whole.iterdir())
    seen = set()
    for room in range(0, needed, 211):
        new, empty = tmp_path / "runs" / f"new-{room}", tmp_path / f"empty-{room}"
        empty.mkdir()
        for out in (new, empty):
            with monkeypatch.context() as patched:
                FullDisk(patched, room)
                with pytest.raises(RunFolderError) as caught:
                    run.save(out)
            file, said = str(caught.value).split(": ", 1)
            assert said == "cannot be written (No space left on device): free some space and save again"
            assert Path(file).parent == out
            seen.add(Path(file).name)
        assert not new.exists() and names(empty) == set()
    assert {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "result.json"} <= seen
    for out in (new, empty):
        assert run.save(out) == out
        assert {file.name: file.read_bytes() for file in out.iterdir()} == {
            file.name: file.read_bytes() for file in whole.iterdir()
        }


def test_a_save_that_is_interrupted_leaves_nothing(blobs, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    run = simulate(experiment("fedavg"), data=blobs)
    with monkeypatch.context() as patched:
        patched.setattr(runs.RunFolder, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.save(tmp_path / "run")
    assert names(tmp_path) == set()


def test_a_folder_with_anything_in_it_is_not_saved_to_and_stays(blobs, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="not empty"):
        simulate(experiment("fedavg"), data=blobs).save(tmp_path)
    assert names(tmp_path) == {"thesis.tex"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("file", "file: is a file: expected a folder"),
        ("file/run", r"cannot be written \(Not a directory\): give an --out that can be written"),
        ("x" * 300, "cannot be written"),
        ("link", r"cannot be written \(File exists\)"),
    ],
)
def test_where_no_folder_can_be(tmp_path, path, said):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for resume in (False, True):
        with pytest.raises(RunFolderError, match=said):
            open_run(tmp_path / path, PLAN, resume=resume).__enter__()
    assert names(tmp_path) == {"file", "link"}


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*arguments, **keywords):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refuse)
        with pytest.raises(RunFolderError, match=r"run: cannot be written \(Permission denied\)"):
            open_run(tmp_path / "run", PLAN).__enter__()
    with open_run(tmp_path / "run", PLAN) as folder:
        folder.save(CHECKPOINT)
    for method, key in (("read_text", "config.toml"), ("iterdir", "run")):
        with monkeypatch.context() as patched:
            patched.setattr(Path, method, refuse)
            with pytest.raises(RunFolderError, match=rf"{key}: cannot be .+ \(Permission denied\)"):
                open_run(tmp_path / "run", PLAN, resume=True).__enter__()


# --- kills and interrupts


def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been():
    script = Path(__file__).with_name("killed_runs.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    counts = dict(line.split() for line in ended.stdout.splitlines())
    # two rounds, each with an opened, two half-written and a renamed file for each of three, are at least this many
    assert int(counts["fedavg"]) > 60 and int(counts["local"]) > 20 and int(counts["dp-signfed"]) > 20


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "Input/output error")])
def test_an_error_at_any_replacement_leaves_a_run_to_resume(blobs, tmp_path, monkeypatch, when, error):
    """An interrupt reaches `finally` and `except`, where a kill does not: they must do no harm."""
    plan = experiment("local")
    whole = simulate(plan, data=blobs, out=tmp_path / "whole")
    really_replace = os.replace
    for moment in range(1, 100):
        out, count = tmp_path / f"{moment}", 0

        def replace(source, target, moment=moment):
            nonlocal count
            count += 1
            if when == "after" or count != moment:
                really_replace(source, target)
            if count == moment:
                raise error

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace)
            try:
                simulate(plan, data=blobs, out=out)
            except (KeyboardInterrupt, RunFolderError) as raised:
                assert isinstance(raised, KeyboardInterrupt) == (error is KeyboardInterrupt)
            else:
                break
        assert not out.exists() or not any(name.startswith(".") for name in names(out))
        assert_same_run(simulate(plan, data=blobs, out=out, resume=True), whole)
    assert moment == 2 * 3 + 2 + 1  # two files in each of three rounds, the settings, and the result


def test_a_finished_run_is_resumed_to_the_same(blobs, tmp_path):
    whole = simulate(experiment("signfed"), data=blobs, out=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != "result.json"}
    again = simulate(experiment("signfed"), data=blobs, out=tmp_path, resume=True)
    assert_same_run(again, whole)
    assert without_times(again.metrics) == without_times(whole.metrics)
    assert before == {
        file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != "result.json"
    }
    assert json.loads((tmp_path / "result.json").read_text()) == again.result
