import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import discreet
from discreet import config
from terminal import terminal

FAST = ("--set", "rounds=2", "--set", "scheme.steps=2")
FILES = {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "state.json", "result.json"}
RESULT = {
    "scheme",
    "dataset",
    "model",
    "parameters",
    "seed",
    "rounds",
    "final",
    "best",
    "bits_per_parameter",
    "uplink_bytes",
    "downlink_bytes",
    "seconds_per_round",
    "peak_memory_bytes",
    "privacy",
    "participants",
    "versions",
}
MODELS = """
from torch import nn
from torch.nn import functional

print("what a user's module prints")


class Net(nn.Module):
    def __init__(self, input_shape, outputs, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, outputs))

    def forward(self, inputs):
        return self.layers(inputs)


def too_wide(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs + 1))


def fails():
    raise RuntimeError("no\\nweights")


def smooth(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def averaged(outputs, targets):
    return functional.cross_entropy(outputs, targets)
"""


@pytest.fixture
def files(tmp_path):
    """A folder of a user's files, good and bad."""
    (tmp_path / "mine.py").write_text(MODELS)
    (tmp_path / "syntax.toml").write_text("rounds = \n[data]")
    (tmp_path / "unknown.toml").write_text("[data]\nclints = 3\n")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\nrounds = 1\n")
    rng = np.random.default_rng(0)
    values, hospitals = rng.normal(size=(60, 2)), np.repeat(["north", "south", "east"], 20)
    rows = [
        f"{a},{b},{int(a + b > 0)},{where}" for (a, b), where in zip(values.tolist(), hospitals, strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,ill,hospital", *rows]))
    (tmp_path / "nan.csv").write_text("\n".join(["a,b,ill,hospital", *rows[:7], "nan,1,0,north", *rows[7:]]))
    np.savez(tmp_path / "table.npz", x=values, y=(values[:, 0] > 0).astype(int))
    for name in ("whole", "truncated", "labels"):
        write_mnist(tmp_path / name / "mnist", wrong=name == "labels")
    images = tmp_path / "truncated" / "mnist" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    return tmp_path


def write_mnist(folder, *, wrong):
    """40 images to train on and 10 to test on, as MNIST comes; with `wrong`, item 3 has the label 10."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for stem, count in (("train", 40), ("t10k", 10)):
        images, labels = (
            rng.integers(0, 256, (count, 28, 28), np.uint8),
            np.arange(count, dtype=np.uint8) % 10,
        )
        labels[2] = 10 if wrong else 2
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        header = struct.pack(">II", 0x801, count)
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))


def refused(ended):
    """The one line of a refusal."""
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("discreet: ") and ended.err.endswith("\n") and ended.err.count("\n") == 1
    return ended.err[len("discreet: ") : -1]


def scores(folder):
    """What a run folder says, without what a clock or a memory meter says."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.pop("evaluation_seconds", None)
    result = json.loads((folder / "result.json").read_text())
    del result["seconds_per_round"], result["peak_memory_bytes"]
    names = ("config.toml", "checkpoint.safetensors", "state.json")
    return {"lines": lines, "result": result} | {name: (folder / name).read_bytes() for name in names}


# --- what a run prints and writes


@pytest.mark.parametrize("scheme", ["fedsgd", "centralized"])
def test_a_regression_has_no_accuracy_from_the_run_to_the_report(inside, tmp_path, scheme):
    (tmp_path / "values.toml").write_text(
        f'''rounds = 30
[data]
name = "diabetes"
clients = 3
holdout = 0.2
[model]
name = "linear"
loss = "squared-error"
[scheme]
name = "{scheme}"
learning_rate = 0.05
'''
    )
    ended = inside("run", "values.toml", "--json", "--out", "run", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert result["final"]["accuracy"] is None and result["best"]["accuracy"] is None
    assert [line["accuracy"] for line in lines] == [None] * 30 == [line["holdout_accuracy"] for line in lines]
    guessing = discreet.load("diabetes").test.targets.square().mean().item() / 2
    assert lines[-1]["loss"] == result["final"]["loss"] < min(guessing, lines[0]["loss"])
    assert result["best"]["round"] == min(lines, key=lambda line: line["holdout_loss"])["round"]
    (note,) = result["notes"]
    assert "targets are scaled" in note and "mean 152" in note
    ended = inside("run", "values.toml", "--out", "again", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "") and "accuracy" not in ended.out
    assert f"final         loss {result['final']['loss']:.4f} (round 30)" in ended.out and note in ended.out
    assert inside("report", "run", "again", "--out", "page.html", cwd=tmp_path).code == 0
    page = (tmp_path / "page.html").read_text()
    assert "Loss by round" in page and "Final loss" in page and "accuracy" not in page.lower()


def test_a_run_writes_its_folder_and_prints_json(command, tmp_path):
    ended = command.run("run", "digits-fedavg", *FAST, "--json", "--out", "run", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    run = tmp_path / "run"
    assert {file.name for file in run.iterdir()} == FILES
    result = json.loads(ended.out)
    assert result == json.loads((run / "result.json").read_text())
    assert result.keys() >= RESULT
    assert result["scheme"] == "fedavg" and result["dataset"] == "digits" and result["model"] == "mlp"
    count = 64 * 64 + 64 + 64 * 10 + 10
    assert result["parameters"] == count
    assert (result["seed"], result["rounds"], result["participants"]) == (1, 2, 20)
    # half of 20 clients take part; a client sends the weighted change and its weight, 4 bytes each
    assert result["uplink_bytes"] == 2 * 10 * 4 * (count + 1)
    assert result["downlink_bytes"] == 2 * 10 * 4 * count
    assert result["bits_per_parameter"] == pytest.approx(32 * (count + 1) / count, rel=1e-12)
    assert result["privacy"] is None and "worst" not in result
    assert 0 < result["seconds_per_round"] < 10 and 10_000_000 < result["peak_memory_bytes"] < 10**11
    assert result["versions"].keys() == {"discreet", "torch", "numpy", "python"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    for name in ("final", "best"):
        line = lines[result[name]["round"] - 1]
        assert result[name] == {key: line[key] for key in ("round", "accuracy", "loss")}
    assert result["final"]["round"] == 2
    assert result["best"]["accuracy"] == max(line["accuracy"] for line in lines)
    settings = tomllib.loads((run / "config.toml").read_text())
    assert settings["engine"]["lanes"] != "auto" and settings["scheme"]["name"] == "fedavg"

    again = command.run("run", "run/config.toml", "--quiet", "--out", "again", cwd=tmp_path)
    assert (again.code, again.out, again.err) == (0, "", "")
    assert scores(run) == scores(tmp_path / "again")


def test_a_run_without_a_terminal_prints_a_table_and_names_its_folder(command, tmp_path):
    first = command.run("run", "digits-signfed", *FAST, cwd=tmp_path)
    assert (first.code, first.err) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in first.out.splitlines())
    assert rows["scheme"] == "signfed on digits, mlp"
    assert rows["participants"] == "20, 2 rounds"
    assert rows["uplink"].startswith("1.0")  # bits a parameter
    assert "discreet report runs/digits-signfed" in rows["run"]
    assert command.run("run", "digits-signfed", *FAST, "--quiet", cwd=tmp_path).code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"digits-signfed", "digits-signfed-2"}
    # without --out, --resume goes on with the last one
    more = command.run(
        "run", "digits-signfed", *FAST, "--set", "rounds=3", "--resume", "--json", cwd=tmp_path
    )
    assert json.loads(more.out)["rounds"] == 3
    assert "rounds = 3" in (tmp_path / "runs" / "digits-signfed-2" / "config.toml").read_text()
    report = command.run("report", "runs", "--out", "page.html", cwd=tmp_path)
    assert (report.code, report.out) == (0, "wrote page.html\n")
    page = (tmp_path / "page.html").read_text()
    assert "digits-signfed-2" in page
    report = command.run("report", "runs/digits-signfed", cwd=tmp_path)
    assert report.code == 0 and "digits-signfed-2" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("quiet", [False, True])
def test_the_bar_is_drawn_on_a_terminal_only(command, tmp_path, quiet):
    extra = ["--quiet"] if quiet else []
    with terminal() as (screen, drawn):
        running = command.start(
            "run", "digits-fedavg", *FAST, *extra, cwd=tmp_path, stderr=Path(os.ttyname(screen)), TERM="xterm"
        )
        ended = running.end()
    assert ended.code == 0
    if quiet:
        assert (bytes(drawn), ended.out) == (b"", "")
    else:
        assert b"2/2" in drawn and b"accuracy" in drawn and b"s a round" in drawn
        assert ended.out.startswith("scheme")


def test_the_installed_command(tmp_path):
    """What the other tests run inside a server, once as it is installed."""
    script = Path(sys.executable).with_name("discreet")
    if not script.exists():
        pytest.skip("the command is not installed beside this Python")
    ended = subprocess.run([script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "discreet run digits-fedavg" in " ".join(ended.stdout.split())
    for name in ("run", "presets", "data", "report"):
        assert f"\n  {name} " in ended.stdout


def test_help_version_presets_and_data(inside, files):
    assert inside("--version", cwd=files).out.startswith(f"discreet {version('discreet')} ")
    ended = inside("run", "-h", cwd=files)
    for option in ("--set", "--out", "--resume", "--device", "--data-dir", "--quiet", "--json"):
        assert option in ended.out
    ended = inside("presets", cwd=files)
    assert (ended.code, ended.err) == (0, "")
    assert {line.split()[0] for line in ended.out.splitlines()[1:]} == set(config.presets())
    ended = inside("data", "--data-dir", "whole", cwd=files)
    assert (ended.code, ended.err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert rows["mnist"] == ["40", "10", "whole/mnist"]
    assert rows["digits"][:2] == ["1,437", "360"]


def test_usage_is_told_in_one_line(inside, tmp_path):
    assert "FILE.toml|PRESET" in refused(inside("run", cwd=tmp_path))
    assert "'rn'" in refused(inside("rn", cwd=tmp_path))
    assert "--sett" in refused(inside("run", "digits-fedavg", "--sett", "rounds=2", cwd=tmp_path))


# --- a user's own data, model and loss


def test_own_model_and_loss_from_the_current_folder(command, files):
    ended = command.run(
        *("run", "digits-fedavg", *FAST, "--json", "--out", "run"),
        *("--set", "model={name='mine:Net', width=6, loss='mine:smooth'}"),
        cwd=files,
    )
    assert (ended.code, ended.err) == (0, "what a user's module prints\n")
    result = json.loads(ended.out)  # so nothing else is there
    assert result["model"] == "mine:Net" and result["parameters"] == 64 * 6 + 6 + 6 * 10 + 10
    assert result["final"]["loss"] > 0
    settings = tomllib.loads((files / "run" / "config.toml").read_text())
    assert settings["model"] == {"name": "mine:Net", "loss": "mine:smooth", "width": 6}


def test_own_table_with_natural_clients(command, files):
    keys = {
        "data": "{name='table', path='table.csv', target='ill', client_column='hospital', partition='column'}",
        "model": "{name='linear'}",
        "fraction": "1",
    }
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    ended = command.run("run", "digits-fedavg", *FAST, *sets, "--json", cwd=files)
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert (result["participants"], result["parameters"], result["dataset"]) == (3, 2 * 2 + 2, "table")

    sets = ("--set", "data={name='table', path='table.npz', clients=4}", "--set", "model={name='linear'}")
    result = json.loads(command.run("run", "digits-fedavg", *FAST, *sets, "--json", cwd=files).out)
    assert (result["participants"], result["parameters"]) == (4, 2 * 2 + 2)


# --- plans

PLAN = {
    "--clients": "1000",
    "--fraction": "0.1",
    "--rounds": "2",
    "--noise-multiplier": "20",
    "--parameters": "159010",
}


def planned(**changes):
    """The options of a plan that takes no time, with some of them changed, or left out where None."""
    options = PLAN | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [word for name, value in options.items() if value is not None for word in (name, value)]


def test_a_plan_as_a_table_and_as_json(inside, tmp_path):
    ended = inside("plan", *planned(), "--no-timings", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "100 of 1000, independently" in ended.out and ", here" not in ended.out
    assert 'dp-signfed, modulus = "paper"' in ended.out and "For anyone who sees" in ended.out
    ended = inside("plan", *planned(delta="0.001"), "--json", cwd=tmp_path)
    plain = json.loads(ended.out)
    assert (plain["parameters"], plain["noise_multiplier"], plain["delta"]) == (159_010, 20, 0.001)
    assert plain["timings"].keys() == {"mask expansion", "noise"}
    assert "delta 0.001" in plain["warnings"][0]
    ended = inside("plan", *planned(delta="0.001"), cwd=tmp_path)
    assert "mask expansion, here" in ended.out and "\nWarning: delta 0.001" in ended.out


def test_a_plan_of_an_experiment(inside, files):
    quick = ("--noise-multiplier", "20", "--rounds", "2", "--no-timings", "--json")
    plain = json.loads(inside("plan", "mnist-dp-fedavg", *quick, cwd=files).out)
    found = [plain[key] for key in ("scheme", "clients", "cohort", "parameters", "secure", "timings")]
    assert found == ["dp-fedavg", 1000, 100, 159_010, "none", {}]
    ended = inside(
        "plan", "digits-dp-signfed", *quick, "--set", "model={name='mine:Net', width=6}", cwd=files
    )
    assert json.loads(ended.out)["parameters"] == 64 * 6 + 6 + 6 * 10 + 10
    assert ended.err == "what a user's module prints\n"


BY_OPTION = {
    "clients": ("0", "--clients = 0"),
    "fraction": ("1.5", "--fraction = 1.5"),
    "cohort": ("5", "--cohort = 5: expected fraction x clients = 100"),
    "rounds": ("0", "--rounds = 0"),
    "parameters": ("0", "--parameters = 0"),
    "model": ("mlp", "--parameters = 159010: expected nothing beside model"),
    "data": ("mnist", "--data = 'mnist'"),
    "epsilon": ("-1", "--epsilon = -1.0"),
    "noise_multiplier": ("nan", "--noise-multiplier = nan"),
    "delta": ("2", "--delta = 2.0"),
    "sampling": ("shuffled", "--sampling = 'shuffled'"),
    "accountant": ("guess", "--accountant = 'guess'"),
    "dropout": ("1", "--dropout = 1.0"),
    "dishonest": ("100", "--dishonest = 100"),
}


def test_mistakes_in_a_plan(inside, tmp_path):
    for name, (value, said) in BY_OPTION.items():
        assert said in refused(inside("plan", *planned(**{name: value}), cwd=tmp_path)), name
    assert "--epsilon = 1.0: expected one of" in refused(inside("plan", *planned(epsilon="1"), cwd=tmp_path))
    assert "'--rounds'" in refused(inside("plan", *planned(rounds="two"), cwd=tmp_path))
    for name in ("clients", "fraction", "rounds", "parameters"):
        assert f"--{name} = None" in refused(inside("plan", *planned(**{name: None}), cwd=tmp_path))
    assert "--epsilon = None" in refused(inside("plan", *planned(noise_multiplier=None), cwd=tmp_path))
    unknown = planned(parameters=None, model="mpl")
    assert "did you mean 'mlp'?" in refused(inside("plan", *unknown, cwd=tmp_path))
    assert "--set = 'rounds=3'" in refused(inside("plan", *planned(), "--set", "rounds=3", cwd=tmp_path))
    assert "a TOML file" in refused(inside("plan", "digits-dp", cwd=tmp_path))


# --- mistakes

BY_SET = {
    "bogus=1": "unknown key 'bogus'",
    "round=1": "did you mean rounds?",
    "data.clints=3": "did you mean data.clients?",
    "scheme.gamma=1": "did you mean scheme.server_learning_rate?",
    "scheme.bogus=1": "scheme has steps, epochs",
    "engine.bogus=1": "engine has device, lanes",
    "model.bogus=1": "model.bogus",
    "rounds=abc": "rounds = 'abc': expected a valid integer",
    "rounds=true": "rounds = True: expected a valid integer",
    "rounds='2'": "rounds = '2': expected a valid integer",
    "rounds=0": "rounds = 0: expected a number greater than or equal to 1",
    "scheme.learning_rate=true": "scheme.learning_rate = True: expected a valid number",
    "scheme.steps=2.5": "scheme.steps = 2.5",
    "model=3": "model = 3: expected a section [model]",
    "rounds.x=3": "expected rounds to be a section",
    "scheme.name=[1]": "scheme.name = [1]: expected one of: ",
    "scheme.name=fedavgg": "did you mean 'fedavg'?",
    "fraction=0": "fraction = 0: expected a number greater than 0",
    "patience=3": "data.holdout",
    "nothing": "--set = 'nothing': expected key.path=value",
    "data.name=mnsit": "did you mean 'mnist'?",
    "data.name=table": "data.path",
    "data={name='table', path='no.csv', target='ill'}": "no.csv",
    "data={name='table', path='nan.csv', target='ill'}": "nan.csv: row 8, column 'a'",
    "data={name='table', path='table.csv', target='sick'}": "data.target = 'sick'",
    "data.clients=5000": "data.clients = 5000: expected a whole number from 1 to 1437",
    "model.name=text": "model.name = 'text'",
    "model={name='mine:too_wide'}": "mine:too_wide: its output has shape (2, 11)",
    "model={name='mine:fails'}": "mine:fails: its factory failed: RuntimeError: no weights",
    "model={name='mine:Nett'}": "did you mean 'Net'?",
    "model={name='no_such:Net'}": "no_such",
    "model.loss=mine:averaged": "one value an example",
    "model.loss=mine:nope": "mine:nope",
}


def test_mistakes_in_what_is_set(inside, files):
    before = {path.name for path in files.iterdir()}
    for setting, said in BY_SET.items():
        ended = inside("run", "digits-fedavg", *FAST, "--set", setting, cwd=files)
        line = refused(command_output_of_user_aside(ended))
        assert said in line, setting
    assert {path.name for path in files.iterdir()} - {"__pycache__"} == before


def command_output_of_user_aside(ended):
    """The command's own output, without what the user's module prints when it is imported."""
    return type(ended)(ended.code, ended.out.removeprefix("what a user's module prints\n"), ended.err)


BY_ARGUMENT = {
    ("syntax.toml",): ("syntax.toml is not TOML", "line 1"),
    ("latin.toml",): ("latin.toml", "readable TOML file"),
    ("unknown.toml",): ("unknown key 'data.clints'", "did you mean data.clients?"),
    ("missing.toml",): ("missing.toml", "a TOML file that exists"),
    ("digits-fedvag",): ("did you mean 'digits-fedavg'?",),
    ("mnist-fedavg", "--data-dir", "nowhere"): ("nowhere: no such folder",),
    ("mnist-fedavg",): ("mnist: not found", "discreet data fetch mnist"),
    ("mnist-fedavg", "--data-dir", "truncated"): (
        "truncated/mnist/train-images-idx3-ubyte.gz",
        "damaged gzip",
    ),
    ("mnist-fedavg", "--data-dir", "labels"): ("train-labels-idx1-ubyte.gz: label 10 at item 3", "0 to 9"),
    ("mnist-fedavg", "--data-dir", "whole"): ("data.clients = 1000: expected a whole number from 1 to 40",),
    ("digits-fedavg", "--device", "gpu"): ("engine.device = 'gpu': expected 'cpu' or 'cuda'",),
    ("digits-fedavg", "--out", "table.csv"): ("table.csv: is a file",),
    ("digits-fedavg", "--out", "whole"): ("whole: exists and is not empty", "--resume"),
    ("digits-fedavg", "--out", "whole", "--resume"): ("whole: is not a run folder",),
    ("digits-fedavg", "--out", "table.csv/run"): ("table.csv/run: cannot be written (Not a directory)",),
    ("digits-fedavg", "--out", "x" * 300): ("cannot be written (File name too long)",),
}


def test_mistakes_in_files_and_folders(inside, files, monkeypatch):
    before = {path.name for path in files.iterdir()}
    for place in ("DISCREET_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(place, str(files / "nothing-here"))
    for arguments, said in BY_ARGUMENT.items():
        ended = inside("run", *arguments, cwd=files)
        line = refused(ended)
        for part in said:
            assert part in line, arguments
    assert {path.name for path in files.iterdir()} == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none(inside, tmp_path):
    line = refused(inside("run", "digits-fedavg", "--device", "cuda", cwd=tmp_path))
    assert "engine.device = 'cuda'" in line and "cpu" in line
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_experiment_is_left_as_it_is(inside, tmp_path):
    base = ("run", "digits-fedavg", *FAST, "--out", "run")
    assert inside(*base, "--quiet", cwd=tmp_path).code == 0
    before = scores(tmp_path / "run")
    line = refused(inside(*base, "--set", "seed=2", "--set", "data.clients=5", "--resume", cwd=tmp_path))
    assert line == (
        "run: belongs to another experiment: data.clients is 20 there and 5 here; give another --out"
    )
    assert "lowered to 1" in refused(inside(*base, "--set", "rounds=1", "--resume", cwd=tmp_path))
    assert "not empty" in refused(inside(*base, cwd=tmp_path))
    assert scores(tmp_path / "run") == before
    run = tmp_path / "run"
    checkpoint = (run / "checkpoint.safetensors").read_bytes()
    for damage in (b"", checkpoint[:-8], checkpoint[:200], b"\xff" * 100):
        (run / "checkpoint.safetensors").write_bytes(damage)
        line = refused(inside(*base, "--resume", cwd=tmp_path))
        assert line.startswith("run/checkpoint.safetensors: is damaged (") and "--out" in line
    (run / "checkpoint.safetensors").write_bytes(checkpoint)
    (run / "config.toml").write_text("rounds = ")
    assert "run/config.toml: is damaged" in refused(inside(*base, "--resume", cwd=tmp_path))


def test_a_diverging_run_is_told_with_its_round_and_cause(inside, tmp_path):
    huge = ("--set", "rounds=9", "--set", "scheme.server_learning_rate=1e10")
    base = ("run", "digits-fedavg", *FAST, *huge, "--out", "run")
    line = refused(inside(*base, cwd=tmp_path))
    number = int(line.split("diverged in round ")[1].split(":")[0])
    assert number > 1 and "scheme.server_learning_rate (now 10000000000.0)" in line
    run = tmp_path / "run"
    assert {file.name for file in run.iterdir()} == FILES - {"result.json"}
    assert (run / "metrics.jsonl").read_text().count("\n") == number - 1
    assert json.loads((run / "state.json").read_text())["round"] == number - 1
    assert refused(inside(*base, "--resume", cwd=tmp_path)) == line
    assert inside("report", "run", cwd=tmp_path).code == 0


def test_two_processes_in_one_folder(command, tmp_path):
    first = command.start("run", "digits-fedavg", "--set", "rounds=100000", "--out", "run", cwd=tmp_path)
    first.wait_for(tmp_path / "run" / "metrics.jsonl")
    for extra in ([], ["--resume"]):
        ended = command.run(
            "run", "digits-fedavg", "--set", "rounds=100000", "--out", "run", *extra, cwd=tmp_path
        )
        assert "run: " in refused(ended)
        assert ("another process" in ended.err) == bool(extra)
    first.signal(signal.SIGINT)
    assert first.end().code == 130


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk(command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        base = ("run", "digits-fedavg", "--set", "rounds=4", "--set", "scheme.steps=2")
        (disk / "filler").write_bytes(b"x" * 60_000)
        line = refused(command.run(*base, "--out", "disk/run", cwd=tmp_path))
        assert "cannot be written (No space left on device)" in line and "--resume" in line
        assert not list(disk.glob("run/.*"))
        assert command.run("report", "disk/run", "--out", "page.html", cwd=tmp_path).code == 0
        (disk / "filler").unlink()
        assert command.run(*base, "--out", "disk/run", "--resume", "--quiet", cwd=tmp_path).code == 0
        assert command.run(*base, "--out", "whole", "--quiet", cwd=tmp_path).code == 0
        assert scores(disk / "run") == scores(tmp_path / "whole")
    finally:
        subprocess.run(["umount", disk], check=True)


# --- kill and interrupt

SLOW = ("run", "digits-fedavg", "--set", "rounds=20", "--set", "scheme.steps=60", "--set", "data.holdout=0.1")


@pytest.fixture(scope="module")
def uninterrupted(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert command.run(*SLOW, "--quiet", "--out", "run", cwd=folder).code == 0
    return scores(folder / "run")


def test_kill_and_resume_at_random_moments(command, tmp_path, uninterrupted):
    moments, base = random.Random(20), (*SLOW, "--quiet", "--out", "run", "--resume")
    codes = []
    for _ in range(4):
        running = command.start(*base, cwd=tmp_path)
        time.sleep(moments.uniform(0.2, 1))
        running.signal(signal.SIGKILL)
        ended = running.end()
        assert ended.err == ""
        codes.append(ended.code)
    assert codes[:3] == [-9] * 3  # or the run is too fast to say anything
    assert command.run(*base, cwd=tmp_path).code == 0
    assert scores(tmp_path / "run") == uninterrupted
    assert {file.name for file in (tmp_path / "run").iterdir()} == FILES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_folder_to_resume(command, tmp_path, uninterrupted, number):
    running = command.start(*SLOW, "--out", "my run", cwd=tmp_path)
    running.wait_for(tmp_path / "my run" / "metrics.jsonl", lines=2)
    running.signal(number)
    ended = running.end()
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.startswith(
        "discreet: interrupted, finished rounds are kept; to go on: discreet run digits-fedavg"
    )
    assert ended.err.endswith(" '--out=my run' --resume\n") and "--set=rounds=20" in ended.err
    assert "result.json" not in {file.name for file in (tmp_path / "my run").iterdir()}
    assert command.run(*SLOW, "--out", "my run", "--resume", "--quiet", cwd=tmp_path).code == 0
    assert scores(tmp_path / "my run") == uninterrupted


def test_interrupt_at_random_moments(command, tmp_path, uninterrupted):
    moments, base = random.Random(21), (*SLOW, "--quiet", "--out", "run", "--resume")
    for _ in range(4):
        running = command.start(*base, cwd=tmp_path)
        time.sleep(moments.uniform(0, 0.8))
        running.signal(signal.SIGINT)
        ended = running.end()
        assert ended.code in (0, 130) and "Traceback" not in ended.err, ended
    assert command.run(*base, cwd=tmp_path).code == 0
    assert scores(tmp_path / "run") == uninterrupted


CLEARING = """
import os, signal, sys, time
from discreet import cli

class Cleared:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

@cli.app.command()
def linger():
    Cleared()
    time.sleep(30)

sys.argv[1:] = ["linger"]
cli.main()
"""


def test_an_interrupt_where_nothing_can_be_raised_is_not_lost():
    ended = subprocess.run([sys.executable, "-c", CLEARING], capture_output=True, text=True, timeout=25)
    assert (ended.returncode, ended.stderr) == (130, "discreet: interrupted\n")


def test_interrupt_while_data_is_read(command, files):
    slow = files / "slow" / "mnist"
    shutil.copytree(files / "whole" / "mnist", slow)
    images = slow / "train-images-idx3-ubyte.gz"
    images.unlink()
    os.mkfifo(images)  # opening it waits for a writer, who never comes
    running = command.start("run", "mnist-fedavg", "--data-dir", "slow", "--out", "run", cwd=files)
    time.sleep(0.7)
    running.signal(signal.SIGINT)
    ended = running.end()
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.startswith("discreet: interrupted") and "Traceback" not in ended.err
    assert not (files / "run").exists()


def test_a_second_interrupt_does_not_wait(command, files):
    (files / "sleepy.py").write_text(
        "import time\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(64, 10)\n\n"
        "    def forward(self, inputs):\n        time.sleep(0.15)\n        return self.layer(inputs.flatten(1))\n"
    )
    sets = ("--set", "model={name='sleepy:Net'}", "--set", "engine.workers=2", "--set", "scheme.steps=50")
    running = command.start("run", "digits-fedavg", *sets, "--out", "run", cwd=files)
    deadline = time.monotonic() + 60
    while not (files / "run" / "config.toml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    running.signal(signal.SIGINT)
    time.sleep(0.3)
    started = time.monotonic()
    running.signal(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130 and "interrupted" in ended.err
    assert time.monotonic() - started < 4  # its workers have 7 seconds to go


def test_the_python_program_and_the_command_agree(command, tmp_path):
    assert command.run("run", "digits-fedavg", *FAST, "--quiet", "--out", "run", cwd=tmp_path).code == 0
    run = discreet.simulate(config.load("digits-fedavg", FAST[1::2]), out=tmp_path / "python")
    run.save(tmp_path / "saved")
    assert scores(tmp_path / "run") == scores(tmp_path / "python") == scores(tmp_path / "saved")
    more = command.run(
        "run", "saved/config.toml", "--set", "rounds=3", "--out", "saved", "--resume", "--quiet", cwd=tmp_path
    )
    assert (more.code, more.err) == (0, "")
    whole = command.run(
        "run", "digits-fedavg", *FAST, "--set", "rounds=3", "--out", "whole", "--quiet", cwd=tmp_path
    )
    assert whole.code == 0
    assert scores(tmp_path / "saved") == scores(tmp_path / "whole")
    assert command.run("report", "saved", "run", cwd=tmp_path).code == 0
