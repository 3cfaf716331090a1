"""A site looks after itself: what it refuses, whatever the server asks, signed and well-formed as it may be."""

import dataclasses

import numpy as np
import pytest
import torch
from parties import ALLOWED, BLOBS, SERVER, dealt, experiment, identity, parties, roster

from discreet.config import Privacy, to_toml
from discreet.errors import LocalProtocolError, RemoteProtocolError
from discreet.federation import parts
from discreet.federation.budget import cost
from discreet.federation.identity import Identity
from discreet.federation.kept import kept_model
from discreet.federation.limits import Limits
from discreet.federation.parts import (
    ADDITIVE,
    IN_CLEAR,
    MASKED,
    Begin,
    Evaluate,
    Features,
    Hello,
    Holding,
    Masking,
    Work,
)
from discreet.federation.party import Facts, deployed, prepared, template, written
from discreet.federation.state import SiteState
from discreet.schemes import ConfinedGradientDescent, DPSignFed, FedAvg
from discreet.wire import Envelope, Kind, Part

RUN = b"r" * 16
CGD = experiment(ConfinedGradientDescent(learning_rate=0.1), secure="additive")
VOTES = experiment("dp-signfed")
PLAIN = experiment("fedavg")


class Server:
    """Asks sites by hand, as a server might that keeps to no rule but the form of messages."""

    def __init__(self, asked, members, *, rehearse=True, key=SERVER, run=RUN, session=1, partition=None):
        self.asked, self.members, self.rehearse, self.key = asked, members, rehearse, key
        self.run, self.session, self.sequence = run, session, 0
        held = Facts.of(dealt() if partition is None else partition)
        self.facts = held.told_under(asked.scheme)
        self.federation = prepared(deployed(asked), self.facts, BLOBS, None)
        self.hello = Hello(key.public, rehearse, len(members), to_toml(self.federation.experiment))

    def message(self, site, *asked, round=0, attempt=0, sequence=None):
        self.sequence += 1
        return Envelope(
            Kind.REQUEST,
            self.run,
            self.session,
            self.sequence if sequence is None else sequence,
            round,
            attempt,
            site,
            tuple(part if isinstance(part, Part) else part.part for part in asked),
        ).to_bytes(self.key.sign)

    def ask(self, site, *asked, **place):
        """The answers of a site."""
        reply = self.members[site](self.message(site, *asked, **place))
        found = Envelope.from_bytes(
            reply, kind=Kind.REPLY, site=site, key=identity(site).public, peer=f"site {site}"
        )
        assert found.sequence == self.sequence or place.get("sequence")
        answers = [parts.answered(part) for part in found.parts]
        return answers if len(answers) > 1 else answers[0]

    def greet(self):
        """Greet all sites."""
        welcomes = [self.ask(site, self.hello) for site in range(len(self.members))]
        columns = self.facts.columns
        self.begun = Begin(
            self.facts.sizes, tuple(map(Features, columns)), tuple(one.member for one in welcomes)
        )
        return self

    def begin(self):
        """Greet all sites, and tell them of each other."""
        self.greet()
        for site in range(len(self.members)):
            assert isinstance(self.ask(site, self.begun), parts.Ready)
        return self

    def payload(self, site=0):
        return written(template(self.federation, site))

    def work(self, how=IN_CLEAR, drawn=4, **more):
        return Work(0, drawn, how, self.payload(), **more)

    def work_of(self, site, drawn, holders=(0, 1, 2)):
        """What a site of a grid is asked, whose payload is its own."""
        return Work(0, drawn, ADDITIVE, self.payload(site), holders=holders)

    def shares(self, senders, round=1, attempt=0, holders=(0, 1, 2)):
        """The additive shares of some sites, by the place of their holder."""
        work = self.work(ADDITIVE, holders=holders)
        found = {site: self.ask(site, work, round=round, attempt=attempt)[0].sealed for site in senders}
        return [[found[site][place] for site in senders] for place in range(len(holders))]


def cause(answer):
    """Why something was refused."""
    found = answer if isinstance(answer, parts.Refused) else answer[0]
    assert isinstance(found, parts.Refused), found
    return found.cause


def begun(asked, partition=None, **options):
    return Server(asked, parties(partition, **options), partition=partition).begin()


# ---- who speaks


def test_nothing_is_answered_that_no_server_has_signed():
    server = begun(PLAIN)
    site = server.members[0]
    before = site.state
    stranger = Server(PLAIN, server.members, key=Identity.generate())
    for message in (b"", b"x" * 500, stranger.message(0, stranger.work()), server.message(1, server.work())):
        with pytest.raises(RemoteProtocolError):
            site(message)
    assert site.state == before


def test_without_a_roster_the_first_server_of_a_run_is_its_server():
    server = begun(PLAIN)
    other = Server(PLAIN, server.members, key=Identity.generate())
    other.sequence = 100
    with pytest.raises(RemoteProtocolError, match="signature"):
        other.ask(0, other.hello)


def test_with_a_roster_no_other_server_is_heard():
    server = Server(PLAIN, parties(pinned=roster()), key=Identity.generate())
    with pytest.raises(RemoteProtocolError, match="signature"):
        server.ask(0, server.hello)
    # nor one that is, and introduces another
    server = Server(PLAIN, parties(pinned=roster()))
    hello = dataclasses.replace(server.hello, identity=bytes(32))
    assert cause(server.ask(0, hello)) == "limits"
    assert cause(server.ask(0, dataclasses.replace(server.hello, sites=5))) == "limits"


@pytest.mark.parametrize("pinned", [None, roster()])
def test_keys_that_a_server_makes_up_for_others_are_refused(pinned):
    server = Server(PLAIN, parties(pinned=pinned)).greet()
    made_up = Identity.generate()
    mine = dataclasses.replace(
        server.begun.members[1],
        identity=made_up.public,
        vouched=made_up.sign(parts.vouching(RUN, 1, server.begun.members[1].share_key, 1)),
    )
    members = (server.begun.members[0], mine, *server.begun.members[2:])
    answer = server.ask(0, dataclasses.replace(server.begun, members=members))
    # without a roster nobody can tell, which the result says
    assert isinstance(answer, parts.Ready) if pinned is None else cause(answer) == "malformed"


@pytest.mark.parametrize(
    "change",
    [
        {"share_key": bytes(range(32))},
        {"minimum": 0},
        {"vouched": bytes(64)},
    ],
)
def test_share_keys_and_minima_have_to_be_signed_by_their_owners(change):
    server = Server(PLAIN, parties()).greet()
    wrong = dataclasses.replace(server.begun.members[2], **change)
    members = (*server.begun.members[:2], wrong, server.begun.members[3])
    assert cause(server.ask(0, dataclasses.replace(server.begun, members=members))) == "malformed"


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": (7, 13, 20)},
        {"sizes": (8, 13, 20, 9)},
        {"columns": (Features((0,)), Features((1,)))},
    ],
)
def test_what_is_said_of_a_site_has_to_be_so(change):
    server = Server(PLAIN, parties()).greet()
    assert cause(server.ask(0, dataclasses.replace(server.begun, **change))) in ("malformed", "data")


# ---- what was said before


def test_a_message_is_answered_once():
    server = begun(PLAIN)
    message = server.message(0, server.work(), round=1)
    site = server.members[0]
    site(message)
    state = site.state
    assert b"".join(site(message) for _ in range(2)) and site.state == state
    for sequence in (1, server.sequence):
        assert cause(server.ask(0, server.work(), round=2, sequence=sequence)) == "replayed"
    server.session, server.sequence = 2, 0
    assert len(server.ask(0, server.work(), round=2)) == 2


def test_rounds_go_forward_only():
    server = begun(PLAIN)
    server.ask(0, server.work(), round=3, attempt=1)
    for round, attempt in ((3, 1), (3, 0), (2, 5), (1, 0)):
        assert cause(server.ask(0, server.work(), round=round, attempt=attempt)) == "stale"
    assert len(server.ask(0, server.work(), round=3, attempt=2)) == 2


def test_replays_of_an_earlier_run_are_told_from_news():
    server = begun(PLAIN)
    old = server.message(0, server.hello)
    server.members[0](old)
    following = Server(PLAIN, server.members, run=b"s" * 16)
    following.begin()
    reply = server.members[0](old)
    found = Envelope.from_bytes(reply, kind=Kind.REPLY, site=0, key=identity(0).public, peer="")
    assert cause(parts.answered(found.parts[0])) == "replayed"
    assert cause(server.ask(0, server.work(), round=1)) == "state-missing"


def test_nothing_is_done_before_the_run_has_begun():
    server = Server(PLAIN, parties())
    with pytest.raises(RemoteProtocolError, match="introduction"):
        server.ask(0, server.work(), round=1)
    server.ask(0, server.hello)
    assert cause(server.ask(0, server.work(), round=1)) == "state-missing"


# ---- what its owner allows


@pytest.mark.parametrize(
    ("limits", "asked", "expected"),
    [
        (Limits(minimum_cohort=1), PLAIN, "limits"),  # a rehearsal
        (dataclasses.replace(ALLOWED, schemes=["signfed"]), PLAIN, "scheme"),
        (dataclasses.replace(ALLOWED, require_private=True), PLAIN, "scheme"),
        (dataclasses.replace(ALLOWED, require_secure=True), PLAIN, "limits"),
        (dataclasses.replace(ALLOWED, minimum_cohort=5), PLAIN, "limits"),
        (dataclasses.replace(ALLOWED, epsilon=1.0, delta=1e-5), PLAIN, "scheme"),
    ],
)
def test_runs_that_are_not_allowed_are_refused_at_once(limits, asked, expected):
    server = Server(asked, parties(limits=limits))
    answer = server.ask(0, server.hello)
    assert cause(answer) == expected and answer.identity == identity(0).public
    assert server.members[0].refusals
    assert SiteState.from_bytes(server.members[0].state).run is None


def test_code_is_imported_only_if_the_owner_named_it():
    asked = dataclasses.replace(
        PLAIN, model=dataclasses.replace(PLAIN.model, name="antigravity:fly", options={})
    )
    server = Server(PLAIN, parties())
    hello = dataclasses.replace(server.hello, experiment=to_toml(asked))
    assert cause(server.ask(0, hello)) == "limits"


@pytest.mark.parametrize(
    "text", ["rounds = ", "rounds = -1", "nonsense = 1", "", "[scheme]\nname = 'dp-sgd'"]
)
def test_experiments_that_are_none_are_refused(text):
    server = Server(PLAIN, parties())
    answer = server.ask(0, dataclasses.replace(server.hello, experiment=text))
    assert isinstance(answer, parts.Welcome) if not text else cause(answer) == "scheme"


def test_the_owners_budget_ends_its_contributions_and_nothing_else():
    asked = experiment(DPSignFed(steps=1), privacy=Privacy(noise_multiplier=4.0), rounds=50)
    server = Server(asked, parties(), rehearse=False)
    released = server.federation.scheme.release(server.federation.task)
    site = server.members[0]
    one = cost(site.spending.ledger().add(released, 1), 1e-5).epsilon
    three = cost(site.spending.ledger().add(released, 3), 1e-5).epsilon
    limits = dataclasses.replace(ALLOWED, epsilon=(three + one * 0.01), delta=1e-5)
    for each in server.members:
        each.options["limits"] = limits
        each.restart()
    server.begin()
    outcomes = []
    for round in range(1, 6):
        masked = to_mask(server, round, serial=round)
        outcomes.append(server.ask(0, masked, round=round))
    assert [isinstance(one, parts.Masked) for one in outcomes] == [True] * 3 + [False] * 2
    assert cause(outcomes[3]) == "budget"
    assert site.spending.ledger().releases == 3
    assert cost(site.spending.ledger(), 1e-5).epsilon <= limits.epsilon


def to_mask(server, round, serial, attempt=0):
    """Play the first two stages of a masked sum by hand; what site 0 is then asked."""
    from discreet.federation.masked import MaskedSum
    from discreet.federation.terms import agreement, masking_terms
    from discreet.secure.masking import Stage

    cohort = tuple(range(len(server.members)))
    agreed = agreement(server.rehearse, server.hello.experiment, server.begun)
    terms = masking_terms(
        server.federation, server.run, agreed, server.session, serial, round, cohort, bytes(31) + b"\1"
    )
    keys = {site: identity(site).public for site in cohort}
    sum_ = MaskedSum.of(serial, terms, keys, {})
    for stage, number in ((Stage.ADVERTISE, 0), (Stage.SHARE, 1)):
        for site in cohort:
            part = Masking(number, round, serial, cohort, terms.nonce, sum_.inbox[site])
            sum_.take(site, server.ask(site, part, round=round, attempt=attempt), None)
        assert sum_.close(stage), (stage, sum_.aborted)
    return server.work(MASKED, serial=serial, delivered=sum_.inbox[0])


# ---- what a sum may be


@pytest.mark.parametrize(
    ("asked", "how"), [(VOTES, IN_CLEAR), (VOTES, ADDITIVE), (CGD, IN_CLEAR), (PLAIN, MASKED)]
)
def test_a_sum_is_as_secure_as_the_experiment_says(asked, how):
    server = begun(asked)
    assert cause(server.ask(0, server.work(how, holders=(0, 1, 2)), round=1)) == "malformed"
    assert not server.members[0].spending.entries()


@pytest.mark.parametrize("drawn", [0, 5, 60_000])
def test_noise_is_not_made_smaller_for_sites_that_there_are_not(drawn):
    server = begun(experiment("dp-fedavg", secure="none"))
    assert cause(server.ask(0, server.work(drawn=drawn), round=1)) == "malformed"
    # in a masked sum, for no more than those in it
    server = begun(VOTES)
    work = dataclasses.replace(to_mask(server, 1, 1), drawn=3)
    assert cause(server.ask(0, work, round=1)) == "malformed"


def test_a_cohort_too_small_for_the_owner_is_refused_in_every_message():
    limits = dataclasses.replace(ALLOWED, minimum_cohort=4)
    server = begun(PLAIN, limits=limits)
    assert cause(server.ask(0, server.work(drawn=3), round=1)) == "limits"
    server = begun(VOTES, limits=limits)
    part = Masking(0, 1, 1, (0, 1, 2), bytes(32), b"")
    assert cause(server.ask(0, part, round=1)) == "limits"
    server = begun(CGD, limits=limits)
    held = server.shares(range(4))
    holding = Holding(0, (0, 1, 2), tuple(held[0][:3]))
    assert cause(server.ask(0, holding, round=1)) == "limits"


@pytest.mark.parametrize(
    "part",
    [
        Masking(0, 1, 1, (1, 2, 3), bytes(32), b""),  # it is not in it
        Masking(0, 1, 1, (0, 1, 9), bytes(32), b""),
        Masking(0, 5, 1, (0, 1, 2, 3), bytes(32), b""),
        Masking(0, 1, 1, (0, 1, 2, 3), bytes(32), b"x"),
        Masking(1, 1, 1, (0, 1, 2, 3), bytes(32), b""),  # it has not advertised
        Masking(2, 1, 1, (0, 1, 2, 3), bytes(32), b""),
        Masking(0, 1, 1, (), bytes(32), b""),
        Masking(0, 1, 1, (0, 0, 1), bytes(32), b""),
    ],
)
def test_masked_sums_that_cannot_be_are_refused(part):
    server = begun(VOTES)
    assert cause(server.ask(0, part, round=1)) in ("malformed", "stale", "limits")


def test_a_masked_sum_that_went_wrong_is_over():
    server = begun(VOTES)
    work = to_mask(server, 1, 1)
    wrong = bytearray(work.delivered)
    wrong[-1] ^= 1
    assert cause(server.ask(0, dataclasses.replace(work, delivered=bytes(wrong)), round=1)) == "malformed"
    assert cause(server.ask(0, work, round=1, attempt=1)) == "stale"
    assert all(one.serial != 1 for one in SiteState.from_bytes(server.members[0].state).run.sums)


def test_shares_are_added_up_once_for_each_sum():
    server = begun(CGD)
    held = server.shares(range(4))
    everyone = Holding(0, (0, 1, 2, 3), tuple(held[0]))
    assert isinstance(server.ask(0, everyone, round=1), parts.PartialSum)
    # the same but for one: the difference of the two would be that one's share
    but_one = Holding(0, (0, 1, 2), tuple(held[0][:3]))
    assert cause(server.ask(0, but_one, round=1)) == "stale"
    assert cause(server.ask(0, everyone, round=1)) == "stale"
    # nor later, or for another round
    assert cause(server.ask(0, but_one, round=1, attempt=1)) == "malformed"
    assert cause(server.ask(0, but_one, round=2)) == "malformed"


def test_shares_of_one_site_alone_are_not_added_up():
    server = begun(CGD)
    held = server.shares(range(4))
    assert cause(server.ask(0, Holding(0, (3,), (held[0][3],)), round=1)) == "limits"


@pytest.mark.parametrize(
    ("senders", "choose"),
    [
        ((0, 1, 3, 2), (0, 1, 2, 3)),
        ((0, 1, 2, 9), (0, 1, 2, 3)),
        ((0, 1, 2), (0, 1, 2, 3)),
        ((0, 1, 2, 3), (1, 0, 2, 3)),  # another's share
        ((0, 0, 1, 2), (0, 0, 1, 2)),
    ],
)
def test_shares_that_are_not_as_they_should_be_are_refused(senders, choose):
    server = begun(CGD)
    held = server.shares(range(4))
    holding = Holding(0, senders, tuple(held[0][place] for place in choose))
    assert cause(server.ask(0, holding, round=1)) == "malformed"


def test_a_share_is_for_its_holder_alone():
    server = begun(CGD)
    held = server.shares(range(4))
    assert cause(server.ask(0, Holding(0, (0, 1, 2, 3), tuple(held[1])), round=1)) == "malformed"


@pytest.mark.parametrize("holders", [(0, 1), (0, 1, 1), (0, 1, 9), (), (0, 1, 2, 3)])
def test_shares_go_to_as_many_holders_as_was_agreed(holders):
    server = begun(CGD)
    assert cause(server.ask(0, server.work(ADDITIVE, holders=holders), round=1)) == "malformed"


# ---- what is in a message


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b""},
        {"payload": bytes(17)},
        {"phase": 1},
        {"phase": 200},
        {"received": (b"",)},
    ],
)
def test_payloads_that_do_not_fit_are_refused(change):
    server = begun(PLAIN)
    assert cause(server.ask(0, dataclasses.replace(server.work(), **change), round=1)) == "malformed"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_models_that_are_not_finite_are_refused(value):
    server = begun(PLAIN)
    payload = np.frombuffer(server.payload(), np.float32).copy()
    payload[3] = value
    assert cause(server.ask(0, Work(0, 4, IN_CLEAR, payload.tobytes()), round=1)) == "malformed"


def test_parts_that_are_none_are_refused_and_not_answered_in_words():
    server = begun(PLAIN)
    assert cause(server.ask(0, Part(200, b""), round=1)) == "malformed"
    assert cause(server.ask(0, Part(4, b"x"), round=1)) == "malformed"
    assert cause(server.ask(0, server.work(), round=0)) == "malformed"


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, AssertionError, ImportError])
def test_a_failure_of_the_sites_own_says_no_more_than_that(error):
    server = begun(PLAIN)
    site = server.members[0]
    site.site._seat = None
    site.site.holdings._own = None

    def broken():
        raise error("patient 4711 is missing")

    site.site.holdings.data = dataclasses.replace(site.site.holdings.data, load=broken)
    answer = server.ask(0, server.work(), round=1)
    assert cause(answer) == "internal"
    assert "4711" in str(site.refusals[-1])


def test_models_are_judged_only_where_the_owner_says_so():
    asked = experiment("local")
    server = begun(asked, limits=dataclasses.replace(ALLOWED, report_evaluation=False))
    assert cause(server.ask(0, Evaluate(server.payload()), round=1)) == "limits"
    server = begun(asked)
    found = server.ask(0, Evaluate(server.payload()), round=1)
    assert found.examples == len(BLOBS.test) and 0 <= found.accuracy <= 1


def test_local_training_starts_from_where_it_was_before_a_round_is_played_again():
    asked = experiment("local")
    server = begun(asked)
    site = server.members[0]
    work = server.work()

    def model():
        return kept(site)

    server.ask(0, work, round=1)
    first = model()
    server.ask(0, work, round=2)
    second = model()
    server.session, server.sequence = 2, 0
    server.ask(0, work, round=2)
    assert torch.equal(model(), second) and not torch.equal(first, second)


def kept(site):
    run = SiteState.from_bytes(site.state).run
    return torch.frombuffer(bytearray(run.kept[-1].vector), dtype=torch.float32)


def test_the_state_is_all_that_a_site_needs_and_a_damaged_one_is_refused():
    server = begun(experiment(FedAvg(steps=2)))
    site = server.members[0]
    message = server.message(0, server.work(), round=1)
    before = site.state
    first = site(message)
    site.state = before
    site.restart()
    assert site(message) == first
    for damaged in (site.state[:-1], site.state + b"\0", b"nonsense"):
        with pytest.raises(LocalProtocolError):
            site.site.step(damaged, message)
        with pytest.raises(LocalProtocolError):
            kept_model(damaged, 0)
