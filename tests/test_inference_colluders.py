"""CGD's colluders: what is constant, what is left of a total, and rows that are solved for."""

import numpy as np
import pytest
import torch

from discreet.adversaries.inference.colluders import (
    features_of_row,
    model_by_displacement,
    model_from_another_time,
    remainder,
)
from discreet.audits import audit
from discreet.audits import colluders as audits_colluders
from discreet.audits.table import AUDITS
from discreet.data.partition import Partition
from discreet.schemes import ConfinedGradientDescent
from discreet.simulation import simulate
from federations import dataset, deal, experiment, federation

COLUMNS = (np.array([0, 2, 5]), np.array([1, 3, 4]))
BLOBS = dataset()


def grid():
    return Partition(deal().order, deal((20, 15, 24)).offsets, COLUMNS)


def audited(tmp_path, scheme, partition, rounds=6, data=BLOBS, widths=(5,), **changes):
    folder = tmp_path / "run"
    chosen = experiment(scheme, rounds=rounds, widths=widths, **changes)
    simulate(chosen, data=data, partition=partition, out=folder)
    made = audit(folder, data=data, partition=partition, attacks=["colluders"])
    return {(one["attack"], one["figure"]): one for one in made.record["audits"]["colluders"]["findings"]}


def test_formulas_by_hand():
    then, now = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 0.0])
    told = model_from_another_time(torch.tensor([10.0, 20.0]), then, now)
    assert told.tolist() == [10.5, 18.0]
    assert model_by_displacement(now).tolist() == now.tolist()
    left = remainder(torch.tensor([10, 20]), [torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert left.tolist() == [6.0, 14.0]


def test_a_rows_features_are_solved_for_whatever_the_first_models_were():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    first = 10 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    moved = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    sums = [features @ (first + one).T for one in moved]
    torch.testing.assert_close(features_of_row(sums, moved), features)
    # one difference of 3 hidden units cannot tell 4 features
    few = features_of_row(sums[:2], moved[:2])
    assert float((few - features).norm() / features.norm()) > 0.1


@pytest.mark.parametrize("secure", ["none", "additive"])
def test_what_is_left_of_a_total_shrinks_to_one_participants_gradient(secure, tmp_path):
    found = audited(tmp_path, ConfinedGradientDescent(initial_scale=0.1), deal(), secure=secure)
    gradient = "relative error of its gradient"
    # 7 hold examples: the target, and 6 who may collude
    errors = [
        found[f"{count} colluder{'s' * (count > 1)} and the aggregator{last}", gradient]["measured"]
        for count, last in ((1, ""), (2, ""), (5, ""), (6, ", all others"))
    ]
    assert min(errors[:3]) > 0.1
    assert errors[-1] < 1e-5
    alone = found.get(("the aggregator, sums in the clear", gradient))
    assert (alone is None) == (secure == "additive")
    assert alone is None or alone["measured"] == 0


def test_of_many_participants_all_chosen_numbers_of_colluders_guess(tmp_path, monkeypatch):
    """7 hold examples: of 1, 2, 5 and 6 colluders those are left that are few enough, and none of them is everybody."""
    monkeypatch.setattr(audits_colluders, "MOST", 3)
    found = audited(tmp_path, ConfinedGradientDescent(initial_scale=0.1), deal())
    counts = {attack for attack, _ in found if "the mean" in attack}
    assert counts == {"1 colluder: the mean of their models", "2 colluders: the mean of their models"}


def test_in_a_single_row_nobody_is_elsewhere(tmp_path):
    single = Partition(deal().order[:20], deal((20,)).offsets, COLUMNS)
    found = audited(tmp_path, ConfinedGradientDescent(learning_rate=0.3), single, rounds=1)
    assert {attack for attack, _ in found} == {"who adds up pre-activations and gradients"}


def test_models_stay_as_far_apart_as_they_were_drawn(tmp_path):
    found = audited(
        tmp_path, ConfinedGradientDescent(learning_rate=0.3, initial_scale=0.5), deal(), rounds=20
    )
    once = found["who knows the model of one round", "relative error of that of a later one"]
    assert once["measured"] < 1e-6 < 0.1 < once["chance"]
    blind = found["anybody: how far all have moved", "relative error of its model"]
    # by hand: w = w_1 + D, and the guess is D
    fed = federation(ConfinedGradientDescent(learning_rate=0.3, initial_scale=0.5), BLOBS, rounds=20)
    run = simulate(fed.experiment, data=BLOBS, partition=deal())
    own = fed.scheme.confined(fed.task, fed.scheme.init(fed.task), 7)
    assert blind["measured"] == pytest.approx(float(own.norm() / run.confined(7).norm()), rel=1e-3)


def test_predictions_are_not_confined(tmp_path):
    """With small first models, anybody's guess predicts as the target does."""
    scheme = ConfinedGradientDescent(learning_rate=0.5, initial_scale=0.02)
    found = audited(tmp_path, scheme, deal(), rounds=100)
    figure = "share of predictions like its own"
    for name in ("anybody: how far all have moved", "1 colluder: the mean of their models"):
        assert found[name, figure]["measured"] > 0.9 > found[name, figure]["chance"]
        assert found[name, figure]["promise"] == "nothing"


def test_of_a_regression_the_errors_of_predictions_are_told(tmp_path):
    scheme = ConfinedGradientDescent(learning_rate=0.1, initial_scale=0.02)
    found = audited(tmp_path, scheme, deal(), rounds=60, data=dataset(classes=0), widths=())
    one = found["anybody: how far all have moved", "relative error of its predictions"]
    assert one["measured"] < 0.1 < one["chance"]


@pytest.mark.parametrize("secure", ["none", "additive"])
def test_rows_are_solved_for_by_both_who_can(secure, tmp_path):
    """The planted truth; a row's participant and one of the other column need no aggregator."""
    scheme = ConfinedGradientDescent(initial_scale=0.1, largest_activation=16.0, largest_gradient=16.0)
    found = audited(tmp_path, scheme, grid(), secure=secure, widths=(12,))
    assert {name for name, _ in found} == {
        "who adds up pre-activations and gradients",
        "one of the row, 1 colluder elsewhere",
    }
    for one in found.values():
        assert one["measured"] < 0.01 < 0.5 < one["chance"]


def test_what_it_says_nothing_about():
    fits = AUDITS["colluders"].fits
    assert "confined" in fits(federation("fedavg", BLOBS))
    alone = ConfinedGradientDescent(forward="independent")
    assert "no sums" in fits(federation(alone, BLOBS, partition=grid()))
    batches = ConfinedGradientDescent(batch_size=2)
    assert "other examples" in fits(federation(batches, BLOBS, partition=grid()))
    assert fits(federation(batches, BLOBS)) is None
    lonely = ConfinedGradientDescent()
    assert "nobody else" in fits(federation(lonely, BLOBS, sizes=(30, 0)))
