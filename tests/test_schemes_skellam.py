"""Skellam noise instead of discrete Gaussian noise, from one share to whole runs."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet import ConfigError, Experiment, Privacy, simulate
from discreet.config import from_table, to_table
from discreet.errors import RunFolderError
from discreet.privacy.accounting import spent
from discreet.privacy.noise import DiscreteGaussian
from discreet.privacy.noise import Skellam as SkellamNoise
from discreet.privacy.promise import Promise
from discreet.privacy.releases import FixedSize, Ledger, Poisson, Released, Skellam
from discreet.privacy.words import SeededWords
from federations import assert_same_run, dataset, deal, experiment, federation, play, same_bits, scheme

DATA = dataset()
CLIENTS = list(range(8))
PRIVATE = {
    "dp-fedavg": scheme("dp-fedavg"),
    "adaptive": scheme("dp-fedavg", clip="adaptive"),
    "median": scheme("dp-fedavg", clip="median"),
    "dp-signfed": scheme("dp-signfed"),
}

every_private = pytest.mark.parametrize("name", PRIVATE)


def skellam(noise_multiplier=2.0, **others):
    return Privacy(noise_multiplier=noise_multiplier, noise="skellam", **others)


def run(name, privacy=None, **changes):
    chosen = experiment(PRIVATE[name], privacy=privacy or skellam(), **changes)
    return simulate(chosen, data=DATA, partition=deal())


def sensitivities(name):
    """Of the network of 53 parameters that is used here: L1 and L2 by hand."""
    n = 6 * 5 + 5 + 5 * 3 + 3
    if name == "dp-signfed":
        return n, math.sqrt(n)
    if name == "adaptive":
        update = 64 * math.sqrt(n)
        joint = math.hypot(update, math.floor(update / 3))
        return math.sqrt(n + 1) * joint, joint
    return 64 * n, 64 * math.sqrt(n)


def silent_totals(name, rounds):
    """Totals of noise alone, of clients who have no examples."""
    fed = federation(PRIVATE[name], DATA, partition=deal([0] * 8), privacy=skellam())
    # the clip norm is known: in its first round the median of nothing would be looked for
    return torch.cat(
        [play(fed, [CLIENTS], round=round).totals[0].values for round in range(1, rounds + 1)]
    ).double()


# ---- the noise


@pytest.mark.parametrize("participants", [1, 7, 100])
def test_a_share_has_its_part_of_the_variance(participants):
    one = Promise(1.0, FixedSize(100, 100), 100, 100, noise="skellam")
    share = one.share(30.0, participants)
    assert isinstance(share, SkellamNoise)
    assert participants * share.variance == pytest.approx(900)


def test_a_promise_of_other_noise_is_refused():
    with pytest.raises(ConfigError, match=r"^privacy\.noise "):
        Promise(1.0, FixedSize(9, 9), 9, 9, noise="laplace")


@every_private
def test_the_total_s_noise_has_the_promised_deviation(name):
    """Over 20 rounds; false alarm 1e-6 (chi-squared, both sides)."""
    totals = silent_totals(name, 20)
    variance = (2.0 * sensitivities(name)[1]) ** 2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(totals))
    assert low < float((totals**2).sum()) / variance < high
    assert abs(float(totals.mean())) < stats.norm.isf(5e-7) * math.sqrt(variance / len(totals))


def test_eight_shares_add_up_to_the_law_itself():
    """Chi-squared of 2,120 totals of 8 shares against Skellam's masses; false alarm 1e-6."""
    fed = federation("dp-signfed", DATA, partition=deal([0] * 8), privacy=skellam(0.25))
    totals = np.concatenate(
        [play(fed, [CLIENTS], round=round).totals[0].values.numpy() for round in range(1, 41)]
    )
    half = (
        0.25 * math.sqrt(53)
    ) ** 2 / 2  # variance 3.3, of which each of the two Poisson variables has half
    edges = np.arange(-5, 6)
    law = stats.skellam(half, half)
    inner = law.pmf(edges)
    wanted = len(totals) * np.concatenate([[law.cdf(-6)], inner, [law.sf(5)]])
    found = np.array([(totals < -5).sum(), *[(totals == edge).sum() for edge in edges], (totals > 5).sum()])
    assert len(totals) == 2120 and wanted.min() > 2
    assert stats.chisquare(found, wanted).pvalue > 1e-6


@given(st.floats(0.3, 1e6))
def test_the_modulus_has_room_for_the_heavier_tail(deviation):
    """Chernoff's bound for Skellam: exp(-t asinh(t / v) + sqrt(v^2 + t^2) - v) is at most that of 12 deviations."""
    one = Promise(1.0, FixedSize(9, 9), 9, 9, noise="skellam")
    v, t = deviation**2, one.tail(deviation) * deviation
    # sqrt(v^2 + t^2) - v, without the cancellation of large numbers
    exponent = -t * math.asinh(t / v) + t**2 / (math.sqrt(v**2 + t**2) + v)
    assert exponent <= -72 * (1 - 1e-6)
    if deviation > 1000:
        assert one.tail(deviation) < 12.03
    assert Promise(1.0, FixedSize(9, 9), 9, 9).tail(deviation) == 12


# ---- the ledger


@every_private
@pytest.mark.parametrize(
    ("sampling", "fraction", "drawn"),
    [("poisson", 0.4, Poisson(0.4)), ("fixed", 0.4, FixedSize(3, 8)), ("fixed", 1.0, FixedSize(8, 8))],
)
def test_the_result_s_epsilon_is_the_accountant_s(name, sampling, fraction, drawn):
    result = run(name, skellam(delta=1e-3), sampling=sampling, fraction=fraction)
    l1, l2 = sensitivities(name)
    wanted = spent(Ledger().add(Released(drawn, Skellam(2.0, l1, l2)), 3), 1e-3)
    privacy = result.result["privacy"]
    assert privacy["epsilon"] == pytest.approx(wanted.epsilon, rel=1e-9) and 0 < wanted.epsilon < math.inf
    assert (privacy["noise"], privacy["releases"], privacy["accountant"]) == ("skellam", 3, "rdp")
    assert math.isfinite(result.final["loss"])


@every_private
def test_a_budget_alone_is_enough_for_all_rounds(name):
    result = run(name, Privacy(epsilon=4.0, delta=1e-3, noise="skellam", accountant="best"), rounds=5)
    assert len(result.metrics) == 5
    privacy = result.result["privacy"]
    assert 0.97 * 4.0 < privacy["epsilon"] <= 4.0 and privacy["accountant"] == "rdp"


# ---- whole runs


@every_private
def test_neither_masks_nor_stacks_change_anything(name):
    clear = run(name)
    assert_same_run(clear, run(name, lanes=8))
    assert same_bits(clear.vector, run(name, secure="masked").vector)


@pytest.mark.parametrize(
    ("noise", "law"), [("skellam", SkellamNoise), ("discrete-gaussian", DiscreteGaussian)]
)
def test_what_a_client_adds_is_the_noise_that_was_asked_for(noise, law):
    privacy = Privacy(noise_multiplier=0.25, noise=noise)
    fed = federation("dp-signfed", DATA, partition=deal([0] * 8), privacy=privacy)
    played = play(fed, [CLIENTS])
    share = law(0.25 * math.sqrt(53) / math.sqrt(8))
    for client in CLIENTS:
        wanted = share.sample(SeededWords(fed.task.randomness, 1, client), 53)
        assert played.given[0][client][0].tolist() == wanted.tolist()


def test_a_run_by_the_command_line(inside, tmp_path):
    settings = {
        "scheme.name": "dp-fedavg",
        "scheme.clip": "adaptive",
        "scheme.steps": "2",
        "data.clients": "9",
        "rounds": "2",
        "secure": "none",
        "privacy.noise_multiplier": "2.0",
        "privacy.noise": "skellam",
    }
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    ended = inside("run", "digits-dp-signfed", *changes, "--out", "run", "--quiet", "--json", cwd=tmp_path)
    result = json.loads(ended.out)
    assert ended.code == 0 and result["scheme"] == "dp-fedavg"
    assert result["privacy"]["noise"] == "skellam" and result["privacy"]["releases"] == 2
    config = (tmp_path / "run" / "config.toml").read_text("utf-8")
    assert 'noise = "skellam"' in config and 'clip = "adaptive"' in config


def test_a_run_is_not_resumed_with_other_noise(tmp_path):
    given = {"data": DATA, "partition": deal(), "out": tmp_path / "run"}
    simulate(experiment("dp-fedavg", privacy=skellam()), **given)
    with pytest.raises(RunFolderError, match=r"privacy\.noise") as caught:
        simulate(experiment("dp-fedavg", privacy=Privacy(noise_multiplier=2.0)), **given, resume=True)
    assert "'skellam'" in str(caught.value)


def test_the_noise_goes_to_toml_and_back():
    chosen = experiment("dp-fedavg", privacy=skellam())
    assert to_table(chosen)["privacy"]["noise"] == "skellam" and from_table(to_table(chosen)) == chosen


# ---- what is refused


@pytest.mark.parametrize(
    ("privacy", "key"),
    [
        ({"noise": "laplace"}, "privacy.noise"),
        ({"noise": "skellam", "accountant": "pld"}, "privacy.accountant"),
    ],
)
def test_what_is_refused_is_named(privacy, key):
    with pytest.raises(ConfigError) as caught:
        from_table({"scheme": {"name": "dp-signfed"}, "privacy": {"epsilon": 1.0, **privacy}})
    assert str(caught.value).startswith(f"{key} ") and "\n" not in str(caught.value)


def test_an_accountant_without_a_theory_is_refused_before_the_first_round(tmp_path):
    """Loss distributions do not cover cohorts of fixed size: without a budget nothing else would ask before the end."""
    chosen = experiment("dp-fedavg", fraction=0.5, privacy=Privacy(noise_multiplier=2.0, accountant="pld"))
    assert isinstance(chosen, Experiment)
    with pytest.raises(ConfigError, match=r"^privacy\.accountant "):
        simulate(chosen, data=DATA, partition=deal(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
