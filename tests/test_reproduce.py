import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from command_server import Ended
from discreet import config, reproduce
from discreet.data.sources import available
from discreet.errors import ConfigError, RunFolderError
from discreet.reproduce.record import figure, markdown, shown
from discreet.reproduce.running import is_finished
from discreet.reproduce.wants import Want
from discreet.runs import open_run
from discreet.simulation import simulate
from terminal import terminal

REAL = os.environ.get("DISCREET_DATA")

TABLE = """
title = "Votes | averages"
source = "nobody's paper, table 7"
description = '''
Two lines
of text.'''
show = ["final.accuracy", "bits_per_parameter", "privacy.epsilon", "no.such.figure"]
experiment = "digits-{row}"
set = ["rounds=2", "scheme.steps=2", "data.clients=10"]
quick = ["rounds=1"]

[[columns]]
name = "IID"

[[columns]]
name = "Skewed (0.3)"
set = ["data.partition=dirichlet", "data.alpha=0.3"]

[[rows]]
name = "StdFed"
id = "fedavg"
want = { "final.accuracy" = [0.0, 1.01], bits_per_parameter = ["<= 32.1", ""] }
paper = { "final.accuracy" = [0.5, "70 to 80 %"], "no.such.figure" = [0, ""] }

[[rows]]
name = "Sign|Fed"
id = "signfed"
paper = { "final.accuracy" = "close to StdFed" }
"""

LISTED = {
    "signfed-table-1": 6,
    "signfed-table-1-cifar10": 2,
    "signfed-table-2": 10,
    "signfed-table-3": 10,
}


@pytest.fixture
def written(tmp_path):
    """Writes the file of a table into the folder `tmp_path`."""

    def write(text=TABLE, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refused(ended):
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("discreet: ") and ended.err.count("\n") == 1
    return ended.err[len("discreet: ") : -1]


def scores(folder):
    """What the run folders of a table say, without what a clock or a memory meter says."""
    found = {}
    for run in sorted(path.parent for path in folder.glob("*/config.toml")):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((run / "result.json").read_text())
        for line in (*lines, result):
            for key in ("seconds", "evaluation_seconds", "seconds_per_round", "peak_memory_bytes"):
                line.pop(key, None)
        found[run.name] = (lines, result, (run / "checkpoint.safetensors").read_bytes())
    return found


# --- a table, from its file to what is printed


def test_a_table_holds_the_figures_of_its_runs(inside, written, tmp_path):
    written()
    ended = inside("reproduce", "mine.toml", "--json", "--out", "out", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    made = json.loads(ended.out)
    folder = tmp_path / "out" / "mine"
    assert made == json.loads((folder / "table.json").read_text())
    assert made["command"] == "discreet reproduce mine.toml --out=out"
    assert made["description"] == "Two lines of text."
    assert [cell["folder"] for cell in made["cells"]] == [
        *("fedavg--iid", "fedavg--skewed-0.3"),
        *("signfed--iid", "signfed--skewed-0.3"),
    ]
    common = ["rounds=2", "scheme.steps=2", "data.clients=10"]
    skewed = [*common, "data.partition=dirichlet", "data.alpha=0.3"]
    count = 64 * 64 + 64 + 64 * 10 + 10
    accuracies = []
    for cell, (preset, settings) in zip(
        made["cells"],
        [(preset, chosen) for preset in ("digits-fedavg", "digits-signfed") for chosen in (common, skewed)],
        strict=True,
    ):
        alone = simulate(config.load(preset, settings)).result
        accuracies.append(alone["final"]["accuracy"])
        figures = cell["figures"]
        assert figures["final.accuracy"]["ours"] == alone["final"]["accuracy"]
        # a weight, or the last byte's spare bits, come to a change of each parameter in 32 bits or 1
        bits = 32 * (count + 1) / count if preset == "digits-fedavg" else 8 * (-(-count // 8)) / count
        assert figures["bits_per_parameter"]["ours"] == pytest.approx(bits, rel=1e-12)
        assert figures["privacy.epsilon"]["ours"] is figures["no.such.figure"]["ours"] is None
        lines = (folder / cell["folder"] / "metrics.jsonl").read_text().splitlines()
        spent = sum(line["seconds"] + line.get("evaluation_seconds", 0) for line in map(json.loads, lines))
        assert cell["seconds"] == pytest.approx(spent)
        assert cell["command"] == f"discreet run {preset} " + " ".join(f"--set={one}" for one in settings)
    assert made["seconds"] == pytest.approx(sum(cell["seconds"] for cell in made["cells"]))

    first, second, *_ = (cell["figures"] for cell in made["cells"])
    assert first["final.accuracy"] | {"ours": 0} == {"ours": 0, "paper": 0.5, "want": ">= 0", "reached": True}
    assert second["final.accuracy"]["want"] == ">= 1.01" and second["final.accuracy"]["reached"] is False
    assert first["bits_per_parameter"]["reached"] is True and second["bits_per_parameter"]["want"] is None
    assert first["no.such.figure"]["paper"] == 0 and second["no.such.figure"]["paper"] is None
    assert (made["reached"], made["missed"]) == (2, 1)

    ours = [f"{100 * accuracy:.2f} %" for accuracy in accuracies]
    text = (folder / "table.md").read_text()
    assert text.startswith("# Votes | averages\n\nnobody's paper, table 7\n\nTwo lines of text.\n\n")
    assert (
        "| final accuracy | IID | Skewed (0.3) |\n"
        "| --- | ---: | ---: |\n"
        f"| StdFed | {ours[0]} | {ours[1]} |\n"
        "| StdFed, wanted | >= 0.00 %, reached | >= 101.00 %, MISSED |\n"
        "| StdFed, paper | 50.00 % | 70 to 80 % |\n"
        f"| Sign\\|Fed | {ours[2]} | {ours[3]} |\n"
        "\n"
        "* Sign|Fed, paper: close to StdFed\n"
    ) in text
    assert "| StdFed, wanted | <= 32.1, reached |  |\n" in text
    assert "| no such figure | IID | Skewed (0.3) |\n| --- | ---: | ---: |\n| StdFed | - | - |\n" in text
    assert "\n\nNo result has privacy.epsilon or no.such.figure.\n\n" in text
    assert "2 of 3 wanted figures reached." in text
    page = (folder / "report.html").read_text()
    assert "fedavg--skewed-0.3" in page and "signfed--iid" in page
    assert {path.name for path in folder.iterdir()} == {
        *("table.json", "table.md", "report.html"),
        *(cell["folder"] for cell in made["cells"]),
    }


def test_what_is_printed(inside, written, tmp_path):
    written()
    ended = inside("reproduce", "mine.toml", "--quick", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    folder = tmp_path / "reproductions" / "mine-quick"
    text = (folder / "table.md").read_text()
    assert ended.out.startswith(text) and "reproductions/mine-quick" in ended.out.removeprefix(text)
    # nothing is wanted of a quick variant
    assert "Quick variant" in text and "wanted" not in text and "MISSED" not in text
    made = json.loads((folder / "table.json").read_text())
    assert made["quick"] is True and (made["reached"], made["missed"]) == (0, 0)
    assert made["command"] == "discreet reproduce mine.toml --quick"
    assert [len(lines) for lines, *_ in scores(folder).values()] == [1] * 4
    ended = inside("reproduce", "mine.toml", "--quick", "--quiet", cwd=tmp_path)
    assert ended == Ended(0, "", "")
    shutil.rmtree(folder)
    assert inside("reproduce", "mine.toml", "--quick", "--quiet", cwd=tmp_path) == Ended(0, "", "")


def test_settings_come_from_the_general_to_the_particular(written):
    path = written("""
    title = "order"
    show = ["rounds"]
    experiment = "digits-fedavg"
    set = ["rounds=1", "seed=1", "eval_every=1", "patience=0", "data.clients=11"]
    quick = ["data.clients=5", "fraction=0.5"]
    [[columns]]
    name = "A"
    set = ["seed=2", "eval_every=2", "fraction=0.2"]
    quick = ["fraction=0.6"]
    [[columns]]
    name = "B"
    id = "second"
    experiment = "digits-signfed"
    [[rows]]
    name = "1"
    set = ["eval_every=3"]
    cells = { second = ["rounds=9"] }
    [[rows]]
    name = "2"
    experiment = "own/mine.toml"
    quick = ["fraction=0.7"]
    """)
    (path.parent / "own").mkdir()
    (path.parent / "own" / "mine.toml").write_text("[scheme]\nname = 'local'")
    file = reproduce.read(path, "order")

    def facts(quick):
        made = (cell.experiment for cell in reproduce.cells(file, quick=quick))
        return [
            (one.scheme_name, one.seed, one.eval_every, one.rounds, one.data.clients, one.fraction)
            for one in made
        ]

    assert facts(False) == [
        ("fedavg", 2, 3, 1, 11, 0.2),
        ("signfed", 1, 3, 9, 11, 0.5),  # the preset's fraction
        ("local", 2, 2, 1, 11, 0.2),
        ("local", 1, 1, 1, 11, 1.0),  # the default
    ]
    assert [one[4:] for one in facts(True)] == [(5, 0.6), (5, 0.5), (5, 0.7), (5, 0.7)]


def test_a_preset_is_a_preset_whatever_lies_in_the_current_folder(inside, written, tmp_path):
    written()
    assert (
        inside("run", "digits-fedavg", "--set=rounds=1", "--out=digits-fedavg", "--quiet", cwd=tmp_path).code
        == 0
    )
    (tmp_path / "digits-signfed").write_text("rounds = ")
    assert inside("reproduce", "mine.toml", "--quick", "--quiet", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", 1),
        ("b.c.d", "x"),
        ("e.0.f", 2.5),
        ("e.1.f", None),
        ("e.-1.f", None),
        ("e.f", None),
        ("a.b", None),
        ("b.c", None),
        ("e", None),
        ("g", None),
        ("g.h", None),
        ("z", None),
    ],
)
def test_a_figure_by_its_path(path, found):
    result = {"a": 1, "b": {"c": {"d": "x"}}, "e": [{"f": 2.5}], "g": None}
    assert figure(result, path) == found


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("final.accuracy", 0.93865, "93.86 %"),  # 0.93865 lies just below, in binary
        ("holdout_accuracy", 1, "100.00 %"),
        ("bits_per_parameter", 32.0016, "32"),
        ("parameters", 159010, "159,010"),
        ("loss", 0.000123456, "0.0001235"),
        ("final.accuracy", None, "-"),
        ("final.accuracy", "86 to 93 %", "86 to 93 %"),
        ("secure", True, "True"),
    ],
)
def test_a_figure_as_text(path, value, text):
    assert shown(path, value) == text


def test_wants():
    assert Want.read("key", "") is None
    least, most = Want.read("key", 0.5), Want.read("key", "<= 1e-2")
    assert [least.is_reached_by(value) for value in (0.49, 0.5, 1, None, "0.7", True)] == [
        *(False, True, True),
        *(False, False, False),
    ]
    assert [most.is_reached_by(value) for value in (0, 0.01, 0.011, None)] == [True, True, False, False]
    assert Want.read("key", ">= 3") == Want(">=", 3.0)
    for wrong in ("3", "> 3", "<= -", "<= nan", "<= 1 2", "<= 1e999"):
        with pytest.raises(ConfigError, match="key = "):
            Want.read("key", wrong)


def test_long_tables_tell_their_time_in_hours():
    empty = {"title": "t", "source": "", "description": "", "quick": False, "show": [], "cells": []}
    empty |= {"reached": 0, "missed": 0, "command": "c"}
    ends = {0.04: "0.0 s", 59.94: "59.9 s", 60: "1.0 min", 3599: "60.0 min", 5400: "1.5 h"}
    for seconds, text in ends.items():
        assert markdown(empty | {"seconds": seconds}) == f"# t\n\n`c`: {text} of rounds and evaluations.\n"


# --- what is done is not done again


def test_a_finished_run_is_not_run_again_and_an_unfinished_one_goes_on(
    inside, written, tmp_path, monkeypatch
):
    path = written()
    base = ("reproduce", "mine.toml", "--quiet", "--out", "out")
    assert inside(*base, cwd=tmp_path).code == 0
    folder = tmp_path / "out" / "mine"
    before = scores(folder)
    made = json.loads((folder / "table.json").read_text())
    times = {one: one.stat().st_mtime_ns for one in folder.glob("*--*/*")}
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path / "nowhere"))
    assert inside(*base, cwd=tmp_path).code == 0
    assert {one: one.stat().st_mtime_ns for one in folder.glob("*--*/*")} == times
    assert json.loads((folder / "table.json").read_text()) == made

    lost = folder / "signfed--iid" / "result.json"
    lost.unlink()
    assert inside(*base, cwd=tmp_path).code == 0
    changed = {one.parent.name for one, when in times.items() if one.stat().st_mtime_ns != when}
    assert changed == {"signfed--iid"} and scores(folder) == before

    # more rounds: all go on, to what they would have come to at once
    path.write_text(TABLE.replace("rounds=2", "rounds=3"))
    assert inside(*base, cwd=tmp_path).code == 0
    assert inside("reproduce", "mine.toml", "--quiet", "--out", "anew", cwd=tmp_path).code == 0
    after = scores(folder)
    assert after == scores(tmp_path / "anew" / "mine") and after != before
    assert [len(lines) for lines, *_ in after.values()] == [3] * 4

    # fewer, or other settings: refused before anything runs
    path.write_text(TABLE)
    line = refused(inside(*base, cwd=tmp_path))
    assert line.startswith("out/mine/fedavg--iid: ") and "rounds is 3 there and 2 in" in line
    path.write_text(TABLE.replace("rounds=2", "rounds=3").replace("alpha=0.3", "alpha=0.4"))
    (folder / "fedavg--iid" / "result.json").unlink()
    line = refused(inside(*base, cwd=tmp_path))
    assert line.startswith("out/mine/fedavg--skewed-0.3: ") and "data.alpha is 0.3 there and 0.4" in line
    assert not (folder / "fedavg--iid" / "result.json").exists()


def test_what_counts_as_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("\n".join(["a,ill", *(f"{number},{number % 2}" for number in range(20))]))
    private = ["rounds=1", "data.clients=6", "fraction=1", "scheme.steps=1", "privacy.accountant=rdp"]
    own = [
        "rounds=1",
        "model={name='linear'}",
        "data={name='table', path='own.csv', target='ill', clients=2}",
    ]
    for preset, settings, path in (
        ("digits-dp-signfed", private, Path("private")),
        ("digits-fedavg", own, Path("own")),
    ):
        asked = config.load(preset, settings)
        assert not is_finished(path, asked)
        path.mkdir()
        assert not is_finished(path, asked)
        simulate(asked, out=path, resume=True)
        assert is_finished(path, asked)
        assert is_finished(path, config.load(f"{path}/config.toml"))
        assert is_finished(path, config.load(preset, [*settings, "engine.workers=1"]))
        assert not is_finished(path, config.load(preset, [*settings, "rounds=2"]))
        # these have a key that the folder does not have: simulate itself says what is the matter
        half = "scheme.server_half_life=5"
        assert not is_finished(path, config.load(preset, [*settings, half]))
        for other in ("seed=7", "data.clients=5", "engine.lanes=7", "scheme.learning_rate=0.2"):
            with pytest.raises(RunFolderError, match=r"another experiment: .* in the table"):
                is_finished(path, config.load(preset, [*settings, other]))
        (path / "result.json").unlink()
        assert not is_finished(path, asked)
    # noise that was asked for is not the noise that followed from a budget
    louder = config.load("digits-dp-signfed", [*private, "privacy.noise_multiplier=900.0"])
    with pytest.raises(RunFolderError, match=r"privacy\.noise_multiplier is"):
        is_finished(Path("private"), louder)
    clear = config.load("digits-dp-signfed", [*private, "secure=none"])
    with pytest.raises(RunFolderError, match="secure is 'masked' there and 'none'"):
        is_finished(Path("private"), clear)


def test_a_run_that_diverges_has_the_figures_of_its_last_finite_model(inside, written, tmp_path):
    path = written(
        TABLE.replace('id = "fedavg"', 'id = "fedavg"\nset = ["scheme.server_learning_rate=1e20"]')
    )
    for _ in range(2):
        ended = inside("reproduce", "mine.toml", "--json", "--out", "out", cwd=tmp_path)
        assert (ended.code, ended.err) == (0, "")
        made = json.loads(ended.out)
        failures = [cell["failure"] for cell in made["cells"]]
        assert failures[0].startswith("diverged in round ") and failures[2:] == [None, None]
        first = made["cells"][0]["figures"]["final.accuracy"]
        # it is the very first one, which guesses; and even so it reaches nothing that it was to reach at least
        assert first["ours"] < 0.2 and first["want"] == ">= 0" and first["reached"] is False
        bits = made["cells"][0]["figures"]["bits_per_parameter"]
        assert bits["ours"] is None and bits["reached"] is False
        assert made["cells"][2]["figures"]["final.accuracy"]["ours"] > 0
        text = (tmp_path / "out" / "mine" / "table.md").read_text()
        assert f"| StdFed | {shown('accuracy', first['ours'])}, diverged | " in text
        assert "| StdFed | - | - |" in text and f"\nStdFed, IID: {failures[0]}\n" in text
        assert "\nThe figures of a run that diverged are those of its last finite model.\n" in text
    assert path.exists()


# --- kill and interrupt

SLOW = TABLE.replace("rounds=2", "rounds=10").replace("steps=2", "steps=20")


def test_kill_interrupt_and_go_on(command, inside, written, tmp_path):
    written(SLOW, "my table.toml")
    base = ("reproduce", "my table.toml", "--out", "out")
    assert inside(*base[:-1], "whole", "--quiet", cwd=tmp_path) == Ended(0, "", "")
    folder = tmp_path / "out" / "my table"

    running = command.start(*base, "--quiet", cwd=tmp_path)
    running.wait_for(folder / "fedavg--iid" / "metrics.jsonl", lines=3)
    running.signal(signal.SIGKILL)
    assert running.end() == Ended(-9, "", "")
    assert not list(folder.glob("table.*"))

    running = command.start(*base, cwd=tmp_path)
    running.wait_for(folder / "fedavg--skewed-0.3" / "metrics.jsonl", lines=2)
    running.signal(signal.SIGINT)
    assert running.end() == Ended(
        130,
        "",
        "discreet: interrupted, finished runs and rounds are kept; to go on: "
        "discreet reproduce 'my table.toml' --out=out\n",
    )
    assert not list(folder.glob("table.*"))
    done = (folder / "fedavg--iid" / "result.json").stat().st_mtime_ns

    assert inside(*base, "--quiet", cwd=tmp_path) == Ended(0, "", "")
    assert (folder / "fedavg--iid" / "result.json").stat().st_mtime_ns == done
    assert scores(folder) == scores(tmp_path / "whole" / "my table")


def test_the_bar_tells_the_run_and_its_rounds(inside, written, tmp_path, monkeypatch):
    written()
    for name, value in {"TERM": "xterm", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    with (
        terminal() as (screen, drawn),
        os.fdopen(os.dup(screen), "w") as stderr,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stderr", stderr)
        ended = inside("reproduce", "mine.toml", "--quick", cwd=tmp_path)
        print("-- and now quietly --", file=stderr, flush=True)
        assert inside("reproduce", "mine.toml", "--quick", "--out=anew", "--quiet", cwd=tmp_path).code == 0
    assert ended.code == 0 and ended.out.startswith("# Votes")
    loud, quiet = drawn.split(b"-- and now quietly --")
    for title in (b"1/4 StdFed, IID: round", b"4/4 Sign|Fed, Skewed (0.3): round", b"1/1", b"accuracy"):
        assert title in loud
    assert quiet.strip() == b""


# --- mistakes

IN_FILE = {
    ('title = "Votes | averages"', ""): ("title = '': expected a heading",),
    ("show = [", "shwo = ["): ("unknown key 'shwo'", "did you mean show?"),
    ('id = "fedavg"', 'ident = "fedavg"'): ("[[rows]] 1: unknown key 'rows.ident'", "rows.id"),
    ('name = "IID"', 'nmae = "IID"'): ("[[columns]] 1: unknown key 'columns.nmae'", "columns.name"),
    ('name = "IID"', ""): ("[[columns]] 1: columns.name = ''",),
    ('name = "IID"', 'name = "§"'): ("[[columns]] 1: columns.id = ''", "small letters"),
    ('id = "signfed"', 'id = "../signfed"'): ("[[rows]] 2: rows.id = '../signfed'",),
    ('id = "signfed"', 'id = "fedavg"'): ("rows.id = 'fedavg'", "differ"),
    ("[[rows]]", "[rows]"): ("not TOML",),
    ("[[columns]]", "[[colums]]"): ("unknown key 'colums'", "did you mean columns?"),
    ("[0.0, 1.01]", "[0.0]"): ("rows.fedavg.want.final.accuracy", "2 figures, one a column"),
    ("[0.0, 1.01]", "[0.0, '> 1']"): ("rows.fedavg.want.final.accuracy = '> 1'", "<= 16"),
    ("[0.0, 1.01]", "[0.0, nan]"): ("[[rows]] 1: rows.want", "finite"),
    ("[0.5, ", "[0.5, 0.5, "): ("rows.fedavg.paper.final.accuracy", "2 figures, one a column"),
    ("bits_per_parameter = [", "bits_per_paramter = ["): ("rows.fedavg.want", "'bits_per_parameter'?"),
    ('id = "signfed"', "cells = { idd = [] }\nid = 'signfed'"): ("rows.signfed.cells = 'idd'", "iid"),
    ('show = ["final.accuracy"', 'show = [1, "final.accuracy"'): ("show = 1: expected a valid string",),
    ('"digits-{row}"', '"digit-{row}"'): (
        *("row 'StdFed', column 'IID': experiment = 'digit-fedavg'", "did you mean 'digits-fedavg'?"),
    ),
    ('"digits-{row}"', '"{row}.toml"'): ("row 'StdFed', column 'IID': experiment", "fedavg.toml"),
    ('experiment = "digits-{row}"', ""): ("row 'StdFed', column 'IID': experiment = None",),
    ("data.alpha=0.3", "data.aplha=0.3"): ("column 'Skewed (0.3)': unknown key 'data.aplha'", "data.alpha?"),
    ("rounds=2", "rounds=two"): ("row 'StdFed', column 'IID': rounds = 'two'",),
    ("rounds=2", "rounds"): ("--set = 'rounds'", "key.path=value"),
}


def test_mistakes_in_the_file(inside, written, tmp_path):
    for (there, instead), said in IN_FILE.items():
        assert there in TABLE, there
        path = written(TABLE.replace(there, instead))
        line = refused(inside("reproduce", "mine.toml", "--out", "out", cwd=tmp_path))
        assert line.startswith("mine.toml"), line
        for part in said:
            assert part in line, (instead, line)
    path.write_bytes(b"title = '\xe9'")
    assert "mine.toml: cannot be read" in refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    assert [one.name for one in tmp_path.iterdir()] == ["mine.toml"]


def test_mistakes_on_the_command_line(inside, written, tmp_path):
    written()
    line = refused(inside("reproduce", "signfed-tabel-2", cwd=tmp_path))
    assert "reproduce = 'signfed-tabel-2'" in line and "did you mean 'signfed-table-2'?" in line
    assert "none.toml: no such file" in refused(inside("reproduce", "none.toml", cwd=tmp_path))
    assert "--quik" in refused(inside("reproduce", "mine.toml", "--quik", cwd=tmp_path))
    line = refused(inside("reproduce", "mine.toml", "--data-dir", "nowhere", cwd=tmp_path))
    assert line.startswith("nowhere: no such folder")
    line = refused(inside("reproduce", "mine.toml", "--out", "mine.toml", cwd=tmp_path))
    assert line.startswith("mine.toml/") and "cannot be written" in line
    (tmp_path / "out" / "mine" / "signfed--iid").mkdir(parents=True)
    (tmp_path / "out" / "mine" / "signfed--iid" / "letter.txt").write_text("dear")
    line = refused(inside("reproduce", "mine.toml", "--out", "out", cwd=tmp_path))
    assert line.startswith("out/mine/signfed--iid: is not a run folder")
    assert [one.name for one in (tmp_path / "out" / "mine").iterdir()] == ["signfed--iid"]


def test_absent_data_is_refused_before_anything_runs(inside, written, tmp_path, monkeypatch):
    for place in ("DISCREET_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(place, str(tmp_path / "nothing-here"))
    written(TABLE.replace("data.alpha=0.3", "data.name=mnist"))
    line = refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    assert line.startswith("mnist: not found in") and "discreet data fetch mnist" in line
    written(TABLE.replace("data.alpha=0.3", "data={name='table', path='no.csv', target='ill'}"))
    assert refused(inside("reproduce", "mine.toml", cwd=tmp_path)).startswith("no.csv: no such file")
    assert [one.name for one in tmp_path.iterdir()] == ["mine.toml"]


def test_a_mistake_that_shows_only_in_a_run_names_its_place(inside, written, tmp_path):
    written(TABLE.replace("data.alpha=0.3", "data.clients=5000"))
    line = refused(inside("reproduce", "mine.toml", "--out", "out", cwd=tmp_path))
    assert line.startswith("mine.toml: row 'StdFed', column 'Skewed (0.3)': data.clients = 5000")
    # what was finished before it stays
    assert [one.name for one in (tmp_path / "out" / "mine").iterdir()] == ["fedavg--iid"]
    asked = config.load("digits-fedavg", ["rounds=2", "scheme.steps=2", "data.clients=10"])
    with open_run(tmp_path / "out" / "mine" / "signfed--iid", config.load("digits-signfed")):
        pass
    assert is_finished(tmp_path / "out" / "mine" / "fedavg--iid", asked)


# --- the tables of the papers


def test_the_tables_are_listed(inside, tmp_path):
    for arguments in ([], ["--list"]):
        ended = inside("reproduce", *arguments, cwd=tmp_path)
        assert (ended.code, ended.err) == (0, "")
        heading, *lines = ended.out.splitlines()
        assert heading.split()[0] == "table"
        listed = {line.split()[0]: line for line in lines}
        assert listed.keys() >= LISTED.keys()
        for name, runs in LISTED.items():
            assert listed[name].split()[-1] == str(runs) and "arXiv 2010.07808, table" in listed[name]
    ended = inside("reproduce", "signfed-table-2", "--list", "--json", cwd=tmp_path)
    (one,) = json.loads(ended.out)
    assert one.keys() == {"name", "title", "source", "runs"} and one["runs"] == 10
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [file.name for file in reproduce.tables()])
def test_every_table_is_in_order(name):
    file = reproduce.find(name)
    assert file.table.source and file.table.description
    for quick in (False, True):
        made = reproduce.cells(file, quick=quick)
        assert len({cell.folder for cell in made}) == len(made) == file.runs
    assert all(cell.experiment.rounds <= 10 for cell in made)


@pytest.mark.parametrize(("name", "data", "clip_norm"), [("2", "mnist", 1.73), ("3", "fashion-mnist", 2.15)])
def test_the_private_tables_have_the_papers_settings(name, data, clip_norm):
    made = reproduce.cells(reproduce.find(f"signfed-table-{name}"))
    assert [cell.experiment.scheme_name for cell in made] == ["dp-fedavg"] * 5 + ["dp-signfed"] * 5
    for cell, epsilon in zip(made, [0.5, 1, 2, 4, 8] * 2, strict=True):
        chosen = cell.experiment
        assert (chosen.data.name, chosen.data.clients, chosen.fraction) == (data, 1000, 0.1)
        assert (chosen.rounds, chosen.sampling) == (200, "poisson")
        assert (chosen.privacy.epsilon, chosen.privacy.delta) == (epsilon, 1e-5)
        assert (chosen.scheme.steps, chosen.scheme.batch_size) == (30, 10)
        assert (chosen.scheme.learning_rate, chosen.model.options) == (0.215, {"widths": [200]})
        if chosen.scheme_name == "dp-fedavg":
            assert chosen.scheme.clip_norm == clip_norm


@pytest.mark.data
@pytest.mark.parametrize("name", ["signfed-table-1", "signfed-table-2", "signfed-table-3"])
def test_the_quick_variants_run(inside, tmp_path, monkeypatch, name):
    if REAL is not None:
        monkeypatch.setenv("DISCREET_DATA", REAL)
    there = {found.name for found in available() if found.path is not None}
    made = reproduce.cells(reproduce.find(name), quick=True)
    if missing := {cell.experiment.data.name for cell in made} - there:
        pytest.skip(f"not found: {', '.join(sorted(missing))}; set DISCREET_DATA to where they are")
    ended = inside("reproduce", name, "--quick", "--json", "--out", "out", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    table = json.loads(ended.out)
    assert len(table["cells"]) == len(made)
    for cell in table["cells"]:
        accuracy, bits = cell["figures"].values()
        assert 0 <= accuracy["ours"] <= 1
        # private votes need more than one bit and fewer than private averages, which need fewer than plain ones
        low, high = {"StdFed": (32, 32.1), "SignFed": (1, 1.1), "DP-SignFed": (8, 16), "DP-StdFed": (16, 32)}[
            cell["row"]
        ]
        assert low <= bits["ours"] <= high and cell["failure"] is None


@pytest.mark.parametrize("name", [file.name for file in reproduce.tables() if file.name.startswith("cgd-")])
def test_the_quick_variants_of_cgd_run_on_digits(inside, tmp_path, name):
    made = reproduce.cells(reproduce.find(name), quick=True)
    assert {cell.experiment.data.name for cell in made} == {"digits"}
    if any(cell.experiment.scheme_name == "dp-sgd" for cell in made):
        pytest.importorskip("opacus", reason="dp-sgd needs the extra discreet[opacus]")
    ended = inside("reproduce", name, "--quick", "--json", "--out", "out", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    cells = json.loads(ended.out)["cells"]
    assert len(cells) == len(made)
    for cell in cells:
        assert cell["failure"] is None
        for path, found in cell["figures"].items():
            if path.endswith("accuracy") and found["ours"] is not None:
                assert 0 <= found["ours"] <= 1


ATTACKS = (
    "signfed-boosted-votes",
    "signfed-groups",
    "signfed-in-backdoor",
    "signfed-out-backdoor",
    "signfed-out-backdoor-cnn",
    "signfed-untargeted-imdb",
    "signfed-untargeted-mnist",
)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_quick_variants_of_attacks_run_on_digits(inside, tmp_path, name):
    made = reproduce.cells(reproduce.find(name), quick=True)
    assert {cell.experiment.data.name for cell in made} == {"digits"}
    ended = inside("reproduce", name, "--quick", "--json", "--out", "out", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    cells = json.loads(ended.out)["cells"]
    assert len(cells) == len(made)
    for cell in cells:
        for path, found in cell["figures"].items():
            if path.endswith(("accuracy", "to_target")):
                assert 0 <= found["ours"] <= 1
    page = (tmp_path / "out" / f"{name}-quick" / "report.html").read_text()
    assert ("Attacked class taken for the target, by round" in page) == ("backdoor" in name)


def test_the_tables_of_attacks_have_the_papers_settings():
    def experiments(name):
        return {cell.folder: cell.experiment for cell in reproduce.cells(reproduce.find(name))}

    for name, boost in (("mnist", 10.0), ("imdb", 20.0)):
        made = experiments(f"signfed-untargeted-{name}")
        for share in (10, 20, 30, 40):
            for attack, size in (("gradient-ascent", boost), ("random-update", 200.0)):
                plain, votes = (made[f"{row}--{attack}-{share}"] for row in ("fedavg", "signfed"))
                for one in (plain, votes):
                    assert (one.data.name, one.data.clients, one.fraction, one.rounds) == (name, 10, 1.0, 100)
                    assert (one.adversary.attack, one.adversary.fraction) == (attack, share / 100)
                assert plain.adversary.boost == size and votes.adversary.boost == 1
        assert made["median--nobody"].adversary.boost == 1 and not made["fedavg--nobody"].adversary.misdeeds
    for name, one in experiments("signfed-out-backdoor").items():
        assert (one.data.clients, one.fraction, one.adversary.fraction) == (1000, 0.1, 0.02)
        assert one.adversary.boost == (10 if "boost" in name and "signfed" not in name else 1)
    for one in experiments("signfed-in-backdoor").values():
        assert (one.data.clients, one.fraction, one.adversary.target) == (10, 1.0, 7)
        assert one.adversary.source == (1 if one.data.name == "mnist" else 5)
        assert one.scheme_name != "signfed" or 0.001 <= one.scheme.server_learning_rate <= 0.005
    for name, one in experiments("signfed-boosted-votes").items():
        assert (one.data.clients, one.fraction, one.privacy.epsilon, one.rounds) == (1000, 0.1, 8.0, 200)
        assert bool(one.adversary.misdeeds) == (not name.endswith("nobody"))


def test_the_quick_variant_of_lossless_perturbation_is_plain_training(inside, tmp_path):
    made = reproduce.cells(reproduce.find("lossless-accuracy"), quick=True)
    assert {cell.experiment.data.name for cell in made} == {"digits", "breast-cancer", "diabetes"}
    ended = inside("reproduce", "lossless-accuracy", "--quick", "--json", "--out", "out", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    cells = {Path(cell["folder"]).name: cell for cell in json.loads(ended.out)["cells"]}
    assert len(cells) == len(made) == 4 * 8
    for row in ("mnist-mlp", "mnist-cnn", "breast-cancer", "diabetes"):
        for clients, columns in {"": ("1", "2", "all"), "-2": ("1-2",), "-20": ("1-20",)}.items():
            plain = cells[f"{row}--plain{clients}"]["figures"]
            for column in columns:
                figures = cells[f"{row}--{column}"]["figures"]
                # that is in float32
                assert figures["final.loss"]["ours"] == pytest.approx(plain["final.loss"]["ours"], rel=1e-4)
                assert figures["digits_lost"]["ours"] > 0 and plain["digits_lost"]["ours"] is None
                assert (figures["final.accuracy"]["ours"] is None) == (row == "diabetes")


def cells_of(ended):
    assert (ended.code, ended.err) == (0, "")
    return {cell["folder"]: cell["figures"] for cell in json.loads(ended.out)["cells"]}


def test_the_quick_variant_of_exactness_shows_the_law(inside, tmp_path):
    found = cells_of(
        inside("reproduce", "lossless-exactness", "--quick", "--json", "--out", "out", cwd=tmp_path)
    )
    lost = {name: figures["digits_lost"]["ours"] for name, figures in found.items()}
    for row in ("m-1", "m-10", "powers-of-two", "cnn"):
        # errors grow as rho^2: two digits for each factor of ten
        assert lost[f"{row}--10000"] - lost[f"{row}--100"] == pytest.approx(4, abs=0.2)
    page = (tmp_path / "out" / "lossless-exactness-quick" / "report.html").read_text()
    assert page.count("<h3>kappa</h3>") == 1 and "rho, log scale" in page


def test_the_quick_variant_of_cost_counts_what_is_sent(inside, tmp_path):
    found = cells_of(inside("reproduce", "lossless-cost", "--quick", "--json", "--out", "out", cwd=tmp_path))
    for m, column in ((1, "1"), (2, "2"), (5, "5"), (10, "10")):
        # 64-8-10: m + 2 gradients of the hidden layer, one of the last, its 8 inputs, alpha and the weight
        numbers = (m + 2) * (64 * 8 + 8) + 90 + 8 + 1 + 1
        assert found[f"mlp--{column}"]["bits_per_parameter"]["ours"] == pytest.approx(64 * numbers / 610)
        assert found[f"mlp--{column}"]["seconds_per_round"]["ours"] > 0
    assert found["mlp--0"]["bits_per_parameter"]["ours"] == pytest.approx(64 * 611 / 610)


def test_the_quick_variant_of_attacks_audits_each_run_once(inside, tmp_path, monkeypatch):
    asked = ("reproduce", "lossless-attacks", "--quick", "--json", "--out", "out")
    found = cells_of(inside(*asked, cwd=tmp_path))
    audit = "audits.lossless-shift"
    for name, figures in found.items():
        off = {path.removeprefix(audit): one["ours"] for path, one in figures.items()}
        effort = off[".weights of two rounds.relative error of predictions"]
        # without effort they are off by about rho
        rho = float(name.split("--")[0])
        assert rho / 3 < off[".none: predictions as they come.relative error of predictions"] < 3 * rho
        assert effort < 0.05
    assert found["3--2"][f"{audit}.projection.share of each prediction in clear"]["ours"] == 0.8

    def not_again(*given, **how):
        raise AssertionError("was audited already")

    monkeypatch.setattr("discreet.reproduce.running.audit", not_again)
    assert cells_of(inside(*asked, cwd=tmp_path)) == found


PLOTTED = TABLE.replace(
    'show = ["final.accuracy",', 'across = "alpha"\nplots = ["final.accuracy"]\nshow = ["final.accuracy",'
).replace('name = "Skewed (0.3)"', 'name = "Skewed (0.3)"\nat = 0.3')


def test_mistakes_in_plots_and_audits(inside, written, tmp_path):
    written(PLOTTED.replace("at = 0.3", ""))
    line = refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    assert "plots = ['final.accuracy']: expected across, and columns with a number at" in line
    written(PLOTTED.replace('plots = ["final.accuracy"]', 'plots = ["final.acuracy"]'))
    line = refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    assert "plots = 'final.acuracy': expected a path in show" in line and "did you mean" in line
    written(PLOTTED.replace('name = "StdFed"', 'name = "StdFed"\nat = 1'))
    assert "rows.at = " in refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    written(TABLE.replace("[[columns]]", 'audits = ["membershop"]\n[[columns]]', 1))
    line = refused(inside("reproduce", "mine.toml", cwd=tmp_path))
    assert "mine.toml: audits = 'membershop': expected one of" in line and "'membership'" in line


def test_plots_have_a_line_for_each_row_and_the_numbers_behind_it(inside, written, tmp_path):
    written(PLOTTED)
    found = cells_of(inside("reproduce", "mine.toml", "--json", "--out", "out", cwd=tmp_path))
    page = (tmp_path / "out" / "mine" / "report.html").read_text()
    section = page[page.index('id="comparison"') : page.index('id="curves"')]
    assert "<h3>final accuracy</h3>" in section and ">alpha<" in section
    for row, name in (("fedavg", "StdFed"), ("signfed", "Sign|Fed")):
        accuracy = found[f"{row}--skewed-0.3"]["final.accuracy"]["ours"]
        assert f"{name}: {accuracy:.4g} at 0.3." in section
        # the column without a place is not drawn
        assert f"{accuracy:.4g}</td></tr>" in section and section.count('<td class="n">') == 2
