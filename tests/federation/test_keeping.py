"""What a site keeps of its runs, and what it says of them when it exports a model."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from discreet.errors import DataError, UserError
from discreet.federation import home as home_module
from discreet.federation.home import Home
from discreet.federation.keeping import USUAL_DELTA, keep, kept_run, kept_runs
from discreet.federation.kept import KeptModel
from discreet.federation.limits import Limits
from discreet.federation.settings import SiteData, SiteSettings
from discreet.federation.spending import Entry
from discreet.privacy.accounting import spent
from discreet.privacy.releases import FixedSize, Gaussian, Ledger, Poisson, Released

RUN, OTHER = "ab" * 16, "cd" * 16
COUNT = 64 * 5 + 5 + 5 * 10 + 10  # 8x8 pixels, one hidden layer of 5, 10 classes
VECTOR = torch.arange(COUNT, dtype=torch.float32)
PLAIN = 'rounds = 3\n[model]\nname = "mlp"\nwidths = [5]\n[scheme]\nname = "fedavg"\n'
PRIVATE = PLAIN.replace("fedavg", "dp-signfed").replace(
    "[model]", "secure = 'masked'\n[privacy]\nnoise_multiplier = 3.0\ndelta = 1e-6\n[model]"
)
RELEASED = Released(Poisson(1.0), Gaussian(3.0))


def kept(run=RUN, vector=VECTOR, experiment=PLAIN, **facts):
    said = {
        "run": run,
        "sites": 4,
        "rounds": 3,
        "examples": 150,
        "rehearsal": False,
        **facts,
    }
    return KeptModel(vector, experiment, said)


@pytest.fixture
def home(tmp_path):
    return Home.create(tmp_path / "site", SiteSettings(number=1, name="hospital-b"))


def test_what_is_kept_is_found_again(tmp_path):
    runs = tmp_path / "runs"
    assert kept_runs(runs) == ()
    assert keep(runs, kept())
    assert keep(runs, kept(OTHER, VECTOR + 1, PRIVATE))
    found = kept_run(runs, RUN)
    assert torch.equal(found.vector, VECTOR)
    assert (found.experiment, found.facts) == (PLAIN, kept().facts)
    assert torch.equal(kept_run(runs, OTHER).vector, VECTOR + 1)
    assert kept_runs(runs) == (RUN, OTHER)


def test_nothing_is_written_without_a_model_or_twice(tmp_path):
    assert not keep(tmp_path / "runs", kept(vector=None))
    assert not (tmp_path / "runs").exists()
    assert keep(tmp_path / "runs", kept())
    written = (tmp_path / "runs" / RUN / "model.safetensors").stat().st_mtime_ns
    assert not keep(tmp_path / "runs", kept())
    assert (tmp_path / "runs" / RUN / "model.safetensors").stat().st_mtime_ns == written


def test_a_run_that_went_on_takes_the_place_of_what_it_was(tmp_path):
    keep(tmp_path / "runs", kept())
    assert keep(tmp_path / "runs", kept(vector=VECTOR * 2, rounds=5))
    assert torch.equal(kept_run(tmp_path / "runs", RUN).vector, VECTOR * 2)
    assert kept_runs(tmp_path / "runs") == (RUN,)


@pytest.mark.parametrize("name", ["..", "ab", "AB" * 16, "ab" * 17, "../" + "ab" * 16, None, 7])
def test_a_run_is_named_by_16_bytes_and_by_no_path(tmp_path, name):
    with pytest.raises(DataError, match="32 hexadecimal digits"):
        keep(tmp_path / "runs", kept(run=name))
    with pytest.raises(DataError, match="32 hexadecimal digits"):
        kept_run(tmp_path / "runs", name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:50], lambda data: b"x" + data[1:]])
def test_a_damaged_file_is_refused(tmp_path, change):
    keep(tmp_path / "runs", kept())
    path = tmp_path / "runs" / RUN / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="is damaged"):
        kept_run(tmp_path / "runs", RUN)


def test_a_file_of_something_else_is_refused(tmp_path):
    keep(tmp_path / "runs", kept())
    save_file({"x": VECTOR}, tmp_path / "runs" / RUN / "model.safetensors")
    with pytest.raises(DataError, match="is damaged"):
        kept_run(tmp_path / "runs", RUN)


def test_a_run_that_is_not_there_names_those_that_are(tmp_path):
    keep(tmp_path / "runs", kept())
    with pytest.raises(DataError, match=f"has no run {OTHER}: .*{RUN}"):
        kept_run(tmp_path / "runs", OTHER)


class Ending:
    """A site whose run is over with the message ``end``."""

    def step(self, state, message):
        return message, b"reply"


def test_a_finished_run_is_kept_when_it_is_answered(home, monkeypatch):
    monkeypatch.setattr(home_module, "kept_model", lambda state, number: kept() if state == b"end" else None)
    home.answer(Ending(), b"round")
    assert home.runs() == ()
    home.answer(Ending(), b"end")
    assert home.runs() == (RUN,)
    home.answer(Ending(), b"next run")
    assert home.runs() == (RUN,)
    assert Home.open(home.folder).runs() == (RUN,)


def test_an_export_has_the_networks_names_and_shapes(home, tmp_path):
    keep(home.folder / "runs", kept())
    model, card = home.export(tmp_path / "out.safetensors")
    found = load_file(model)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "1.weight": (5, 64), "1.bias": (5,), "3.weight": (10, 5), "3.bias": (10,),
    }  # fmt: skip
    assert torch.equal(found["1.bias"], torch.arange(320.0, 325.0))
    assert torch.equal(found["3.weight"][0], torch.arange(325.0, 330.0))
    for words in (
        "digits, 150 examples",
        f"`mlp`, {COUNT} parameters",
        "hospital-b, number 1 of 4",
        "| rounds | 3 |",
    ):
        assert words in card.read_text()
    with pytest.raises(DataError, match="is there already"):
        home.export(tmp_path / "out.safetensors")


def test_the_latest_run_is_exported_unless_another_is_named(home, tmp_path):
    keep(home.folder / "runs", kept())
    keep(home.folder / "runs", kept(OTHER, -VECTOR))
    for name, run, sign in (("a", None, -1.0), ("b", RUN, 1.0)):
        model, _ = home.export(tmp_path / f"{name}.safetensors", run)
        assert load_file(model)["1.weight"][0, 1] == sign


def test_a_model_of_the_sites_own_data_has_that_datas_shape(tmp_path):
    (tmp_path / "own.csv").write_text(
        "a,b,ill\n" + "".join(f"{n}.5,{n * n}.0,{'yn'[n % 2]}\n" for n in range(20))
    )
    data = SiteData(source="table", options={"path": str(tmp_path / "own.csv"), "target": "ill"})
    home = Home.create(tmp_path / "site", SiteSettings(number=1, name="b", data=data))
    linear = PLAIN.replace('"mlp"\nwidths = [5]', '"linear"')
    keep(home.folder / "runs", kept(vector=torch.arange(6.0), experiment=linear))
    model, _ = home.export(tmp_path / "out.safetensors")
    assert {name: tuple(value.shape) for name, value in load_file(model).items()} == {
        "1.weight": (2, 2),
        "1.bias": (2,),
    }


@pytest.mark.parametrize("bias", [True, False])
def test_a_part_is_exported_by_the_names_of_the_whole(home, tmp_path, bias):
    features = [0, 1, 2, 3, 7, 9, 10, 63]
    grid = PLAIN.replace("fedavg", "cgd") + '[data]\npartition = "grid"\nrows = 3\ncolumns = 2\n'
    first = torch.arange(5.0 * (8 + bias)).view(5, 8 + bias)
    part = torch.cat([first.flatten(), VECTOR[-60:]])
    keep(home.folder / "runs", kept(vector=part, experiment=grid, features=features, sites=6))
    model, card = home.export(tmp_path / "out.safetensors")
    found = load_file(model)
    assert found.keys() == {"1.weight", "3.weight", "3.bias"} | ({"1.bias"} if bias else set())
    assert torch.equal(found["1.weight"], first[:, :8])
    assert not bias or torch.equal(found["1.bias"], first[:, 8])
    assert torch.equal(found["3.weight"].flatten(), VECTOR[-60:-10])
    assert torch.equal(found["3.bias"], VECTOR[-10:])
    with safe_open(model, "pt") as file:
        assert json.loads(file.metadata()["features"]) == features
    for words in ("the part of a confined model that hospital-b alone has", "| 0-3, 7, 9-10, 63 (8) |"):
        assert words in card.read_text()
    assert "can solve for the features" in card.read_text()


@pytest.mark.parametrize(("count", "features"), [(5 * 8 + 61, 8), (5 * 10 + 60, 8), (5 * 7 + 60, 8), (59, 8)])
def test_a_part_of_another_network_is_not_exported(home, tmp_path, count, features):
    grid = PLAIN.replace("fedavg", "cgd")
    keep(home.folder / "runs", kept(vector=torch.ones(count), experiment=grid, features=[*range(features)]))
    with pytest.raises(UserError, match=f"no part of {count} parameters for 8 features"):
        home.export(tmp_path / "out.safetensors")


def test_a_network_that_is_another_now_is_not_exported(home, tmp_path):
    keep(home.folder / "runs", kept(vector=VECTOR[:-1]))
    with pytest.raises(UserError, match="other parameters than the network"):
        home.export(tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_site_without_a_finished_run_has_nothing_to_export(home, tmp_path):
    with pytest.raises(DataError, match="has no finished run"):
        home.export(tmp_path / "out.safetensors")


def test_the_card_tells_this_run_from_all_runs(home, tmp_path):
    keep(home.folder / "runs", kept(experiment=PRIVATE))
    for round in (1, 2, 3):
        home.spending.append(Entry(bytes.fromhex(RUN), 1, round, 1, RELEASED))
    home.spending.append(Entry(bytes.fromhex(OTHER), 1, 1, 1, RELEASED, 4))
    home.spending.append(Entry(bytes.fromhex(OTHER), 1, 2, 1, None))
    model, card = home.export(tmp_path / "out.safetensors")
    own, everything = (spent(Ledger().add(RELEASED, count), 1e-6).epsilon for count in (3, 7))
    text = card.read_text()
    assert f"**This run**: epsilon {own:.4g} at delta 1e-06 (add-remove), 3 releases." in text
    assert (
        f"together**: epsilon {everything:.4g} at delta 1e-06 (add-remove), 7 releases; and 1 contribution of"
        in text
    )
    assert home.spent().delta == USUAL_DELTA
    assert home.spent(1e-6).epsilon == pytest.approx(everything)
    assert json.loads(json.dumps(home.spent().releases)) == 7
    assert model.exists()


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (PLAIN, "in the clear"),
        (PRIVATE, "under masks"),
        (PRIVATE.replace("secure = 'masked'\n", ""), "under masks"),
        ("secure = 'additive'\n" + PLAIN.replace("fedavg", "cgd"), "by additive shares"),
    ],
)
def test_how_contributions_were_added_up(home, tmp_path, experiment, words):
    keep(home.folder / "runs", kept(experiment=experiment))
    _, card = home.export(tmp_path / "out.safetensors")
    assert f"| contributions were added up | {words}" in card.read_text()


def test_a_rehearsal_is_called_one(home, tmp_path):
    keep(home.folder / "runs", kept(rehearsal=True))
    _, card = home.export(tmp_path / "out.safetensors")
    assert "**rehearsal**" in card.read_text()


def test_the_owners_delta_comes_first(tmp_path):
    limits = Limits(epsilon=50.0, delta=1e-8)
    home = Home.create(tmp_path / "site", SiteSettings(number=1, name="b"), limits)
    home.spending.append(Entry(bytes.fromhex(RUN), 1, 1, 1, Released(FixedSize(1, 2), Gaussian(3.0))))
    found = home.spent()
    assert (found.delta, found.adjacency, found.releases) == (1e-8, "replace-one", 1)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("cgd", "the confined model of hospital-b alone"), ("local", "trained by hospital-b alone")],
)
def test_whose_model_it_is(home, tmp_path, scheme, words):
    keep(home.folder / "runs", kept(experiment=PLAIN.replace("fedavg", scheme)))
    _, card = home.export(tmp_path / "out.safetensors")
    assert words in card.read_text()
