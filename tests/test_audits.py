"""`discreet audit`: what is trained, what is watched, what is written and what is refused."""

import dataclasses
import json
import math
import shutil

import pytest
import torch

from discreet import simulate
from discreet.audits import AUDITS, Finding, audit, rows
from discreet.audits.member import most_advantage
from discreet.audits.words import shown
from discreet.config import load
from discreet.errors import ConfigError, RunFolderError
from discreet.losses import cross_entropy
from discreet.schemes import SCHEMES, FedAvg, Lossless
from federations import dataset, deal, experiment

REGRESSION = dataset(classes=0)


def audited(tmp_path, chosen, data, **how):
    """A run in a folder, and what `audit` writes of it."""
    folder = tmp_path / "run"
    simulate(chosen, data=data, partition=deal(), out=folder)
    return audit(folder, data=data, partition=deal(), **how)


def figures(entry, attack=None):
    return {
        (one["attack"], one["figure"]): one
        for one in entry["findings"]
        if attack is None or one["attack"] == attack
    }


# ---- what is found


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_can_be_audited_and_its_folder_stays_as_it_is(name, blobs, tmp_path):
    folder = tmp_path / "run"
    simulate(experiment(name, rounds=2), data=blobs, partition=deal(), out=folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    made = audit(folder, data=blobs, partition=deal(), quick=True)
    after = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".png"}
    assert json.loads(after.pop("audit.json")) == made.record
    assert after == before
    assert made.record["scheme"] == name
    assert made.record["audits"].keys() | made.record["unfit"].keys() == AUDITS.keys()
    assert ("lossless-shift" in made.record["audits"]) == (name == "lossless")
    assert ("membership" in made.record["audits"]) == (name != "local")
    for entry in made.record["audits"].values():
        assert entry["findings"]
        for finding in entry["findings"]:
            assert finding.keys() == {field.name for field in dataclasses.fields(Finding)}
            assert math.isfinite(finding["measured"])
            assert finding["promise"]


def test_the_model_that_is_asked_is_the_one_the_run_ended_with(blobs, tmp_path):
    """Membership by hand: the largest difference of the two shares, over the model's own losses."""
    chosen = experiment(FedAvg(steps=30, batch_size=4, learning_rate=0.3), rounds=6, widths=(30,))
    made = audited(tmp_path, chosen, blobs, attacks=["membership"], party="participant:4")
    run = simulate(chosen, data=blobs, partition=deal())
    held = deal()
    others = [place for client in range(8) if client != 4 for place in held.indices(client).tolist()]
    with torch.no_grad():
        module = run.model()
        of = {
            name: cross_entropy(module(one.inputs[where]).double(), one.targets[where])
            for name, one, where in (("in", blobs.train, others), ("out", blobs.test, slice(None)))
        }
    thresholds = torch.cat(list(of.values()))
    wanted = max(
        float((of["in"] <= limit).double().mean() - (of["out"] <= limit).double().mean())
        for limit in thresholds
    )
    assert wanted > 0.1
    entry = made.record["audits"]["membership"]
    assert entry["party"] == "participant:4"
    found = figures(entry)["the model it is sent", "advantage"]
    # the run's model is in float32: a loss may lie on the other side of a threshold
    assert found["measured"] == pytest.approx(wanted, abs=0.02)
    assert found["unprotected"] == found["measured"]
    assert found["promise"] == "nothing"


def test_perturbation_is_undone_and_the_result_stands_beside_chance(tmp_path):
    """On the digits: a participant that makes an effort predicts as the true model does."""
    made = audit(
        "digits-lossless",
        settings=["data.clients=4", "rounds=30", "scheme.m=10", "eval_every=30"],
        out=tmp_path / "run",
        quick=True,
    )
    entry = made.record["audits"]["lossless-shift"]
    assert made.record["rounds"] == 20  # quick
    raw = figures(entry, "none: predictions as they come")
    error = raw["none: predictions as they come", "relative error of predictions"]
    assert error["measured"] > 1 > error["chance"]
    for attack, limit in (
        ("regression on own labels", 0.3),
        ("regression without labels", 0.5),
        ("weights of one round", 0.5),
        ("weights of two rounds", 0.01),
    ):
        found = figures(entry, attack)
        assert found[attack, "relative error of predictions"]["measured"] < limit, attack
        right = found[attack, "accuracy"]
        assert right["measured"] > right["unprotected"] - 0.15 > right["chance"], attack
    projection = figures(entry, "projection")
    assert projection["projection", "share of each prediction in clear"]["measured"] == 0
    assert projection["projection", "relative error"]["measured"] < 1e-9
    assert set(made.record["audits"]) >= {"lossless-shift", "membership"}


def test_of_a_regression_the_errors_are_told_and_no_accuracy(tmp_path):
    chosen = experiment(Lossless(learning_rate=0.2), rounds=40, widths=(8,))
    chosen = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, loss="mse"))
    made = audited(tmp_path, chosen, REGRESSION, quick=True)
    entry = made.record["audits"]["lossless-shift"]
    assert not [one for one in entry["findings"] if one["figure"] == "accuracy"]
    found = figures(entry)["regression on own labels", "relative error of predictions"]
    assert found["measured"] < 0.3
    assert found["chance"] > 0.5


def test_without_additive_noise_predictions_are_in_clear(blobs, tmp_path):
    made = audited(tmp_path, experiment(Lossless(rho=0.0), rounds=1), blobs, quick=True)
    entry = made.record["audits"]["lossless-shift"]
    assert {one["attack"] for one in entry["findings"]} == {
        "none: predictions as they come",
        "scales from the weights' sizes",
    }
    found = figures(entry)["none: predictions as they come", "relative error of predictions"]
    assert found["measured"] < 1e-9


def test_under_differential_privacy_the_promise_is_a_bound(blobs, tmp_path):
    made = audited(tmp_path, experiment("dp-fedavg", rounds=2), blobs, attacks=["membership"])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    bound = most_advantage(result["privacy"]["epsilon"], result["privacy"]["delta"])
    for one in made.record["audits"]["membership"]["findings"]:
        assert one["promise"].startswith(f"advantage at most {bound:.3g} (epsilon")


# ---- what is asked


def test_parties_and_attacks(blobs, tmp_path):
    made = audited(tmp_path, experiment("lossless", rounds=1), blobs, attacks=["membership"], party="server")
    assert list(made.record["audits"]) == ["membership"]
    (entry,) = made.record["audits"].values()
    assert entry["party"] == "server"
    assert {one["attack"] for one in entry["findings"]} == {"the model"}
    elsewhere = audit(tmp_path / "run", data=blobs, partition=deal(), out=tmp_path / "other", quick=True)
    assert elsewhere.path == tmp_path / "other" / "audit.json"
    # the first participant that has examples and is there in both rounds
    assert elsewhere.record["audits"]["lossless-shift"]["party"] == "participant:0"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"attacks": ["membershop"]}, "--attack = 'membershop'.*did you mean 'membership'"),
        ({"attacks": ["lossless-shift"]}, "--attack.*fits fedavg: it is about lossless perturbation"),
        ({"party": "participant:9"}, "--party.*participant:0 to participant:7"),
        ({"party": "aggregator"}, "--party.*participant or server for membership"),
        ({"settings": ["rounds=3"]}, "--set.*a run folder has its settings"),
    ],
)
def test_mistakes(how, said, blobs, tmp_path):
    folder = tmp_path / "run"
    simulate(experiment("fedavg", rounds=1), data=blobs, partition=deal(), out=folder)
    with pytest.raises(ConfigError, match=said):
        audit(folder, data=blobs, partition=deal(), **how)
    assert not (folder / "audit.json").exists()


def test_a_participant_that_is_not_there_has_nothing_to_look_at(blobs, tmp_path):
    folder = tmp_path / "run"
    run = simulate(experiment("fedavg", rounds=1, fraction=0.2), data=blobs, partition=deal(), out=folder)
    made = audit(folder, data=blobs, partition=deal(), attacks=["membership"])
    (entry,) = made.record["audits"].values()
    there = int(entry["party"].removeprefix("participant:"))
    absent = next(client for client in range(8) if client != there and client not in _there(run))
    with pytest.raises(ConfigError, match="drawn in the rounds from 2 to 2"):
        audit(folder, data=blobs, partition=deal(), attacks=["membership"], party=f"participant:{absent}")


def _there(run):
    from discreet.sampling import sample

    return sample(run.experiment, 8, 2).tolist()


def test_folders_that_cannot_be_audited(blobs, tmp_path):
    folder = tmp_path / "run"
    simulate(experiment("fedavg", rounds=1), data=blobs, partition=deal(), out=folder)
    with pytest.raises(ConfigError, match="given"):
        audit(folder)  # the run got its data from Python
    with pytest.raises(RunFolderError, match="other training data"):
        audit(folder, data=dataset(seed=5), partition=deal())
    (folder / "checkpoint.safetensors").unlink()
    with pytest.raises(RunFolderError, match="no finished round"):
        audit(folder, data=blobs, partition=deal())


# ---- the command


def test_the_command_from_an_experiment_and_from_its_folder(inside, tmp_path):
    args = ("--set", "rounds=2", "--set", "data.clients=4", "--quick")
    first = inside("audit", "digits-fedavg", *args, "--json", cwd=tmp_path)
    assert (first.code, first.err) == (0, "")
    record = json.loads(first.out)
    folder = tmp_path / "runs" / "digits-fedavg"
    assert json.loads((folder / "audit.json").read_text()) == record
    assert (folder / "result.json").exists()
    assert record["rounds"] == 2
    again = inside("audit", str(folder), "--attack", "membership", cwd=tmp_path)
    assert again.code == 0
    lines = again.out.splitlines()
    assert lines[0].startswith("membership (participant:")
    assert lines[1].split()[:2] == ["attack", "figure"]
    assert any("advantage" in line and line.rstrip().endswith("nothing") for line in lines)
    assert lines[-1] == f"wrote {folder / 'audit.json'}"
    refused = inside("audit", str(folder), "--attack", "lossless-shift", cwd=tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    silent = inside("audit", str(folder), "--quick", "--quiet", cwd=tmp_path)
    assert (silent.code, silent.out, silent.err) == (0, "", "")


def test_the_command_goes_on_with_a_run(inside, tmp_path):
    chosen = load("digits-fedavg", ["rounds=1", "data.clients=4"])
    simulate(chosen, out=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "half")
    args = ("--set", "rounds=2", "--set", "data.clients=4", "--quick", "--out", str(tmp_path / "half"))
    ended = inside("audit", "digits-fedavg", *args, "--json", cwd=tmp_path)
    assert ended.code == 0
    assert json.loads(ended.out)["rounds"] == 2


def test_a_table_has_a_row_a_figure():
    entry = {
        "findings": [
            {
                "attack": "a",
                "figure": "f",
                "measured": 0.12345,
                "chance": None,
                "unprotected": 1.0,
                "promise": "nothing",
            }
        ]
    }
    assert rows(entry) == [
        ("attack", "figure", "measured", "by chance", "unprotected", "promised"),
        ("a", "f", "0.123", "-", "1", "nothing"),
    ]
    assert [shown(value) for value in (0.0, 1e-12, 54321.0, -0.5)] == ["0", "1.0e-12", "5.4e+04", "-0.5"]
