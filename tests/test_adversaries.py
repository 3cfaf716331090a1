"""Who is malicious, and what malicious lanes send: against values worked out by hand, and honest lanes untouched."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Adversary, ConfigError
from discreet.adversaries import ATTACKS, Malice, enlisted
from discreet.adversaries.malice import LARGEST, unsuspicious, whole
from discreet.config import Privacy, from_table, to_table
from discreet.errors import LocalProtocolError
from discreet.randomness import Seeded
from discreet.schemes import SCHEMES
from discreet.schemes.traits import misdeeds_under
from discreet.training import Trained
from federations import SIZES, dataset, experiment, federation, same_bits, scheme
from test_schemes_fedavg import train_one

DATA = dataset()
STREAMS = Seeded(3)
CLIENTS = np.arange(len(SIZES))
MALICIOUS = [1, 4, 6]
EXTRA = {
    "in-backdoor": {"source": 0, "target": 1},
    "out-backdoor": {"source": 0, "target": 1},
    "pixel-backdoor": {"target": 1},
}
UPDATES = [name for name, kind in ATTACKS.items() if kind.misdeed != "data"]


def adversary(attack="none", *, clients=MALICIOUS, **changes):
    return Adversary(attack=attack, clients=list(clients), **(EXTRA.get(attack, {}) | changes))


def attacked(chosen, plan, **changes):
    """The cohort of all clients in round 1 of a federation, and what they contribute."""
    fed = federation(chosen, DATA, adversary=plan, **changes)
    cohort = fed.cohort(CLIENTS, 1, {}, len(CLIENTS))
    cohort = dataclasses.replace(cohort, accomplices=fed.accomplices(CLIENTS, 1, len(CLIENTS)))
    return fed, cohort, contributed(fed, cohort)


def contributed(fed, cohort):
    (phase,) = fed.scheme.phases(fed.task)
    payload = fed.scheme.broadcast(fed.task, fed.scheme.init(fed.task), 1)
    return fed.scheme.contribute(fed.task, phase, payload, (), cohort)


def honest(chosen, **changes):
    return attacked(chosen, None, **changes)[2]


# ---- the settings


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_can_be_asked_for_and_written_down(name):
    plan = adversary(name)
    whole = experiment("fedavg", adversary=plan)
    assert from_table(to_table(whole)) == whole and to_table(whole)["adversary"]["attack"] == name
    assert ATTACKS[name].summary


def test_without_an_adversary_nothing_of_it_is_written_down():
    assert "adversary" not in to_table(experiment("fedavg"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attack": "sign-flop", "fraction": 0.1}, r"adversary\.attack .*did you mean 'sign-flip'"),
        ({}, r"adversary\.fraction = None: expected the share"),
        ({"fraction": 0.1, "clients": [1]}, r"adversary\.clients .*not both"),
        ({"clients": [1, 1]}, r"adversary\.clients .*named once"),
        ({"fraction": 0.0}, r"adversary\.fraction .*greater than 0"),
        ({"fraction": 0.1, "boost": -1.0}, r"adversary\.boost .*greater than 0"),
        ({"fraction": 0.1, "attack": "in-backdoor", "source": 1}, r"adversary\.target = None: expected a class"),
        ({"fraction": 0.1, "target": 1}, r"adversary\.target .*unless the attack is in-backdoor or out-backdoor"),
        ({"fraction": 0.1, "attack": "label-flip", "pattern": 2}, r"adversary\.pattern .*pixel-backdoor"),
        ({"fraction": 0.1, "attack": "free-riding", "boost": 2.0}, r"adversary\.boost .*1: a change of zero"),
        ({"fraction": 0.1, "attack": "little-is-enough", "collude": True}, r"adversary\.collude .*false"),
        ({"fraction": 0.1, "atack": "none"}, r"did you mean adversary\.attack"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_by_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Adversary(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "plan", "message"),
    [
        ("local", {}, "adversary = 'with local': expected none"),
        ("centralized", {}, "adversary = 'with centralized': expected none"),
        ("dp-sgd", {}, "adversary = 'with dp-sgd': expected none"),
        ("signfed", {"omit_noise": True}, "adversary.omit_noise = True: expected false: under signfed"),
        ("dp-signfed", {"ignore_clip": True}, "adversary.ignore_clip = True: expected false: under dp-signfed"),
        ("cgd", {"collude": True}, "adversary.collude = True: expected false: under cgd"),
        ("cgd", {"attack": "little-is-enough"}, "adversary.attack = 'little-is-enough': expected another attack"),
    ],
)  # fmt: skip
def test_what_has_no_place_in_a_scheme_is_refused(name, plan, message):
    with pytest.raises(ConfigError) as caught:
        experiment(name, adversary=adversary(**plan))
    assert str(caught.value).startswith(message)


def test_a_scheme_that_says_nothing_lets_clients_do_what_they_like_to_their_data_only():
    assert misdeeds_under(object()) == {"data"}
    assert [name for name, kind in SCHEMES.items() if not misdeeds_under(kind)] == [
        "centralized",
        "local",
        "dp-sgd",
    ]


# ---- who it is


@given(st.integers(2, 500), st.floats(0.001, 0.999))
def test_the_share_is_drawn_as_often_as_it_says(clients, fraction):
    count = math.floor(fraction * clients + 0.5)
    plan = Adversary(fraction=fraction)
    if not 0 < count < clients:
        with pytest.raises(ConfigError, match=r"adversary\.fraction"):
            enlisted(plan, clients, STREAMS)
        return
    drawn = enlisted(plan, clients, STREAMS)
    assert len(drawn) == count == len(set(drawn.tolist())) and drawn.min() >= 0 and drawn.max() < clients
    assert np.array_equal(drawn, enlisted(plan, clients, STREAMS)) and np.all(np.diff(drawn) > 0)


def test_another_seed_draws_others():
    plan = Adversary(fraction=0.1)
    one, other = (enlisted(plan, 1000, Seeded(seed)).tolist() for seed in (0, 1))
    assert len(set(one) & set(other)) < 40  # of 100; ten by chance


def test_named_clients_are_those_that_are_meant():
    assert enlisted(adversary(clients=[5, 2]), 8, STREAMS).tolist() == [2, 5]
    for clients, message in (([8], "numbers from 0 to 7"), ([-1], "numbers from 0"), (range(8), "honest")):
        with pytest.raises(ConfigError, match=message):
            enlisted(adversary(clients=clients), 8, STREAMS)


# ---- what they say that they found

CHANGES = torch.tensor([[1.0, -2.0, 0.5], [2.0, 0.0, -1.0], [4.0, 1.0, 1.0], [-1.0, 2.0, 0.0]])


def pretend(plan, *, changes=CHANGES, accepted=None, accomplices=True, sizes=(5, 5, 5, 5), participants=4):
    """What four clients, of whom 1 and 3 are malicious, say of changes that are known; and what work that took."""
    fed = federation("fedavg", DATA, sizes=sizes)
    cohort = fed.cohort(np.arange(4), 7, {}, participants)
    calls = []

    def work(some, uphill):
        calls.append(some.ids.tolist())
        own = changes[some.ids].clone()
        own[torch.from_numpy(uphill)] += 100  # what an uphill step would give is not this test's
        fine = torch.ones(len(some), dtype=torch.bool) if accepted is None else accepted[some.ids]
        return Trained(own, torch.zeros(len(some)), fine.clone())

    malice = Malice(plan, np.array([1, 3]))
    if accomplices and plan.common:
        cohort = dataclasses.replace(cohort, accomplices=fed.cohort(np.array([1, 3]), 7, {}, participants))
    found = malice.boosted(malice.pretended(work, changes[0], cohort, STREAMS, {}), cohort)
    assert same_bits(found.changes[[0, 2]], changes[[0, 2]])
    return found, calls


@pytest.mark.parametrize(
    ("attack", "boost", "wanted"),
    [
        ("none", 1.0, [[2.0, 0.0, -1.0], [-1.0, 2.0, 0.0]]),
        ("none", 10.0, [[20.0, 0.0, -10.0], [-10.0, 20.0, 0.0]]),
        ("sign-flip", 1.0, [[-2.0, 0.0, 1.0], [1.0, -2.0, 0.0]]),
        ("sign-flip", 3.0, [[-6.0, 0.0, 3.0], [3.0, -6.0, 0.0]]),
        ("free-riding", 1.0, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        ("gradient-ascent", 2.0, [[204.0, 200.0, 198.0], [198.0, 204.0, 200.0]]),
        ("label-flip", 2.0, [[4.0, 0.0, -2.0], [-2.0, 4.0, 0.0]]),
    ],
)
def test_an_update_by_hand(attack, boost, wanted):
    found, calls = pretend(adversary(attack, boost=boost))
    assert found.changes[[1, 3]].tolist() == wanted
    assert calls == [[0, 1, 2, 3]] and found.accepted.all()


@pytest.mark.parametrize(
    ("attack", "wanted"),
    [
        ("none", [0.5, 1.0, -0.5]),
        ("sign-flip", [-0.5, -1.0, 0.5]),
        ("gradient-ascent", [100.5, 101.0, 99.5]),
    ],
)
def test_colluders_send_the_mean_of_theirs(attack, wanted):
    found, calls = pretend(adversary(attack, collude=True, boost=2.0))
    assert found.changes[1].tolist() == found.changes[3].tolist() == [2 * value for value in wanted]
    assert calls == [[0, 1, 2, 3], [1, 3]]


def test_a_common_update_is_of_those_that_are_finite():
    changes = CHANGES.clone()
    changes[3, 0] = torch.inf
    found, _ = pretend(
        adversary(collude=True), changes=changes, accepted=torch.tensor([True, True, True, False])
    )
    assert found.changes[3].tolist() == [2.0, 0.0, -1.0] and found.accepted.all()
    none, _ = pretend(
        adversary(collude=True), changes=changes, accepted=torch.tensor([True, False, True, False])
    )
    assert none.accepted.tolist() == [True, False, True, False]


def test_a_little_is_enough_by_hand():
    # two updates a and b: mean (a + b) / 2, deviation |a - b| / 2
    found, _ = pretend(adversary("little-is-enough", deviations=0.5))
    assert found.changes[1].tolist() == found.changes[3].tolist() == [0.5 - 0.75, 1.0 - 0.5, -0.5 - 0.25]


def test_a_little_is_as_much_as_its_authors_derive():
    # of 50 of whom 24 are malicious, 26 are honest and 2 of them must support: z is 1.43 in the paper's example
    assert unsuspicious(50, 24) == pytest.approx(1.43, abs=0.005)
    found, _ = pretend(adversary("little-is-enough"), participants=10)
    # of 10 with 2 malicious: 4 of 8 have to support, and z is 0
    assert found.changes[1].tolist() == [0.5, 1.0, -0.5]
    wanted = statistics.NormalDist().inv_cdf(3 / 5)  # of 7 with 2: 2 of 5
    found, _ = pretend(adversary("little-is-enough"), participants=7)
    assert found.changes[3].numpy() == pytest.approx(
        np.array([0.5, 1.0, -0.5]) - wanted * np.array([1.5, 1, 0.5])
    )


@given(st.integers(1, 200), st.data())
def test_it_is_never_less_than_nothing(participants, data):
    malicious = data.draw(st.integers(0, participants))
    found = unsuspicious(participants, malicious)
    assert 0 <= found < 3
    if malicious + 1 < participants:
        assert found <= unsuspicious(participants, malicious + 1) or malicious > participants // 2


def test_random_updates_have_the_deviation_that_is_asked_for():
    changes = torch.zeros(4, 20_000)
    found, _ = pretend(adversary("random-update", boost=200.0), changes=changes)
    one, other = found.changes[1] / 200, found.changes[3] / 200
    # the standard errors are 1/sqrt(20,000) = 0.0071 and 0.005; six of them fail once in 10^8 draws of the seed
    for row in (one, other):
        assert abs(row.mean()) < 0.043 and abs(row.std() - 1) < 0.03
    assert abs((one * other).mean()) < 0.043
    together, _ = pretend(adversary("random-update", boost=200.0, collude=True), changes=changes)
    assert same_bits(together.changes[1], together.changes[3])
    assert abs(together.changes[1].std() / 200 - 1) < 0.03


def test_who_has_no_examples_still_takes_no_part_and_who_overflows_is_dropped():
    found, _ = pretend(
        adversary("random-update"),
        sizes=(5, 0, 5, 5),
        accepted=torch.tensor([True, False, True, True]),
    )
    assert found.accepted.tolist() == [True, False, True, True]
    found, _ = pretend(adversary(boost=1e6), changes=CHANGES * 1e33)
    assert found.accepted.tolist() == [True, False, True, False]


def test_a_lie_is_accepted_even_where_training_diverged():
    changes = CHANGES.clone()
    changes[1] = torch.nan
    found, _ = pretend(
        adversary("free-riding"), changes=changes, accepted=torch.tensor([True, False, True, True])
    )
    assert found.accepted.all() and not found.changes[1].any()


def test_colluders_have_to_be_told_of_each_other():
    with pytest.raises(LocalProtocolError, match="not told of each other"):
        pretend(adversary(collude=True), accomplices=False)


@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
def test_gradient_ascent_is_what_an_optimizer_that_maximises_does(path):
    fed, _, given = attacked("fedavg", adversary("gradient-ascent", boost=3.0), gradients=path)
    vector = fed.scheme.init(fed.task).vector
    for client in MALICIOUS:
        up = train_one(fed, vector, client, 1, lambda ps: torch.optim.SGD(ps, lr=0.1, maximize=True))
        wanted = (up - vector) * 3 * SIZES[client]
        torch.testing.assert_close(given.elements[client, :-1], wanted, rtol=1e-4, atol=1e-5)
        assert given.elements[client, -1] == SIZES[client] and given.losses[client] > 0


def test_gradient_ascent_of_one_gradient_is_its_negative():
    _, _, given = attacked("fedsgd", adversary("gradient-ascent", boost=2.0))
    plain = honest("fedsgd")
    for client in MALICIOUS:
        assert torch.equal(given.elements[client, :-1], -2 * plain.elements[client, :-1])


# ---- honest lanes, and stacks


@pytest.mark.parametrize(
    "name", ["fedavg", "fedsgd", "signfed", "dp-fedavg", "dp-signfed", "cgd", "robust-fedavg"]
)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_honest_lanes_are_untouched_bit_for_bit(name, data):
    possible = misdeeds_under(SCHEMES[name])
    attack = data.draw(st.sampled_from([one for one in UPDATES if ATTACKS[one].misdeed in {None, *possible}]))
    clients = data.draw(st.sets(st.sampled_from(range(8)), min_size=2, max_size=7))
    plan = adversary(attack, clients=clients, boost=1.0 if attack == "free-riding" else 7.0)
    _, _, given = attacked(name, plan)
    plain = honest(name)
    others = [client for client in CLIENTS.tolist() if client not in clients]
    assert same_bits(given.elements[others], plain.elements[others])
    assert same_bits(given.accepted[others], plain.accepted[others])
    assert same_bits(given.losses[others], plain.losses[others])


@pytest.mark.parametrize(
    "plan", [{"collude": True}, {"attack": "little-is-enough"}, {"attack": "random-update"}]
)
@pytest.mark.parametrize("name", ["fedavg", "signfed"])
def test_attackers_stacked_are_each_alone(name, plan):
    fed, cohort, together = attacked(name, adversary(**plan))
    for client in CLIENTS.tolist():
        alone = contributed(fed, cohort.select(slice(client, client + 1)))
        assert same_bits(alone.elements[0], together.elements[client])


def test_the_common_update_of_a_round_is_worked_out_once(monkeypatch):
    counted = []
    original = Malice._agreed
    monkeypatch.setattr(Malice, "_agreed", lambda *them: counted.append(1) or original(*them))
    fed, cohort, _ = attacked("fedavg", adversary(collude=True))
    for round in (1, 1, 2):  # another model is another update
        fed.scheme.contribute(
            fed.task,
            fed.scheme.phases(fed.task)[0],
            fed.scheme.init(fed.task),
            (),
            dataclasses.replace(cohort, round=round),
        )
    assert len(counted) == 4


# ---- how it is encoded


def test_boost_has_no_room_in_a_vote_of_one_bit():
    _, _, boosted = attacked("signfed", adversary("sign-flip", boost=1000.0))
    _, _, plain = attacked("signfed", adversary("sign-flip"))
    assert same_bits(boosted.elements, plain.elements)
    votes, decided = honest("signfed").elements, honest("robust-fedavg").elements != 0
    decided[[client for client in CLIENTS if client not in MALICIOUS]] = False
    assert torch.equal(plain.elements[decided], -votes[decided])
    assert torch.equal(
        plain.elements[~decided], votes[~decided]
    )  # a change of 0 is still a coin of the client's


def test_a_boosted_vote_is_so_many_votes_before_the_noise():
    votes = honest("signfed").elements.to(torch.int64)
    noisy = honest("dp-signfed").elements
    _, _, given = attacked("dp-signfed", adversary(boost=50.0))
    assert torch.equal(given.elements[MALICIOUS], noisy[MALICIOUS] + 49 * votes[MALICIOUS])
    _, _, bare = attacked("dp-signfed", adversary(boost=50.0, omit_noise=True))
    assert torch.equal(bare.elements[MALICIOUS], 50 * votes[MALICIOUS])


@pytest.mark.parametrize("boost", [1.0, 4.0])
def test_who_ignores_the_clip_sends_its_change_in_the_grids_steps(boost):
    chosen = scheme("dp-fedavg", clip_norm=0.01)
    fed, _, given = attacked(chosen, adversary(ignore_clip=True, omit_noise=True, boost=boost))
    norm = fed.scheme.update_norm(fed.task)
    changes = honest("robust-fedavg").elements[MALICIOUS].double()
    assert torch.equal(given.elements[MALICIOUS], (boost * (changes * (norm / 0.01)).round()).long())
    assert (given.elements[MALICIOUS].double().norm(dim=1) > norm).all()


def test_a_boost_comes_after_the_clip():
    chosen = scheme("dp-fedavg", clip_norm=0.01)
    fed, _, given = attacked(chosen, adversary(omit_noise=True, boost=4.0))
    _, _, plain = attacked(chosen, adversary(omit_noise=True))
    norms = given.elements[MALICIOUS].double().norm(dim=1) / fed.scheme.update_norm(fed.task)
    assert torch.equal(given.elements[MALICIOUS], 4 * plain.elements[MALICIOUS])
    assert ((norms > 3.9) & (norms <= 4)).all()


def test_whole_numbers_do_not_overflow():
    found = whole(torch.tensor([1e300, -1e300, 2.4, -0.6], dtype=torch.float64))
    assert found.tolist() == [int(LARGEST), -int(LARGEST), 2, -1]


@pytest.mark.parametrize("path", ["layers", "whole"])
@pytest.mark.parametrize("attack", ["sign-flip", "gradient-ascent", "free-riding", "random-update", "none"])
def test_confined_gradients_are_replaced_too(path, attack):
    # momentum-free dropout makes the network one that is not split
    changes = {
        "model": torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    }
    changes = changes | {"widths": None} if path == "whole" else {}
    boost = 1.0 if attack == "free-riding" else 5.0
    fed, cohort, given = attacked("cgd", adversary(attack, boost=boost), **changes)
    plain = honest("cgd", **changes)
    assert not fed.scheme.fuses(fed.task)
    mine, theirs = given.elements[MALICIOUS], plain.elements[MALICIOUS]
    if attack == "random-update":
        share = torch.from_numpy(cohort.sizes[MALICIOUS] / sum(SIZES))
        spread = mine.std(1).double() / (5 * share)
        assert ((spread > 0.6) & (spread < 1.4)).all()  # of at least 43 values: four standard errors of 0.11
        return
    factor = {"sign-flip": -5, "gradient-ascent": -5, "free-riding": 0, "none": 5}[attack]
    assert torch.equal(mine, factor * theirs)


def test_confined_sums_are_fused_where_nobody_is_malicious_in_training():
    fed = federation(scheme("cgd", batch_size=0), DATA, adversary=adversary("label-flip"))
    assert fed.task.adversary is None and fed.scheme.fuses(fed.task)


def test_noise_is_left_out_only_where_it_is_asked_for():
    privacy = {"privacy": Privacy(noise_multiplier=2.0)}
    noise = honest("dp-signfed", **privacy).elements - honest("signfed").elements
    assert noise[MALICIOUS].double().std(1).min() > 1
    for omit in (False, True):
        _, _, given = attacked("dp-signfed", adversary("sign-flip", omit_noise=omit), **privacy)
        votes = attacked("signfed", adversary("sign-flip"))[2].elements
        there = noise.clone()
        there[MALICIOUS] *= 1 - omit
        assert torch.equal(given.elements - votes, there)
