"""Sites whose owners ask for many in a sum, and what that costs the others: the round goes on without them if it can."""

import dataclasses

import numpy as np
import pytest
from parties import ALLOWED, QUICK, SERVER, dealt, experiment, identity, parties, roster, run

import discreet.federation.standing
from discreet.config import Data
from discreet.errors import RunAborted
from discreet.federation import parts
from discreet.federation.limits import Limits
from discreet.federation.link import Failure
from discreet.federation.parts import Hello, Holding, Masking, Work
from discreet.randomness import SERVER as SERVER_STREAM
from discreet.randomness import Seeded
from discreet.sampling import sample
from discreet.schemes import ConfinedGradientDescent
from discreet.wire import Envelope, Kind

FIVE = dealt((7, 8, 9, 10, 11))
CGD = experiment(ConfinedGradientDescent(learning_rate=0.1), data=Data(clients=5), rounds=3)
WORK = (Work, Masking, Holding)
secured = pytest.mark.parametrize("secure", ["masked", "additive"])


def opened(site, message):
    """What a site is asked, and in which round and attempt."""
    request = Envelope.from_bytes(message, kind=Kind.REQUEST, site=site, key=SERVER.public, peer="server")
    return request, [parts.asked(part) for part in request.parts]


def five(minimum=3):
    return parties(FIVE, pinned=roster(5), limits=Limits(minimum_cohort=minimum))


def played(secure, members, fault, **changes):
    asked = dataclasses.replace(CGD, secure=secure, **changes)
    return run(asked, members, fault=fault, rehearse=False, roster=roster(5))


def dead(site, message, answer):
    """The last site is gone for good once the run has begun."""
    request, _ = opened(site, message)
    return Failure("unreachable") if site == 4 and request.round else answer(message)


@secured
def test_who_asks_for_more_than_there_are_is_left_out(secure):
    members = five()
    members[0].options["limits"] = Limits(minimum_cohort=5)
    members[0].restart()
    found = played(secure, members, dead)
    assert [line["participants"] for line in found.metrics][1:] == [3, 3]
    assert all(line["lost"] == 2 for line in found.metrics[1:])
    assert not any(one["site"] == 0 for line in found.metrics[1:] for one in line["failures"])


@secured
def test_a_site_that_signs_another_number_than_it_goes_by_ends_no_run(secure):
    members = five()
    members[0].site._minimum = lambda sites: 5
    found = played(secure, members, dead)
    assert [line["participants"] for line in found.metrics][1:] == [3, 3]


@secured
def test_all_who_are_left_out_for_each_other_are_named_in_the_end(secure, monkeypatch):
    monkeypatch.setattr(discreet.federation.standing.time, "sleep", lambda seconds: None)
    with pytest.raises(
        RunAborted, match=r"4 clients left, 5 needed \(sites in a sum, for which site 0 asks\)"
    ):
        played(secure, five(5), dead)


@secured
def test_who_is_left_out_may_be_one_too_few_for_another(secure):
    members = parties(dealt((7, 8, 9, 10, 11, 6, 5)), pinned=roster(7))
    for site, minimum in ((0, 7), (1, 6), (2, 5)):
        members[site].options["limits"] = Limits(minimum_cohort=minimum)
        members[site].restart()
    asked = dataclasses.replace(CGD, secure=secure, data=Data(clients=7))
    found = run(asked, members, fault=dead, rehearse=False, roster=roster(7))
    assert [line["participants"] for line in found.metrics][1:] == [3, 3]


@secured
def test_a_site_that_says_something_else_each_time_breaks_no_sum(secure):
    """It answers greetings alone, and asks in turn for three sites and for four."""
    members, heard = five(), []
    members[0].site._minimum = lambda sites: 3 + len(heard) % 2

    def flipping(site, message, answer):
        request, wanted = opened(site, message)
        if site == 0 and request.round and any(isinstance(one, WORK) for one in wanted):
            return b"nonsense"
        if site == 0 and any(isinstance(one, Hello) for one in wanted):
            heard.append(site)
        return answer(message)

    found = played(secure, members, flipping, rounds=8)
    assert len(heard) > 3
    assert {one["site"] for line in found.metrics for one in line["failures"]} == {0}
    refused = {str(refusal) for one in members[1:] for refusal in one.refusals}
    assert refused == {"refused (limits): report_evaluation is false"}
    assert max(line["attempts"] for line in found.metrics) <= 2


def test_nobody_waits_for_a_site_that_was_not_there_to_begin_with(monkeypatch):
    """Two sites miss two attempts and are back at once; the last is gone for good, and the round does not need it."""
    waited = []
    monkeypatch.setattr(discreet.federation.standing.time, "sleep", waited.append)

    def missing(site, message, answer):
        request, wanted = opened(site, message)
        slow = request.round == 2 and request.attempt < 2 and site in (1, 2)
        if slow and any(isinstance(one, Work) for one in wanted):
            return Failure("unreachable")
        return dead(site, message, answer)

    found = played("masked", five(), missing)
    assert found.metrics[1]["attempts"] == 3 and found.metrics[1]["participants"] == 4
    assert not waited


def test_who_comes_back_while_others_are_waited_for_takes_part(monkeypatch):
    """Site 3 is away when the round begins, and there again once site 4, which fails in it, is waited for."""
    waited = []
    monkeypatch.setattr(discreet.federation.standing.time, "sleep", waited.append)
    monkeypatch.setattr(discreet.federation.standing.time, "monotonic", lambda: 1.0 * len(waited))

    def away(site, message, answer):
        request, _ = opened(site, message)
        gone = request.round >= 2 if site == 4 else (site == 3 and request.round == 1) or not waited
        return Failure("unreachable") if gone and site in (3, 4) and request.round else answer(message)

    found = played("masked", five(4), away, rounds=2)
    assert waited and found.metrics[1]["participants"] == 4 and found.metrics[1]["attempts"] == 3


@pytest.mark.parametrize("colluder", [0, 1, 2, 3, 4])
def test_who_makes_others_refuse_does_not_choose_who_holds_shares(colluder):
    """It seals nonsense for all others, who cannot open it; they may be drawn again."""
    members, drawn = five(), []

    def sealed_nonsense(site, message, answer):
        request, wanted = opened(site, message)
        if site == colluder and request.round == 1 and request.attempt < 2:
            drawn.extend(one.holders for one in wanted if isinstance(one, Work))
            reply = Envelope.from_bytes(
                answer(message), kind=Kind.REPLY, site=site, key=identity(site).public, peer=""
            )
            made = [parts.answered(part) for part in reply.parts]
            spoilt = tuple(
                dataclasses.replace(one, sealed=tuple(bytes(len(each)) for each in one.sealed)).part
                if isinstance(one, parts.Shared)
                else one.part
                for one in made
            )
            return dataclasses.replace(reply, parts=spoilt).to_bytes(identity(site).sign)
        if site != colluder and request.round == 1 and request.attempt == 2:
            later.extend(one.holders for one in wanted if isinstance(one, Work))
        return answer(message)

    later = []
    found = played("additive", members, sealed_nonsense)
    assert found.metrics[0]["attempts"] == 3
    # the draw is that of the seed, whoever has failed
    undisturbed = [tuple(sorted(_stream(attempt))) for attempt in range(3)]
    assert [*dict.fromkeys(drawn), *dict.fromkeys(later)] == undisturbed


def _stream(attempt):
    stream = Seeded(CGD.seed).stream(1, SERVER_STREAM, f"share holders {attempt}")
    return stream.choice(np.arange(5), CGD.share_holders, replace=False).tolist()


def test_a_round_for_fewer_than_anybody_asks_for_goes_by():
    """Some draws have one or two sites, of five who each ask for four; that ends no run."""
    asked = experiment("dp-signfed", data=Data(clients=5), sampling="poisson", fraction=0.8, rounds=12)
    found = run(asked, five(4), rehearse=False, roster=roster(5))
    drawn = [len(sample(asked, 5, number)) for number in range(1, 13)]
    assert {2, 4, 5} <= set(drawn)
    assert [line["participants"] for line in found.metrics] == [one if one >= 4 else 0 for one in drawn]
    assert [line["released"] for line in found.metrics] == [one >= 4 for one in drawn]
    assert {line["attempts"] for line in found.metrics} == {1}
    assert found.result["privacy"]["releases"] == sum(one >= 4 for one in drawn)


def test_columns_are_counted_one_by_one():
    grid = dealt((7, 9, 13, 8), (np.array([0, 2, 4]), np.array([1, 3, 5])))
    asked = dataclasses.replace(
        experiment(ConfinedGradientDescent(learning_rate=0.1, forward="independent")), secure="additive"
    )
    members = parties(grid, limits=dataclasses.replace(ALLOWED, minimum_cohort=3))

    def two_of_a_column(site, message, answer):
        request, wanted = opened(site, message)
        if request.round == 1 and request.attempt == 0 and any(isinstance(one, Holding) for one in wanted):
            asked_to_add.append(site)
        silent = site in (1, 3) and request.round == 1 and request.attempt == 0
        if silent and any(isinstance(one, Work) for one in wanted):
            return Failure("unreachable")
        return answer(message)

    asked_to_add = []
    found = run(asked, members, fault=two_of_a_column, deadlines=QUICK)
    assert not asked_to_add  # of the other column, four would have done
    assert found.metrics[0]["attempts"] == 2 and found.metrics[0]["participants"] == 8
