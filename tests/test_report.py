"""Run folders in, one HTML page out."""

import html.parser
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import RunFolderError
from discreet.report import find_runs, read_run, write_report
from discreet.report.axes import accuracy_axis, group_digits, linear_axis, log_axis
from discreet.report.charts import Line, chart
from discreet.report.markup import Markup, tag
from discreet.report.summary import summarize
from discreet.report.tables import number, percent
from report_runs import write_run


class Tags(html.parser.HTMLParser):
    """Every start tag with its attributes, and every end tag, in order."""

    VOID = frozenset({"meta", "input", "br", "wbr", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.starts.append((name, dict(attributes)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


def page_of(*folders: Path, out: Path) -> str:
    return write_report(folders, out).read_text(encoding="utf-8")


def plots(page: str) -> list[ET.Element]:
    found = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', page, flags=re.DOTALL)
    return [ET.fromstring(svg) for svg in found]


# Reading


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = read_run(write_run(tmp_path / "first", rounds=3))
    assert run.name == "first"
    assert run.config["scheme"]["name"] == "fedavg"
    assert [line["round"] for line in run.metrics] == [1, 2, 3]
    assert run.result is not None and run.result["parameters"] == 159_010


def test_a_last_line_cut_off_anywhere_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run", rounds=3, finished=False)
    whole = (folder / "metrics.jsonl").read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start, len(whole) - 1):
        (folder / "metrics.jsonl").write_bytes(whole[:end])
        assert [line["round"] for line in read_run(folder).metrics] == [1, 2]
    (folder / "metrics.jsonl").write_bytes(whole[:-1])
    assert len(read_run(folder).metrics) == 3


def test_rounds_that_a_resumed_run_played_again_count_once(tmp_path):
    folder = write_run(tmp_path / "run", rounds=4, finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accuracy": 0.25}\n{"round": 4, "accuracy": 0.5}\n')
    metrics = read_run(folder).metrics
    assert [line["round"] for line in metrics] == [1, 2, 3, 4]
    assert [line["accuracy"] for line in metrics[2:]] == [0.25, 0.5]


def test_a_run_that_has_just_begun_has_no_rounds(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").unlink()
    assert list(read_run(folder).metrics) == []


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", b"rounds = \n", "config.toml: damaged: expected TOML"),
        ("config.toml", b"\xff\xfe", "config.toml: damaged: expected TOML"),
        ("config.toml", b'[data]\nname = "x"\n', "config.toml: not the config.toml of a run: model"),
        ("metrics.jsonl", b'{"round": 1}\n{"round"\n{"round": 3}\n', "metrics.jsonl, line 2: damaged"),
        ("metrics.jsonl", b'{"accuracy": 0.5}\n', "metrics.jsonl, line 1: damaged: round"),
        ("metrics.jsonl", b'{"round": 1, "accuracy": "high"}\n', "metrics.jsonl, line 1: damaged: accuracy"),
        ("metrics.jsonl", b'{"round": 1, "loss": 1' + b"0" * 400 + b"}\n", "line 1: damaged: loss"),
        ("metrics.jsonl", b'{"round": 1' + b"0" * 400 + b"}\n", "line 1: damaged: round"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "metrics.jsonl, line 1: damaged"),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl, line 1: damaged: the whole"),
        ("metrics.jsonl", b"\x00\xff\n", "metrics.jsonl, line 1: damaged"),
        ("result.json", b'{"scheme": ', "result.json: damaged: expected a JSON object"),
        ("result.json", b"[]", "result.json: damaged: the whole"),
        ("result.json", b'{"final": {"accuracy": []}}', "result.json: damaged: final.accuracy"),
    ],
)
def test_damage_is_told_in_one_line_that_names_the_file(tmp_path, file, content, said):
    folder = write_run(tmp_path / "run")
    (folder / file).write_bytes(content)
    with pytest.raises(RunFolderError, match=re.escape(said)) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"config\.toml is missing"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(RunFolderError, match="no folder in it has one"):
        find_runs([tmp_path])
    (write_run(tmp_path / "run") / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is missing"):
        read_run(tmp_path / "run")


def test_a_folder_of_runs_gives_all_of_them_sorted_and_each_once(tmp_path):
    for name in ("b", "c", "a"):
        write_run(tmp_path / "sweep" / name, rounds=1)
    (tmp_path / "sweep" / "notes").mkdir()
    runs = find_runs([tmp_path / "sweep" / "c", tmp_path / "sweep"])
    assert [run.name for run in runs] == ["c", "a", "b"]


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    for path in ("x/seed-1/run", "y/seed-1/run", "y/seed-2/run", "z/other"):
        write_run(tmp_path / path, rounds=1)
    names = [
        run.name for run in find_runs([tmp_path / "x/seed-1", tmp_path / "y/seed-1", tmp_path / "y/seed-2"])
    ]
    assert names == ["x/seed-1/run", "y/seed-1/run", "seed-2/run"]


# Figures


def test_an_unfinished_run_is_summed_up_from_its_rounds(tmp_path):
    folder = write_run(tmp_path / "run", rounds=10, finished=False, uplink=2_000_000)
    lines = [
        {
            "round": 1,
            "accuracy": 0.5,
            "loss": 1.0,
            "uplink_bytes": 3_000_000,
            "seconds": 1.0,
            "participants": 9,
        },
        {"round": 2, "accuracy": None, "uplink_bytes": 1_000_000, "seconds": 3.0, "participants": 11},
        {
            "round": 3,
            "accuracy": 0.9,
            "loss": 0.5,
            "uplink_bytes": 1_000_000,
            "seconds": 2.0,
            "participants": 10,
        },
        {"round": 4, "accuracy": 0.8, "loss": 0.4, "uplink_bytes": 5_000_000, "dropped": ["7", "9"]},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = summarize(read_run(folder))
    assert not run.finished and run.played == 4 and run.planned == 10
    assert run.best is not None and (run.best.round, run.best.accuracy) == (3, 0.9)
    assert run.final is not None and (run.final.round, run.final.loss) == (4, 0.4)
    assert [(p.round, p.megabytes) for p in run.points] == [(1, 3.0), (3, 5.0), (4, 10.0)]
    assert run.megabytes_up == 10.0 and run.seconds == 2.0 and run.cohort == 10 and run.dropped == 2
    assert run.clients == 1000


def test_best_of_a_regression_is_its_lowest_loss(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    lines = [{"round": at, "loss": loss} for at, loss in enumerate((3.0, 1.0, math.nan, 2.0), start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = summarize(read_run(folder))
    assert run.best is not None and (run.best.round, run.best.loss, run.best.accuracy) == (2, 1.0, None)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (32.0, "32"),
        (6.5405, "6.54"),
        (0.17, "0.17"),
        (0.000_999_94, "0.0009999"),
        (1e-5, "1e-5"),
        (6360.4, "6360"),
        (1_663_370, "1\u202f663\u202f370"),
        (-12.5, "-12.5"),
        (100.0, "100"),
        (2.5e12, "2.5e12"),
        (math.nan, None),
        (None, None),
    ],
)
def test_numbers_are_short_and_exact_enough(value, written):
    assert number(value) == written


def test_percent_and_digits():
    assert percent(0.95214) == "95.21\u202f%"
    assert percent(math.inf) is None
    assert group_digits("12345.25") == "12\u202f345.25"
    assert group_digits("1234") == "1234"


# Axes and charts

finite_numbers = st.floats(-1e6, 1e6)


@given(st.lists(finite_numbers, min_size=1, max_size=20))
def test_a_linear_axis_holds_its_values_in_order(values):
    axis = linear_axis("", values)
    places = [axis.place(value, 0.0, 100.0) for value in sorted(values)]
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert places == sorted(places)
    assert all(
        axis.low <= tick <= axis.high or math.isclose(tick, axis.low, abs_tol=1e-6)
        for tick in axis.ticks()[:-1]
    )


@given(st.lists(st.floats(1e-6, 1e9), min_size=2, max_size=20).filter(lambda v: max(v) > 8 * min(v)))
def test_a_log_axis_has_a_few_round_ticks_within_it(values):
    axis = log_axis("", values)
    assert 1 <= len(axis.ticks()) <= 8
    # Every tick is 1, 2 or 5 times a power of ten.
    assert all(f"{tick:e}"[:8] in ("1.000000", "2.000000", "5.000000") for tick in axis.ticks())
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    places = [axis.place(value, 0.0, 1.0) for value in values]
    assert min(places) >= 0 and max(places) <= 1


def test_an_axis_in_whole_numbers_has_no_half_rounds():
    assert linear_axis("Round", [1.0], from_zero=True, whole=True).ticks() == [0.0, 1.0]


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=60), min_size=1, max_size=5))
def test_the_accuracy_axis_keeps_most_of_every_curve_in_sight(curves):
    axis = accuracy_axis(curves)
    for curve in curves:
        seen = [value for value in curve if axis.low <= value <= axis.high]
        assert len(seen) >= 0.85 * len(curve)
    assert axis.high >= max(map(max, curves))
    assert axis.cut == (axis.low > min(map(min, curves)))


def test_a_steep_climb_is_cut_off_and_a_failed_run_is_not():
    climb = [0.1, 0.4, *[0.9] * 30]
    assert accuracy_axis([climb]).cut
    assert not accuracy_axis([climb, [0.1] * 32]).cut


def drawn_path(y: list[float]) -> str:
    line = Line(run=0, name="run", x=[float(at) for at in range(len(y))], y=y, tips=["tip"] * len(y))
    axes = linear_axis("Round", line.x), linear_axis("", y)
    svg = ET.fromstring(chart("key", "title", "words", *axes, [line], shared=True))
    (path,) = [part for part in svg.iter("path") if part.get("class") == "line"]
    return path.get("d") or ""


def test_a_value_that_is_not_a_number_leaves_a_gap():
    assert drawn_path([1.0, 2.0, math.nan, 2.0, 1.0]).count("M") == 2
    assert "nan" not in drawn_path([1.0, 2.0, math.nan, 2.0, 1.0])


def test_a_long_curve_is_thinned_and_keeps_its_extremes():
    y = [math.sin(at / 50) for at in range(20_000)]
    y[7_321], y[11_111] = 5.0, -5.0
    heights = [float(at) for at in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn_path(y))]
    assert len(heights) <= 400
    axis = linear_axis("", y)
    span = [axis.place(value, 0.0, 1.0) for value in (5.0, -5.0, 1.0)]
    assert (max(heights) - min(heights)) / (span[0] - span[1]) == pytest.approx(350 - 62 - 14, abs=0.5)


# The page


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped(words, value):
    element = tag("p", words, title=value)
    parsed = Tags(str(element))
    assert [name for name, _ in parsed.starts] == ["p"] and parsed.open == []
    element.encode("utf-8")


def test_markup_is_not_escaped_twice():
    assert tag("p", tag("b", "1 < 2"), hidden=True, id=None) == "<p hidden><b>1 &lt; 2</b></p>"
    assert isinstance(tag("p"), Markup)


def test_the_page_shows_each_run_with_its_figures(tmp_path):
    spent = {
        "epsilon": 2.3125,
        "delta": 1e-5,
        "noise_multiplier": 1.1,
        "accountant": "pld",
        "adjacency": "add or remove one client",
    }
    write_run(tmp_path / "runs" / "plain", rounds=5, final={"round": 5, "accuracy": 0.87654, "loss": 0.3})
    write_run(tmp_path / "runs" / "private", rounds=5, scheme="dp-signfed", privacy=spent, uplink=1_987_700)
    write_run(tmp_path / "runs" / "confined", rounds=5, worst={"accuracy": 0.8125, "loss": 1.0})
    page = page_of(tmp_path / "runs", out=tmp_path / "report.html")
    parsed = Tags(page)
    assert parsed.open == []
    for shown in (
        "plain",
        "private",
        "confined",
        "dp-signfed",
        "87.65\u202f%",
        "159\u202f010",
        "100 of 1000",
    ):
        assert f">{shown}<" in page
    for shown in (
        "2.312",
        "1e-5",
        "add or remove one client",
        "81.25\u202f%",
        "318",
        "9.94",
        "scheme.name",
    ):
        assert f">{shown}<" in page


def test_the_page_fetches_nothing_and_runs_nothing(tmp_path):
    write_run(tmp_path / "run")
    page = page_of(tmp_path / "run", out=tmp_path / "report.html")
    parsed = Tags(page)
    assert not {"script", "img", "iframe", "object", "embed", "a", "form"} & {
        name for name, _ in parsed.starts
    }
    assert [attributes["href"] for name, attributes in parsed.starts if name == "link"] == ["data:,"]
    policy = next(a["content"] for _, a in parsed.starts if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; ") and "script-src" not in policy
    assert "url(" not in page.replace("url(#", "") and "@import" not in page
    assert not any(key.startswith("on") for _, attributes in parsed.starts for key in attributes)


def test_what_users_name_is_never_markup(tmp_path):
    evil = "<script>alert(1)<\\script>\"' onload=x &amp;"
    folder = write_run(
        tmp_path / evil,
        rounds=2,
        scheme="<img src=x onerror=alert(2)>",
        model="</title><script>",
        versions={"<b>": "<i>"},
    )
    other = write_run(tmp_path / "other", rounds=2)
    page = page_of(folder, other, out=tmp_path / "report.html")
    parsed = Tags(page)
    assert parsed.open == []
    assert not {"script", "img", "b", "i"} & {name for name, _ in parsed.starts}
    assert not any(key.startswith("on") for _, attributes in parsed.starts for key in attributes)
    assert len(plots(page)) == 3


def test_each_plot_says_in_words_what_it_shows(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    lines = [
        {"round": at, "accuracy": accuracy, "loss": loss, "uplink_bytes": 1_500_000}
        for at, accuracy, loss in ((1, 0.25, 2.0), (2, 0.75, 0.5), (3, 0.5, 1.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = plots(page_of(folder, out=tmp_path / "report.html"))
    words = {svg.findtext("title"): svg.findtext("desc") for svg in found}
    assert words == {
        "Accuracy by round": "Accuracy by round, 1 run. run starts at 25.00\u202f% (round 1), "
        "is best at 75.00\u202f% (round 2) and ends at 50.00\u202f% (round 3).",
        "Loss by round": "Loss by round, 1 run. run starts at 2.000 (round 1), "
        "is best at 0.5000 (round 2) and ends at 1.000 (round 3).",
        "Accuracy by megabytes sent": "Accuracy by megabytes sent, 1 run. run starts at 25.00\u202f% "
        "(1.5\u202fMB, round 1), is best at 75.00\u202f% (3\u202fMB, round 2) and ends at 50.00\u202f% "
        "(4.5\u202fMB, round 3).",
    }
    ids = [part.get("id") for svg in found for part in svg.iter() if part.get("id")]
    assert len(ids) == len(set(ids))
    for svg in found:
        assert svg.get("aria-labelledby") in ids and svg.get("aria-describedby") in ids


def test_settings_that_differ_are_apart_from_those_in_common(tmp_path):
    for seed, rate in ((1, 0.1), (2, 0.1), (3, 0.5)):
        write_run(tmp_path / "runs" / f"seed-{seed}", rounds=2, seed=seed, learning_rate=rate)
    write_run(tmp_path / "runs" / "seed-4", rounds=2, seed=4, learning_rate=0.1, finished=False)
    page = page_of(tmp_path / "runs", out=tmp_path / "report.html")
    differing, common = page.split("Where the runs differ")[1].split("The same in all runs")
    assert "learning_<wbr>rate" in differing and ">seed<" in differing and "clients" not in differing
    assert "clients" in common and "learning_<wbr>rate" not in common
    assert re.findall("<mark>(.*?)</mark>", differing) == ["0.5"]
    assert "versions.<wbr>torch" in common


def test_an_unfinished_run_is_marked(tmp_path):
    folder = write_run(tmp_path / "run", rounds=20, finished=False)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:12]))
    page = page_of(folder, out=tmp_path / "report.html")
    assert "unfinished, round 12 of 20" in page
    assert "1 run is unfinished" in page


def test_a_regression_has_loss_curves_only(tmp_path):
    page = page_of(write_run(tmp_path / "run", accuracy=False), out=tmp_path / "report.html")
    assert [svg.findtext("title") for svg in plots(page)] == ["Loss by round", "Loss by megabytes sent"]
    assert "Accuracy" not in page and "Final loss" in page


def test_runs_without_any_evaluated_round_give_a_page_without_plots(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").write_text('{"round": 1, "train_loss": 2.0}\n{"round": 2, "loss": NaN}\n')
    page = page_of(folder, out=tmp_path / "report.html")
    assert "No round has been evaluated yet." in page and plots(page) == []


def test_a_run_that_sends_nothing_is_left_out_of_a_log_scale_and_named(tmp_path):
    write_run(tmp_path / "runs" / "central", uplink=0)
    write_run(tmp_path / "runs" / "dear", uplink=100_000_000)
    write_run(tmp_path / "runs" / "frugal", uplink=1_000_000)
    page = page_of(tmp_path / "runs", out=tmp_path / "report.html")
    sent = plots(page)[2]
    assert "central" not in (sent.findtext("desc") or "") and "frugal" in (sent.findtext("desc") or "")
    assert "Runs that send nothing are left out." in page


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 1e99, 1e-320])
def test_a_run_that_diverged_still_gives_a_page(tmp_path, value):
    folder = write_run(tmp_path / "run", rounds=2, finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "accuracy": 0.1, "loss": value, "uplink_bytes": 1}) + "\n")
    page = page_of(folder, out=tmp_path / "report.html")
    assert len(plots(page)) == 3
    coordinates = re.findall(r' d="([^"]*)"', page)
    assert not any(word in path for path in coordinates for word in ("nan", "inf"))


def test_the_same_folders_give_the_same_bytes(tmp_path):
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", seed=2)
    first = page_of(tmp_path / "runs", out=tmp_path / "one.html")
    assert first == page_of(tmp_path / "runs", out=tmp_path / "two.html")


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    out = tmp_path / "new" / "folder" / "report.html"
    assert write_report([folder], out) == out
    out.write_text("the report of yesterday")

    def full(self, *_, **__):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFolderError, match=r"report\.html: cannot be written: No space left on device"):
        write_report([folder], out)
    assert out.read_bytes() == b"the report of yesterday"
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_an_output_that_cannot_be_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match="is not a file"):
        write_report([folder], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_report([folder], tmp_path / "file" / "report.html")
    with pytest.raises(RunFolderError, match="at least one run folder"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
