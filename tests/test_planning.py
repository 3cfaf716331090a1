import json
import math

import pytest

from discreet.errors import ConfigError
from discreet.privacy.accounting import Gaussian, Ledger, Poisson, Released, spent
from discreet.privacy.planning import plan

KNOWN = {
    "parameters": 159_010,
    "delta": 1e-5,
    "clients": 1000,
    "fraction": 0.1,
    "rounds": 200,
    "epsilon": 1.0,
}


def known(**changes):
    return {name: value for name, value in {**KNOWN, **changes}.items() if value is not None}


@pytest.fixture(scope="module")
def usual():
    return plan(**KNOWN, timings={"masks": 0.25})


def test_the_plan_of_the_design(usual):
    assert usual.noise_multiplier == pytest.approx(5.889, rel=5e-4)
    assert 0.999 < usual.epsilon <= 1.0
    assert usual.epsilon_rdp == usual.epsilon
    assert usual.epsilon_pld == pytest.approx(0.911, abs=0.002)
    assert (usual.bits_sum_rule, usual.bits_paper_rule) == (16, 22)
    assert (usual.adjacency, usual.accountant, usual.cohort) == ("add-remove", "rdp", 100)
    assert usual.warnings == ()


def test_what_each_scheme_sends(usual):
    traffic = {row.scheme: row for row in usual.traffic}
    assert {name: traffic[name].bits for name in ("fedavg", "signfed", "dp-signfed")} == {
        "fedavg": 32,
        "signfed": 1,
        "dp-signfed": 16,
    }
    # 159,010 bits are 19,877 bytes, the last one not full
    assert traffic["signfed"].megabytes_a_round == pytest.approx(0.019877)
    assert traffic["fedavg"].megabytes_a_round == pytest.approx(0.63604)
    # 100 clients a round, 200 rounds; a client takes part in 20 of them
    assert traffic["fedavg"].megabytes_total == pytest.approx(0.63604 * 20_000)
    assert traffic["fedavg"].megabytes_a_client == pytest.approx(0.63604 * 20)
    # 2^16 steps: 2 (12 sigma + largest cohort of about 160) 2^16 + 1 is between 2^24 and 2^25
    assert traffic["dp-fedavg"].bits == 25


def test_the_statement_is_a_sentence(usual):
    assert usual.statement.endswith(".")
    assert "2.72 times" in usual.statement
    assert "not who took part" in usual.statement


def test_it_goes_into_json_and_into_a_table(usual):
    plain = json.loads(json.dumps(usual.to_dict(), allow_nan=False))
    assert plain["noise_multiplier"] == usual.noise_multiplier
    assert plain["traffic"][0]["scheme"] == "fedavg"
    assert plain["timings"] == {"masks": 0.25}
    rows = dict(usual.rows())
    assert rows["clients a round"] == "100 of 1000, independently"
    assert rows["masks"] == "0.25 s"


@pytest.mark.parametrize(
    "given",
    [known(fraction=None, cohort=100), known(clients=None, cohort=100), known(cohort=100)],
    ids=["cohort", "no clients", "all three"],
)
def test_any_two_of_clients_cohort_and_fraction(given):
    given = {**given, "rounds": 1, "noise_multiplier": 20.0, "epsilon": None}
    found = plan(**given, mechanism="gaussian")
    assert (found.clients, found.cohort, found.fraction) == (1000, pytest.approx(100), pytest.approx(0.1))


def test_epsilon_from_noise_and_rounds():
    found = plan(**known(epsilon=None, noise_multiplier=3.0), mechanism="gaussian")
    book = Ledger().add(Released(Poisson(0.1), Gaussian(3.0)), 200)
    assert found.epsilon == spent(book, 1e-5).epsilon
    assert found.rounds == 200


def test_rounds_from_epsilon_and_noise():
    found = plan(**known(rounds=None, epsilon=0.5, noise_multiplier=10.991), mechanism="gaussian")
    assert found.rounds == 200


def test_cohorts_of_constant_size_are_about_replacing_a_client():
    found = plan(**known(rounds=5, epsilon=None, noise_multiplier=20.0), sampling="fixed")
    assert (found.adjacency, found.epsilon_pld) == ("replace-one", None)
    assert "replacing" in found.statement
    assert dict(found.rows())["epsilon (pld)"] == "no theory"


def test_the_best_accountant_needs_less_noise():
    given = known(rounds=3, clients=100, fraction=1.0)
    found = plan(**given, mechanism="gaussian", accountant="best")
    assert found.accountant == "pld"
    assert found.epsilon == found.epsilon_pld <= 1.0 < found.epsilon_rdp
    assert found.noise_multiplier < plan(**given, mechanism="gaussian").noise_multiplier


def test_dropouts_and_the_dishonest_leave_fewer_to_add_noise():
    found = plan(**known(epsilon=None, noise_multiplier=5.0), dropout=0.1, dishonest=20)
    assert found.survivors == 70
    # nothing else about the promise changes, but if all survive the noise is louder: sqrt(100 / 70) times 12 deviations
    loudest = 2 * (12 * math.sqrt(159_010) * 5.0 * math.sqrt(100 / 70) + 160) + 1
    assert found.bits_sum_rule == math.ceil(math.log2(loudest))


def cheap(delta=1e-5, noise_multiplier=20.0, **changes):
    given = known(delta=delta, noise_multiplier=noise_multiplier, epsilon=None, rounds=2)
    return plan(**given, mechanism="gaussian", **changes)


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("delta 0.001 is not below", lambda: cheap(delta=1e-3)),
        ("is vacuous", lambda: cheap(noise_multiplier=0.3)),
        ("too few for the threshold of 90", lambda: cheap(dropout=0.2, threshold=90)),
        ("too few for the threshold of 51", lambda: cheap(dropout=0.6)),
        ("of the rounds will end with fewer than 95", lambda: cheap(threshold=95)),
        ("outnumber", lambda: cheap(dishonest=60)),
        ("times what the budget needs", lambda: cheap(dishonest=60)),
    ],
)
def test_warnings(words, made):
    assert any(words in warning for warning in made().warnings)


def test_no_warning_where_none_is_due():
    assert cheap(dropout=0.1, dishonest=5, threshold=60).warnings == ()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("parameters", {"parameters": None}),
        ("delta", {"delta": None}),
        ("delta", {"delta": 1.0}),
        ("clients", {"clients": None}),
        ("fraction", {"fraction": None}),
        ("fraction", {"fraction": 1.5}),
        ("cohort", {"cohort": 90}),
        ("cohort", {"cohort": 1001, "fraction": None}),
        ("clients", {"clients": 0}),
        ("cohort", {"cohort": 0, "fraction": None}),
        ("rounds", {"rounds": None}),
        ("rounds", {"rounds": None, "epsilon": None, "noise_multiplier": 1.0}),
        ("rounds", {"rounds": 0}),
        ("epsilon", {"epsilon": None}),
        ("epsilon", {"noise_multiplier": 3.0}),
        ("epsilon", {"epsilon": 0.01, "noise_multiplier": 0.5, "rounds": None}),
        ("epsilon", {"epsilon": -1.0}),
        ("noise_multiplier", {"noise_multiplier": 0.0}),
        ("sampling", {"sampling": "shuffled"}),
        ("mechanism", {"mechanism": "laplace", "epsilon": None, "noise_multiplier": 1.0}),
        ("dropout", {"dropout": 1.0}),
        ("dishonest", {"dishonest": 100}),
        ("dishonest", {"dishonest": -1}),
    ],
)
def test_what_is_missing_or_contradictory_is_named(key, changes):
    with pytest.raises(ConfigError) as refusal:
        plan(**known(**changes))
    assert refusal.value.key == key


def test_noise_that_promises_nothing_is_said_to():
    # two parameters and many shares: each share is too small for any bound
    found = plan(**known(parameters=2, epsilon=None, noise_multiplier=1.0, rounds=1))
    assert found.epsilon == math.inf
    assert "Nothing is promised" in found.statement
    assert found.to_dict()["epsilon"] is None


def test_skellam_noise_costs_about_what_discrete_gaussian_noise_costs():
    given = known(epsilon=None, noise_multiplier=20.0, rounds=2)
    skellam, gaussian = plan(**given, mechanism="skellam"), plan(**given)
    assert skellam.epsilon == pytest.approx(gaussian.epsilon, rel=1e-3)
    assert skellam.epsilon_pld is None
