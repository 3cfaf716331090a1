"""Audits of membership and of epsilon: a planted truth, chance where it is promised, and runs side by side."""

import json
import re

import numpy as np
import pytest
import torch

from discreet import simulate
from discreet.adversaries.inference import membership
from discreet.audits import audit, compare, compared_rows, other_rows, shadow
from discreet.audits.comparing import roc
from discreet.audits.curves import curve
from discreet.cohort import Examples
from discreet.config import Privacy
from discreet.errors import ConfigError, UserError
from discreet.schemes import ConfinedGradientDescent, DPFedAvg, FedAvg
from federations import dataset, deal, experiment

EVERY = ("membership", "membership-lira", "membership-white-box")
SIZES = (25,) * 8
TRAINED = {"steps": 10, "batch_size": 10, "optimizer": "adam", "learning_rate": 0.02}


@pytest.fixture(scope="module")
def by_heart():
    """Labels without rhyme or reason: whoever knows them better than by chance has been told."""
    data = dataset(train=210, test=200, features=20)
    stream = torch.Generator().manual_seed(3)
    train, test = (
        Examples(one.inputs, torch.randint(0, 3, (len(one),), generator=stream))
        for one in (data.train, data.test)
    )
    return type(data)(data.name, data.kind, train, test, data.classes)


def measured(folder, chosen, data, **changes):
    """The advantages of all attacks, with their level of chance, by audit and attack."""
    simulate(
        experiment(chosen, rounds=12, widths=(40,), **changes), data=data, partition=deal(SIZES), out=folder
    )
    made = audit(folder, data=data, partition=deal(SIZES), attacks=EVERY)
    found = {}
    for name, entry in made.record["audits"].items():
        for one in entry["findings"]:
            if one["figure"] == "advantage":
                found[name, one["attack"]] = (one["measured"], one["chance"])
                assert one["attack"] in entry["series"]
    assert {name for name, _ in found} == set(EVERY)
    return found


def test_an_overfitted_model_is_seen_through_by_every_attack(by_heart, tmp_path, monkeypatch):
    monkeypatch.setattr(shadow, "PASSES", 12)
    monkeypatch.setattr(shadow, "SHADOWS", 8)
    for attack, (advantage, _) in measured(tmp_path / "run", FedAvg(**TRAINED), by_heart).items():
        assert advantage > 0.2, attack


def test_under_differential_privacy_every_attack_is_at_chance(by_heart, tmp_path, monkeypatch):
    """Each passes the level of chance once in 20 seeds; this seed is none of them."""
    monkeypatch.setattr(shadow, "PASSES", 5)
    noise = Privacy(noise_multiplier=10.0)
    found = measured(tmp_path / "run", DPFedAvg(**TRAINED, clip_norm=0.1), by_heart, privacy=noise, seed=1)
    for attack, (advantage, chance) in found.items():
        assert advantage < chance, attack


def test_a_confined_model_tells_what_it_has_learnt(by_heart, tmp_path):
    """No model is shared, and one's own was moved by everybody's gradients: it knows their labels as well."""
    chosen = ConfinedGradientDescent(optimizer="rmsprop", learning_rate=0.02, initial_scale=0.05)
    folder = tmp_path / "run"
    simulate(experiment(chosen, rounds=100, widths=(40,)), data=by_heart, partition=deal(SIZES), out=folder)
    made = audit(folder, data=by_heart, partition=deal(SIZES), attacks=["membership"])
    (entry,) = made.record["audits"].values()
    found = {one["figure"]: one["measured"] for one in entry["findings"]}
    assert found["advantage"] > 0.2
    assert {one["attack"] for one in entry["findings"]} == {"its own confined model"}


def test_who_sees_single_updates_is_told_so(by_heart, tmp_path):
    folder = tmp_path / "run"
    simulate(experiment(FedAvg(**TRAINED), rounds=4), data=by_heart, partition=deal(SIZES), out=folder)
    for party, name in (
        ("server", "global, updates in clear: 5 models"),
        ("participant:3", "local: 5 models"),
    ):
        made = audit(folder, data=by_heart, partition=deal(SIZES), attacks=EVERY[2:], party=party)
        assert {one["attack"] for one in made.record["audits"][EVERY[2]]["findings"]} == {name}


def test_epsilon_stands_beside_what_is_shown(by_heart, tmp_path):
    folder = tmp_path / "run"
    simulate(experiment("dp-signfed", rounds=3), data=by_heart, partition=deal(SIZES), out=folder)
    made = audit(folder, data=by_heart, partition=deal(SIZES), attacks=["canaries"])
    result = json.loads((folder / "result.json").read_text())
    findings = made.record["audits"]["canaries"]["findings"]
    assert [one["attack"] for one in findings if "least" in one["figure"]] == [
        "4 canary clients, noisy sums",
        "4 canary clients, models alone",
    ]
    for one in findings:
        assert one["promise"].startswith(f"epsilon at most {result['privacy']['epsilon']:.3g} (delta")
    alone = audit(folder, data=by_heart, partition=deal(SIZES), attacks=["canaries"], party="participant:2")
    seen = {one["attack"] for one in alone.record["audits"]["canaries"]["findings"]}
    assert seen == {"4 canary clients, models alone"}


# ---- side by side


def test_a_curve_has_few_points_and_keeps_its_corners():
    rng = np.random.default_rng(2)
    got = membership(torch.from_numpy(rng.normal(1, 1, 3000)), torch.from_numpy(rng.normal(0, 1, 3000)))
    drawn = curve(got)
    assert len(drawn["false_positive"]) == len(drawn["true_positive"]) <= 200
    assert (drawn["false_positive"][0], drawn["false_positive"][-1], drawn["true_positive"][-1]) == (0, 1, 1)
    for rate, share in zip(drawn["false_positive"], drawn["true_positive"], strict=True):
        assert share == got.found_at(rate)


def test_the_command_puts_runs_side_by_side(inside, tmp_path):
    simple = ("--set", "data.clients=5", "--set", "rounds=2", "--set", "eval_every=9", "--quick")
    named = [one for name in (*EVERY, "canaries") for one in ("--attack", name)]
    ended = inside(
        "audit", "digits-fedavg", "digits-dp-signfed", *simple, *named, "--out", "both", cwd=tmp_path
    )
    assert (ended.code, ended.err) == (0, "")
    folder = tmp_path / "both"
    records = json.loads((folder / "audits.json").read_text())
    assert list(records) == ["digits-fedavg", "digits-dp-signfed"]
    assert records["digits-fedavg"]["unfit"]["canaries"] == "no differential privacy is promised"
    assert (folder / "membership-roc.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "audits.md").read_text()
    for run in records:
        for name in EVERY:
            assert f"| {run} | {name} | " in text
        assert (folder / run / "audit.json").exists()
    assert "| digits-dp-signfed | canaries | " in text
    assert ended.out.splitlines()[-1] == "wrote both"
    again = inside(
        "audit",
        str(folder / "digits-fedavg"),
        str(folder / "digits-dp-signfed"),
        *named[:2],
        "--json",
        "--quick",
        cwd=tmp_path,
    )
    assert again.code == 0
    assert json.loads(again.out).keys() == records.keys()
    assert (tmp_path / "audits" / "audits.md").exists()


def test_two_runs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no second run called digits-fedavg"):
        compare(["digits-fedavg", "elsewhere/digits-fedavg.toml"], out=tmp_path)


@pytest.mark.parametrize(
    ("second", "more", "said"),
    [
        ("digits-dp-signfed", {"party": "participant:220"}, "--party = 'participant:220'"),
        ("digits-cgd", {"settings": ["scheme.steps=3"]}, "scheme.steps"),
        ("there-is-none", {}, "there-is-none"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_trained(tmp_path, second, more, said):
    """Of the first experiment it can: it has 250 clients, and knows of that setting."""
    first = tmp_path / "first.toml"
    first.write_text('[data]\nname = "digits"\nclients = 250\n[scheme]\nname = "fedavg"\n')
    trained = []
    with pytest.raises(UserError, match=re.escape(said)):
        compare([str(first), second], out=tmp_path / "out", on_round=lambda *all: trained.append(all), **more)
    assert not trained and not (tmp_path / "out").exists()


def test_without_membership_there_are_no_curves():
    finding = {
        "attack": "a",
        "figure": "f",
        "measured": 1.0,
        "chance": None,
        "unprotected": None,
        "promise": "p",
    }
    records = {"run": {"audits": {"canaries": {"findings": [finding]}}}}
    assert roc(records) is None
    assert len(compared_rows(records)) == 1
    assert other_rows(records)[1] == ("run", "canaries", "a", "f", "1", "-", "-", "p")
