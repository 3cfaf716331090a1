"""What a server gets that has the sites' messages its own way, with all sites honest."""

import dataclasses
import re

import pytest
from parties import ALLOWED, BLOBS, SERVER, dealt, experiment, identity, parties, roster, run
from test_site import CGD, Server, begun, cause

from discreet.config import Privacy
from discreet.errors import ConfigError, RoundAborted
from discreet.federation import parts
from discreet.federation.limits import Limits
from discreet.federation.link import Failure
from discreet.federation.masker import Masker
from discreet.federation.parts import Holding, Masking, Work
from discreet.federation.party import Facts, deployed, prepared
from discreet.federation.refusal import Refusal
from discreet.federation.state import SumState
from discreet.federation.terms import ALL_NEIGHBOURS, masking_terms
from discreet.randomness import Seeded
from discreet.schemes import DPSignFed
from discreet.secure.masking import MaskingClient, MaskingServer, Stage
from discreet.secure.masking.messages import DeliveredShares, SharedKeys, UnmaskRequest
from discreet.wire import Envelope, Kind

OWNER = Limits(minimum_cohort=3)
NOISY = experiment(DPSignFed(steps=1), rounds=2, privacy=Privacy(noise_multiplier=0.5))
SHARED = dataclasses.replace(NOISY, secure="additive")
TOLERANT = experiment(DPSignFed(steps=1), privacy=Privacy(noise_multiplier=0.5, dropout_tolerance=0.2))


SPARE = 1
"""The site that holds no shares in the first attempt at round 1 of `CGD`."""


def terms(asked, cohort):
    federation = prepared(deployed(asked), Facts.of(dealt()), BLOBS, None)
    return masking_terms(federation, b"r" * 16, b"a" * 32, 1, 1, 1, tuple(range(cohort)), bytes(32))


@pytest.mark.parametrize("asked", [NOISY, TOLERANT])
def test_sites_of_a_masked_sum_are_all_neighbours_and_more_than_half_must_answer(asked):
    for cohort in (3, 4, 5, 6, 8, 11, ALL_NEIGHBOURS):
        try:
            found = terms(asked, cohort)
        except ConfigError:
            assert cohort < 5  # too few to hide anybody in, with those who may collude and be gone
            continue
        assert found.degree == cohort - 1 and found.complete
        assert 2 * found.threshold > cohort
        assert 2 * found.minimum_survivors > cohort


def test_more_sites_than_that_have_some_neighbours():
    assert not terms(NOISY, 2 * ALL_NEIGHBOURS).complete


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(minimum_cohort=1), False),
        (Limits(), True),
        (Limits(minimum_cohort=1, epsilon=5.0, delta=1e-5), True),
    ],
)
def test_a_site_with_limits_is_in_no_sum_of_which_it_cannot_see_who_is_in_it(limits, refused):
    federation = prepared(deployed(NOISY), Facts.of(dealt()), BLOBS, None)
    masker = Masker(0, identity(0), limits, Seeded(1), federation, (), b"a" * 32)
    envelope = Envelope(Kind.REQUEST, b"r" * 16, 1, 1, 1, 0, 0, (parts.End(b"").part,))
    there = SumState(1, 1, tuple(range(2 * ALL_NEIGHBOURS)), bytes(32), b"")
    if refused:
        with pytest.raises(Refusal, match="expected 128 at most"):
            masker._terms(envelope, there)
    else:
        assert masker._terms(envelope, there).threshold < 100


def lied_to(arc, survivors=None, minima=None):
    """Eight honest clients of a sum in which all are neighbours, of whom some hear of each other alone."""
    about = terms(TOLERANT, 8)
    clients = {one: MaskingClient.start(about, one, Seeded(1), minima=minima) for one in about.cohort}
    server = MaskingServer(about)
    for one, client in clients.items():
        server.collect(one, client.advertise())
    inbox = server.close_stage()
    sealed = {}
    for one, client in clients.items():
        shared = SharedKeys.from_bytes(client.share_keys(inbox[one]), about, peer=one, client=one)
        sealed[one] = dict(shared.sealed)
    me = min(arc)
    delivered = DeliveredShares(me, tuple((peer, sealed[peer][me]) for peer in arc if peer != me))
    clients[me].mask(delivered.to_bytes(about), about.ring.zeros(about.length))
    if survivors is not None:
        gone = tuple(sorted(set(arc) - set(survivors)))
        clients[me].unmask(UnmaskRequest(me, survivors, gone, 8 - len(gone)).to_bytes(about))


def test_a_site_masks_for_no_fewer_than_must_be_in_the_sum():
    about = terms(TOLERANT, 8)
    assert (about.threshold, about.minimum_survivors) == (6, 7)  # a fifth of 8 may be gone: of whole sites 1
    lied_to(tuple(range(7)))
    # more than the threshold, and fewer than the noise is sized for
    with pytest.raises(RoundAborted, match="6 clients left, 7 needed"):
        lied_to(tuple(range(6)))


def test_a_site_unmasks_no_sum_of_fewer_than_the_noise_is_sized_for():
    lied_to(tuple(range(8)), tuple(range(7)))
    with pytest.raises(RoundAborted, match="6 clients left, 7 needed"):
        lied_to(tuple(range(8)), tuple(range(6)))


def test_sites_hold_out_for_the_minimum_of_each_in_the_sum():
    lied_to(tuple(range(7)), minima={0: 7, 3: 5})
    lied_to(tuple(range(8)), tuple(range(7)), minima={7: 8})  # who is not in the sum has no say
    for minima in ({0: 8}, {3: 8}, dict.fromkeys(range(8), 8)):
        with pytest.raises(RoundAborted, match="7 clients left, 8 needed"):
            lied_to(tuple(range(7)), minima=minima)
        with pytest.raises(RoundAborted, match="7 clients left, 8 needed"):
            lied_to(tuple(range(8)), tuple(range(7)), minima=minima)


@pytest.mark.parametrize(("secure", "gone"), [("masked", 3), ("additive", SPARE)])
@pytest.mark.parametrize(
    ("asked_by_gone", "asked_by_one", "asked_by_others", "attempts", "counted"),
    [(3, 3, 3, 1, 3), (4, 4, 4, 2, 4), (1, 4, 1, 2, 4), (4, 1, 1, 1, 3)],
)
@pytest.mark.parametrize("honest", [True, False])
def test_no_sum_of_fewer_than_a_site_in_it_asks_for_is_read(
    monkeypatch, secure, gone, asked_by_gone, asked_by_one, asked_by_others, attempts, counted, honest
):
    """One of four is silent once: up to a third may be, but not where the owner of one that is left says four."""
    asked = dataclasses.replace(CGD, secure=secure, rounds=2)

    def late(site, message, answer):
        request = Envelope.from_bytes(message, kind=Kind.REQUEST, site=site, key=SERVER.public, peer="server")
        wanted = [parts.asked(part) for part in request.parts]
        read.update(request.attempt for one in wanted if request.round == 1 and is_reading(one))
        if any(isinstance(one, Work) for one in wanted):
            tried.add((request.round, request.attempt))
            if site == gone and not missed:
                assert all(site not in one.holders for one in wanted if isinstance(one, Work))
                missed.append(site)
                return Failure("timeout")
        return answer(message)

    if not honest:  # it asks for the sum all the same
        for module in ("masked", "additive"):
            monkeypatch.setattr(f"discreet.federation.{module}.require_minima", lambda *there: None)
    members, missed, tried, read = parties(pinned=roster()), [], set(), set()
    minima = {gone: asked_by_gone, (gone + 1) % 4: asked_by_one}
    for member in members:
        member.options["limits"] = Limits(minimum_cohort=minima.get(member.number, asked_by_others))
        member.restart()
    result = run(asked, members, fault=late, rehearse=False, roster=roster())
    assert missed and len([one for one in tried if one[0] == 1]) == attempts
    assert read == ({attempts - 1} if honest else set(range(attempts)))  # an honest server does not even ask
    reasons = re.compile(r"\d clients left, 4 needed|site \d asks for 4|minimum_cohort is 4")
    helped = [one for one in members if not reasons.search(str(one.refusals))]
    assert len(helped) == (4 if honest or attempts == 1 else 1)  # the one that was silent was not asked
    if secure == "masked":  # with round 1 went the keys for round 2
        assert [line["participants"] for line in result.metrics] == [counted] * 2


def is_reading(part):
    """Whether it asks for help with a sum."""
    if isinstance(part, Masking):
        return tuple(Stage)[part.stage] in (Stage.CONSENT, Stage.UNMASK)
    return isinstance(part, Holding)


@pytest.mark.parametrize(("minimum", "expected"), [(3, None), (4, "limits")])
@pytest.mark.parametrize("asking", [0, 2, 3])
def test_holders_ask_for_the_minimum_of_each_whose_shares_they_add_up(minimum, expected, asking):
    members = parties()
    members[asking].options["limits"] = dataclasses.replace(ALLOWED, minimum_cohort=minimum)
    members[asking].restart()
    server = Server(CGD, members).begin()
    held = server.shares(range(4))
    answer = server.ask(1, Holding(0, (0, 1, 2), tuple(held[1][:3]), 1), round=1)
    if expected is None or asking == 3:  # which is in no sum that it is not a sender of
        assert isinstance(answer, parts.PartialSum)
    else:
        assert cause(answer) == expected and f"site {asking} asks for 4" in str(members[1].refusals[-1])


@pytest.mark.parametrize("meanwhile", ["nothing", "another attempt", "another run", "restart"])
def test_a_site_advertises_keys_once_for_a_masked_sum(meanwhile):
    """A second client of the same sum would sign a second list of who is left, and nobody could tell which is which."""
    asked = dataclasses.replace(CGD, secure="masked")
    server = Server(asked, parties(pinned=roster()), rehearse=False).begin()
    part = Masking(0, 1, 2, (0, 1, 2, 3), bytes(32), b"")
    assert isinstance(server.ask(0, part, round=1), parts.Masked)
    if meanwhile == "another run":
        Server(asked, server.members, rehearse=False, run=b"s" * 16).greet()
        server.begin()
    if meanwhile == "restart":
        server.members[0].restart()
    attempt = 1 if meanwhile == "another attempt" else 0
    for serial in (2, 1):
        again = dataclasses.replace(part, serial=serial)
        assert cause(server.ask(0, again, round=1, attempt=attempt)) == "stale"
        assert "were advertised" in str(server.members[0].refusals[-1])
    later = dataclasses.replace(part, serial=3)
    assert isinstance(server.ask(0, later, round=1, attempt=attempt), parts.Masked)
    server.session += 1  # another process of the server counts anew, in other terms
    server.sequence = 0
    server.begin()
    assert isinstance(server.ask(0, part, round=1), parts.Masked)


def test_graphs_that_are_complete_anyway_ask_for_more_than_half_too():
    spend = Privacy(noise_multiplier=0.5, dropout_tolerance=0.85, assumed_dishonest=17)
    found = terms(experiment(DPSignFed(steps=1), privacy=spend), ALL_NEIGHBOURS + 1)
    assert found.complete and 2 * found.threshold > ALL_NEIGHBOURS + 1 + 17


# ---- additive shares


def test_a_sum_of_shares_with_less_noise_than_promised_is_not_asked_for():
    def late(site, message, answer):
        asked = Envelope.from_bytes(message, kind=Kind.REQUEST, site=site, key=SERVER.public, peer="server")
        if any(isinstance(parts.asked(part), Holding) for part in asked.parts):
            holding.add((asked.round, asked.attempt))
        answered = answer(message)
        if site != 3 or missed or not members[3].spending.entries():
            return answered
        missed.append(site)
        return Failure("timeout")

    members, missed, holding = parties(limits=OWNER, pinned=roster()), [], set()
    result = run(SHARED, members, fault=late, rehearse=False, roster=roster())
    assert missed and holding == {(1, 1), (2, 0)}  # not for the first attempt, which lacks one site's noise
    assert [line["participants"] for line in result.metrics] == [4, 4]
    assert result.result["privacy"]["releases"] == 2


def test_a_holder_adds_up_no_shares_with_less_noise_than_promised():
    for senders, absent, expected in (
        ((0, 1, 2, 3), 0, None),
        ((0, 1, 2), 1, "limits"),
        ((0, 1, 2), 0, "malformed"),
    ):
        server = begun(SHARED)
        held = server.shares(range(4))
        holding = Holding(0, senders, tuple(held[0][: len(senders)]), absent)
        answer = server.ask(0, holding, round=1)
        # that only three were drawn is not what their senders were told
        assert isinstance(answer, parts.PartialSum) if expected is None else cause(answer) == expected


def test_without_a_promise_some_may_be_missing():
    server = begun(CGD)
    held = server.shares(range(4))
    answer = server.ask(0, Holding(0, (0, 1, 2), tuple(held[0][:3]), 1), round=1)
    assert isinstance(answer, parts.PartialSum)
