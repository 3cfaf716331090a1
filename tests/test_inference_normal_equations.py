"""X^T X and X^T y of a linear regression, from what is seen of its training."""

import json

import numpy as np
import pytest
import torch

from discreet.adversaries.inference.leaks import Leak
from discreet.adversaries.inference.normal_equations import columns, parameters, recovered
from discreet.audits import audit
from discreet.audits.normal_equations import ANSWERS, PLAIN, PRODUCTS, true_moments
from discreet.config import Privacy
from discreet.schemes import ConfinedGradientDescent, DPFedAvg, FedAvg, FedSGD
from discreet.simulation import simulate
from federations import dataset, deal, experiment, federation

REGRESSION = dataset(classes=0)


def planted(features=5, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, features + 1)) * np.arange(1, features + 2)
    products, answers = rows.T @ rows / 40, rng.normal(size=(features + 1, outputs))
    return torch.from_numpy(products), torch.from_numpy(answers)


def seen(products, answers, count, seed=1):
    rng, found = np.random.default_rng(seed), []
    for round in range(1, count + 1):
        point = torch.from_numpy(rng.normal(size=answers.shape))
        slope = products @ point - answers
        found.append(Leak(round, None, parameters(point, bias=True), parameters(slope, bias=True)))
    return found


@pytest.mark.parametrize("outputs", [1, 3])
def test_both_come_back_from_a_few_gradients_at_known_models(outputs):
    products, answers = planted(outputs=outputs)
    # 6 unknown rows of A, told by one difference of models an output and round
    found = recovered(seen(products, answers, 2 + 6 // outputs), outputs, bias=True)
    torch.testing.assert_close(found.products, products)
    torch.testing.assert_close(found.answers, answers)


def test_of_too_few_only_a_part_comes_back():
    products, answers = planted(outputs=1)
    found = recovered(seen(products, answers, 3), 1, bias=True)
    assert 0.02 < float((found.products - products).norm() / products.norm()) <= 1
    torch.testing.assert_close(found.products, found.products.T)


def test_one_round_alone_gives_nothing_but_its_gradient():
    products, answers = planted(outputs=1)
    (one,) = seen(products, answers, 1)
    found = recovered([one], 1, bias=True)
    assert not found.products.any()
    torch.testing.assert_close(found.answers, -columns(one.gradient, 1, bias=True))


def test_columns_are_a_linear_layers():
    layer = torch.nn.Linear(3, 2)
    vector = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
    inputs = torch.randn(4, 3)
    extended = torch.cat([inputs, torch.ones(4, 1)], dim=1)
    torch.testing.assert_close(extended @ columns(vector, 2, bias=True), layer(inputs).detach())
    torch.testing.assert_close(parameters(columns(vector, 2, bias=True), bias=True), vector)
    plain = layer.weight.detach().flatten()
    torch.testing.assert_close(parameters(columns(plain, 2, bias=False), bias=False), plain)


def linear(chosen, rounds, **changes):
    return experiment(chosen, rounds=rounds, widths=(), eval_every=rounds, **changes)


def audited(tmp_path, chosen, **how):
    folder = tmp_path / "run"
    simulate(chosen, data=REGRESSION, partition=deal(), out=folder)
    made = audit(folder, data=REGRESSION, partition=deal(), attacks=["normal-equations"], **how)
    entry = made.record["audits"]["normal-equations"]
    return entry, {(one["attack"], one["figure"]): one for one in entry["findings"]}


@pytest.mark.parametrize(
    ("chosen", "party"), [(FedSGD(), "server"), (FedAvg(steps=1, batch_size=0), "participant:4")]
)
def test_gradient_descent_gives_both_away_added_up_or_not(chosen, party, tmp_path):
    """A participant sees the models alone, as it does where sums are secure."""
    entry, found = audited(tmp_path, linear(chosen, 40), party=party)
    for figure in (PRODUCTS, ANSWERS):
        one = found["from the sums", figure]
        assert one["measured"] < 0.01 < 0.1 < one["chance"]
        assert one["unprotected"] < 1e-3
        assert one["promise"] == "nothing"
        if party == "server":
            assert found["from one client's gradients", figure]["measured"] < 0.01
    assert ("from one client's gradients", PRODUCTS) in found or party != "server"
    assert entry["pictures"] == ["audit-normal-equations-errors.png"]
    series = entry["series"]["from the sums"]
    assert series["rounds"][0] == 2 and series["rounds"][-1] in (39, 40)
    assert series[PRODUCTS][0] > 0.1 > series[PRODUCTS][-1]
    assert entry["series"].keys() >= {PLAIN}
    json.dumps(entry["series"], allow_nan=False)


@pytest.mark.parametrize("secure", ["none", "additive"])
def test_cgd_gives_x_t_x_away_and_of_x_t_y_all_but_what_the_first_models_add(secure, tmp_path):
    """``G_k = A D_k - (b - sum_l A_l w_1^l)``: differences have no unknown model in them."""
    chosen = ConfinedGradientDescent(learning_rate=0.3, initial_scale=0.2, largest_gradient=16.0)
    fed = federation(chosen, REGRESSION, widths=(), secure=secure)
    _, found = audited(tmp_path, linear(chosen, 40, secure=secure))
    products, answers = found["from the sums", PRODUCTS], found["from the sums", ANSWERS]
    assert products["measured"] < 0.01
    assert products["promise"] == "nothing"
    whole, state = true_moments(fed, range(8)), fed.scheme.init(fed.task)
    moved = torch.zeros_like(whole.answers)
    for row in (0, 1, 3, 4, 5, 6, 7):
        own = true_moments(fed, [row])
        model = columns(fed.scheme.confined(fed.task, state, row).double(), 2, bias=True)
        moved += own.products @ model * (fed.partition.sizes[row] / fed.partition.sizes.sum())
    wanted = float(moved.norm() / whole.answers.norm())
    assert wanted > 0.02
    assert answers["measured"] == pytest.approx(wanted, rel=0.1)
    assert answers["promise"].startswith("all but")
    assert ("from one client's gradients", PRODUCTS) in found or secure == "additive"


def test_under_differential_privacy_neither_is_found(tmp_path):
    chosen = DPFedAvg(steps=1, batch_size=0, learning_rate=0.1, clip_norm=0.5)
    noisy = Privacy(noise_multiplier=1.0)
    _, found = audited(tmp_path, linear(chosen, 12, privacy=noisy, secure="masked", sampling="fixed"))
    for figure in (PRODUCTS, ANSWERS):
        one = found["from the sums", figure]
        assert one["measured"] > 0.3
        assert one["unprotected"] < 0.05
        assert "epsilon" in one["promise"]


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (FedSGD(batch_size=2), "scheme.batch_size = 0"),
        (FedAvg(steps=2), "one gradient a round"),
        (FedAvg(steps=1, batch_size=0, optimizer="adam"), "one gradient a round"),
        ("signfed", "sums of gradients"),
    ],
)
def test_what_it_says_nothing_about(chosen, why):
    from discreet.audits.table import AUDITS

    fits = AUDITS["normal-equations"].fits
    assert why in fits(federation(chosen, REGRESSION, widths=()))
    assert "linear regression" in fits(federation(chosen, REGRESSION))
    assert "linear regression" in fits(federation(chosen, dataset(), widths=()))
