import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parties import (
    ALLOWED,
    BLOBS,
    SERVER,
    SIZES,
    dealt,
    experiment,
    identity,
    parties,
    roster,
    run,
    same_state,
    simulated,
)

import discreet.federation.server
import discreet.federation.standing
from discreet.config import Data, Dropouts, Engine, Experiment
from discreet.cut import named_part
from discreet.errors import ConfigError, RunAborted, RunFolderError, UserError
from discreet.federation import parts
from discreet.federation.kept import kept_model
from discreet.federation.limits import Limits
from discreet.federation.link import Failure, MemoryLink
from discreet.federation.server import REHEARSED, TRUSTED
from discreet.federation.table import Deadlines
from discreet.schemes import ConfinedGradientDescent, DPSignFed, FedAvg, Lossless
from discreet.simulation import simulate
from discreet.wire import Envelope, Kind

CLOCKS = {"seconds", "evaluation_seconds", "uplink_bytes", "downlink_bytes"}
"""Figures that are not those of a simulation: times, and bytes with their envelopes."""

GRID = dealt((18, 11), (np.array([0, 2, 4]), np.array([1, 3, 5])))
ADDITIVE = {"secure": "additive"}


def cgd(**settings):
    return ConfinedGradientDescent(learning_rate=0.1, **settings)


CASES = {
    "fedsgd": (experiment("fedsgd"), None),
    "fedavg": (experiment("fedavg"), None),
    "fedavg, some": (experiment("fedavg", fraction=0.5, rounds=4), None),
    "robust-fedavg": (experiment("robust-fedavg"), None),
    "signfed": (experiment("signfed"), None),
    "local": (experiment("local"), None),
    "dp-fedavg, clear": (experiment("dp-fedavg", secure="none"), None),
    "dp-fedavg, masked": (experiment("dp-fedavg"), None),
    "dp-signfed": (experiment("dp-signfed"), None),
    "dp-signfed, poisson": (experiment("dp-signfed", sampling="poisson", fraction=0.7, rounds=5), None),
    "dp-signfed, groups": (
        experiment(DPSignFed(groups=2, steps=2)),
        dealt((7, 5, 9, 4, 6, 8, 3, 10)),
    ),
    "cgd, masked": (experiment(cgd(batch_size=5), secure="masked"), None),
    "cgd, additive": (experiment(cgd(), **ADDITIVE), None),
    "cgd, grid": (experiment(cgd(), **ADDITIVE), GRID),
    "cgd, grid in the clear": (experiment(cgd(batch_size=5)), GRID),
    "cgd, grid of delays": (experiment(cgd(max_delay=1, heads="row", batch_size=4), **ADDITIVE), GRID),
    "cgd, grid alone": (experiment(cgd(forward="independent"), **ADDITIVE), GRID),
    "lossless": (experiment(Lossless(rho=1.0, learning_rate=0.05)), None),
    "lossless, masked": (experiment(Lossless(rho=1.0, batch_size=4), secure="masked"), None),
    "lossless, additive": (experiment(Lossless(rho=1.0, m=2), **ADDITIVE), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rehearsal_between_sites_is_the_simulation_bit_for_bit(case):
    asked, partition = CASES[case]
    alone = simulated(asked, partition)
    members = parties(partition)
    together = run(asked, members)
    assert same_state(alone, together)
    assert (alone.vector is None) == (together.vector is None)
    for one, other in zip(alone.metrics, together.metrics, strict=True):
        assert {key: one[key] for key in one if key not in CLOCKS} == {
            key: other[key] for key in one if key not in CLOCKS
        }
    assert alone.result["privacy"] == together.result["privacy"]
    assert [refusal for one in members for refusal in one.refusals] == []
    assert {REHEARSED, TRUSTED} <= set(together.result["notes"])


def test_sites_that_hold_parts_of_the_experiments_own_data_are_the_simulation_too():
    asked = Experiment(
        data=Data(clients=3), scheme=FedAvg(steps=2), rounds=2, engine=Engine(lanes=1, workers=1)
    )
    together = run(asked, parties(sites=3), data=None)
    assert same_state(simulate(asked), together)


@pytest.mark.parametrize(
    ("scheme", "settings", "exchanges"),
    [
        # to greet, and to end; then one a round, two (and two before the first), or two for each sum
        ("fedavg", {}, 2 + 3),
        ("dp-signfed", {}, 2 + 2 + 2 * 3),
        (cgd(), ADDITIVE, 2 + 2 * 3),
    ],
)
def test_a_round_takes_few_exchanges(scheme, settings, exchanges):
    members = parties()
    link = MemoryLink({one.number: one for one in members})
    run(experiment(scheme, **settings), members, link=link)
    assert link.exchanges == exchanges


@pytest.mark.parametrize("case", ["fedavg", "dp-signfed", "cgd, additive", "cgd, grid", "lossless, masked"])
def test_a_deployment_is_no_simulation_and_learns_all_the_same(case):
    asked, partition = CASES[case]
    count = (dealt() if partition is None else partition).clients
    first, second = (
        run(asked, parties(partition, pinned=roster(count)), rehearse=False, roster=roster(count))
        for _ in range(2)
    )
    assert first.metrics[-1]["participants"] == count
    assert first.metrics[-1]["train_loss"] is None  # which never leaves a site
    assert not same_state(first, second)
    assert not {REHEARSED, TRUSTED} & set(first.result["notes"])
    for name, tensor in first.checkpoint.tensors.items():
        assert tensor.isfinite().all(), name


def test_confined_models_of_a_deployment_move_together_and_are_judged_at_home():
    asked = experiment(cgd(), **ADDITIVE)
    members = parties()
    found = run(asked, members, rehearse=False)
    models = torch.stack([kept_model(one.state, one.number).vector for one in members])
    assert models.shape == (4, found.result["parameters"]) and len(models.unique(dim=0)) == 4
    judged = [line["accuracy"] for line in found.metrics]
    assert all(0 <= accuracy <= 1 for accuracy in judged) and found.metrics[-1]["worst_accuracy"] is not None
    assert "spread" not in found.result  # nobody knows it
    moved = found.checkpoint.tensors["state.displacement"]
    assert moved.abs().max() > 0


def test_every_site_ends_with_the_global_model():
    members = parties()
    found = run(experiment("fedavg"), members)
    for one, held in zip(members, SIZES, strict=True):
        kept = kept_model(one.state, one.number)
        assert torch.equal(kept.vector, found.vector)
        assert kept.facts["rounds"] == 3 and kept.facts["examples"] == held
    assert kept_model(b"", 0) is None


@pytest.mark.parametrize("forward", ["joint", "independent"])
def test_sites_of_a_grid_keep_their_parts_which_predict_as_the_simulation_does(forward):
    members = parties(GRID)
    found = run(experiment(cgd(forward=forward), **ADDITIVE), members)
    kept = [kept_model(one.state, one.number) for one in members]
    assert [one.facts["features"] for one in kept] == [[0, 2, 4], [1, 3, 5]] * 2
    named = [named_part(found.network, one.vector, 3, 1) for one in kept]
    assert [one["1.weight"].shape for one in named] == [(5, 3)] * 4
    assert ["1.bias" in one for one in named] == [True, forward == "independent"] * 2
    hidden = [
        BLOBS.test.inputs[:, one.facts["features"]] @ own["1.weight"].T + own.get("1.bias", 0.0)
        for one, own in zip(kept, named, strict=True)
    ]
    if forward == "joint":  # over the sites of a row
        hidden = [hidden[0] + hidden[1]] * 2 + [hidden[2] + hidden[3]] * 2
    right, losses = [], []
    for inner, own in zip(hidden, named, strict=True):
        outputs = inner.relu() @ own["3.weight"].T + own["3.bias"]
        right.append((outputs.argmax(1) == BLOBS.test.targets).double().mean())
        losses.append(torch.nn.functional.cross_entropy(outputs, BLOBS.test.targets))
    last = found.metrics[-1]
    assert torch.stack(right).mean().item() == pytest.approx(last["accuracy"])
    assert torch.stack(losses).mean().item() == pytest.approx(last["loss"], rel=1e-5)


UNCOUNTED = ("fedsgd", "fedavg", "robust-fedavg", "signfed", "dp-fedavg", "dp-signfed", "local")


@pytest.mark.parametrize(
    ("scheme", "told"),
    [*((name, (1, 1, 1, 1)) for name in UNCOUNTED), *((name, SIZES) for name in ("cgd", "lossless"))],
)
def test_no_more_is_told_of_numbers_of_examples_than_the_scheme_goes_by(scheme, told):
    begun, welcomed = set(), {}

    def heard(site, message, answer):
        request = Envelope.from_bytes(message, kind=Kind.REQUEST, site=site, key=SERVER.public, peer="server")
        begun.update(one.sizes for part in request.parts if isinstance(one := parts.asked(part), parts.Begin))
        said = answer(message)
        reply = Envelope.from_bytes(said, kind=Kind.REPLY, site=site, key=identity(site).public, peer="site")
        for part in reply.parts:
            if part.kind == parts.Welcome.kind:
                welcomed[site] = parts.answered(part).examples
        return said

    asked = experiment(scheme, rounds=1)
    result = run(asked, parties(), fault=heard)
    assert begun == {told} and tuple(welcomed[site] for site in range(4)) == told
    assert same_state(result, simulated(asked))


def test_metrics_say_what_passed_between_whom():
    found = run(experiment("dp-signfed"), parties())
    line = found.metrics[-1]
    assert [one["stage"] for one in line["phases"]] == ["votes", "unmask"]
    assert sum(one["up"] for one in line["phases"]) == line["uplink_bytes"]
    assert sum(its["down"] for its in line["sites"].values()) == line["downlink_bytes"]
    assert line["failures"] == [] and line["attempts"] == 1


def test_what_passes_before_the_first_round_and_after_the_last_is_in_the_result():
    members, passed = parties(), []

    def listening(site, message, answer):
        reply = answer(message)
        passed.append((link.exchanges, len(reply), len(message)))
        return reply

    link = MemoryLink({one.number: one for one in members}, listening)
    found = run(experiment("fedavg"), members, link=link)
    said = found.result["federation"]
    for part, number in (("gathering", 1), ("end", link.exchanges)):
        own = [(up, down) for exchange, up, down in passed if exchange == number]
        assert [(its["up"], its["down"]) for its in said[part]["sites"].values()] == own
        assert (said[part]["up"], said[part]["down"]) == tuple(map(sum, zip(*own, strict=True)))
    assert said["session"] == 1


def run_folder(path):
    return {file.name for file in path.iterdir()}


@pytest.mark.parametrize("scheme", ["local", "dp-signfed"])
def test_a_run_goes_on_where_its_server_was_killed(scheme, tmp_path):
    asked = experiment(scheme, rounds=4)
    whole = run(asked, parties())
    members = parties()
    seen = []

    class Killed(Exception):
        pass

    def killing(site, message, answer):
        # in the middle of round 3, when some sites have answered and others have not
        if link.exchanges == {"local": 6, "dp-signfed": 8}[scheme] and site == 2:
            raise Killed
        return answer(message)

    link = MemoryLink({one.number: one for one in members}, killing)
    with pytest.raises(Killed):
        run(
            asked,
            members,
            link=link,
            out=tmp_path / "run",
            on_round=lambda line, _: seen.append(line["round"]),
        )
    assert seen == [1, 2]
    for one in members:
        one.restart()
    resumed = run(asked, members, out=tmp_path / "run", resume=True)
    assert same_state(whole, resumed)
    assert [line["round"] for line in resumed.metrics] == [1, 2, 3, 4]
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]
    assert json.loads((tmp_path / "run" / "federation.json").read_text())["session"] == 2
    assert {"config.toml", "metrics.jsonl", "result.json", "checkpoint.safetensors"} <= run_folder(
        tmp_path / "run"
    )


def test_what_was_about_to_be_released_counts_after_a_kill(tmp_path):
    asked = experiment("dp-signfed", rounds=2)
    members = parties()

    class Killed(Exception):
        pass

    def killing(site, message, answer):
        if link.exchanges == 5:  # the first round's sum is about to be unmasked
            raise Killed
        return answer(message)

    link = MemoryLink({one.number: one for one in members}, killing)
    with pytest.raises(Killed):
        run(asked, members, link=link, out=tmp_path / "run")
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 1
    resumed = run(asked, members, out=tmp_path / "run", resume=True)
    assert resumed.result["privacy"]["releases"] == 3  # two rounds, and one that may have been seen


def test_a_run_whose_ledger_is_lost_does_not_go_on(tmp_path):
    asked, members = experiment("dp-signfed", rounds=2), parties()
    run(asked, members, out=tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for name in ("ledger.jsonl", "ledger.jsonl.next"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(RunFolderError, match="expected the 2 releases, or more"):
        run(asked, members, out=tmp_path / "run", resume=True)


def test_a_copy_of_a_run_folder_that_is_put_back_goes_on_in_a_new_session(tmp_path, monkeypatch):
    """Sites answer in no session of which they have had a message: this one is later than all there were."""
    now = [2_000_000_000.0]
    monkeypatch.setattr(discreet.federation.server, "time", SimpleNamespace(time=lambda: now[0]))
    members, folder, copy = parties(limits=Limits()), tmp_path / "run", tmp_path / "copy"

    def session(rounds, **options):
        asked = experiment("fedavg", rounds=rounds)
        run(asked, members, out=folder, rehearse=False, **options)
        return json.loads((folder / "federation.json").read_text())["session"]

    with pytest.raises(KeyboardInterrupt):
        session(3, on_round=_killed_after(1))
    shutil.copytree(folder, copy)
    with pytest.raises(KeyboardInterrupt):
        session(3, on_round=_killed_after(2), resume=True)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    now[0] += 60
    assert session(3, resume=True) == 2_000_000_060


def _killed_after(round):
    def ended(line, _):
        if line["round"] == round:
            raise KeyboardInterrupt

    return ended


def test_a_run_without_enough_sites_says_who_is_missing_and_why():
    members = parties()
    link = MemoryLink({one.number: one for one in members})
    link.absent = {2}
    with pytest.raises(UserError, match=r"site 2: unreachable"):
        run(experiment("fedavg"), members, link=link)
    link.absent = {0, 1, 2, 3}
    with pytest.raises(UserError, match=r"site 0: unreachable.*site 3: unreachable"):
        run(experiment("fedavg"), members, link=link)
    members[1].options["limits"] = ALLOWED.__class__(minimum_cohort=5)
    members[1].restart()
    with pytest.raises(UserError, match=r"site 1: refused, limits"):
        run(experiment("fedavg"), members)


def test_why_a_site_refused_is_said_although_the_time_was_over_when_it_was_asked_once_more():
    members = parties()
    members[1].options["limits"] = ALLOWED.__class__(minimum_cohort=5)
    members[1].restart()

    def late(site, message, answer):
        return answer(message) if link.exchanges == 1 else Failure("timeout")

    link = MemoryLink({one.number: one for one in members}, late)
    with pytest.raises(UserError, match=r"site 1: refused, limits"):
        run(experiment("fedavg"), members, link=link)
    assert link.exchanges > 1


def test_a_round_that_fails_again_and_again_stops_the_run_and_leaves_it_resumable(tmp_path):
    asked = experiment("dp-signfed", rounds=3)
    members = parties()

    def silent(site, message, answer):
        return Failure("timeout") if site > 1 and link.exchanges > 6 else answer(message)

    link = MemoryLink({one.number: one for one in members}, silent)
    with pytest.raises(RunAborted, match=r"round 2 failed 3 times.*site 2.*timeout") as caught:
        run(asked, members, link=link, out=tmp_path / "run", attempts=3)
    assert caught.value.attempts == 3
    resumed = run(asked, members, out=tmp_path / "run", resume=True)
    assert same_state(run(asked, parties()), resumed)


def test_before_its_last_try_at_a_round_the_server_waits_for_those_who_are_away(monkeypatch):
    members, waited = parties(), []

    def cut(site, message, answer):
        if link.exchanges == 6 and not waited:
            link.absent = {2, 3}
            return Failure("unreachable")
        return answer(message)

    def sleep(seconds):
        waited.append(seconds)
        link.absent = set() if len(waited) == 3 else {2, 3}

    link = MemoryLink({one.number: one for one in members}, cut)
    monkeypatch.setattr(discreet.federation.standing.time, "sleep", sleep)
    patient = Deadlines(gathering=600.0, work=5.0, keys=5.0)
    found = run(experiment("dp-signfed"), members, link=link, deadlines=patient)
    assert waited == [0.5, 1.0, 2.0] and sorted(line["attempts"] for line in found.metrics) == [1, 1, 3]
    assert same_state(found, run(experiment("dp-signfed"), parties()))


def test_who_refuses_is_not_waited_for(monkeypatch):
    members, waited = parties(), []

    def tightened(site, message, answer):
        if link.exchanges == 6:
            members[site].options["limits"] = ALLOWED.__class__(minimum_cohort=5)
            members[site].restart()
        return answer(message)

    link = MemoryLink({one.number: one for one in members}, tightened)
    monkeypatch.setattr(discreet.federation.standing.time, "sleep", waited.append)
    with pytest.raises(RunAborted, match=r"failed 3 times.*refused"):
        run(experiment("dp-signfed"), members, link=link)
    assert not waited


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dropouts": Dropouts(mask=0.1)}, "dropouts"),
        ({"scheme": "centralized"}, "scheme.name"),
    ],
)
def test_what_makes_no_sense_between_sites_is_refused(changes, key):
    chosen = {"scheme": "fedavg"} | changes
    with pytest.raises(ConfigError, match=key):
        run(experiment(chosen.pop("scheme"), **chosen), parties())


def test_sites_that_do_not_make_a_grid_are_refused():
    with pytest.raises(UserError, match="does not fit"):
        members = [*parties(GRID)[:3], parties(dealt())[3]]
        run(experiment(cgd()), members)


def test_no_resume_without_a_folder():
    with pytest.raises(ConfigError, match="out"):
        run(experiment("fedavg"), parties(), resume=True)
