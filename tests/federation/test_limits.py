"""Limits: what an owner has not allowed is refused, with a cause for the server and the reason for his own log."""

import pytest

from discreet.config import from_table
from discreet.errors import ConfigError, DataError
from discreet.federation.limits import Limits
from discreet.federation.refusal import CAUSES, Refusal

PRIVATE = {"privacy": {"noise_multiplier": 1.0}, "scheme": {"name": "dp-signfed"}, "secure": "masked"}


def experiment(**table):
    return from_table({"data": {"clients": 5}, **table})


def refused(limits, sites=5, rehearse=False, own_data=False, **table):
    with pytest.raises(Refusal) as caught:
        limits.check(experiment(**table), sites, rehearse=rehearse, own_data=own_data)
    assert caught.value.cause in CAUSES
    return caught.value


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(
            schemes=["fedavg", "cgd"],
            minimum_cohort=7,
            epsilon=3.5,
            delta=1e-6,
            require_private=True,
            require_secure=True,
            code=["hospital.models:net"],
            paths=["/data/a.csv"],
            allow_rehearsal=True,
            report_evaluation=True,
            trust_sampling=True,
            largest_message=4096,
        ),
    ],
)
def test_toml_there_and_back(limits):
    assert Limits.from_toml(limits.to_toml()) == limits


def test_an_empty_file_is_the_default_which_allows_no_rehearsal():
    assert Limits.from_toml("") == Limits()
    assert not Limits().allow_rehearsal


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("schemes = [", DataError, "limits.toml: is not TOML"),
        ("epsilom = 1", ConfigError, "did you mean limits.epsilon"),
        ("schemes = ['fedavq']", ConfigError, "did you mean 'fedavg'"),
        ("schemes = 'some'", ConfigError, "limits.schemes"),
        ("minimum_cohort = 0", ConfigError, "limits.minimum_cohort = 0"),
        ("minimum_cohort = '3'", ConfigError, "limits.minimum_cohort"),
        ("epsilon = 1.0", ConfigError, "limits.delta = None: expected a number"),
        ("delta = 1e-5", ConfigError, "limits.epsilon = None: expected a number"),
        ("epsilon = -1.0\ndelta = 1e-5", ConfigError, "limits.epsilon"),
        ("epsilon = inf\ndelta = 1e-5", ConfigError, "limits.epsilon"),
        ("epsilon = nan\ndelta = 1e-5", ConfigError, "limits.epsilon"),
        ("epsilon = 1.0\ndelta = 1.0", ConfigError, "limits.delta"),
        ("allow_rehearsal = 1", ConfigError, "limits.allow_rehearsal"),
        ("code = ['os']", ConfigError, "limits.code = 'os': expected package.module:name"),
        ("largest_message = 1", ConfigError, "limits.largest_message"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(text, error, complaint):
    with pytest.raises(error) as caught:
        Limits.from_toml(text, "limits.toml")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_default_allows_what_is_summed_over_three():
    Limits().check(experiment(), 5)
    Limits().check(experiment(**PRIVATE), 5)


@pytest.mark.parametrize(
    ("limits", "table", "cause"),
    [
        (Limits(schemes=["cgd"]), {}, "scheme"),
        (Limits(require_private=True), {}, "scheme"),
        (Limits(epsilon=1.0, delta=1e-5), {}, "scheme"),
        (Limits(), {"scheme": {"name": "centralized"}}, "scheme"),
        (Limits(require_secure=True), {}, "limits"),
        (Limits(require_secure=True), {**PRIVATE, "secure": "none"}, "limits"),
        (Limits(epsilon=1.0, delta=1e-5), {**PRIVATE, "secure": "none"}, "limits"),
        (Limits(minimum_cohort=6), {}, "limits"),
        (Limits(), {"fraction": 0.4}, "limits"),
        (Limits(), {"fraction": 0.59, "sampling": "poisson"}, "limits"),
        (Limits(minimum_cohort=3), {**PRIVATE, "scheme": {"name": "dp-signfed", "groups": 2}}, "limits"),
        (Limits(), {"model": {"name": "os:system"}}, "limits"),
        (Limits(code=["os:system"]), {"model": {"loss": "os:getcwd"}}, "limits"),
        (Limits(), {"scheme": {"name": "local"}, "model": {"name": "os:system"}}, "limits"),
        (Limits(), {"data": {"clients": 5, "name": "table", "path": "/etc/passwd", "target": "x"}}, "limits"),
        (
            Limits(paths=["/a"]),
            {"data": {"clients": 5, "name": "table", "path": "/a", "test_path": "/b"}},
            "limits",
        ),
    ],
)
def test_what_is_not_allowed_is_refused(limits, table, cause):
    assert refused(limits, **table).cause == cause


@pytest.mark.parametrize(
    ("limits", "table"),
    [
        (Limits(schemes=["fedavg"]), {}),
        (Limits(epsilon=1.0, delta=1e-5, require_private=True, require_secure=True), PRIVATE),
        (Limits(require_secure=True), {"scheme": {"name": "cgd"}, "secure": "additive"}),
        (Limits(), {"fraction": 0.6}),
        (Limits(), {"fraction": 0.6, "sampling": "poisson"}),
        (Limits(minimum_cohort=2), {**PRIVATE, "scheme": {"name": "dp-signfed", "groups": 2}}),
        (Limits(code=["a.b:net", "a.b:loss"]), {"model": {"name": "a.b:net", "loss": "a.b:loss"}}),
        (Limits(minimum_cohort=50), {"scheme": {"name": "local"}}),
        (Limits(paths=["/a"]), {"data": {"clients": 5, "name": "table", "path": "/a", "target": "x"}}),
    ],
)
def test_what_is_allowed_passes(limits, table):
    limits.check(experiment(**table), 5)


def test_sums_of_a_grid_are_over_its_rows():
    cgd = {"scheme": {"name": "cgd"}, "secure": "additive"}
    Limits(minimum_cohort=3).check(experiment(**cgd), 6, columns=2)
    with pytest.raises(Refusal, match="a sum over 2 sites"):
        Limits(minimum_cohort=3).check(experiment(**cgd), 6, columns=3)


def test_a_rehearsal_is_refused_unless_it_is_allowed():
    assert refused(Limits(), rehearse=True).cause == "limits"
    Limits(allow_rehearsal=True).check(experiment(), 5, rehearse=True)


def test_a_path_does_not_matter_to_a_site_with_data_of_its_own():
    table = {"data": {"clients": 5, "name": "table", "path": "/etc/passwd", "target": "x"}}
    assert refused(Limits(), **table).cause == "limits"
    Limits().check(experiment(**table), 5, own_data=True)


def test_a_cohort_is_checked_again_when_it_is_known():
    Limits(minimum_cohort=4).check_cohort(4)
    with pytest.raises(Refusal, match="a sum over 3 sites"):
        Limits(minimum_cohort=4).check_cohort(3)


def test_the_cause_is_a_constant_and_the_reason_is_apart():
    found = refused(Limits(), data={"clients": 5, "name": "table", "path": "/secret/file", "target": "x"})
    assert "/secret/file" in found.text
    assert found.cause == "limits"
