"""Accounting against dp-accounting, published numbers, and divergences computed by brute force."""

import json
import logging
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive, logsumexp
from scipy.stats import norm

from discreet.errors import ConfigError
from discreet.privacy import renyi
from discreet.privacy.accounting import adjacency_of, spent
from discreet.privacy.calibration import calibrate, rounds_within
from discreet.privacy.releases import (
    NOTHING,
    DiscreteGaussianSum,
    FixedSize,
    Gaussian,
    Ledger,
    Poisson,
    Released,
    Skellam,
)

DELTA = 1e-5


@pytest.fixture(autouse=True)
def silence():
    """dp-accounting complains through absl's log, which pytest's filters do not see: every test must leave it empty."""
    heard = []

    class Listener(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())

    listener = Listener()
    logger = logging.getLogger("absl")
    logger.addHandler(listener)
    yield
    logger.removeHandler(listener)
    assert heard == []


def ledger(sampling, noise, rounds):
    return Ledger().add(Released(sampling, noise), rounds)


def poisson(probability, sigma, rounds):
    return ledger(Poisson(probability), Gaussian(sigma), rounds)


# Equal to dp-accounting


@pytest.mark.parametrize(
    ("q", "sigma", "rounds"), [(0.1, 1.196, 200), (0.01, 0.8, 3000), (0.3, 5.0, 50), (1.0, 7.0, 40)]
)
def test_rdp_equals_dp_accounting(q, sigma, rounds):
    direct = rdp.RdpAccountant(list(renyi.ORDERS))
    event = dp.GaussianDpEvent(sigma)
    direct.compose(event if q == 1 else dp.PoissonSampledDpEvent(q, event), rounds)
    # interpolated orders may replace the series where that is tighter, so never above
    ours = spent(poisson(q, sigma, rounds), DELTA).epsilon
    assert ours <= direct.get_epsilon(DELTA) * (1 + 1e-12)
    assert ours == pytest.approx(direct.get_epsilon(DELTA), rel=2e-3)


def test_fixed_size_equals_dp_accounting_with_half_the_multiplier():
    direct = rdp.RdpAccountant(list(range(2, 33)), dp.NeighboringRelation.REPLACE_ONE)
    direct.compose(dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(2.0)), 200)
    ours = spent(ledger(FixedSize(100, 1000), Gaussian(4.0), 200), DELTA)
    assert ours.epsilon == pytest.approx(direct.get_epsilon(DELTA), rel=1e-9)
    assert ours.adjacency == "replace-one"


def test_pld_equals_dp_accounting():
    direct = pld.PLDAccountant()
    direct.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.237)), 200)
    assert spent(poisson(0.1, 3.237, 200), DELTA, "pld").epsilon == direct.get_epsilon(DELTA)


def test_mixed_ledgers_compose():
    direct = rdp.RdpAccountant(list(renyi.ORDERS))
    direct.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(2.0)), 100)
    direct.compose(dp.GaussianDpEvent(30.0))
    mixed = poisson(0.05, 2.0, 100).add(Released(Poisson(1.0), Gaussian(30.0)))
    assert spent(mixed, DELTA).epsilon == pytest.approx(direct.get_epsilon(DELTA), rel=1e-9)
    assert spent(mixed, DELTA).noise_multiplier == 2.0


# Published numbers


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 10.99), (1, 5.889), (2, 3.237), (4, 1.881), (8, 1.196)])
def test_table_of_noise_for_200_rounds(epsilon, sigma):
    assert calibrate(epsilon, DELTA, 200, Poisson(0.1)) == pytest.approx(sigma, rel=5e-4)


@pytest.mark.parametrize(
    ("sigma", "epochs", "published", "digits"),
    [
        (1.12, 60, 2.92, 0.005),  # tutorials of TensorFlow Privacy, MNIST, the three rows of its table
        (0.6, 30, 9.74, 0.005),
        (1.2, 10, 1.20, 0.005),
        (1.3, 20, 1.34, 0.005),  # Bu, Dong, Long, Su 2020, figure 4
        (0.7, 70, 8.68, 0.005),
    ],
)
def test_dp_sgd_on_mnist_as_published(sigma, epochs, published, digits):
    steps = round(epochs * 60_000 / 256)
    curve = steps * renyi.poisson_gaussian(256 / 60_000, sigma)
    # those publications convert by epsilon = rdp + log(1/delta) / (order - 1); today's conversion gives less
    orders = np.array(renyi.ORDERS)
    classical = (curve - math.log(DELTA) / (orders - 1)).min()
    assert classical == pytest.approx(published, rel=1e-2)  # their orders differ from ours
    assert spent(poisson(256 / 60_000, sigma, steps), DELTA).epsilon < published + digits


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("sigma", "rounds"), [(3.73, 1), (20.0, 9)])
def test_pld_without_sampling_is_the_analytic_gaussian_mechanism(sigma, rounds, adjacency):
    """Balle and Wang 2018, theorem 8, at the epsilon that the accountant states."""
    found = spent(poisson(1.0, sigma, rounds), DELTA, "pld", adjacency).epsilon
    mu = math.sqrt(rounds) / sigma * (2 if adjacency == "replace-one" else 1)
    delta = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(DELTA, rel=5e-3)
    assert delta <= DELTA * (1 + 1e-6)


# Laws


@settings(max_examples=4, deadline=None)
@given(q=st.floats(0.01, 0.3), sigma=st.floats(3, 20), rounds=st.integers(1, 300))
def test_pld_is_never_above_rdp(q, sigma, rounds):
    book = poisson(q, sigma, rounds)
    by_rdp, by_pld = spent(book, DELTA), spent(book, DELTA, "pld")
    assert by_pld.epsilon <= by_rdp.epsilon * (1 + 1e-3) + 1e-3
    assert spent(book, DELTA, "best").epsilon == min(by_rdp.epsilon, by_pld.epsilon)


@settings(max_examples=7, deadline=None)
@given(q=st.floats(1e-3, 1), sigma=st.floats(0.3, 100), rounds=st.integers(1, 10_000))
def test_epsilon_falls_with_noise_and_rises_with_rounds_and_sampling(q, sigma, rounds):
    epsilon = spent(poisson(q, sigma, rounds), DELTA).epsilon
    slack = 1e-9 + 1e-9 * epsilon
    assert spent(poisson(q, sigma * 1.1, rounds), DELTA).epsilon <= epsilon + slack
    assert spent(poisson(q, sigma, rounds + 1), DELTA).epsilon >= epsilon - slack
    assert spent(poisson(q / 2, sigma, rounds), DELTA).epsilon <= epsilon + slack
    assert spent(poisson(q, sigma, rounds), DELTA / 10).epsilon >= epsilon - slack


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.1, 0.45, 0.5, 0.55, 0.9, 0.9999])
def test_no_choice_of_noise_makes_dp_accounting_warn(q):
    for sigma in (0.01, 0.3, 0.8, 1.2, 3, 7.99, 50, 1e4):
        curve = renyi.poisson_gaussian(q, sigma)
        assert np.isfinite(curve).all()
        # divergences do not fall with the order, up to rounding
        assert (np.diff(curve) >= -1e-9 * curve[1:] - 1e-13).all()


@settings(max_examples=4, deadline=None)
@given(epsilon=st.floats(0.2, 12), rounds=st.integers(1, 2000), q=st.floats(0.005, 1))
def test_calibration_is_tight_and_keeps_its_promise(epsilon, rounds, q):
    sigma = calibrate(epsilon, DELTA, rounds, Poisson(q), tolerance=1e-3)
    assert spent(poisson(q, sigma, rounds), DELTA).epsilon <= epsilon
    assert spent(poisson(q, sigma / 1.0011, rounds), DELTA).epsilon > epsilon
    assert calibrate(epsilon, DELTA, rounds, Poisson(q), tolerance=1e-3) == sigma


def test_calibration_by_pld_needs_less_noise_and_keeps_its_promise():
    least = calibrate(0.5, DELTA, 50, Poisson(0.1), accountant="best", tolerance=3e-3)
    assert least < 0.96 * calibrate(0.5, DELTA, 50, Poisson(0.1), tolerance=3e-3)
    assert 0.497 < spent(poisson(0.1, least, 50), DELTA, "pld").epsilon <= 0.5


def test_calibration_leaves_room_for_what_was_released_before():
    before = poisson(1.0, 20.0, 1)
    sigma = calibrate(1.0, DELTA, 100, Poisson(0.1), before=before)
    assert sigma > calibrate(1.0, DELTA, 100, Poisson(0.1))
    assert spent(before.add(Released(Poisson(0.1), Gaussian(sigma)), 100), DELTA).epsilon <= 1.0


def test_a_budget_that_is_spent_already_is_refused():
    with pytest.raises(ConfigError, match="budget"):
        calibrate(0.5, DELTA, 10, Poisson(0.1), before=poisson(1.0, 1.0, 1))


@pytest.mark.parametrize("accountant", ["rdp", "best"])
def test_rounds_within_a_budget_are_the_most_that_fit(accountant):
    released = Released(Poisson(0.1), Gaussian(12.0))
    before = poisson(1.0, 40.0, 1)
    count = rounds_within(0.3, DELTA, released, before=before, accountant=accountant)
    assert count > 10
    assert spent(before.add(released, count), DELTA, accountant).epsilon <= 0.3
    assert spent(before.add(released, count + 1), DELTA, accountant).epsilon > 0.3


def test_rounds_within_the_table_and_at_the_ends():
    # 10.991 is just enough for 200 rounds, by the table
    assert rounds_within(0.5, DELTA, Released(Poisson(0.1), Gaussian(10.991))) == 200
    assert rounds_within(0.5, DELTA, Released(Poisson(1.0), Gaussian(1.0))) == 0
    assert rounds_within(8.0, DELTA, Released(Poisson(0.001), Gaussian(50.0)), limit=77) == 77


# The ledger


def test_a_ledger_counts_equal_releases_in_any_order():
    a, b = Released(Poisson(0.1), Gaussian(2.0)), Released(Poisson(1.0), Gaussian(9.0))
    assert Ledger().add(a).add(b).add(a) == Ledger().add(a, 2).add(b)
    assert Ledger().add(a).add(b).add(a).releases == 3
    assert Ledger().add(a, 0) == NOTHING


@pytest.mark.parametrize(
    "noise",
    [Gaussian(1.1), DiscreteGaussianSum(2.5, 398.8, 159_010, 90), Skellam(0.7, 159_010, 398.8)],
    ids=lambda noise: noise.mechanism,
)
@pytest.mark.parametrize("sampling", [Poisson(0.123456789), FixedSize(7, 70)], ids=["poisson", "fixed"])
def test_epsilon_survives_a_checkpoint(sampling, noise):
    book = ledger(sampling, noise, 17).add(Released(Poisson(1.0), Gaussian(50.0)))
    back = Ledger.from_facts(json.loads(json.dumps(book.to_facts())))
    assert back == book
    assert back.entries[0][0].mechanism == noise.mechanism


@pytest.mark.parametrize(
    "damage",
    [
        {"count": 0},
        {"count": True},
        {"count": "3"},
        {"noise": {"mechanism": "laplace", "noise_multiplier": 1.0}},
        {"noise": {"mechanism": "gaussian"}},
        {"noise": {"mechanism": "gaussian", "noise_multiplier": "much"}},
        {"sampling": {"kind": "poisson", "probability": 0.1, "extra": 1}},
        {"sampling": None},
    ],
)
def test_damaged_facts_are_refused(damage):
    with pytest.raises(ConfigError, match="ledger"):
        Ledger.from_facts([{**poisson(0.1, 1.0, 3).to_facts()[0], **damage}])


def test_nothing_released_costs_nothing():
    for accountant in ("rdp", "pld", "best"):
        nothing = spent(NOTHING, DELTA, accountant)
        assert (nothing.epsilon, nothing.releases, nothing.noise_multiplier) == (0.0, 0, None)


# Refusals


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("privacy.adjacency", lambda: spent(poisson(0.1, 1.0, 1), DELTA, "rdp", "replace-one")),
        ("privacy.adjacency", lambda: spent(poisson(0.1, 1.0, 1), DELTA, "pld", "replace-one")),
        (
            "privacy.adjacency",
            lambda: spent(ledger(FixedSize(1, 2), Gaussian(1.0), 1), DELTA, "rdp", "add-remove"),
        ),
        ("privacy.adjacency", lambda: spent(poisson(0.1, 1.0, 1), DELTA, "rdp", "remove")),
        ("privacy.accountant", lambda: spent(ledger(FixedSize(1, 2), Gaussian(1.0), 1), DELTA, "pld")),
        ("privacy.accountant", lambda: spent(ledger(Poisson(0.1), Skellam(1.0, 9, 3), 1), DELTA, "pld")),
        ("privacy.accountant", lambda: spent(poisson(0.1, 1.0, 1), DELTA, "moments")),
        (
            "privacy.adjacency",
            lambda: spent(poisson(0.1, 1.0, 1).add(Released(FixedSize(1, 2), Gaussian(1.0))), DELTA),
        ),
        ("privacy.delta", lambda: spent(NOTHING, 0.0)),
        ("privacy.delta", lambda: spent(NOTHING, 1.0)),
        ("privacy.epsilon", lambda: calibrate(0.0, DELTA, 1, Poisson(0.1))),
        ("rounds", lambda: calibrate(1.0, DELTA, 0, Poisson(0.1))),
        ("privacy.noise_multiplier", lambda: Gaussian(0.0)),
        ("privacy.noise_multiplier", lambda: Skellam(math.nan, 1, 1)),
        ("fraction", lambda: Poisson(1.5)),
        ("fraction", lambda: Poisson(0.0)),
        ("cohort", lambda: FixedSize(11, 10)),
        ("dimension", lambda: DiscreteGaussianSum(1.0, 1.0, 0, 1)),
        ("count", lambda: NOTHING.add(Released(Poisson(0.1), Gaussian(1.0)), -1)),
    ],
)
def test_what_no_theory_covers_is_refused_by_name(key, call):
    with pytest.raises(ConfigError) as refusal:
        call()
    assert refusal.value.key == key


def test_everyone_taking_part_has_both_adjacencies():
    whole = ledger(FixedSize(10, 10), Gaussian(8.0), 3)
    assert adjacency_of(whole) == "add-remove"
    assert spent(whole, DELTA).epsilon == spent(poisson(1.0, 8.0, 3), DELTA).epsilon
    assert (
        spent(whole, DELTA, "best", "replace-one").epsilon
        == spent(poisson(1.0, 4.0, 3), DELTA, "best").epsilon
    )


# Discrete noise, by brute force


def discrete_gaussian(std, reach=400):
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * std**2))
    return weights / weights.sum()


def sum_of(share, shares):
    total = share
    for _ in range(shares - 1):
        total = np.convolve(total, share)
    return total


def divergence(p, q, order):
    both = (p > 1e-290) & (q > 1e-290)
    return float(logsumexp(order * np.log(p[both]) + (1 - order) * np.log(q[both]))) / (order - 1)


def neighbours(noise, shift, q):
    without = np.pad(noise, shift)
    moved = np.roll(without, shift)
    return (1 - q) * without + q * moved, without


@pytest.mark.parametrize("std", [0.5, 0.6, 0.75, 1.0])
@pytest.mark.parametrize("shares", [2, 3, 5])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_stated(std, shares):
    total = sum_of(discrete_gaussian(std, 60), shares)
    one = discrete_gaussian(std * math.sqrt(shares), (len(total) - 1) // 2)
    middle = np.abs(np.arange(len(total)) - len(total) // 2) <= 6 * std * math.sqrt(shares)
    off = np.abs(np.log(total[middle] / one[middle])).max()
    bound = renyi.correction_of_sum(shares, std, 1) / 2
    assert off <= bound + 1e-13
    if shares == 2:
        assert off > bound / 3  # the bound is of the right size, so a slip in its exponent would show


def test_the_correction_of_a_sum_by_hand():
    # 10 (exp(-2 pi^2 s^2 / 2) + exp(-2 pi^2 s^2 2/3)) for three shares, times the dimension
    by_hand = 10 * (math.exp(-(math.pi**2) * 0.49) + math.exp(-4 / 3 * math.pi**2 * 0.49))
    assert renyi.correction_of_sum(3, 0.7, 11) == pytest.approx(11 * by_hand, rel=1e-12)
    assert renyi.correction_of_sum(1, 0.1, 11) == 0.0
    assert renyi.correction_of_sum(2, 0.49, 11) == math.inf
    assert renyi.correction_of_sum(100, 20.0, 10**7) == 0.0


@pytest.mark.parametrize("q", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("std", "shares", "shift"), [(0.5, 2, 1), (0.6, 3, 1), (1.0, 4, 2), (3.0, 2, 1)])
def test_curves_bound_sums_of_discrete_gaussians(std, shares, shift, q):
    total = std * math.sqrt(shares)
    noise = DiscreteGaussianSum(total / shift, shift, 1, shares)
    multiplier = noise.noise_multiplier * math.sqrt(renyi.from_integers(noise.std, 1)[0])
    correction = renyi.from_integers(noise.std, 1)[1] + noise.correction
    plain = renyi.gaussian(multiplier) if q == 1 else renyi.poisson_gaussian(q, multiplier)
    curve = dict(zip(renyi.ORDERS, renyi.with_correction(plain, correction), strict=True))
    with_it, without = neighbours(sum_of(discrete_gaussian(std, 60), shares), shift, q)
    for order in (2.0, 2.2, 3.0, 4.6, 8.0):
        assert divergence(with_it, without, order) <= curve[order]
        assert divergence(without, with_it, order) <= curve[order]


@pytest.mark.parametrize(("std", "shares", "q"), [(0.8, 2, 1.0), (1.0, 6, 1.0), (1.0, 6, 0.2)])
def test_loss_distributions_bound_sums_of_discrete_gaussians(std, shares, q):
    book = ledger(Poisson(q), DiscreteGaussianSum(std * math.sqrt(shares), 1, 1, shares), 1)
    with_it, without = neighbours(sum_of(discrete_gaussian(std, 60), shares), 1, q)
    for delta in (1e-1, 1e-4):
        epsilon = spent(book, delta, "pld").epsilon
        assert np.maximum(with_it - math.exp(epsilon) * without, 0).sum() <= delta
        assert np.maximum(without - math.exp(epsilon) * with_it, 0).sum() <= delta


def test_discrete_noise_of_usual_size_costs_what_continuous_noise_costs():
    n = 159_010
    discrete = ledger(Poisson(0.1), DiscreteGaussianSum(5.889, math.sqrt(n), n, 90), 200)
    for accountant in ("rdp", "pld"):
        plain = spent(poisson(0.1, 5.889, 200), DELTA, accountant).epsilon
        assert plain <= spent(discrete, DELTA, accountant).epsilon <= plain * (1 + 1e-4)


def test_shares_too_small_for_the_bound_promise_nothing():
    tiny = ledger(Poisson(0.1), DiscreteGaussianSum(0.4, 1.0, 1, 2), 1)
    for accountant in ("rdp", "pld", "best"):
        assert spent(tiny, DELTA, accountant).epsilon == math.inf
    assert spent(tiny, DELTA).to_dict()["epsilon"] is None


def skellam_pmf(variance, reach):
    x = np.arange(-reach, reach + 1)
    return ive(np.abs(x), variance)


@pytest.mark.parametrize("variance", [1.0, 4.0, 30.0])
@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("q", [0.1, 1.0])
def test_curves_bound_skellam_noise(variance, shift, q):
    curve = (
        renyi.skellam(shift, shift, variance)
        if q == 1
        else renyi.sampled_skellam(q, False, shift, shift, variance)
    )
    at = dict(zip(renyi.ORDERS, curve, strict=True))
    with_it, without = neighbours(skellam_pmf(variance, 90), shift, q)
    for order in (2.0, 2.6, 3.0, 5.0, 9.0):
        exact = divergence(with_it, without, order)
        assert exact <= at[order]
        assert divergence(without, with_it, order) <= at[order]
        if variance == 30 and order >= 2 and order.is_integer():
            assert exact > 0.5 * at[order]  # tight enough to be of use


@pytest.mark.parametrize("q", [1 / 3, 0.5])
def test_curves_bound_skellam_noise_behind_cohorts_of_constant_size(q):
    # three or two clients, one drawn; the first has 0 or, replaced, 1, and the others have 0
    noise = skellam_pmf(6.0, 90)
    one, other = neighbours(noise, 1, q)
    at = dict(zip(renyi.ORDERS, renyi.sampled_skellam(q, True, 1, 1, 6.0), strict=True))
    for order in (2.0, 3.0, 8.0):
        assert max(divergence(one, other, order), divergence(other, one, order)) <= at[order]


def test_skellam_noise_of_usual_size_costs_what_gaussian_noise_costs():
    n = 159_010
    by_skellam = spent(ledger(Poisson(0.1), Skellam(5.889, n, math.sqrt(n)), 200), DELTA).epsilon
    assert by_skellam == pytest.approx(spent(poisson(0.1, 5.889, 200), DELTA).epsilon, rel=1e-3)


def test_skellam_noise_without_sampling_is_calibrated():
    # with l1 = l2 = 1 and variance z^2: the bound at each whole order, by hand
    z = calibrate(1.0, DELTA, 1, Poisson(1.0), noise=lambda z: Skellam(z, 1, 1))
    curve = [a / (2 * z**2) + min((2 * a + 5) / (4 * z**4), 3 / (2 * z**2)) for a in range(2, 65)]
    epsilon = min(
        r + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1)
        for a, r in zip(range(2, 65), curve, strict=True)
    )
    assert epsilon == pytest.approx(1.0, abs=3e-4)


def test_calibration_passes_over_shares_that_promise_nothing():
    # shares of a standard deviation below 1/2 promise nothing: the multiplier must be above sqrt(100) / 2
    found = calibrate(20.0, DELTA, 1, Poisson(1.0), noise=lambda z: DiscreteGaussianSum(z, 1, 1, 100))
    assert found > 5.0
    assert spent(ledger(Poisson(1.0), DiscreteGaussianSum(found, 1, 1, 100), 1), DELTA).epsilon <= 20.0
