"""The driver: phases over rows and columns of a grid, schemes that add up by themselves, who is sampled."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from discreet import simulate
from discreet.config import Data
from discreet.data.partition import Partition
from discreet.evaluation import Evaluation
from discreet.sampling import sample
from discreet.schemes import SCHEMES, FedAvg, SignFed
from discreet.schemes.base import Contribution, Phase, SharedModel, Total
from discreet.secure.groups import Reals, accumulate, zeros
from federations import LANES, SIZES, assert_same_run, dataset, deal, experiment

DATA = dataset(features=7)


@dataclass(frozen=True, eq=False)
class Sums:
    """The last totals."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class GridSums(SharedModel):
    """Adds up within rows, and then, with what the rows came to, within columns: sums that can be done by hand.

    A client gives (its number, how many features it holds) to its row, and to its column the row's sum of numbers
    times (its column + 1). Clients in `failing` have a second contribution that is NaN.
    """

    summary = "sums for tests"
    splits_columns = True
    failing: tuple[int, ...] = ()

    def init(self, task):
        return Sums(torch.zeros(0), torch.zeros(0))

    def broadcast(self, task, state, round):
        return state

    def vector(self, state):
        return None

    def evaluate(self, task, state, kept, examples, parallel):
        return Evaluation(None, None)

    def phases(self, task):
        return Phase("numbers", Reals(), 2, "row"), Phase("weighted", Reals(torch.float64), 1, "column")

    def contribute(self, task, phase, payload, received, cohort):
        assert len(cohort) <= LANES
        accepted = torch.from_numpy(cohort.sizes > 0)
        if phase.name == "numbers":
            assert received == ()
            held = [len(features) for features in cohort.features]
            elements = torch.tensor(
                [list(pair) for pair in zip(cohort.ids.tolist(), held, strict=True)]
            ).float()
        else:
            rows = received[0].values[torch.from_numpy(cohort.row), 0]
            elements = (rows * torch.from_numpy(cohort.column + 1)).unsqueeze(1)
            failed = torch.tensor([client in self.failing for client in cohort.ids.tolist()])
            elements[failed] = torch.nan
            accepted &= ~failed
        return Contribution(elements, accepted, torch.ones(len(cohort)))

    def update(self, task, state, totals, round):
        return Sums(totals[0].values, totals[1].values)


@pytest.fixture
def grid_sums(monkeypatch):
    monkeypatch.setitem(SCHEMES, "grid-sums", GridSums)
    return GridSums


def grid(rows=(3, 4)):
    """Row owners with so many examples, times three column owners with 3, 2 and 2 of the features."""
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    return Partition(np.arange(sum(rows)), offsets, (np.arange(3), np.arange(3, 5), np.arange(5, 7)))


@pytest.mark.parametrize("workers", [1, 2])
def test_sums_within_rows_and_then_columns(grid_sums, workers):
    result = simulate(experiment(grid_sums(), rounds=1, workers=workers), data=DATA, partition=grid())
    # rows of clients 0, 1, 2 and 3, 4, 5; together the clients of a row hold all 7 features
    assert result.checkpoint.tensors["state.rows"].tolist() == [[3, 7], [12, 7]]
    # each column has one client of each row: 3 + 12, times 1, 2, 3
    assert result.checkpoint.tensors["state.columns"].tolist() == [[15], [30], [45]]
    (line,) = result.metrics
    assert line["participants"] == 6 and line["dropped"] == []
    assert line["uplink_bytes"] == 6 * (2 * 4 + 1 * 8)


def test_a_row_without_examples_adds_nothing(grid_sums):
    result = simulate(experiment(grid_sums(), rounds=1), data=DATA, partition=grid((3, 0)))
    assert result.checkpoint.tensors["state.rows"].tolist() == [[3, 7], [0, 0]]
    assert result.checkpoint.tensors["state.columns"].tolist() == [[3], [6], [9]]
    assert result.metrics[0]["participants"] == 3 and result.metrics[0]["empty"] == 3


def test_only_sampled_clients_are_added(grid_sums):
    chosen = experiment(grid_sums(), rounds=1, fraction=0.5)
    ids = sample(chosen, 6, 1).tolist()
    assert len(ids) == 3
    rows = [sum(client for client in ids if client // 3 == row) for row in (0, 1)]
    columns = [
        sum(rows[client // 3] * (column + 1) for client in ids if client % 3 == column) for column in range(3)
    ]
    result = simulate(chosen, data=DATA, partition=grid())
    assert result.checkpoint.tensors["state.rows"][:, 0].tolist() == rows
    assert result.checkpoint.tensors["state.columns"][:, 0].tolist() == columns


def test_a_client_that_fails_in_the_second_phase_is_dropped_and_no_participant(grid_sums):
    result = simulate(experiment(grid_sums(failing=(4,)), rounds=1), data=DATA, partition=grid())
    assert result.checkpoint.tensors["state.rows"].tolist() == [[3, 7], [12, 7]]
    assert result.checkpoint.tensors["state.columns"].tolist() == [[15], [6], [45]]
    (line,) = result.metrics
    assert line["dropped"] == ["4"] and line["participants"] == 5
    assert line["uplink_bytes"] == 6 * 2 * 4 + 5 * 8


# ---- contribute and add in one go


class FusedFedAvg(FedAvg):
    """FedAvg that adds up by itself, in pieces of another size than the driver's."""

    def fuses(self, task):
        return True

    def subtotal(self, task, phase, payload, received, cohort, parallel):
        total, count, parts = zeros(phase.group, (phase.length,)), 0, []
        for piece in cohort.chunks(2):
            given = self.contribute(task, phase, payload, received, piece)
            accumulate(phase.group, total, given.elements[given.accepted])
            count += int(given.accepted.sum())
            parts.append(given)
        accepted, losses = torch.cat([p.accepted for p in parts]), torch.cat([p.losses for p in parts])
        return Total(total, count), Contribution(torch.empty(len(cohort), 0), accepted, losses)


class FusedSignFed(SignFed):
    fuses = FusedFedAvg.fuses
    subtotal = FusedFedAvg.subtotal


@pytest.mark.parametrize(("kind", "fused"), [(FedAvg, FusedFedAvg), (SignFed, FusedSignFed)])
@pytest.mark.parametrize("chosen", [{}, {"fraction": 0.5}, {"sampling": "poisson", "fraction": 1e-9}])
def test_a_scheme_that_adds_up_by_itself_is_the_same_run(kind, fused, chosen, monkeypatch):
    monkeypatch.setitem(SCHEMES, "fused", fused)
    settings = {"steps": 2, "batch_size": 4}
    one, other = (
        simulate(experiment(scheme(**settings), **chosen), data=dataset(), partition=deal())
        for scheme in (kind, fused)
    )
    assert_same_run(one, other)


# ---- when it is evaluated, and when it stops


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_every_kth_round_and_the_last_are_evaluated(every, evaluated):
    result = simulate(experiment("fedavg", rounds=5, eval_every=every), data=dataset(), partition=deal())
    for key in ("accuracy", "loss", "evaluation_seconds"):
        assert [line["round"] for line in result.metrics if key in line] == evaluated
    assert np.flatnonzero(~np.isnan(result.accuracy)).tolist() == [round - 1 for round in evaluated]
    assert result.final["round"] == 5
    best = max(evaluated, key=lambda round: (result.accuracy[round - 1], -round))
    assert result.best["round"] == best  # of equals, the first


def patient():
    """An experiment that stops after 3 evaluations without a better one on a fifth of the examples."""
    chosen = dataclasses.replace(experiment("fedavg", rounds=60), data=Data(clients=6, holdout=0.2))
    return dataclasses.replace(chosen, patience=3)


def test_it_stops_when_patience_is_over_and_keeps_the_best():
    result = simulate(patient(), data=dataset())
    judged = result.series("holdout_accuracy")
    assert len(judged) < 60 and not np.isnan(judged).any()
    best = int(judged.argmax())
    assert len(judged) == best + 1 + 3
    # at every earlier round, a better one had come within 3
    records = [at for at in range(best + 1) if at == 0 or judged[at] > judged[:at].max()]
    assert max(np.diff(records), default=0) <= 3
    assert result.best["round"] == best + 1
    assert result.best["accuracy"] == result.accuracy[best]
    shorter = dataclasses.replace(patient(), rounds=best + 1)
    assert torch.equal(result.best_vector, simulate(shorter, data=dataset()).vector)


def test_patience_survives_an_interruption(tmp_path):
    whole = simulate(patient(), data=dataset())
    cut_at = len(whole.metrics) - 1  # two evaluations without a better one are behind, the last is to come

    def interrupt(metrics, rounds):
        if metrics["round"] == cut_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(patient(), data=dataset(), out=tmp_path / "run", on_round=interrupt)
    assert_same_run(whole, simulate(patient(), data=dataset(), out=tmp_path / "run", resume=True))


# ---- who takes part


def test_every_client_takes_part_at_fraction_one():
    assert sample(experiment("fedavg"), 9, 1).tolist() == list(range(9))


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [(0.5, 10, 5), (0.25, 10, 3), (0.01, 10, 1), (0.1, 1000, 100), (0.5, 1, 1)],
)
def test_a_fixed_number_takes_part(fraction, clients, count):
    chosen = experiment("fedavg", fraction=fraction)
    drawn = [sample(chosen, clients, round).tolist() for round in range(1, 30)]
    for ids in drawn:
        assert len(ids) == len(set(ids)) == count and ids == sorted(ids)
        assert set(ids) <= set(range(clients))
    assert count == clients or len(set(map(tuple, drawn))) > 1
    assert drawn == [sample(chosen, clients, round).tolist() for round in range(1, 30)]


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_every_client_is_as_likely(sampling):
    # 2,000 rounds, 12 clients at 1/4: 500 each, of standard deviation 19.4; chi-square over clients, one alarm in 10^6
    chosen = experiment("fedavg", fraction=0.25, sampling=sampling)
    counts = np.zeros(12)
    for round in range(1, 2001):
        counts[sample(chosen, 12, round)] += 1
    spread = ((counts - 500) ** 2).sum() / (2000 * 0.25 * 0.75)
    # a fixed number a round ties the counts together: 11 degrees of freedom, and 12/11 of the variance
    bound = stats.chi2.isf(1e-6, 12) if sampling == "poisson" else stats.chi2.isf(1e-6, 11) * 12 / 11
    assert spread < bound


def test_poisson_rounds_are_of_binomial_size():
    # each client on its own with probability 0.3: chi-square of 3,000 sizes against the binomial, one alarm in 10^6
    chosen = experiment("fedavg", fraction=0.3, sampling="poisson")
    sizes = np.bincount([len(sample(chosen, 5, round)) for round in range(1, 3001)], minlength=6)
    expected = 3000 * stats.binom.pmf(np.arange(6), 5, 0.3)
    assert ((sizes - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, 5)


def test_one_client_is_sampled_as_likely_as_many():
    # a lone client that always took part would make a mockery of amplification by sampling
    chosen = experiment("fedavg", fraction=0.3, sampling="poisson")
    taken = sum(len(sample(chosen, 1, round)) for round in range(1, 2001))
    assert abs(taken - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5  # 5 standard deviations: one alarm in 1.7 million


def test_sampling_differs_by_seed():
    one, other = (
        [sample(experiment("fedavg", fraction=0.5, seed=s), 20, r).tolist() for r in range(5)] for s in (0, 1)
    )
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_a_million_clients_cost_no_more_than_their_cohort(monkeypatch):
    chosen = dataclasses.replace(experiment("fedavg"), fraction=1e-3)
    ids = sample(chosen, 1_000_000, 1)
    assert len(set(ids.tolist())) == 1000 and ids.max() > 900_000


def test_the_number_of_senders_times_the_message_is_the_uplink():
    result = simulate(experiment("fedavg", rounds=2), data=dataset(), partition=deal())
    senders, n = sum(size > 0 for size in SIZES), result.result["parameters"]
    assert result.result["uplink_bytes"] == 2 * senders * 4 * (n + 1)
    assert result.result["bits_per_parameter"] == pytest.approx(32 * (n + 1) / n)
    assert result.result["downlink_bytes"] == 2 * len(SIZES) * 4 * n
