"""What a named party's view holds, and what it does not."""

import numpy as np
import pytest
import torch

from discreet import simulate
from discreet.config import Data, Dropouts
from discreet.errors import ConfigError
from discreet.preparation import prepare
from discreet.sampling import attend
from discreet.schemes import SCHEMES
from discreet.simulation import observe
from discreet.view import Party
from federations import SIZES, assert_same_run, deal, experiment, federation, play, same_bits

HOLDING = [client for client, size in enumerate(SIZES) if size]


def watched(scheme, data, *names, rounds=2, **changes):
    chosen = experiment(scheme, rounds=rounds, **changes)
    return simulate(chosen, data=data, partition=deal(), watch=names)


@pytest.mark.parametrize("name", SCHEMES)
def test_watching_changes_nothing(name, blobs):
    chosen = experiment(name, rounds=2)
    plain = simulate(chosen, data=blobs, partition=deal())
    seen = simulate(chosen, data=blobs, partition=deal(), watch=("participant:0",))
    assert not plain.views
    assert set(seen.views) == {"participant:0"}
    assert_same_run(plain, seen)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_participant_sees_what_the_scheme_broadcasts_and_no_contribution(name, blobs):
    fed = federation(name, blobs)
    whole = observe(fed, None, ("participant:0",), 2)
    sums = any(phase.length for phase in fed.scheme.phases(fed.task))
    view = whole.views["participant:0"]
    assert list(view.payloads()) == ([1, 2] if sums else [])
    for one in view.seen:
        assert one.contributions is None
        assert one.total is None
        wanted = fed.scheme.broadcast(fed.task, whole.states[one.round], one.round)
        assert type(one.payload) is type(wanted)
        for field, value in vars(wanted).items():
            if isinstance(value, torch.Tensor):
                assert same_bits(getattr(one.payload, field), value), field


def test_in_the_clear_a_server_sees_each_contribution_and_an_aggregator_too(blobs):
    fed = federation("fedavg", blobs)
    by_hand = play(fed, [list(range(len(SIZES)))])
    views = observe(fed, None, ("server", "aggregator"), 1).views
    (server,), (adds,) = views["server"].seen, views["aggregator"].seen
    assert list(server.contributions) == list(adds.contributions) == HOLDING
    for client in HOLDING:
        assert same_bits(server.contributions[client], by_hand.given[0][client][0])
    assert same_bits(server.total.values, by_hand.totals[0].values)
    assert server.total.count == len(HOLDING)
    assert same_bits(server.payload.vector, fed.scheme.init(fed.task).vector)
    assert adds.payload is None


@pytest.mark.parametrize(("scheme", "secure"), [("dp-signfed", "masked"), ("cgd", "additive")])
def test_of_a_secure_sum_whoever_adds_sees_the_total_and_nothing_else(scheme, secure, blobs):
    run = watched(scheme, blobs, "server", "aggregator", rounds=1, secure=secure)
    clear = watched(scheme, blobs, "server", rounds=1, secure="none")
    for view in run.views.values():
        (one,) = view.seen
        assert one.contributions is None
        assert one.total.count > 1
    (alone,) = clear.views["server"].seen
    assert len(alone.contributions) == alone.total.count
    # in the clear, what is seen adds up to the total
    whole = torch.stack(list(alone.contributions.values())).to(alone.total.values.dtype).sum(0)
    if scheme == "cgd":
        assert torch.allclose(whole, alone.total.values, rtol=0, atol=1e-12)
    else:
        fed = prepare(clear.experiment, blobs, deal())
        (phase,) = fed.scheme.phases(fed.task)
        assert bool(((whole - alone.total.values) % 2**phase.group.bits == 0).all())


def test_who_is_not_drawn_sees_nothing_and_who_falls_silent_still_saw_the_model(blobs):
    chosen = experiment("fedavg", rounds=8, fraction=0.5, dropouts=Dropouts(mask=0.5))
    run = simulate(chosen, data=blobs, partition=deal(), watch=("participant:4", "server"))
    there = {round: attend(run.experiment, len(SIZES), round) for round in range(1, 9)}
    drawn = [round for round, one in there.items() if 4 in one.drawn]
    sent = [round for round, one in there.items() if 4 in one.sending]
    assert 0 < len(sent) < len(drawn) < 8  # the case says something
    assert list(run.views["participant:4"].payloads()) == drawn
    arrived = [one.round for one in run.views["server"].seen if 4 in one.contributions]
    assert arrived == sent


def test_in_a_grid_a_participant_sees_its_own_column_and_its_own_row(blobs):
    data = Data(partition="grid", rows=3, columns=2)
    chosen = experiment("cgd", rounds=1)
    fed = prepare(chosen.__class__(**{**vars(chosen), "data": data}), blobs)
    views = observe(fed, None, ("server", "participant:3"), 2).views
    layout = fed.scheme.layout(fed.task)
    server, mine = views["server"].seen, views["participant:3"].seen
    assert [one.phase for one in mine] == ["pre-activations", "gradient"] * 2
    # participant 3 is in row 1 and column 1
    assert same_bits(mine[0].total.values, server[0].total.values[1])
    assert mine[1].total is None
    whole, own = server[2].payload.displacements, mine[2].payload.displacements
    assert own.shape[1] == layout.block + layout.cut.upper_size
    assert same_bits(own[:, : layout.block], whole[:, layout.block : 2 * layout.block])
    assert same_bits(own[:, layout.block :], whole[:, 2 * layout.block :])
    assert own.abs().max() > 0


def test_rounds_that_are_observed_are_those_that_the_run_would_play(blobs):
    whole = watched("fedavg", blobs, "participant:0", "server", rounds=4, fraction=0.6)
    half = simulate(experiment("fedavg", rounds=2, fraction=0.6), data=blobs, partition=deal())
    fed = prepare(half.experiment, blobs, deal())
    rest = observe(fed, half.checkpoint, ("participant:0", "server"), 2)
    later = [one for one in whole.views["server"].seen if one.round > 2]
    for ours, theirs in zip(rest.views["server"].seen, later, strict=True):
        assert ours.round == theirs.round
        assert same_bits(ours.total.values, theirs.total.values)
        assert same_bits(ours.payload.vector, theirs.payload.vector)
        assert same_bits(rest.states[ours.round].vector, theirs.payload.vector)
    assert same_bits(rest.states[3].vector, half.vector)


@pytest.mark.parametrize(
    "name", ["client:1", "participant:8", "participant:-1", "participant:", "Server", ""]
)
def test_other_parties_are_refused(name, blobs):
    with pytest.raises(ConfigError, match=r"watch.*participant:0 to participant:7"):
        simulate(experiment("fedavg"), data=blobs, partition=deal(), watch=(name,))


def test_parties_are_called_as_they_are_named():
    assert [str(Party.named(name, 3)) for name in ("server", "aggregator", "participant:2")] == [
        "server",
        "aggregator",
        "participant:2",
    ]
    with pytest.raises(ConfigError, match=r"or participant:0$"):
        Party.named("participant:1", 1)
    assert np.array_equal(HOLDING, [0, 1, 3, 4, 5, 6, 7])
