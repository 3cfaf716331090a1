"""The laws that every scheme obeys: a new row in `SCHEMES` is held to all of them."""

import dataclasses
import itertools
import json
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn

from discreet import preparation, simulate
from discreet.cohort import Examples
from discreet.config import Privacy, from_table, to_table, to_toml
from discreet.data.partition import Partition
from discreet.errors import Diverged
from discreet.randomness import Seeded
from discreet.sampling import sample
from discreet.schemes import SCHEMES
from discreet.secure.groups import wire_bytes
from federations import (
    SIZES,
    assert_same_run,
    dataset,
    deal,
    experiment,
    federation,
    play,
    same_bits,
    scheme,
    without_times,
)

DATA = dataset()
CLIENTS = list(range(len(SIZES)))
WITH_DATA = [client for client in CLIENTS if SIZES[client]]
FEDERATED = [name for name, kind in SCHEMES.items() if not kind.pooled]
# a private scheme's clients always send noise: tests/test_schemes_private.py has its laws where they differ
PLAIN = [name for name, kind in SCHEMES.items() if not kind.private]
PLAIN_FEDERATED = [name for name in FEDERATED if name in PLAIN]
SAMPLED = [name for name in FEDERATED if not SCHEMES[name].everyone]
FEDERATIONS = {
    (name, path): federation(name, DATA, gradients=path)
    for name in FEDERATED
    for path in ("layers", "vmap", "autograd")
}

every_scheme = pytest.mark.parametrize("name", SCHEMES)
every_federated = pytest.mark.parametrize("name", FEDERATED)
every_plain = pytest.mark.parametrize("name", PLAIN)
every_plain_federated = pytest.mark.parametrize("name", PLAIN_FEDERATED)
every_sampled = pytest.mark.parametrize("name", SAMPLED)
every_path = pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])


def run(name, **changes):
    return simulate(experiment(name, **changes), data=DATA, partition=deal())


def learnt(result):
    """All that a run learnt, as bytes: the global model, or every participant's."""
    return {key: tensor.numpy().tobytes() for key, tensor in result.checkpoint.tensors.items()}


# ---- what a scheme is


def test_there_are_schemes():
    assert len(SCHEMES) >= 5
    assert len(set(SCHEMES.values())) == len(SCHEMES)


@every_scheme
def test_it_is_a_frozen_dataclass_that_says_what_it_does(name):
    kind = SCHEMES[name]
    one = kind()
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert one == kind() and repr(one).startswith(f"{kind.__name__}(")
    assert kind.summary and "\n" not in kind.summary and len(kind.summary) <= 100
    for name in ("pooled", "everyone", "splits_columns", "private"):
        assert isinstance(getattr(kind, name), bool)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(kind)[0].name, None)


@every_scheme
def test_it_round_trips_through_toml(name):
    for chosen in (SCHEMES[name](), scheme(name)):
        whole = experiment(chosen)
        assert from_table(to_table(whole)) == whole
        assert from_table(tomllib.loads(to_toml(whole))) == whole
        assert to_table(whole)["scheme"]["name"] == name


@every_scheme
def test_its_state_and_payload_are_frozen_dataclasses(name):
    fed = federation(name, DATA)
    state = fed.scheme.init(fed.task)
    payload = fed.scheme.broadcast(fed.task, state, 1)
    for value in (state, payload):
        assert dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen
    assert all(isinstance(getattr(state, field.name), Tensor) for field in dataclasses.fields(state))


@every_scheme
def test_its_messages_have_a_constant_length(name):
    fed = federation(name, DATA)
    phases = fed.scheme.phases(fed.task)
    assert phases and len({phase.name for phase in phases}) == len(phases)
    ids = list(range(fed.partition.clients))
    first = play(fed, [ids])
    for played in (first, play(fed, [ids[-1:]], round=9, state=first.state, kept=first.kept)):
        for phase, by_client in zip(phases, played.given, strict=True):
            assert {elements.shape for elements, *_ in by_client.values()} == {(phase.length,)}


# ---- a client's contribution is its own


def senders(name, clients, fed):
    """Which of some clients send something: those with examples, and with private schemes all, as noise is sent."""
    if SCHEMES[name].private:
        return clients
    return [client for client in clients if len(fed.partition.indices(fed.partition.row_of(client)))]


def assert_same_contributions(name, one, other):
    for mine, theirs in zip(one, other, strict=True):
        for client in theirs:
            (elements, accepted, loss, kept), (elements_, accepted_, loss_, kept_) = (
                mine[client],
                theirs[client],
            )
            assert accepted == accepted_ == (SCHEMES[name].private or SIZES[client] > 0)
            if accepted:
                assert same_bits(elements, elements_) and same_bits(loss, loss_)
            assert (kept is None) == (kept_ is None)
            assert kept is None or same_bits(kept, kept_)


@every_federated
@every_path
def test_a_cohort_stacked_is_each_client_alone(name, path):
    fed = FEDERATIONS[name, path]
    together = play(fed, [CLIENTS])
    alone = play(fed, [[client] for client in CLIENTS])
    assert_same_contributions(name, together.given, alone.given)
    again = play(fed, [CLIENTS], round=2, state=together.state, kept=together.kept)
    apart = play(fed, [[client] for client in CLIENTS], round=2, state=alone.state, kept=alone.kept)
    assert_same_contributions(name, again.given, apart.given)


@st.composite
def pieces(draw):
    """The clients in any order, cut anywhere."""
    order = draw(st.permutations(CLIENTS))
    cuts = draw(st.lists(st.integers(0, len(order)), max_size=4))
    edges = sorted({0, *cuts, len(order)})
    return [order[start:end] for start, end in itertools.pairwise(edges)]


@every_federated
@settings(max_examples=10)
@given(cut=pieces(), path=st.sampled_from(["layers", "vmap", "autograd"]))
def test_neither_order_nor_chunks_change_a_contribution(name, cut, path):
    fed = FEDERATIONS[name, path]
    straight, mixed = play(fed, [CLIENTS]), play(fed, cut)
    assert_same_contributions(name, straight.given, mixed.given)
    assert all(
        same_bits(getattr(straight.state, field.name), getattr(mixed.state, field.name))
        for field in dataclasses.fields(straight.state)
    )


@every_federated
def test_a_contribution_depends_on_its_seed_and_round(name):
    fed = federation(name, DATA)
    other_seed = dataclasses.replace(fed, task=dataclasses.replace(fed.task, randomness=Seeded(1)))
    state = fed.scheme.init(fed.task)
    one, two, three = (
        play(f, [CLIENTS], round=r, state=state) for f, r in ((fed, 1), (fed, 2), (other_seed, 1))
    )
    for other in (two, three):
        bits = [
            [
                (elements.numpy().tobytes(), None if kept is None else kept.numpy().tobytes())
                for elements, accepted, _, kept in by_client.values()
                if accepted
            ]
            for by_client in (one.given[-1], other.given[-1])
        ]
        if getattr(fed.scheme, "batch_size", 1):  # over all of its examples, nothing is drawn
            assert bits[0] != bits[1]


@every_scheme
def test_what_it_is_given_is_not_changed(name):
    fed = federation(name, DATA)
    first = play(fed, [list(range(fed.partition.clients))])
    state, kept = first.state, first.kept

    def snapshot():
        tensors = [getattr(state, field.name) for field in dataclasses.fields(state)]
        tensors += [
            *kept.values(),
            fed.train.inputs,
            fed.train.targets,
            *(total.values for total in first.totals),
        ]
        tensors += [*fed.task.learner.network.module.parameters()]
        arrays = [fed.partition.order, fed.partition.offsets]
        return [t.detach().numpy().tobytes() for t in tensors] + [a.tobytes() for a in arrays]

    before = snapshot()
    second = play(fed, [list(range(fed.partition.clients))], round=2, state=state, kept=kept)
    fed.scheme.update(fed.task, state, tuple(first.totals), 2)
    fed.scheme.evaluate(fed.task, second.state, second.kept, fed.test, map)
    assert snapshot() == before


# ---- a run


@every_scheme
def test_the_driver_plays_the_rounds_that_are_played_by_hand(name):
    result = run(name, rounds=2)
    fed = federation(name, DATA)
    ids = list(range(fed.partition.clients))
    one = play(fed, [ids])
    two = play(fed, [ids], round=2, state=one.state, kept=one.kept)
    for field in dataclasses.fields(two.state):
        assert same_bits(result.checkpoint.tensors[f"state.{field.name}"], getattr(two.state, field.name))
    with_data = [client for client in ids if len(fed.partition.indices(fed.partition.row_of(client)))]
    sending = senders(name, ids, fed)
    for client, own in zip(
        result.checkpoint.facts["kept"], result.checkpoint.tensors.get("kept", ()), strict=True
    ):
        assert same_bits(own, two.kept[client])
    phases = fed.scheme.phases(fed.task)
    for line in result.metrics:
        assert line["participants"] == len(sending) == two.totals[0].count
        assert line["empty"] == len(ids) - len(with_data)
        assert line["dropped"] == []
        assert line["uplink_bytes"] == sum(
            len(sending) * wire_bytes(phase.group, phase.length) for phase in phases
        )
        assert np.isfinite(line["train_loss"])


@every_scheme
def test_the_same_seed_is_the_same_run_and_another_is_another(name):
    one = run(name)
    assert_same_run(one, run(name))
    other = run(name, seed=1)
    # all that a run starts from is drawn from its seed: compare what it learnt, not only where it began
    assert learnt(one) != learnt(other)
    assert without_times(one.metrics) != without_times(other.metrics)


@every_scheme
def test_it_learns(name):
    chosen = scheme(
        name, learning_rate=0.3, server_learning_rate=0.02 if "signfed" in name else 1.0, initial_scale=0.3
    )
    quiet = {"privacy": Privacy(noise_multiplier=0.15)} if chosen.private else {}
    result = simulate(experiment(chosen, rounds=20, **quiet), data=DATA)
    # participants of lossless only see the loss of the perturbed model
    seen = "loss" if name == "lossless" else "train_loss"
    assert result.metrics[-1][seen] < 0.8 * result.metrics[0][seen]
    assert result.final["accuracy"] > 0.5  # guessing gives a third


@every_scheme
def test_workers_change_nothing(name):
    one, two, three = (run(name, workers=workers, fraction=0.9) for workers in (1, 2, 3))
    for other in (two, three):
        assert_same_run(one, other)


class Crash(Exception):
    pass


@every_scheme
@pytest.mark.parametrize("after", [1, 2])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(name, after, tmp_path):
    chosen = {"rounds": 4, "fraction": 0.7, "eval_every": 2}
    whole = simulate(experiment(name, **chosen), data=DATA, partition=deal(), out=tmp_path / "whole")

    def crash(metrics, rounds):
        if metrics["round"] == after:
            raise Crash

    folder = tmp_path / "cut"
    again = {"data": DATA, "partition": deal(), "out": folder}
    with pytest.raises(Crash):
        simulate(experiment(name, **chosen), on_round=crash, **again)
    assert not (folder / "result.json").exists()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"round": {after + 1}, "acc')  # the next round's line was being written
    resumed = simulate(experiment(name, workers=2, **chosen), resume=True, **again)
    assert_same_run(whole, resumed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(resumed.metrics)
    results = [json.loads((tmp_path / part / "result.json").read_text()) for part in ("whole", "cut")]
    for key in (
        "final",
        "best",
        "uplink_bytes",
        "downlink_bytes",
        "bits_per_parameter",
        "participants",
        "privacy",
    ):
        assert results[0][key] == results[1][key]


@every_scheme
def test_its_state_survives_a_checkpoint(name):
    fed = federation(name, DATA)
    ids = list(range(fed.partition.clients))
    before = run(name, rounds=1).checkpoint
    tensors = load(save({key: tensor.contiguous() for key, tensor in before.tensors.items()}))
    first = fed.scheme.init(fed.task)
    state = dataclasses.replace(
        first, **{f.name: tensors[f"state.{f.name}"] for f in dataclasses.fields(first)}
    )
    kept = dict(zip(before.facts["kept"], tensors.get("kept", ()), strict=True))
    went_on, whole = play(fed, [ids], round=2, state=state, kept=kept), run(name, rounds=2)
    for field in dataclasses.fields(first):
        assert same_bits(getattr(went_on.state, field.name), whole.checkpoint.tensors[f"state.{field.name}"])


# ---- nobody, nothing, and nonsense


@every_plain_federated
def test_a_client_without_examples_adds_nothing_and_is_not_counted(name):
    fed = federation(name, DATA)
    with_it, without = play(fed, [CLIENTS]), play(fed, [WITH_DATA])
    assert [total.count for total in with_it.totals] == [len(WITH_DATA)] * len(with_it.totals)
    for one, other in zip(with_it.totals, without.totals, strict=True):
        assert same_bits(one.values, other.values)
    result = run(name, rounds=1)
    assert result.metrics[0]["participants"] == len(WITH_DATA) and result.metrics[0]["empty"] == 1
    assert 2 not in result.checkpoint.facts["kept"]


def assert_nothing_happened(result, name):
    fed = federation(name, DATA, seed=result.experiment.seed)
    state = fed.scheme.init(fed.task)
    for field in dataclasses.fields(state):
        assert same_bits(result.checkpoint.tensors[f"state.{field.name}"], getattr(state, field.name))
    assert "kept" not in result.checkpoint.tensors
    for line in result.metrics:
        assert line["participants"] == line["uplink_bytes"] == 0
        assert line["train_loss"] is None and line["dropped"] == []
    assert result.result["bits_per_parameter"] == 0


@pytest.mark.parametrize("name", [name for name in SAMPLED if name in PLAIN])
def test_a_round_in_which_nobody_has_examples_leaves_the_state(name):
    partition = deal([0] * 7 + [9])
    chosen = {"fraction": 1 / 8, "rounds": 2}
    seed = next(
        s for s in range(99) if not any(7 in sample(experiment(name, seed=s, **chosen), 8, r) for r in (1, 2))
    )
    result = simulate(experiment(name, seed=seed, **chosen), data=DATA, partition=partition)
    assert_nothing_happened(result, name)
    assert [line["empty"] for line in result.metrics] == [1, 1]


@every_plain
def test_a_run_in_which_nobody_has_examples_ends_where_it_began(name):
    result = simulate(experiment(name), data=DATA, partition=deal([0] * 4))
    assert_nothing_happened(result, name)
    assert [line["empty"] for line in result.metrics] == [result.result["participants"]] * 3


@pytest.mark.parametrize("name", [name for name, kind in SCHEMES.items() if kind.everyone])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_where_everyone_takes_part_the_fraction_does_not_matter(name, sampling):
    assert name not in SAMPLED
    assert_same_run(run(name), run(name, fraction=0.2, sampling=sampling))


@every_sampled
def test_an_empty_poisson_round_leaves_the_state(name):
    result = run(name, sampling="poisson", fraction=1e-9)
    assert_nothing_happened(result, name)
    assert [line["empty"] for line in result.metrics] == [0, 0, 0]


def poisoned(fed, clients, value=float("nan")):
    """The federation with the data of some clients spoilt."""
    inputs = fed.train.inputs.clone()
    for client in clients:
        inputs[torch.from_numpy(fed.partition.indices(client))] = value
    return dataclasses.replace(fed, train=Examples(inputs, fed.train.targets))


def run_poisoned(monkeypatch, chosen, clients, *, partition=None, value=float("nan"), **others):
    """A run in which some clients' data is spoilt after the checks that would refuse it."""
    prepare = preparation.prepare
    monkeypatch.setattr(
        "discreet.preparation.prepare", lambda *given: poisoned(prepare(*given), clients, value)
    )
    return simulate(chosen, data=DATA, partition=deal() if partition is None else partition, **others)


@every_plain_federated
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_whose_update_is_not_finite_is_dropped_by_name(name, value, monkeypatch):
    # client 0 holds example 0 of all, with which others' batches must not be padded
    partition, bad = deal(first=0), [0, 4]
    others = [client for client in WITH_DATA if client not in bad]
    fed = federation(name, DATA, partition=partition)
    wanted = play(fed, [others])
    result = run_poisoned(monkeypatch, experiment(name, rounds=1), bad, partition=partition, value=value)
    for field in dataclasses.fields(wanted.state):
        assert same_bits(result.checkpoint.tensors[f"state.{field.name}"], getattr(wanted.state, field.name))
    (line,) = result.metrics
    assert line["dropped"] == ["0", "4"]
    assert line["participants"] == len(others) and line["empty"] == 1
    assert line["uplink_bytes"] == sum(
        len(others) * wire_bytes(p.group, p.length) for p in fed.scheme.phases(fed.task)
    )
    assert result.result["dropped_updates"] == 2
    losses = [float(wanted.given[-1][client][2]) for client in others]
    assert line["train_loss"] == pytest.approx(np.mean(losses))


@every_scheme
def test_a_run_in_which_everybody_is_dropped_has_diverged(name, monkeypatch, tmp_path):
    pooled = SCHEMES[name].pooled
    everybody = [0] if pooled else CLIENTS
    if name == "dp-sgd":
        # that no record of a lot could be used must not be seen: the party takes steps of noise alone
        run = run_poisoned(monkeypatch, experiment(name), everybody, out=tmp_path / "run")
        assert all(line["train_loss"] is None and not line["dropped"] for line in run.metrics)
        return
    with pytest.raises(Diverged) as caught:
        run_poisoned(monkeypatch, experiment(name), everybody, out=tmp_path / "run")
    assert caught.value.round == 1
    assert "round 1" in str(caught.value) and "scheme.learning_rate (now 0.1)" in str(caught.value)
    assert f"{1 if pooled else len(WITH_DATA)} clients" in str(caught.value)
    assert not (tmp_path / "run" / "result.json").exists()


@every_scheme
def test_a_learning_rate_that_is_much_too_high_is_blamed(name):
    # each scheme's first round may still be finite; by the third, none is
    wild = scheme(name, learning_rate=1e30, server_learning_rate=1e38, batch_size=0)
    with pytest.raises(Diverged, match=r"lower scheme\.learning_rate \(now 1e\+30\)") as caught:
        simulate(experiment(wild, rounds=5), data=DATA)
    assert 1 <= caught.value.round <= 3


def test_the_partition_need_not_hold_all_examples():
    partition = Partition(np.array([5, 3, 8]), np.array([0, 1, 3]))
    for name in SCHEMES:
        result = simulate(experiment(name, rounds=1), data=DATA, partition=partition)
        assert result.result["participants"] == (1 if SCHEMES[name].pooled else 2)


@every_scheme
def test_a_model_with_dropout_is_the_same_run_with_any_workers(name):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    runs = [
        simulate(
            experiment(name, rounds=2, workers=workers, widths=None), data=DATA, partition=deal(), model=model
        )
        for workers in (1, 2)
    ]
    assert_same_run(*runs)
