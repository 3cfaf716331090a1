"""A server that tells clients different things about who dropped out, and what keeps it from a sum of fewer."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.errors import RemoteProtocolError, RoundAborted
from discreet.secure.masking import Progress, Stage, keys, shamir
from discreet.secure.masking.masks import add_masks
from discreet.secure.masking.messages import (
    AdvertisedKeys,
    Consent,
    Consents,
    MaskedInput,
    UnmaskRequest,
    UnmaskShares,
)
from discreet.secure.packing import unpack
from masked_round import MaskedRound, plain_sum, terms

SIX = {"clients": 6, "threshold": 4, "minimum_survivors": 4}
"""Two of six may drop out, and one may collude: the threshold is above half of seven."""

PAIRS = {10: (13, 14), 11: (14, 15), 12: (13, 15), 13: (14, 15), 14: (13, 15), 15: (13, 14)}
"""For each client two that it is told are gone: each of 13, 14 and 15 is gone for four of the six."""


def known(**changes):
    """A round between clients who know each other."""
    about = terms(**changes)
    identities = {
        client: Ed25519PrivateKey.from_private_bytes(client.to_bytes(32, "big")) for client in about.cohort
    }
    roster = {client: identity.public_key().public_bytes_raw() for client, identity in identities.items()}
    return MaskedRound(about, roster=roster, identities=identities)


def consenting(gone=(14,), **changes):
    """A round in which some are silent when masked inputs are sent, and the others are asked to consent to that."""
    return known(**changes).play(until=Stage.MASK).play(until=Stage.CONSENT, silent=gone)


def told(play, client, gone):
    """What a server says to a client of whom it says that they are gone."""
    there = tuple(one for one in play.about.cohort if one not in gone)
    return UnmaskRequest(client, there, tuple(gone), len(there)).to_bytes(play.about)


def read_of(play, wanted, answers):
    """The sum of the clients that are wanted, from all that a server has seen; those it needs shares of must be there."""
    about, ring = play.about, play.about.ring

    def recovered(owner, kind):
        shares = {
            about.points[holder]: dict(getattr(answer, kind))[owner]
            for holder, answer in answers.items()
            if owner in dict(getattr(answer, kind))
        }
        return shamir.recover(shares, about.threshold).to_bytes(32, "little")

    advertised = {
        client: AdvertisedKeys.from_bytes(data, about, peer=client, client=client).keys
        for client, data in play.sent[Stage.ADVERTISE].items()
    }
    total, plus, minus = ring.zeros(about.length), [], []
    for client in wanted:
        packed = MaskedInput.from_bytes(
            play.sent[Stage.MASK][client], about, peer=client, client=client
        ).packed
        ring.add(total, unpack(ring, np.frombuffer(packed, np.uint8), about.length), out=total)
        minus.append(keys.self_seed(about, recovered(client, "seeds"), client))
    for gone in set(about.cohort) - set(wanted):
        pair = keys.KeyPair.of(gone, recovered(gone, "keys"))
        for client in wanted:
            seed = keys.mask_seed(about, pair, client, advertised[client].mask)
            (minus if client < gone else plus).append(seed)
    add_masks(ring, total, plus, minus, 1)
    return total.tolist()


def test_where_clients_do_not_know_each_other_different_lies_add_up_to_the_sum_of_fewer():
    """The attack that consents are against: no client is told of fewer than four, and the sum of three is read."""
    play = MaskedRound(terms(**SIX)).play(until=Stage.UNMASK)
    answers = {
        client: UnmaskShares.from_bytes(
            play.clients[client].unmask(told(play, client, gone)), play.about, peer=client, client=client
        )
        for client, gone in PAIRS.items()
    }
    assert read_of(play, (10, 11, 12), answers) == plain_sum(play.about, play.inputs, (10, 11, 12))


def test_clients_who_know_each_other_unmask_for_no_such_server():
    play = known(**SIX).play(until=Stage.UNMASK)
    signed = {
        client: Consent.from_bytes(
            play.clients[client].consent(told(play, client, gone), play.identities[client]),
            play.about,
            peer=client,
            client=client,
        ).signature
        for client, gone in PAIRS.items()
    }
    for client, gone in PAIRS.items():
        # it has the signatures of all, and none of four who are of one mind
        others = sorted(set(signed) - set(gone) - {client})
        for some in itertools.combinations(others, 3):
            consents = tuple((one, signed[one]) for one in sorted((client, *some)))
            message = Consents(client, consents).to_bytes(play.about)
            before = play.clients[client].state_bytes()
            with pytest.raises(RemoteProtocolError, match="did not sign these survivors"):
                play.clients[client].unmask(message)
            play.clients[client] = type(play.clients[client]).restore(before, play.about, roster=play.roster)


@pytest.mark.parametrize("gone", [(14,), (10,), (11, 13)])
def test_the_sum_is_exact_once_all_have_consented(gone):
    play = consenting(gone, **SIX)
    total = play.play()
    survivors = tuple(client for client in play.about.cohort if client not in gone)
    assert total.survivors == survivors
    assert total.values.tolist() == plain_sum(play.about, play.inputs, survivors)
    left = len(survivors)
    assert total.bytes_up[Stage.CONSENT] == left * Consent.size(play.about)
    assert total.bytes_down[Stage.CONSENT] == left * Consents.size(play.about)


def test_nobody_is_asked_to_consent_where_nobody_is_gone():
    total = known(**SIX).play()
    assert total.survivors == tuple(range(10, 16)) and total.bytes_up[Stage.CONSENT] == 0
    # nor where an earlier stage was the last that the others heard of it
    early = known(**SIX).play(until=Stage.SHARE)
    assert early.play(silent=[12]).bytes_up[Stage.CONSENT] == 0


@pytest.mark.parametrize(("silent", "enough"), [([10], True), ([10, 11], False)])
def test_who_falls_silent_instead_of_consenting_is_in_the_sum_if_enough_are_left(silent, enough):
    play = consenting(**SIX)
    if enough:
        total = play.play(silent=silent)
        assert total.survivors == (10, 11, 12, 13, 15)
        assert total.values.tolist() == plain_sum(play.about, play.inputs, total.survivors)
    else:
        with pytest.raises(RoundAborted):
            play.play(silent=silent)


# -- what clients refuse


def test_no_share_of_a_key_without_consents():
    play = consenting(**SIX)
    with pytest.raises(RemoteProtocolError, match="dropouts: the others have not consented"):
        play.clients[10].unmask(play.inbox[10])
    assert play.clients[10].progress == Progress.FAILED


def test_a_client_consents_once():
    play = consenting(**SIX)
    play.send()
    for request in (play.inbox[10], told(play, 10, (14, 15))):
        party = type(play.clients[10]).restore(play.clients[10].state_bytes(), play.about, roster=play.roster)
        with pytest.raises(RemoteProtocolError, match="stage: this client is CONSENTED"):
            party.consent(request, play.identities[10])
        assert party.progress == Progress.FAILED


def test_who_has_consented_does_not_unmask_for_a_mere_request():
    play = consenting(**SIX)
    play.send()
    with pytest.raises(RemoteProtocolError, match="length"):
        play.clients[10].unmask(told(play, 10, ()))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda found, forged: found[:3], "consents: expected 4"),
        (lambda found, forged: (*found[:3], (14, forged)), "of a client that dropped out"),
        (lambda found, forged: ((10, forged), *found[1:]), "client 10's identity did not sign"),
        (lambda found, forged: (*found[:3], (15, found[0][1])), "client 15's identity did not sign"),
        (lambda found, forged: (*found[:3], (99, forged)), "of a client that dropped out"),
    ],
)
def test_consents_that_are_none(change, field):
    play = consenting(**SIX).play(until=Stage.UNMASK)
    found = Consents.from_bytes(play.inbox[11], play.about, peer="server", client=11).consents
    assert [one for one, _ in found] == [10, 11, 12, 13]
    elsewhere = replace(play.about, round=play.about.round + 1)
    forged = keys.consent(elsewhere, (10, 11, 12, 13, 15), play.identities[10])
    with pytest.raises(RemoteProtocolError, match=field):
        play.clients[11].unmask(Consents(11, change(found, forged)).to_bytes(play.about))
    assert play.clients[11].progress == Progress.FAILED


def test_a_client_consents_only_to_survivors_of_whom_it_holds_shares():
    """One that was not told of all of them put no mask in for the others, and must not help to take theirs away."""
    play = known(**SIX).play(until=Stage.MASK)
    fewer = known(**SIX).play(until=Stage.SHARE).play(until=Stage.MASK, silent=[12])
    play.sent[Stage.MASK][10] = fewer.answer(10, Stage.MASK, fewer.inbox[10])
    with pytest.raises(RemoteProtocolError, match="a client that shared no keys"):
        fewer.clients[10].consent(told(play, 10, (14,)), play.identities[10])


# -- what the server refuses


def test_a_consent_to_something_else_is_refused():
    play = consenting(**SIX)
    other = keys.consent(play.about, (10, 11, 12, 13), play.identities[10])
    with pytest.raises(RemoteProtocolError, match="signature: not of these survivors") as caught:
        play.server.collect(10, Consent(10, other).to_bytes(play.about))
    assert caught.value.peer == 10
    total = play.play(silent=[10])
    assert total.survivors == (10, 11, 12, 13, 15) and 10 in total.dropped


def test_without_a_roster_or_all_as_neighbours_there_are_no_consents():
    alone = MaskedRound(terms(**SIX)).play(until=Stage.MASK).play(until=Stage.UNMASK, silent=[14])
    assert alone.play().survivors == (10, 11, 12, 13, 15)
    sparse = known(clients=8, degree=4, threshold=3).play(until=Stage.MASK)
    assert sparse.play(silent=[14]).bytes_up[Stage.CONSENT] == 0
