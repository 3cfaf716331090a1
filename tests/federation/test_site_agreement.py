"""A site holds the server to what it said before, and is in no sum with sites that were told something else."""

import dataclasses

import numpy as np
import pytest
from parties import ALLOWED, SERVER, SIZES, dealt, experiment, parties, roster, run
from test_site import CGD, PLAIN, RUN, VOTES, Server, begun, cause, to_mask

from discreet.config import to_toml
from discreet.errors import LocalProtocolError, RemoteProtocolError, UserError
from discreet.federation import parts
from discreet.federation.identity import Identity
from discreet.federation.link import Failure
from discreet.federation.parts import ADDITIVE, Begin, End, Evaluate, Features, Holding, Work
from discreet.federation.party import Facts
from discreet.federation.state import MOST_RUNS, Mark, SiteState
from discreet.schemes import ConfinedGradientDescent
from discreet.wire import RUN_BYTES, Envelope, Kind

MASKED_CGD = dataclasses.replace(CGD, secure="masked")
HALVES = (np.array([0, 2, 4]), np.array([1, 3, 5]))
THIRDS = (np.array([0, 1]), np.array([2, 3]), np.array([4, 5]))
GRID = dealt((7, 9, 13), HALVES)


def confined(forward):
    scheme = ConfinedGradientDescent(learning_rate=0.1, forward=forward)
    return experiment(scheme, secure="additive")


def other(server, **changes):
    """The greeting of another experiment."""
    asked = dataclasses.replace(server.federation.experiment, **changes)
    return dataclasses.replace(server.hello, experiment=to_toml(asked))


def tighten(site, **limits):
    """The site starts again with other options, as after its owner has changed a file."""
    site.options |= limits
    site.restart()


# ---- everybody is told the same


def test_shares_open_only_between_sites_of_one_experiment():
    server = Server(CGD, parties())
    welcomes = [server.ask(site, server.hello) for site in range(3)]
    welcomes.append(server.ask(3, other(server, seed=CGD.seed + 1)))
    server.begun = Begin(server.facts.sizes, (), tuple(one.member for one in welcomes))
    for site in range(4):
        assert isinstance(server.ask(site, server.begun), parts.Ready)
    held = server.shares(range(4))
    assert cause(server.ask(0, Holding(0, (0, 1, 2, 3), tuple(held[0])), round=1)) == "malformed"
    assert "site 3" in str(server.members[0].refusals[-1])
    three = Holding(0, (0, 1, 2), tuple(held[1][:3]), absent=1)
    assert isinstance(server.ask(1, three, round=1), parts.PartialSum)


def test_masks_are_agreed_on_only_between_sites_of_one_experiment():
    server = Server(VOTES, parties())
    welcomes = [server.ask(site, server.hello) for site in range(3)]
    welcomes.append(server.ask(3, other(server, seed=VOTES.seed + 1)))
    server.begun = Begin(server.facts.sizes, (), tuple(one.member for one in welcomes))
    for site in range(4):
        assert isinstance(server.ask(site, server.begun), parts.Ready)
    with pytest.raises(RemoteProtocolError):
        to_mask(server, 1, 1)


@pytest.mark.parametrize("change", [{"rehearse": True}, {"experiment": "rounds = 2"}])
def test_sites_agree_on_all_that_they_are_told(change):
    from discreet.federation.terms import agreement

    member = parts.Member(bytes(32), bytes(32), 3, bytes(64))
    told = {"rehearse": False, "experiment": "rounds = 1", "begin": Begin((7, 5), (), (member, member))}
    assert agreement(**told) != agreement(**told | change)
    rekeyed = dataclasses.replace(member, share_key=b"k" * 32, vouched=b"v" * 64)
    same = dataclasses.replace(told["begin"], members=(member, rekeyed))
    assert agreement(**told) == agreement(**told | {"begin": same})
    for changed in (
        {"sizes": (7, 6)},
        {"columns": (Features((0,)), Features((1,)))},
        {"members": (member, dataclasses.replace(member, identity=b"i" * 32))},
        {"members": (member, dataclasses.replace(member, minimum=4))},
    ):
        begin = dataclasses.replace(told["begin"], **changed)
        assert agreement(**told) != agreement(**told | {"begin": begin})


# ---- a run stays what it was


@pytest.mark.parametrize("change", ["sizes", "identity"])
def test_a_run_does_not_begin_again_with_others(change):
    server = begun(PLAIN)
    before = server.members[0].state
    begin = dataclasses.replace(server.begun, sizes=(*SIZES[:3], SIZES[3] + 1))
    if change == "identity":
        made_up, there = Identity.generate(), server.begun.members[1]
        vouched = made_up.sign(parts.vouching(RUN, 1, there.share_key, there.minimum))
        wrong = dataclasses.replace(there, identity=made_up.public, vouched=vouched)
        members = (server.begun.members[0], wrong, *server.begun.members[2:])
        begin = dataclasses.replace(server.begun, members=members)
    assert cause(server.ask(0, begin)) == "malformed"
    assert SiteState.from_bytes(server.members[0].state).run == SiteState.from_bytes(before).run


def test_a_run_goes_on_with_a_site_that_has_lost_its_keys():
    server = Server(PLAIN, parties(), rehearse=False).begin()
    server.members[2].state = b""
    member = server.ask(2, server.hello).member
    assert member != server.begun.members[2]
    members = (*server.begun.members[:2], member, server.begun.members[3])
    assert isinstance(server.ask(0, dataclasses.replace(server.begun, members=members)), parts.Ready)


@pytest.mark.parametrize(
    "columns",
    [((), (), (), range(6)), ((0, 1), (1, 2), (3, 4), (5,)), ((), (0, 1), (2, 3), (5,))],
)
def test_columns_hold_each_feature_once(columns):
    server = Server(PLAIN, parties()).greet()
    lie = dataclasses.replace(
        server.begun, sizes=SIZES[:1], columns=tuple(Features(tuple(own)) for own in columns)
    )
    assert cause(server.ask(0, lie)) == "malformed"
    assert "each feature once" in str(server.members[0].refusals[-1])


def test_a_run_stays_a_rehearsal_or_none_between_as_many_sites_of_one_experiment():
    server = begun(PLAIN)
    before = SiteState.from_bytes(server.members[0].state).run
    for hello in (
        dataclasses.replace(server.hello, rehearse=False),
        dataclasses.replace(server.hello, sites=5),
        other(server, rounds=PLAIN.rounds - 1),
        other(server, seed=PLAIN.seed + 1),
    ):
        assert cause(server.ask(0, hello)) in ("malformed", "data")
    assert SiteState.from_bytes(server.members[0].state).run == before


def test_a_run_may_get_more_rounds():
    server = begun(VOTES)
    server.hello = other(server, rounds=VOTES.rounds + 2)
    server.session, server.sequence = 2, 0
    server.begin()
    assert isinstance(server.ask(0, to_mask(server, 4, 1), round=4)[0], parts.Masked)


# ---- what the owner says holds from then on


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (dataclasses.replace(ALLOWED, schemes=["signfed"]), "scheme"),
        (dataclasses.replace(ALLOWED, require_secure=True), "limits"),
        (dataclasses.replace(ALLOWED, allow_rehearsal=False), "limits"),
    ],
)
def test_limits_hold_for_a_run_that_has_begun(limits, expected):
    server = begun(PLAIN)
    tighten(server.members[0], limits=limits)
    assert cause(server.ask(0, server.work(), round=1)) == expected
    assert not server.members[0].spending.entries()


def test_the_others_hear_of_it_where_an_owner_asks_for_more_sites_in_a_sum():
    server = begun(CGD)
    before = server.begun
    tighten(server.members[1], limits=dataclasses.replace(ALLOWED, minimum_cohort=4))
    assert cause(server.ask(1, server.work(ADDITIVE, holders=(0, 1, 2)), round=1)) == "state-missing"
    server.begin()
    assert [one.minimum for one in server.begun.members] == [1, 4, 1, 1]
    assert cause(server.ask(1, before)) == "state-missing"
    server.begin()
    held = server.shares(range(4))
    assert cause(server.ask(0, Holding(0, (0, 1, 2), tuple(held[0][:3]), 1), round=1)) == "limits"


def test_what_an_owner_asked_for_before_is_not_told_to_the_others():
    """A server keeps what a site signed earlier in the run, and hands it to all others again."""
    server = begun(CGD)
    before = server.begun
    tighten(server.members[1], limits=dataclasses.replace(ALLOWED, minimum_cohort=4))
    after = server.begin().begun
    for site in (0, 2, 3):
        assert isinstance(server.ask(site, before), parts.Ready)
    held = server.shares(range(4))
    for three in ((0, 1, 2), (1, 2, 3)):
        some = Holding(0, three, tuple(held[0][sender] for sender in three), 1)
        assert cause(server.ask(0, some, round=1)) == "malformed"
    assert cause(server.ask(1, before)) == "state-missing"
    assert isinstance(server.ask(1, after), parts.Ready)


@pytest.mark.parametrize("asked", [CGD, MASKED_CGD, VOTES])
@pytest.mark.parametrize("silent", range(5))
def test_a_run_goes_on_where_an_owner_asks_for_more_sites_in_a_sum(asked, silent):
    """Its site is away for some exchanges, and comes back in whichever is next."""

    def stricter(site, message, answer):
        request = Envelope.from_bytes(message, kind=Kind.REQUEST, site=site, key=SERVER.public, peer="server")
        if site == 1 and request.round >= 2:
            missed.append(site)
            if len(missed) <= silent:
                return Failure("unreachable")
            if len(missed) == silent + 1:
                tighten(members[1], limits=dataclasses.replace(ALLOWED, minimum_cohort=4))
        return answer(message)

    members, missed = parties(), []
    result = run(dataclasses.replace(asked, rounds=20), members, fault=stricter, rehearse=False)
    assert len(missed) > silent
    assert [line["participants"] for line in result.metrics[-2:]] == [4, 4]
    repeated = [line["attempts"] for line in result.metrics if line["attempts"] > 1]
    assert repeated in ([], [2], [2, 2])  # one for the silence, one for the change


def test_a_roster_holds_for_a_run_that_has_begun():
    server = Server(PLAIN, parties()).greet()
    made_up, there = Identity.generate(), server.begun.members[1]
    vouched = made_up.sign(parts.vouching(RUN, 1, there.share_key, there.minimum))
    wrong = dataclasses.replace(there, identity=made_up.public, vouched=vouched)
    members = (server.begun.members[0], wrong, *server.begun.members[2:])
    assert isinstance(server.ask(0, dataclasses.replace(server.begun, members=members)), parts.Ready)
    tighten(server.members[0], roster=roster())
    assert cause(server.ask(0, server.work(), round=1)) == "malformed"
    assert "roster" in str(server.members[0].refusals[-1])


# ---- sums of a grid


def test_a_grid_of_too_few_rows_is_refused_when_it_is_known():
    members = parties(dealt((13, 16), THIRDS), limits=dataclasses.replace(ALLOWED, minimum_cohort=3))
    server = Server(confined("joint"), members, partition=dealt((13, 16), THIRDS)).greet()
    assert cause(server.ask(0, server.begun)) == "limits"


def test_each_column_is_summed_over_enough_sites():
    limits = dataclasses.replace(ALLOWED, minimum_cohort=3)
    server = begun(confined("independent"), GRID, limits=limits)
    for drawn, allowed in ((5, False), (6, True)):
        answer = server.ask(0, server.work(ADDITIVE, drawn=drawn, holders=(0, 1, 2)), round=drawn)
        assert isinstance(answer, list) == allowed
    work = [server.work_of(site, drawn=6) for site in range(6)]
    held = [server.ask(site, work[site], round=7)[0].sealed[0] for site in range(6)]
    assert cause(server.ask(0, Holding(0, (0, 1, 2, 3, 4), tuple(held[:5]), absent=1), round=7)) == "limits"
    assert isinstance(server.ask(0, Holding(0, tuple(range(6)), tuple(held)), round=7), parts.PartialSum)


def test_a_column_of_one_row_has_nobody_to_hide_among():
    row = dealt((29,), THIRDS)
    server = begun(confined("independent"), row)
    held = [server.ask(site, server.work_of(site, drawn=3), round=1)[0].sealed[0] for site in range(3)]
    assert cause(server.ask(0, Holding(0, (0, 1, 2), tuple(held)), round=1)) == "limits"


def test_rows_are_summed_whole_and_by_who_is_in_them():
    server = begun(confined("joint"), GRID)
    held = [server.ask(site, server.work_of(site, drawn=6), round=1)[0].sealed[0] for site in range(2, 6)]
    but_one = Holding(0, (2, 3, 4), tuple(held[:3]), absent=3)
    assert cause(server.ask(0, but_one, round=1)) == "malformed"
    # to hold shares of a round's first phase is not to have been in it
    assert isinstance(server.ask(0, Holding(0, (2, 3, 4, 5), tuple(held), 2), round=1), parts.PartialSum)
    second = Work(1, 6, ADDITIVE, received=(b"",), holders=(0, 1, 2))
    assert cause(server.ask(0, second, round=1)) == "stale"


# ---- what a number costs


def test_what_others_say_they_hold_takes_no_memory():
    with pytest.raises(UserError, match="site 2 says it holds 268435456 examples"):
        Facts((7, 2**28), ((0,), (1,))).partition(7)
    with pytest.raises(LocalProtocolError, match="sizes"):
        Begin((2**28 + 1,), (), ()).to_bytes()
    found = Facts((5, 3, 4)).partition(3)
    assert found.indices(1).tolist() == [0, 1, 2] and found.sizes.tolist() == [5, 3, 4]


def test_a_site_remembers_only_so_many_runs():
    server = begun(PLAIN)
    site = server.members[0]
    known = SiteState.from_bytes(site.state)
    names = (number.to_bytes(RUN_BYTES, "big") for number in range(MOST_RUNS - 1))
    marks = tuple(Mark(name, server.key.public, 1, 1) for name in names)
    site.state = before = dataclasses.replace(known, marks=(*marks, *known.marks)).to_bytes()
    following = Server(PLAIN, server.members, run=b"s" * 16)
    assert cause(following.ask(0, following.hello)) == "limits"
    assert site.state == before
    assert len(server.ask(0, server.work(), round=1)) == 2


# ---- models


def test_a_model_is_judged_once_a_round():
    server = begun(experiment("local"))
    judge = Evaluate(server.payload())
    assert isinstance(server.ask(0, judge, round=2), parts.Evaluated)
    for round in (2, 1):
        assert cause(server.ask(0, judge, round=round)) == "stale"
    assert isinstance(server.ask(0, judge, round=3), parts.Evaluated)


def test_no_model_is_judged_where_epsilon_is_limited():
    limits = dataclasses.replace(ALLOWED, epsilon=1.0, delta=1e-5)
    server = begun(experiment("local"), limits=limits)
    assert cause(server.ask(0, Evaluate(server.payload()), round=1)) == "limits"


def test_the_model_of_a_run_that_is_over_is_not_replaced():
    server = begun(PLAIN)
    payload = server.payload()
    another = (np.frombuffer(payload, np.float32) + 1).tobytes()
    server.ask(0, server.work(), round=1)
    assert isinstance(server.ask(0, End(payload), round=1), parts.Done)
    assert isinstance(server.ask(0, End(payload), round=1), parts.Done)
    for round in (1, 2, 9):
        assert cause(server.ask(0, End(another), round=round)) == "stale"
    server.ask(0, server.work(), round=2)
    assert isinstance(server.ask(0, End(another), round=2), parts.Done)
