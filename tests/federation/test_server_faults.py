"""What goes wrong between a server and its sites: the run goes on, no sum is wrong, and nothing is under-counted.

In a rehearsal a round that is tried again gives what it would have given, if all sites are back: so a masked or a shared
run through any single fault must end with the bits of a run without one.
"""

import dataclasses
from functools import cache, partial

import numpy as np
import pytest
import torch
from parties import dealt, experiment, identity, parties, run, same_state

from discreet.cohort import Examples
from discreet.federation.link import Failure, MemoryLink
from discreet.federation.parts import Contributed, Evaluated, Refused
from discreet.schemes import ConfinedGradientDescent
from discreet.wire import Envelope, Kind, Part

FAULTY = 1
GRID = dealt((18, 11), (np.array([0, 2, 4]), np.array([1, 3, 5])))
RUNS = {
    "masked": (experiment("dp-signfed"), None),
    "additive": (experiment(ConfinedGradientDescent(learning_rate=0.1), secure="additive"), None),
    "grid": (experiment(ConfinedGradientDescent(learning_rate=0.1), secure="additive"), GRID),
    "clear": (experiment("fedavg"), None),
}


class Faults:
    """Stands between a server and its sites, and does something at some exchanges with one of them."""

    def __init__(self, members, exchanges, act):
        self.members, self.exchanges, self.act = members, exchanges, act
        self.acted = False
        self.seen = {one.number: [] for one in members}
        self.link = MemoryLink({one.number: one for one in members}, self)

    def __call__(self, site, message, answer):
        self.seen[site].append((message, self.members[site].state))
        if site == FAULTY and self.link.exchanges in self.exchanges:
            self.acted = True
            return self.act(self, self.members[site], message, answer)
        return answer(message)


def never_reached(faults, party, message, answer):
    return Failure("timeout")


def reply_lost(faults, party, message, answer):
    answer(message)
    return Failure("timeout")


def crashed(faults, party, message, answer):
    party.restart()
    return Failure("crashed", "code 8")


def crashed_after_storing(faults, party, message, answer):
    answer(message)
    party.restart()
    return Failure("crashed", "code 8")


def restarted(faults, party, message, answer):
    party.restart()
    return answer(message)


def state_lost(faults, party, message, answer):
    party.state = b""
    party.restart()
    return answer(message)


def old_state(faults, party, message, answer):
    party.state = faults.seen[party.number][max(0, len(faults.seen[party.number]) - 3)][1]
    party.restart()
    return answer(message)


def flipped_bit(faults, party, message, answer):
    reply = bytearray(answer(message))
    reply[len(reply) // 2] ^= 1
    return bytes(reply)


def request_damaged(faults, party, message, answer):
    damaged = bytearray(message)
    damaged[-100] ^= 4
    return answer(bytes(damaged))


def truncated(faults, party, message, answer):
    return answer(message)[:-7]


def oversized(faults, party, message, answer):
    return answer(message) + bytes(1000)


def empty(faults, party, message, answer):
    return b""


def noise(faults, party, message, answer):
    return np.random.default_rng(5).bytes(500)


def asked_twice(faults, party, message, answer):
    answer(message)
    return answer(message)


def request_replayed(faults, party, message, answer):
    answer(message)
    return answer(faults.seen[party.number][0][0])


def reply_of_another(faults, party, message, answer):
    other = faults.members[FAULTY + 1]
    return Envelope.from_bytes(
        answer(message), kind=Kind.REPLY, site=FAULTY, key=identity(FAULTY).public, peer=""
    ).to_bytes(other.site.identity.sign)


def _changed(change):
    """A reply that its site has signed, with something in it that must not be."""

    def act(faults, party, message, answer):
        found = Envelope.from_bytes(
            answer(message), kind=Kind.REPLY, site=FAULTY, key=identity(FAULTY).public, peer=""
        )
        return change(found).to_bytes(identity(FAULTY).sign)

    return act


def _bodies(change):
    def changed(envelope):
        return dataclasses.replace(
            envelope, parts=tuple(Part(part.kind, change(part.body)) for part in envelope.parts)
        )

    return _changed(changed)


ACTS = {
    "never reached": never_reached,
    "reply lost": reply_lost,
    "crashed": crashed,
    "crashed after storing": crashed_after_storing,
    "restarted": restarted,
    "state lost": state_lost,
    "old state": old_state,
    "flipped bit": flipped_bit,
    "request damaged": request_damaged,
    "truncated": truncated,
    "oversized": oversized,
    "empty": empty,
    "noise": noise,
    "asked twice": asked_twice,
    "request replayed": request_replayed,
    "reply of another": reply_of_another,
    "another round": _changed(lambda one: dataclasses.replace(one, round=one.round + 1)),
    "another attempt": _changed(lambda one: dataclasses.replace(one, attempt=one.attempt + 1)),
    "another session": _changed(lambda one: dataclasses.replace(one, session=one.session + 1)),
    "another run": _changed(lambda one: dataclasses.replace(one, run=bytes(16))),
    "an old sequence": _changed(lambda one: dataclasses.replace(one, sequence=1)),
    "a part more": _changed(lambda one: dataclasses.replace(one, parts=one.parts * 2)),
    "another part": _changed(
        lambda one: dataclasses.replace(one, parts=(Evaluated(0.5, 0.5, 3).part,) * len(one.parts))
    ),
    "refused": _changed(
        lambda one: dataclasses.replace(
            one, parts=(Refused.because(identity(FAULTY).public, "internal").part,)
        )
    ),
    "short bodies": _bodies(lambda body: body[:-1]),
    "long bodies": _bodies(lambda body: body + b"\0"),
    "bodies of zeros": _bodies(lambda body: bytes(len(body))),
    "bodies of ones": _bodies(lambda body: b"\xff" * len(body)),
}
HARMLESS = {"restarted"}
QUICK_PLACES = {"masked": (4, 5), "additive": (3,), "grid": (3,)}
QUICK_ONES = ("reply lost", "state lost", "old state", "asked twice", "bodies of ones")


def _is_quick(name, exchange, act):
    """Every fault at one place, and some at the others."""
    return (name, exchange) == ("masked", 4) or (act in QUICK_ONES and exchange in QUICK_PLACES[name])


def test_there_are_enough_faults():
    assert len(ACTS) >= 25


@cache
def whole(name):
    asked, partition = RUNS[name]
    return run(asked, parties(partition))


def through(name, exchange, act):
    """A run through a fault, with what must hold of every one."""
    asked, partition = RUNS[name]
    members = parties(partition)
    faults = Faults(members, {exchange}, ACTS[act])
    found = run(asked, members, link=faults.link)
    assert len(found.metrics) == asked.rounds
    failures = [one for line in found.metrics for one in line["failures"]]
    # the log names the site and the cause; a greeting is repeated and leaves no trace
    assert {one["site"] for one in failures} <= {FAULTY}
    assert all(one["cause"] in ("timeout", "crashed", "refused", "malformed") for one in failures)
    if faults.acted and act not in HARMLESS and 1 < exchange < faults.link.exchanges:
        assert failures
    return found, members


PLACES = [("masked", 1), ("masked", 2), ("masked", 3), ("masked", 4), ("masked", 5)]
PLACES += [("additive", 2), ("additive", 3), ("grid", 3), ("grid", 4)]


@pytest.mark.parametrize(
    ("name", "exchange", "act"),
    [
        pytest.param(
            name,
            exchange,
            act,
            marks=() if _is_quick(name, exchange, act) else pytest.mark.exhaustive,
        )
        for name, exchange in PLACES
        for act in ACTS
    ],
)
def test_a_secure_run_comes_through_a_fault_with_the_same_bits(name, exchange, act):
    found, members = through(name, exchange, act)
    if all(line["participants"] == 4 for line in found.metrics):
        assert same_state(found, whole(name))
    else:  # it was left out before it had shared anything
        assert name == "additive" and 1 <= sum(line["lost"] for line in found.metrics) <= 2
    if name == "masked":
        played = sum(line["attempts"] for line in found.metrics)
        counted = found.result["privacy"]["releases"]
        assert 3 <= counted <= played  # each round, and whatever may have been seen of one that failed
        for one in members:
            assert one.spending.entries() and 3 <= len(one.spending.entries()) <= played


GONE, SIX = 5, dealt((7, 13, 20, 9, 6, 4))


class Gone(Faults):
    """One site is silent when masked inputs are sent, so that the others are asked to consent to that."""

    def __call__(self, site, message, answer):
        if site == GONE and self.link.exchanges == 4:
            return Failure("timeout")
        return super().__call__(site, message, answer)


@cache
def without_one(exchanges=frozenset(), act="restarted"):
    asked = experiment(ConfinedGradientDescent(learning_rate=0.1), secure="masked")
    members = parties(SIX)
    faults = Gone(members, exchanges, ACTS[act])
    return run(asked, members, link=faults.link), faults, members


def test_who_is_left_consents_before_a_sum_without_the_others_is_read():
    found, _, members = without_one()
    assert [line["participants"] for line in found.metrics] == [
        5,
        5,
        6,
    ]  # with round 1 went the keys for round 2
    assert [line["attempts"] for line in found.metrics] == [1, 1, 1]
    stages = [phase["stage"] for phase in found.metrics[0]["phases"]]
    assert stages == ["advertise", "share", "gradient", "consent", "unmask"]
    assert sorted(map(int, found.metrics[0]["phases"][3]["sites"])) == [0, 1, 2, 3, 4]
    assert all("consent" not in [one["stage"] for one in line["phases"]] for line in found.metrics[1:])
    assert not [refusal for one in members for refusal in one.refusals]


@pytest.mark.parametrize("exchange", [5, 6])
@pytest.mark.parametrize(
    "act", [pytest.param(act, marks=() if act in QUICK_ONES else pytest.mark.exhaustive) for act in ACTS]
)
def test_who_fails_once_another_is_gone_is_in_the_sum_all_the_same(exchange, act):
    """Its masked input is there, and four of the others are enough."""
    found, faults, _ = without_one(frozenset({exchange}), act)
    assert faults.acted
    assert [line["attempts"] for line in found.metrics] == [1, 1, 1]
    assert found.metrics[0]["participants"] == 5
    failures = [one for line in found.metrics for one in line["failures"]]
    assert {one["site"] for one in failures} <= {FAULTY, GONE}
    if all(line["participants"] == 6 for line in found.metrics[1:]):
        assert same_state(found, without_one()[0])


@pytest.mark.parametrize(
    "act", [pytest.param(act, marks=() if act in QUICK_ONES else pytest.mark.exhaustive) for act in ACTS]
)
def test_a_run_in_the_clear_goes_on_without_the_site(act):
    found, _ = through("clear", 3, act)
    counted = [line["participants"] for line in found.metrics]
    assert counted[0] == 4 and counted[1] in (3, 4)
    if counted[1] == 4:
        assert same_state(found, whole("clear"))
    else:
        assert found.metrics[1]["lost"] == 1 and not same_state(found, whole("clear"))
    assert found.vector.isfinite().all()


def test_numbers_that_are_not_finite_are_not_added():
    def poisoned(envelope):
        body = bytearray(envelope.parts[0].body)
        body[9:13] = np.float32(np.nan).tobytes()
        return dataclasses.replace(envelope, parts=(Part(Contributed.kind, bytes(body)), *envelope.parts[1:]))

    asked, _ = RUNS["clear"]
    members = parties()
    found = run(asked, members, link=Faults(members, {3}, _changed(poisoned)).link)
    assert found.metrics[1]["participants"] == 3
    assert found.metrics[1]["failures"][0]["detail"] == "contribution: not finite"


def test_a_site_that_is_away_comes_back_and_is_asked_ever_less_often():
    asked = experiment("fedavg", rounds=12)
    members = parties()
    faults = Faults(members, set(range(3, 9)), never_reached)
    found = run(asked, members, link=faults.link)
    counted = [line["participants"] for line in found.metrics]
    asked_for = [line["round"] for line in found.metrics if line["failures"]]
    assert asked_for == [2, 3, 5]  # it fails, and is asked for after 1, then 2, then 4 rounds
    assert counted == [4] + [3] * 8 + [4] * 3


def test_a_site_that_stays_away_costs_an_attempt_and_no_more():
    asked, _ = RUNS["masked"]
    members = parties()
    faults = Faults(members, set(range(4, 100)), never_reached)
    found = run(asked, members, link=faults.link)
    assert [line["participants"] for line in found.metrics] == [3, 3, 3]
    assert [line["attempts"] for line in found.metrics] == [2, 1, 1]
    assert torch.isfinite(found.vector).all()


def test_a_row_without_one_of_its_sites_waits_for_it():
    asked = dataclasses.replace(RUNS["grid"][0], rounds=5)
    partition = dealt((10, 9, 11), (np.array([0, 2, 4]), np.array([1, 3, 5])))
    members = parties(partition)
    # it fails in the first round, and again when it is called back before the second attempt
    faults = Faults(members, {2, 3}, never_reached)
    found = run(asked, members, link=faults.link)
    assert [line["participants"] for line in found.metrics] == [4, 4, 4, 6, 6]
    assert [line["attempts"] for line in found.metrics] == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("name", RUNS)
def test_answers_are_as_long_whatever_the_data(name):
    """Only the request and what is public decide how long an answer is."""
    asked, partition = RUNS[name]
    lengths = []
    for shift in (0.0, 1.0):
        members = parties(partition)
        for one in members:
            own = one.site.holdings.data
            one.site.holdings.data = dataclasses.replace(own, load=partial(_shifted, own, shift))
        lengths.append([])

        def noting(site, message, answer):
            reply = answer(message)
            lengths[-1].append((site, len(message), len(reply)))
            return reply

        run(asked, members, fault=noting)
    assert len(lengths[0]) > 8 and lengths[0] == lengths[1]


def _shifted(own, shift):
    data = own.load()
    return dataclasses.replace(data, train=Examples(data.train.inputs + shift, data.train.targets))
