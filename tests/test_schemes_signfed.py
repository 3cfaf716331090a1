import numpy as np
import pytest
import torch

from discreet import simulate
from discreet.cohort import Cohort, Examples
from discreet.randomness import Seeded
from discreet.schemes import FedAvg, SignFed
from discreet.schemes.signfed import majority, votes
from discreet.secure.groups import Signs, wire_bytes
from federations import SIZES, dataset, deal, experiment, federation, play, same_bits

DATA = dataset()
CLIENTS = list(range(len(SIZES)))
STREAMS = Seeded(2)


def cohort(ids, round=1):
    count = len(ids)
    return Cohort(
        ids=np.array(ids),
        examples=Examples(torch.zeros(1, 1), torch.zeros(1)),
        indices=(np.arange(1),) * count,
        round=round,
        capacity=1,
        row=np.arange(count),
        column=np.zeros(count, dtype=np.int64),
        kept=(None,) * count,
    )


def fair(coins):
    """Whether +1 and -1 are as frequent as a fair coin's, within 5 standard deviations: one alarm in 1.7 million."""
    count = coins.numel()
    return abs(int(coins.sum(dtype=torch.int64))) < 5 * count**0.5


def test_a_vote_is_the_sign_of_the_change():
    changes = torch.tensor([[1e-30, -1e-30, 5.0, -3.0], [-1e-38, 1e-45, float("inf"), -0.5]])
    signs = votes(changes, cohort([0, 1]), STREAMS)
    assert signs.dtype == torch.int8
    assert signs.tolist() == [[1, -1, 1, -1], [-1, 1, 1, -1]]


def test_where_nothing_changed_a_fair_coin_is_tossed():
    changes = torch.zeros(3, 20_000)
    changes[1, ::2] = 1.0
    changes[:, 1] = -0.0
    signs = votes(changes, cohort([4, 7, 9]), STREAMS)
    assert set(signs.unique().tolist()) == {-1, 1}
    assert (signs[1, ::2] == 1).all()
    assert fair(signs[0]) and fair(signs[2]) and fair(signs[1, 1::2])
    # clients' coins are independent: so is their product a fair coin
    assert fair(signs[0] * signs[2])
    # and a coin says nothing about the next
    assert fair(signs[0, 1:] * signs[0, :-1])


def test_coins_depend_on_seed_round_and_client_alone():
    changes = torch.zeros(2, 2000)
    signs = votes(changes, cohort([4, 7]), STREAMS)
    assert torch.equal(votes(changes[:1], cohort([7]), STREAMS)[0], signs[1])
    for other in (
        votes(changes, cohort([4, 7], round=2), STREAMS),
        votes(changes, cohort([4, 7]), Seeded(3)),
    ):
        assert fair(other * signs)
    assert not changes.any()


def test_the_majority_wins_and_ties_are_tossed_for():
    counts = torch.tensor([3, -1, 100, -7] + [0] * 20_000, dtype=torch.int32)
    winner = majority(counts, STREAMS, 1)
    assert winner[:4].tolist() == [1, -1, 1, -1]
    ties = winner[4:]
    assert set(ties.unique().tolist()) == {-1, 1} and fair(ties)
    assert fair(ties * majority(counts, STREAMS, 2)[4:])
    assert torch.equal(winner, majority(counts, STREAMS, 1))
    assert counts[4:].abs().max() == 0


def test_the_servers_coins_are_no_clients_coins():
    zeros = torch.zeros(1, 20_000)
    own = majority(zeros[0].int(), STREAMS, 1)
    for client in (0, 1):
        assert fair(own * votes(zeros, cohort([client]), STREAMS)[0])


def test_a_round_by_hand():
    chosen = SignFed(steps=3, batch_size=4, server_learning_rate=0.25)
    fed = federation(chosen, DATA)
    played = play(fed, [CLIENTS])
    # what SignFed's clients vote on is what FedAvg's clients would send
    trained = play(federation(FedAvg(steps=3, batch_size=4), DATA), [CLIENTS]).given[0]
    counts = torch.zeros(fed.task.parameters)
    for client in CLIENTS:
        if SIZES[client]:
            change, vote = trained[client][0][:-1], played.given[0][client][0]
            assert torch.equal(vote[change != 0].float(), change[change != 0].sign())
            counts += vote
    assert torch.equal(played.totals[0].values.float(), counts)
    start, after = fed.task.initial(), played.state.vector
    step = (after.double() - start.double()).float()
    assert torch.equal(step[counts != 0].sign(), counts[counts != 0].sign())
    exactly = [(start.double() + sign * 0.25).float() for sign in (-1, 1)]
    assert ((after == exactly[0]) | (after == exactly[1])).all()


@pytest.mark.parametrize("gamma", [0.001, 0.005, 0.5])
def test_the_server_steps_by_exactly_gamma(gamma):
    chosen = SignFed(steps=2, batch_size=4, server_learning_rate=gamma)
    fed = federation(chosen, DATA)
    start = fed.task.initial().double()
    found = simulate(experiment(chosen, rounds=1), data=DATA, partition=deal()).vector
    assert ((found == (start + gamma).float()) | (found == (start - gamma).float())).all()


def test_votes_are_not_weighted_by_examples():
    """Two clients of one example outvote one of twenty."""
    inputs, targets = torch.ones(22, 1), torch.full((22, 1), 10.0)
    targets[20:] = -10.0
    data = type(DATA)("line", "table", Examples(inputs, targets), Examples(inputs, targets), None)
    moved = {}
    for chosen in (SignFed(steps=1, batch_size=0, server_learning_rate=0.1), FedAvg(steps=1, batch_size=0)):
        fed = federation(chosen, data, partition=deal((20, 1, 1), first=0), widths=())
        moved[type(chosen)] = play(fed, [[0, 1, 2]]).state.vector - fed.task.initial()
    assert (moved[SignFed] < 0).all() and (moved[FedAvg] > 0).all()


def test_a_client_moves_each_count_by_one():
    fed = federation("signfed", DATA)
    with_it, without = (play(fed, [ids]).totals[0].values for ids in ([0, 1, 3, 4], [0, 1, 3]))
    assert ((with_it - without).abs() == 1).all()


@pytest.mark.parametrize("widths", [(5,), (4,), (7, 3)])
def test_one_bit_a_parameter_is_sent(widths):
    chosen = SignFed(steps=1)
    fed = federation(chosen, DATA, widths=widths)
    n = fed.task.parameters
    (phase,) = fed.scheme.phases(fed.task)
    assert phase.group == Signs() and phase.length == n
    result = simulate(experiment(chosen, widths=widths, rounds=2), data=DATA, partition=deal())
    senders = sum(size > 0 for size in SIZES)
    assert [line["uplink_bytes"] for line in result.metrics] == [senders * -(-n // 8)] * 2
    assert wire_bytes(phase.group, n) == -(-n // 8)
    assert 1 <= result.result["bits_per_parameter"] < 1 + 8 / n
    # the model itself goes down in full, to everybody in the round
    assert [line["downlink_bytes"] for line in result.metrics] == [len(SIZES) * 4 * n] * 2


def test_a_frozen_round_repeats():
    fed = federation("signfed", DATA)
    assert same_bits(play(fed, [CLIENTS]).state.vector, play(fed, [CLIENTS]).state.vector)
