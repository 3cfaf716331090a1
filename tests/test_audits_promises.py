"""What audits hold their figures against: promises, the level of guessing, and who is asked before anything is trained."""

import dataclasses
import json
import math

import pytest
import torch

from discreet import simulate
from discreet.adversaries.inference.canaries import Bound
from discreet.audits import audit, canary, within
from discreet.audits.case import Case
from discreet.audits.comparing import roc
from discreet.audits.curves import found_by_chance
from discreet.audits.distance import relative_error
from discreet.errors import ConfigError
from discreet.simulation import observe
from federations import dataset, deal, experiment, federation

BLOBS = dataset()
WHITE_BOX = "membership-white-box"


def promises(folder, party, name=WHITE_BOX):
    made = audit(folder, data=BLOBS, partition=deal(), attacks=[name], party=party, quick=True)
    (entry,) = made.record["audits"].values()
    return {one["promise"] for one in entry["findings"]}


def test_epsilon_is_that_of_all_models_that_were_looked_at(tmp_path):
    """The last of them is the model of a run that is as much longer: its result says what it cost."""
    cost = {}
    for rounds in (2, 2 + within.ROUNDS - 1):
        chosen = experiment("dp-fedavg", rounds=rounds)
        simulate(chosen, data=BLOBS, partition=deal(), out=tmp_path / str(rounds))
        result = json.loads((tmp_path / str(rounds) / "result.json").read_text())
        cost[rounds] = f"(epsilon {result['privacy']['epsilon']:.3g} after {rounds} releases)"
    first, last = cost
    assert cost[first].split()[1] != cost[last].split()[1]
    (once,) = promises(tmp_path / str(first), "server", "membership")
    assert once.endswith(cost[first])
    (often,) = promises(tmp_path / str(first), "participant:4")
    assert often.endswith(cost[last])


def test_an_audit_finds_the_same_whichever_others_run(tmp_path):
    simulate(experiment("fedavg", rounds=2), data=BLOBS, partition=deal(), out=tmp_path / "run")

    def figures(attacks):
        made = audit(
            tmp_path / "run", data=BLOBS, partition=deal(), attacks=attacks, party="server", quick=True
        )
        return made.record["audits"]["membership"]

    assert figures(["membership"]) == figures(["membership", WHITE_BOX])


def test_what_is_shown_above_the_claim_is_called_not_kept(tmp_path, monkeypatch):
    fed = federation("dp-signfed", BLOBS)
    case = Case(fed, observe(fed, None, ["server"], 2), None, 10, True)
    case = dataclasses.replace(case, view=case.observed.views["server"])
    shown = {canary.SUMS: Bound(1e9, 10, 10), canary.MODELS: Bound(0.0, 10, 5)}
    monkeypatch.setattr(canary, "evidence", lambda *_: shown)
    kept = {one.attack.split(", ")[1]: "NOT KEPT" in one.promise for one in canary.measure(case)}
    assert kept == {canary.SUMS: True, canary.MODELS: False}


@pytest.mark.parametrize("secure", ["none", "masked"])
def test_single_updates_in_the_clear_are_promised_nothing(secure, tmp_path):
    chosen = experiment("dp-signfed", rounds=2, secure=secure)
    simulate(chosen, data=BLOBS, partition=deal(), out=tmp_path / "run")
    (found,) = promises(tmp_path / "run", "server")
    assert (found == "nothing") == (secure == "none")


def test_votes_modulo_a_power_of_two_are_read_with_their_signs():
    fed = federation("dp-signfed", BLOBS)
    observed = observe(fed, None, ["server"], 2)
    view = observed.views["server"]
    bits = fed.scheme.phases(fed.task)[-1].group.bits
    seen = view.seen[0]
    raw = torch.stack(list(seen.contributions.values()))[:, : fed.task.parameters] % 2**bits
    assert (raw >= 2 ** (bits - 1)).any()
    by_hand = torch.where(raw >= 2 ** (bits - 1), raw - 2**bits, raw).float()
    assert torch.equal(within._contributed(Case(fed, observed, view, 10), seen), by_hand)


def test_without_updates_that_can_be_used_nothing_is_said_of_updates(tmp_path):
    simulate(experiment("lossless", rounds=1), data=BLOBS, partition=deal(), out=tmp_path / "run")
    made = audit(
        tmp_path / "run", data=BLOBS, partition=deal(), attacks=[WHITE_BOX], party="server", quick=True
    )
    assert all(one["attack"].startswith("global: ") for one in made.record["audits"][WHITE_BOX]["findings"])


@pytest.mark.parametrize(("members", "others", "rate"), [(60, 50, 0.1), (300, 300, 0.001), (7, 40, 0.05)])
def test_guessing_finds_more_than_the_level_of_chance_once_in_20_times(members, others, rate):
    """By counting orders: x members come before the others' k + 1st, of all ways to place the others."""
    allowed = int(rate * others)

    def passes(share):
        ways = [
            math.comb(x + allowed, allowed) * math.comb(members - x + others - allowed - 1, members - x)
            for x in range(members + 1)
        ]
        assert sum(ways) == math.comb(members + others, members)
        return sum(ways[round(share * members) + 1 :]) / sum(ways)

    level = found_by_chance(members, others, rate)
    assert passes(level) <= 0.05 < passes(level - 1 / members)


def test_of_several_curves_the_strongest_is_drawn():
    weak = {"false_positive": [0.0, 0.5, 1.0], "true_positive": [0.0, 0.6, 1.0]}
    strong = {"false_positive": [0.0, 0.25, 1.0], "true_positive": [0.0, 0.75, 1.0]}
    entry = {"findings": [], "series": {"a": weak, "b": strong, "c": weak}}
    (axes,) = roc({"run": {"audits": {"membership": entry}}}).axes
    (line,) = (one for one in axes.lines if one.get_label() == "run")
    assert line.get_ydata()[1:].tolist() == strong["true_positive"][1:]


def test_a_relative_error_is_over_the_size_of_what_was_wanted():
    wanted = torch.tensor([3.0, 4.0])
    assert relative_error(torch.tensor([3.0, 5.0]), wanted) == pytest.approx(0.2)
    assert relative_error(wanted, torch.zeros(2)) == pytest.approx(5.0)


# ---- who looks


def test_audits_that_cannot_take_a_partys_view_are_left_out(tmp_path):
    simulate(experiment("cgd", rounds=1), data=BLOBS, partition=deal(), out=tmp_path / "run")
    how = {"data": BLOBS, "partition": deal(), "party": "participant:4", "quick": True}
    record = audit(tmp_path / "run", **how).record
    assert record["unfit"]["colluders"] == "its view is that of server"
    assert {one["party"] for one in record["audits"].values()} == {"participant:4"}
    with pytest.raises(ConfigError, match=r"--party.*server for colluders"):
        audit(tmp_path / "run", attacks=["colluders"], **how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"attacks": ["lossless-shift"]}, "--attack.*fits fedavg"),
        ({"party": "participant:9"}, "--party.*participant:0 to participant:7"),
        ({"party": "aggregator"}, "--party.*for membership"),
        ({"party": "server:1"}, "--party.*server, aggregator"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(how, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        audit("digits-fedavg", settings=["data.clients=8"], out=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()
