"""What the server writes down of each exchange, and of each site that did not answer."""

import time

import pytest
from parties import experiment, parties, run

from discreet.federation.link import Failure, MemoryLink
from discreet.federation.traffic import Passed, Traffic, in_all
from discreet.report import write_report
from discreet.schemes import ConfinedGradientDescent

SLOW = 2


def federated(asked, act, **options):
    """Federate with one slow or silent site."""
    members = parties()

    def acting(site, message, answer):
        return act(link, message, answer) if site == SLOW else answer(message)

    link = MemoryLink({one.number: one for one in members}, acting)
    return run(asked, members, link=link, **options)


def slow(link, message, answer):
    time.sleep(0.05)
    return answer(message)


@pytest.mark.parametrize("asked", [experiment("dp-signfed"), experiment("fedavg")])
def test_the_metrics_have_times_and_bytes_of_each_phase_and_site(asked):
    for line in federated(asked, slow).metrics:
        for phase in line["phases"]:
            took = [phase["sites"][str(site)]["seconds"] for site in range(4)]
            assert took == sorted(took)  # one after the other, in this process
            assert took[SLOW] - took[SLOW - 1] >= 0.05
            assert took[3] <= phase["seconds"] + 1e-3 and phase["attempt"] == 0
            for way in ("up", "down"):
                assert phase[way] == sum(its[way] for its in phase["sites"].values()) > 0
        for site, its in line["sites"].items():
            for figure, value in its.items():
                assert value == pytest.approx(sum(one["sites"][site][figure] for one in line["phases"]))


def test_of_a_site_that_does_not_answer_there_are_no_seconds_and_the_log_says_why(caplog):
    caplog.set_level("INFO", "discreet")

    def silent(link, message, answer):
        return Failure("crashed", "code 8") if link.exchanges == 2 else answer(message)

    asked = experiment(ConfinedGradientDescent(learning_rate=0.1), secure="additive", rounds=1)
    line = federated(asked, silent).metrics[0]
    first = line["phases"][0]
    assert first["sites"][str(SLOW)]["seconds"] is None and first["sites"][str(SLOW)]["up"] == 0
    assert first["sites"][str(SLOW)]["down"] > 0
    stage = first["stage"]
    assert line["failures"] == [
        {"site": SLOW, "stage": stage, "attempt": 0, "cause": "crashed", "detail": "code 8"}
    ]
    assert line["attempts"] == 2
    assert [one["attempt"] for one in line["phases"] if one["stage"] == stage] == [0, 1]
    assert f"site 2, round 1, {stage}: crashed, code 8" in caplog.messages
    assert caplog.messages.count("site 2 is there") == 2
    (said,) = [text for text in caplog.messages if text.startswith("round 1:")]
    assert "4 sites, 2 attempts" in said and f"{line['uplink_bytes']} bytes up" in said


def test_the_log_says_once_what_stays_as_it_is(caplog):
    def silent(link, message, answer):
        return answer(message) if link.exchanges == 1 else Failure("unreachable")

    found = federated(experiment("fedavg", rounds=6), silent)
    assert sum(len(line["failures"]) for line in found.metrics) > 1
    assert [text for text in caplog.messages if "site 2" in text] == ["site 2, round 1, update: unreachable"]


def test_the_report_of_a_run_between_sites(tmp_path):
    found = federated(experiment("dp-signfed"), slow, out=tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text("utf-8")
    assert f"{found.result['final']['accuracy']:.1%}"[:4] in page.replace("\u2009", "")


def test_exchanges_add_up():
    first = Passed("a", 0, 1.5, {0: Traffic(1.0, 10, 20), 1: Traffic(None, 0, 30)})
    second = Passed("b", 1, 2.5, {0: Traffic(2.0, 1, 2), 2: Traffic(0.5, 3, 4)})
    assert in_all([first, second]) == {
        "seconds": 4.0,
        "up": 14,
        "down": 56,
        "sites": {
            "0": {"seconds": 3.0, "up": 11, "down": 22},
            "1": {"seconds": None, "up": 0, "down": 30},
            "2": {"seconds": 0.5, "up": 3, "down": 4},
        },
    }
    assert in_all([]) == {"seconds": 0, "up": 0, "down": 0, "sites": {}}
