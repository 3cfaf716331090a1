"""Exports: the file holds the parameters exactly, the card says what was spent and what is not protected."""

import dataclasses
import json
import stat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from discreet.errors import DataError
from discreet.federation.export import NOTHING_SPENT, Card, Cost, export_model

TENSORS = {
    "1.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7,
    "1.bias": torch.tensor([0.5, -0.0]),
}
SPENT = Cost(epsilon=2.34567, delta=1e-5, adjacency="add-remove", releases=20, unprotected=0)
CARD = Card(
    scheme="dp-signfed",
    model="mlp",
    dataset="hospital",
    parameters=8,
    rounds=20,
    examples=1234,
    site="hospital-b",
    number=1,
    sites=4,
    run="ab" * 16,
    kind="global",
    secure="masked",
    spent=SPENT,
    spent_in_all=dataclasses.replace(SPENT, epsilon=5.0, releases=50),
    experiment='rounds = 20\n\n[scheme]\nname = "dp-signfed"\n',
    versions={"discreet": "0.1.0", "torch": "2.9"},
)


def card(**changes):
    return dataclasses.replace(CARD, **changes).markdown()


def test_the_file_holds_the_parameters_exactly_and_nothing_else(tmp_path):
    views = {"1.weight": TENSORS["1.weight"].T.contiguous().T, "1.bias": TENSORS["1.bias"]}
    path, text = export_model(tmp_path / "out" / "model.safetensors", views, CARD)
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert text.name == "model.md"
    assert text.read_text() == CARD.markdown()


def test_the_file_says_itself_what_it_is(tmp_path):
    path, _ = export_model(tmp_path / "model.safetensors", TENSORS, CARD)
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    assert (facts["format"], facts["scheme"], facts["kind"], facts["run"]) == (
        "pt",
        "dp-signfed",
        "global",
        "ab" * 16,
    )
    assert json.loads(facts["epsilon"]) == 2.34567
    assert json.loads(facts["versions"]) == CARD.versions


def test_views_of_one_vector_can_be_exported(tmp_path):
    vector = torch.arange(8, dtype=torch.float32)
    path, _ = export_model(tmp_path / "m.safetensors", {"a": vector[:6].view(2, 3), "b": vector[6:]}, CARD)
    assert torch.equal(load_file(path)["b"], torch.tensor([6.0, 7.0]))


def test_its_owner_alone_can_read_it(tmp_path):
    for path in export_model(tmp_path / "m.safetensors", TENSORS, CARD):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("there", ["m.safetensors", "m.md"])
def test_nothing_is_overwritten(tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(DataError, match=f"{there}: is there already"):
        export_model(tmp_path / "m.safetensors", TENSORS, CARD)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_none_is_not_exported(tmp_path, value):
    with pytest.raises(DataError, match=r"the parameter 1\.bias holds NaN or infinity"):
        export_model(tmp_path / "m.safetensors", {**TENSORS, "1.bias": torch.tensor([value])}, CARD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.pt", "m", "m.safetensors.bak"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"ends in \.safetensors"):
        export_model(tmp_path / name, TENSORS, CARD)


def test_the_card_says_what_was_trained_on_what():
    text = card()
    for words in (
        "`dp-signfed`", "`mlp`, 8 parameters", "hospital, 1,234 examples", "hospital-b, number 1 of 4",
        "under masks", "ab" * 16, 'name = "dp-signfed"', "| torch | 2.9 |",
    ):  # fmt: skip
        assert words in text


def test_the_card_says_what_was_spent_in_this_run_and_in_all():
    text = card()
    assert "**This run**: epsilon 2.346 at delta 1e-05 (add-remove), 20 releases." in text
    assert "**All runs of this site together**: epsilon 5 at delta 1e-05 (add-remove), 50 releases." in text
    assert "the data of one client" in text
    assert "Nothing formal" not in text
    assert "the data of one record" in card(unit="record")


def test_what_nothing_was_promised_of_is_never_hidden_behind_an_epsilon():
    bare = Cost(epsilon=0.0, delta=1e-5, adjacency="add-remove", releases=0, unprotected=20)
    text = card(spent=bare, scheme="fedavg", secure="none")
    assert "**This run**: 20 contributions of which nothing was promised: no differential privacy." in text
    assert "Nothing formal keeps anybody from telling" in text
    both = dataclasses.replace(SPENT, unprotected=7)
    assert "; and 7 contributions of which nothing was promised, which no epsilon covers." in card(
        spent_in_all=both
    )
    assert "Nothing formal" in card(spent=both)


def test_an_epsilon_without_a_bound_is_no_number():
    for epsilon in (None, float("inf")):
        assert "**This run**: without a bound at delta" in card(
            spent=dataclasses.replace(SPENT, epsilon=epsilon)
        )


def test_a_rehearsal_promises_nothing():
    text = card(rehearsal=True)
    assert "**rehearsal**" in text
    assert "The promise is about" not in text


def test_a_confined_model_comes_with_a_warning():
    text = card(
        kind="confined", scheme="cgd", spent=NOTHING_SPENT, spent_in_all=NOTHING_SPENT, secure="additive"
    )
    assert "the confined model of hospital-b alone" in text
    assert "can work out the other sites' models" in text
    assert "**This run**: nothing was given out." in text
    assert "can work out" not in card()


def test_a_model_trained_alone_has_spent_nothing():
    text = card(kind="alone", scheme="local", spent=NOTHING_SPENT, spent_in_all=NOTHING_SPENT)
    assert "Nothing was sent in this run" in text
    assert "Nothing formal" in text


@settings(max_examples=15)
@given(st.text(max_size=40))
def test_no_text_breaks_a_table(text):
    lines = card(dataset=text, versions={"x": text}).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 7 + 2 + 1
    assert all(line.replace("\\|", "").count("|") == 3 for line in rows)
