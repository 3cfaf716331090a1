"""Attacks on whole runs: what they bring, that they repeat, and what a run folder tells of them."""

import dataclasses
import json

import numpy as np
import pytest

from discreet import SCHEMES, Adversary, Data, Diverged, Experiment, Model, Privacy, simulate
from discreet.cli import app
from discreet.privacy.accounting import spent
from discreet.privacy.releases import NOTHING
from discreet.report import write_report
from discreet.report.tables import percent as tables_percent
from discreet.schemes.traits import misdeeds_under
from federations import assert_same_run, dataset, deal, experiment, federation, same_bits, scheme

DATA = dataset()
ATTACKED = [name for name, kind in SCHEMES.items() if misdeeds_under(kind)]


def run(name, plan=None, **changes):
    return simulate(experiment(name, adversary=plan, **changes), data=DATA, partition=deal())


@pytest.mark.parametrize("name", ATTACKED)
def test_an_adversary_that_does_nothing_changes_no_bit_of_what_is_learnt(name):
    plan = Adversary(clients=[1, 4])
    assert federation(name, DATA, adversary=plan).task.adversary is None  # so that it costs nothing
    plain, attacked = run(name), run(name, plan)
    assert plain.checkpoint.tensors.keys() == attacked.checkpoint.tensors.keys()
    for key, tensor in plain.checkpoint.tensors.items():
        assert same_bits(tensor, attacked.checkpoint.tensors[key])
    for before, after in zip(plain.metrics, attacked.metrics, strict=True):
        assert "malicious" not in before and after["malicious"] == 2
        assert after["main_accuracy"] == after["accuracy"] == before["accuracy"]
    assert plain.result["adversary"] is None


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("fedavg", Adversary(attack="random-update", fraction=0.25, boost=2.0)),
        ("signfed", Adversary(attack="gradient-ascent", fraction=0.4, collude=True)),
        ("fedsgd", Adversary(attack="little-is-enough", fraction=0.4)),
        ("dp-signfed", Adversary(attack="sign-flip", fraction=0.25, boost=9.0, omit_noise=True)),
        ("dp-fedavg", Adversary(attack="in-backdoor", fraction=0.25, source=0, target=1, ignore_clip=True)),
        ("cgd", Adversary(attack="out-backdoor", fraction=0.25, source=0, target=1)),
        ("robust-fedavg", Adversary(attack="label-flip", fraction=0.25, boost=5.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.attack,
)
def test_an_attack_repeats_with_any_workers_and_goes_on_after_an_interruption(name, plan, tmp_path):
    whole = run(name, plan, rounds=3, fraction=0.9, workers=1)
    assert_same_run(whole, run(name, plan, rounds=3, fraction=0.9, workers=2))

    def stop(metrics, rounds):
        if metrics["round"] == 1:
            raise InterruptedError

    asked = experiment(name, adversary=plan, rounds=3, fraction=0.9)
    again = {"data": DATA, "partition": deal(), "out": tmp_path / "run"}
    with pytest.raises(InterruptedError):
        simulate(asked, on_round=stop, **again)
    assert_same_run(whole, simulate(asked, resume=True, **again))


def digits(name, plan, rounds=25, **fields):
    chosen = SCHEMES[name](steps=10, learning_rate=0.1, **fields)
    asked = Experiment(
        data=Data(clients=10), model=Model(), scheme=chosen, rounds=rounds, eval_every=rounds, adversary=plan
    )
    return simulate(asked)


def accuracy(name, plan, **fields):
    try:
        return digits(name, plan, **fields).final["accuracy"]
    except Diverged:
        return 0.0


def test_gradient_ascent_ruins_fedavg_and_neither_signfed_nor_a_median():
    plan = Adversary(attack="gradient-ascent", fraction=0.2, boost=10.0)
    nothing = dataclasses.replace(plan, attack="none", boost=1.0)
    assert accuracy("fedavg", nothing) > 0.9 and accuracy("fedavg", plan) < 0.3
    assert accuracy("signfed", plan, server_learning_rate=0.003) > 0.85
    assert accuracy("robust-fedavg", plan) > 0.85


def test_an_out_backdoor_teaches_a_class_that_nobody_else_knows():
    plan = Adversary(attack="out-backdoor", fraction=0.2, source=0, target=1)
    result = digits("fedavg", plan).result["adversary"]
    assert result["malicious"] == 2 and result["main_accuracy"] > 0.85
    assert result["source_to_target"] > 0.5 and result["source_accuracy"] < 0.1


def test_a_pixel_backdoor_is_learnt_from_a_fifth_of_the_clients_and_not_by_votes():
    plan = Adversary(attack="pixel-backdoor", fraction=0.2, target=7, pattern=2)
    attacked = digits("fedavg", plan).result["adversary"]
    assert attacked["main_accuracy"] > 0.85 and attacked["pattern_to_target"] > 0.6
    unmarked = digits("fedavg", dataclasses.replace(plan, poisoned=1e-9)).result["adversary"]
    assert unmarked["pattern_to_target"] < 0.2
    assert digits("signfed", plan, server_learning_rate=0.003).result["adversary"]["pattern_to_target"] < 0.2


def test_one_boosted_client_behind_masks_steers_votes_that_it_could_not_steer_alone():
    def main_accuracy(boost):
        plan = Adversary(attack="sign-flip", clients=[0], boost=boost, omit_noise=True)
        asked = Experiment(
            data=Data(clients=10),
            scheme=SCHEMES["dp-signfed"](steps=10, learning_rate=0.1, server_learning_rate=0.003),
            rounds=20,
            eval_every=20,
            privacy=Privacy(noise_multiplier=0.1),
            secure="none",
            adversary=plan,
        )
        return simulate(asked)

    one, boosted = main_accuracy(1.0), main_accuracy(50.0)
    assert one.final["accuracy"] > 0.8 and boosted.final["accuracy"] < 0.3
    (note,) = boosted.result["notes"]
    assert note.startswith("up to 1 malicious clients a round added no noise, more than")


@pytest.mark.parametrize("assumed", [0, 3])
def test_epsilon_counts_the_noise_of_those_who_add_some(assumed):
    """By hand: shares for all but the assumed ones, added by all but the two malicious ones."""
    privacy = Privacy(noise_multiplier=2.0, assumed_dishonest=assumed)
    plan = Adversary(clients=[0, 1], omit_noise=True)
    found = run("dp-signfed", plan, rounds=2, privacy=privacy, secure="none")
    fed = federation("dp-signfed", DATA, privacy=privacy)
    clients = fed.partition.clients
    least = min(1.0, ((clients - 2) / (clients - assumed)) ** 0.5)
    release = fed.scheme.release(fed.task)
    noise = dataclasses.replace(release.noise, noise_multiplier=2.0 * least)
    cost = spent(NOTHING.add(dataclasses.replace(release, noise=noise), 2), privacy.delta)
    assert found.result["privacy"]["epsilon"] == pytest.approx(cost.epsilon)
    assert any("noise of the others alone" in note for note in found.result["notes"]) == (not assumed)


def test_masked_sums_do_not_mind_who_is_malicious():
    plan = Adversary(attack="random-update", clients=[1, 4], boost=20.0, collude=True)
    plain, masked = (run("dp-signfed", plan, rounds=2, secure=secure) for secure in ("none", "masked"))
    assert same_bits(plain.vector, masked.vector)


def test_a_run_folder_and_its_report_tell_of_the_attack(tmp_path):
    plan = Adversary(attack="in-backdoor", clients=[4, 6], source=1, target=2, boost=4.0)
    result = simulate(experiment("fedavg", adversary=plan), data=DATA, partition=deal(), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    figures = {"main_accuracy", "source_accuracy", "source_to_target"}
    assert all(figures <= line.keys() and line["malicious"] == 2 for line in lines)
    stored = json.loads((tmp_path / "run" / "result.json").read_text())["adversary"]
    assert stored == {"attack": "in-backdoor", "malicious": 2} | {key: lines[-1][key] for key in figures}
    assert result.series("source_to_target").shape == (3,)
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    for words in (
        "in-backdoor",
        "Main accuracy",
        "taken for target",
        "main accuracy is that of all classes but",
    ):
        assert words in page
    assert "Pattern" not in page
    titles = [plot.split("</title>")[0] for plot in page.split("<title id=")[1:]]
    for name, title in (
        ("main-accuracy", "Accuracy of the classes not attacked, by round"),
        ("source-accuracy", "Accuracy of the attacked class, by round"),
        ("source-to-target", "Attacked class taken for the target, by round"),
    ):
        assert any(f"{name}-title" in one and title in one for one in titles)
    share = tables_percent(lines[-1]["source_to_target"])
    assert f"ends at {share} (round 3)" in page


def test_an_attack_without_classes_gets_no_plots_that_say_what_others_say(tmp_path):
    plan = Adversary(attack="sign-flip", clients=[4])
    simulate(experiment("fedavg", adversary=plan), data=DATA, partition=deal(), out=tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    assert "Accuracy by round" in page and "not attacked, by round" not in page


def test_losses_of_malicious_clients_are_not_averaged_in():
    # free riders' training goes on, on data that says nothing of what they send
    plan = Adversary(attack="free-riding", clients=[0, 1, 3, 5, 6, 7])
    attacked, alone = run("fedavg", plan, rounds=1), federation("fedavg", DATA)
    cohort = alone.cohort(np.array([4]), 1, {})
    (phase,) = alone.scheme.phases(alone.task)
    given = alone.scheme.contribute(alone.task, phase, alone.scheme.init(alone.task), (), cohort)
    assert attacked.metrics[0]["train_loss"] == pytest.approx(float(given.losses[0]))
    assert attacked.metrics[0]["malicious"] == 6 and attacked.metrics[0]["participants"] == 7


def test_a_run_that_an_attack_ruins_says_so():
    chosen = scheme("fedavg", learning_rate=1e3)
    plan = Adversary(attack="sign-flip", clients=[1], boost=1e6)
    with pytest.raises(
        Diverged, match=r"adversary\.boost \(now 1000000\.0\), if the attack is not to win"
    ) as caught:
        simulate(experiment(chosen, adversary=plan, rounds=9), data=DATA)
    found = caught.value.last["adversary"]
    assert found["attack"] == "sign-flip" and found["malicious"] == 1
    assert found["main_accuracy"] == caught.value.last["final"]["accuracy"]


def test_the_terminal_tells_of_the_attack_and_of_every_note(tmp_path, capsys):
    settings = ["rounds=1", "adversary.fraction=0.1", "adversary.attack=label-flip"]
    settings += ["privacy.noise_multiplier=1", "scheme.name=dp-fedavg", "adversary.omit_noise=true"]
    settings += ["privacy.delta=0.5", "secure=none"]
    flags = [part for setting in settings for part in ("--set", setting)]
    app(["run", "digits-fedavg", *flags, "--out", str(tmp_path / "run")], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "label-flip, 2 malicious, main accuracy" in shown
    assert "added no noise" in shown and "delta 0.5 is not below" in shown
