import dataclasses
import json
import math

import numpy as np
import pytest

import discreet
from discreet import config
from discreet.data.shapes import IMAGES, shape_of
from discreet.data.sources import SOURCES, load
from discreet.errors import ConfigError, DataError
from discreet.forecast import plan, timings
from discreet.forecast.figures import PAPER_RULE
from discreet.privacy.accounting import spent
from discreet.privacy.planning import largest_cohort, statement
from discreet.privacy.releases import DiscreteGaussianSum, Ledger, Poisson, Released
from discreet.schemes import SCHEMES

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


def quick(**changes):
    """A plan for two rounds with much noise, which takes no time to account for."""
    return plan(**known(**{"epsilon": None, "noise_multiplier": 20.0, "rounds": 2, **changes}))


@pytest.fixture(scope="module")
def usual():
    return dataclasses.replace(plan(**KNOWN), timings={"masks": 0.25})


# --- what is worked out


def test_the_plan_of_the_design(usual):
    assert usual.noise_multiplier == pytest.approx(5.889, rel=5e-4)
    assert 0.999 < usual.epsilon <= 1.0
    assert usual.epsilon_rdp == usual.epsilon
    assert usual.epsilon_pld == pytest.approx(0.911, abs=0.002)
    assert (usual.bits_sum_rule, usual.bits_paper_rule) == (16, 22)
    assert (usual.adjacency, usual.accountant, usual.cohort) == ("add-remove", "rdp", 100)
    assert (usual.scheme, usual.secure, usual.warnings) == ("dp-signfed", "masked", ())


def test_what_each_scheme_sends(usual):
    traffic = {row.scheme: row for row in usual.traffic}
    # of a model of which only the size is known, nobody can say which layers lossless would send how often
    silent = {"local", "centralized", "dp-sgd", "lossless"}
    assert traffic.keys() == SCHEMES.keys() - silent | {PAPER_RULE}
    bits = {name: row.bits for name, row in traffic.items()}
    # the rule of the paper with its 22 bits for 100 clients, here for the 160 or so that a round may draw
    assert (bits["fedavg"], bits["signfed"], bits["dp-signfed"], bits[PAPER_RULE]) == (32, 1, 16, 23)
    # 64 sqrt(n) = 25,520.8 steps S: 2 (12 x 5.889 S + 160 ceil(S)) + 1 = 1.18e7 is between 2^23 and 2^24
    assert bits["dp-fedavg"] == 24
    # 159,010 bits are 19,877 bytes, the last one not full
    assert traffic["signfed"].megabytes_a_round == pytest.approx(0.019877)
    # the weight is one number more
    assert traffic["fedavg"].megabytes_a_round == pytest.approx(0.636044)
    # 100 clients a round, 200 rounds; a client takes part in 20 of them
    assert traffic["fedavg"].megabytes_total == pytest.approx(0.636044 * 20_000)
    assert traffic["fedavg"].megabytes_a_client == pytest.approx(0.636044 * 20)
    assert traffic["fedavg"].downlink_megabytes_a_round == pytest.approx(0.63604)
    # masked sums have their keys and shares: more than the words, and not by much
    assert 2 * 159_010 < 1e6 * traffic["dp-signfed"].megabytes_a_round < 2 * 159_010 + 5_000
    assert usual.bits_per_parameter == traffic["dp-signfed"].bits_per_parameter


def test_the_statement_is_a_sentence(usual):
    assert usual.statement.endswith(".")
    assert "2.72 times" in usual.statement
    assert "not who took part" in usual.statement


def test_it_goes_into_json_and_into_a_table(usual):
    plain = json.loads(json.dumps(usual.to_dict(), allow_nan=False))
    assert plain["noise_multiplier"] == usual.noise_multiplier
    assert [row["scheme"] for row in plain["traffic"]] == [row.scheme for row in usual.traffic]
    assert plain["timings"] == {"masks": 0.25}
    rows = dict(usual.rows())
    assert rows["clients a round"] == "100 of 1000, independently"
    assert rows["masks, here"] == "0.25 s a client and round"
    heading, *lines = usual.traffic_rows()
    assert {len(line) for line in lines} == {len(heading)} and len(lines) == len(usual.traffic)


@pytest.mark.parametrize(
    "given",
    [{"fraction": None, "cohort": 100}, {"clients": None, "cohort": 100}, {"cohort": 100}],
    ids=["cohort", "no clients", "all three"],
)
def test_any_two_of_clients_cohort_and_fraction(given):
    found = quick(**given)
    assert (found.clients, found.cohort, found.fraction) == (1000, pytest.approx(100), pytest.approx(0.1))


def test_epsilon_from_noise_and_rounds():
    found = quick(noise_multiplier=6.0, rounds=3)
    drawn = Poisson(0.1)
    noise = DiscreteGaussianSum(6.0, math.sqrt(159_010), 159_010, largest_cohort(drawn, 1000))
    book = Ledger().add(Released(drawn, noise), 3)
    assert found.epsilon == spent(book, 1e-5).epsilon
    assert found.rounds == 3


def test_rounds_from_epsilon_and_noise():
    found = quick(rounds=None, epsilon=0.5, noise_multiplier=11.0)
    more = quick(rounds=found.rounds + 1, noise_multiplier=11.0)
    assert found.rounds > 10
    assert found.epsilon <= 0.5 < more.epsilon


def test_cohorts_of_constant_size_are_about_replacing_a_client():
    found = quick(sampling="fixed")
    assert (found.adjacency, found.epsilon_pld) == ("replace-one", None)
    assert "replacing" in found.statement
    assert dict(found.rows())["epsilon (pld)"] == "no theory"
    assert any("twice as far" in warning for warning in found.warnings)
    everyone = quick(sampling="fixed", fraction=1.0, clients=50)
    assert everyone.adjacency == "add-remove"
    assert not any("twice as far" in warning for warning in everyone.warnings)


def test_the_best_accountant_needs_less_noise():
    given = known(rounds=3, clients=100, fraction=1.0)
    found = plan(**given, accountant="best")
    assert found.accountant == "pld"
    assert found.epsilon == found.epsilon_pld <= 1.0 < found.epsilon_rdp
    assert found.noise_multiplier < plan(**given).noise_multiplier


def test_dropouts_and_the_dishonest_leave_fewer_to_add_noise():
    found = quick(noise_multiplier=5.0, dropout=0.1, dishonest=20, fraction=1.0, clients=100)
    assert found.survivors == 70
    assert found.noise_share == pytest.approx(5 * math.sqrt(159_010 / 70))
    # nothing else about the promise changes, but if all survive the noise is louder: sqrt(100 / 70) times 12 deviations
    # (with 21 clients one share is all the noise, and it is loudest)
    loudest = 2 * (12 * math.sqrt(159_010) * 5.0 * math.sqrt(21) + 100) + 1
    assert found.bits_sum_rule == math.ceil(math.log2(loudest))


# --- warnings


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("delta 0.001 is not below", {"delta": 1e-3}),
        ("is vacuous", {"noise_multiplier": 0.3}),
        (
            "2 clients a round are too few for the threshold",
            {"cohort": 2, "fraction": None, "sampling": "fixed"},
        ),
        ("no number of clients is enough", {"dropout": 0.95}),
        # of a Poisson variable of mean 3, P[1 or 2] = 7.5 exp(-3) = 0.373
        ("37% of the rounds will have fewer than 3", {"fraction": 0.003}),
        ("not more than half", {"dropout": 0.6}),
        ("outnumber", {"dishonest": 60}),
        ("times what the budget needs", {"dishonest": 60}),
    ],
)
def test_warnings(words, given):
    assert any(words in warning for warning in quick(**given).warnings)


def test_no_warning_where_none_is_due():
    assert quick(dropout=0.1, dishonest=5).warnings == ()


def test_dropouts_of_an_experiment_that_are_more_than_it_tolerates():
    sets = [
        "data.clients=100",
        "fraction=1.0",
        "rounds=2",
        "privacy.noise_multiplier=20.0",
        "privacy.dropout_tolerance=0.1",
    ]
    few = plan(config.load("digits-dp-signfed", [*sets, "dropouts.mask=0.02"]))
    many = plan(config.load("digits-dp-signfed", [*sets, "dropouts.mask=0.1"]))
    assert not any("lose more clients" in warning for warning in few.warnings)
    # of 100 clients more than 10 fall silent with probability 0.417
    assert any("42% of the rounds will lose more clients" in warning for warning in many.warnings)


# --- an experiment


@pytest.mark.parametrize(
    ("privacy", "sets"),
    [
        ({"epsilon": 8.0}, ["secure=none", "rounds=2"]),
        (
            {"noise_multiplier": 5.0, "accountant": "best"},
            ["secure=none", "rounds=2", "scheme.modulus=paper"],
        ),
        ({"noise_multiplier": 9.0, "assumed_dishonest": 5}, ["rounds=1", "sampling=fixed", "fraction=0.1"]),
        ({"noise_multiplier": 1.5, "epsilon": 8.0}, ["secure=none", "rounds=20"]),
        ({"noise_multiplier": 5.0, "noise": "skellam"}, ["secure=none", "rounds=2", "scheme.name=dp-fedavg"]),
    ],
    ids=["poisson", "paper's rule", "masked", "until the budget is spent", "skellam"],
)
def test_a_plan_agrees_with_what_the_run_reports(privacy, sets):
    experiment = config.load("digits-dp-signfed", ["scheme.steps=1", "eval_every=100", *sets])
    experiment = dataclasses.replace(experiment, privacy=config.Privacy(delta=1e-3, **privacy))
    found, result = plan(experiment), discreet.simulate(experiment).result
    said = result["privacy"]
    assert (found.scheme, found.parameters, found.rounds) == tuple(
        result[key] for key in ("scheme", "parameters", "rounds")
    )
    assert found.bits_per_parameter == result["bits_per_parameter"]
    assert (found.epsilon, found.noise_multiplier) == (said["epsilon"], said["noise_multiplier"])
    assert (found.accountant, found.adjacency) == (said["accountant"], said["adjacency"])
    assert (found.clients, found.secure) == (result["participants"], result["secure"])


def test_wishes_take_the_place_of_what_an_experiment_says():
    experiment = config.load("digits-dp-signfed")
    found = plan(
        experiment, noise_multiplier=20.0, rounds=2, cohort=20, sampling="fixed", delta=1e-6, model="mlp"
    )
    # the noise takes the budget's place, and the model's options are its own
    assert (found.noise_multiplier, found.rounds, found.delta) == (20.0, 2, 1e-6)
    assert (found.clients, found.cohort, found.sampling) == (200, 20, "fixed")
    assert found.parameters == 64 * 200 + 200 + 200 * 10 + 10
    assert plan(experiment, noise_multiplier=20.0, rounds=2, parameters=77).parameters == 77


def test_an_experiment_without_privacy_is_planned_for_noisy_votes():
    experiment = config.load("digits-fedavg")
    found = plan(experiment, noise_multiplier=20.0, rounds=2)
    assert (found.scheme, found.clients, found.cohort) == ("dp-signfed", 20, 10)
    with pytest.raises(ConfigError, match="epsilon = None"):
        plan(experiment, delta=1e-6)


def test_without_a_wish_for_privacy_only_messages_are_planned():
    found = plan(config.load("digits-fedavg"), rounds=3)
    assert (found.scheme, found.clients, found.cohort, found.rounds) == ("fedavg", 20, 10, 3)
    private = {name for name, kind in SCHEMES.items() if kind.private}
    rows = {row.scheme: row for row in found.traffic}
    assert rows.keys() == SCHEMES.keys() - private - {"local", "centralized"}
    # the parameters and the weight, in float32, to and from 10 clients a round
    assert rows["fedavg"].megabytes_total == pytest.approx(10 * 3 * 4 * (found.parameters + 1) / 1e6)
    assert found.bits_per_parameter == pytest.approx(32 * (1 + 1 / found.parameters))
    assert "no noise" in found.statement and found.to_dict()["traffic"][0]["scheme"] == "fedsgd"


@pytest.mark.parametrize("sets", [[], ["scheme.m=10"], ["secure=masked"], ["secure=additive", "scheme.m=2"]])
def test_what_lossless_sends_depends_on_m_and_is_what_the_run_reports(sets):
    experiment = config.load("digits-lossless", ["model.widths=[6]", "rounds=1", *sets])
    found, result = plan(experiment), discreet.simulate(experiment).result
    assert found.bits_per_parameter == result["bits_per_parameter"]
    (own,) = (row for row in found.traffic if row.scheme == "lossless")
    received = own.downlink_megabytes_a_round * found.clients
    assert received == pytest.approx(result["downlink_bytes"] / 1e6)
    # m + 2 hidden gradients of 64 x 6 + 6 numbers, the last layer's 70, 7 means and a weight, of 64 bits
    numbers = (experiment.scheme.m + 2) * 390 + 70 + 7 + 1
    # what keys and shares come to beside them
    more = {"auto": 1e-12, "additive": 0.01, "masked": 0.1}[experiment.secure]
    assert found.bits_per_parameter == pytest.approx(64 * numbers / 460, rel=more)
    assert [name for name, _ in found.rows()][-1] == "sums" and found.traffic_rows()[0][0] == "scheme"


def test_what_lossless_cannot_do_is_refused_by_its_plan():
    with pytest.raises(ConfigError, match=r"scheme\.m = 11: expected 1 to 10"):
        plan(config.load("digits-lossless", ["scheme.m=11"]))
    with pytest.raises(ConfigError, match=r"scheme\.m = 11: expected 1 to 10"):
        plan(config.load("digits-lossless", ["scheme.m=11"]), epsilon=3.0)
    with pytest.raises(ConfigError, match=r"parameters = 100: expected .* model"):
        plan(config.load("digits-lossless"), parameters=100)


@pytest.mark.parametrize(
    ("model", "data", "parameters"),
    [
        ("mlp", "mnist", 159_010),
        ("cnn", "fashion-mnist", 1_663_370),
        ("cnn", "cifar10", 1_756_426),
        ("linear", "cifar100", 3072 * 100 + 100),
        ("text", "imdb", 10_000 * 64 + 64 * 2 + 2),
        ("linear", None, 64 * 10 + 10),
    ],
)
def test_the_size_of_a_model_is_known_without_the_data(model, data, parameters, monkeypatch, tmp_path):
    for place in ("DISCREET_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(place, str(tmp_path))
    assert quick(parameters=None, model=model, data=data).parameters == parameters


def test_shapes_are_those_of_the_data_sets():
    compared = []
    for name in sorted(SOURCES.keys() - {"table", "images", "lfw", "imdb"}):
        try:
            data = load(name)
        except DataError:  # not on this machine
            continue
        shape = shape_of(name, max_tokens=8, vocabulary=9)
        assert (shape.inputs, shape.outputs, shape.vocabulary) == (data.shape, data.outputs, data.vocabulary)
        compared.append(name)
    assert "digits" in compared
    assert shape_of("mnist", max_tokens=8, vocabulary=9, image_size=14) is None
    assert IMAGES.keys() < SOURCES.keys()


def test_an_own_table_says_how_large_its_model_is_and_who_the_clients_are(tmp_path):
    rows = [f"{i % 7}.5,{i % 3}.25,{i % 2},ward {i % 5}" for i in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,ill,ward", *rows]))
    experiment = config.from_table(
        {
            "data": {
                "name": "table",
                "path": str(tmp_path / "own.csv"),
                "target": "ill",
                "partition": "column",
                "client_column": "ward",
                "clients": 3,
            },
            "model": {"name": "linear"},
        }
    )
    given = {"noise_multiplier": 20.0, "rounds": 2}
    found = plan(experiment, **given)
    assert (found.clients, found.parameters) == (5, 2 * 2 + 2)
    assert plan(experiment, clients=8, **given).clients == 8
    assert plan(experiment, parameters=9, **given).clients == 5


# --- refusals


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("parameters", {"parameters": None}),
        ("parameters", {"model": "mlp"}),
        ("parameters", {"parameters": 0}),
        ("data", {"data": "mnist"}),
        ("data", {"parameters": None, "model": "mlp", "data": "mnits"}),
        ("model", {"parameters": None, "model": "mpl"}),
        ("delta", {"delta": 1.0}),
        ("delta", {"delta": math.nan}),
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
        ("noise_multiplier", {"parameters": 2, "noise_multiplier": 0.1, "epsilon": None}),
        ("sampling", {"sampling": "shuffled"}),
        ("accountant", {"accountant": "guess"}),
        ("accountant", {"accountant": "pld", "sampling": "fixed", "epsilon": None, "noise_multiplier": 9.0}),
        ("dropout", {"dropout": 1.0}),
        ("dishonest", {"dishonest": 100}),
        ("dishonest", {"dishonest": -1}),
    ],
)
def test_what_is_missing_or_contradictory_is_named(key, changes):
    with pytest.raises(ConfigError) as refusal:
        plan(**known(**changes))
    assert refusal.value.key == key


def test_what_is_wrong_in_the_experiment_has_the_experiments_key():
    experiment = config.load("digits-dp-signfed", ["privacy.assumed_dishonest=500"])
    with pytest.raises(ConfigError) as refusal:
        plan(experiment, noise_multiplier=20.0, rounds=2)
    assert refusal.value.key == "privacy.assumed_dishonest"


def test_an_infinite_epsilon_is_said_in_words(usual):
    assert "Nothing is promised" in statement(math.inf, 1e-5, "add-remove", sampled=True)
    assert "beyond all meaning" in statement(1e4, 1e-5, "add-remove", sampled=True)
    plain = dataclasses.replace(usual, epsilon=math.inf, epsilon_pld=None).to_dict()
    assert (plain["epsilon"], plain["epsilon_pld"]) == (None, None)


def test_skellam_noise_costs_about_what_discrete_gaussian_noise_costs():
    given = {"noise_multiplier": 20.0, "rounds": 2, "parameters": 159_010}
    skellam = plan(config.load("digits-dp-signfed", ["privacy.noise=skellam"]), **given)
    gaussian = plan(config.load("digits-dp-signfed"), **given)
    assert skellam.epsilon == pytest.approx(gaussian.epsilon, rel=1e-2)
    assert (skellam.mechanism, skellam.epsilon_pld) == ("skellam", None)
    assert timings(skellam).keys() == {"mask expansion", "noise"}


def test_timings_are_of_masks_and_noise():
    found = timings(quick(parameters=1000))
    assert found.keys() == {"mask expansion", "noise"} and all(0 < one < 10 for one in found.values())
    experiment = config.load("digits-dp-signfed", ["secure=none"])
    assert timings(plan(experiment, noise_multiplier=20.0, rounds=2)).keys() == {"noise"}
    assert np.isfinite(list(found.values())).all()
