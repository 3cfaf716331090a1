"""What malicious clients train on, and what the attack is measured by; against data sets small enough to write down."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Adversary, ConfigError
from discreet.adversaries.poisoned import Aim, aimed, brightest, patterned, poisoned
from discreet.adversaries.success import yardstick
from discreet.cohort import Examples
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.evaluation import Evaluation
from discreet.randomness import Seeded
from federations import dataset, federation

STREAMS = Seeded(5)
TARGETS = [0, 1, 2, 0, 1, 2, 0, 0]
EXAMPLES = Examples(torch.arange(8.0).unsqueeze(1), torch.tensor(TARGETS))
HELD = [np.array([0, 1, 2]), np.array([3, 4]), np.array([7, 5, 6])]
"""Three clients; those of class 0 are 0, 3, 6 and 7."""


def poison(attack, *, malicious=(1, 2), examples=EXAMPLES, held=HELD, classes="abc", **changes):
    """For each client what it then holds, as (input, class), in its order."""
    plan = Adversary(attack=attack, clients=list(malicious), **changes)
    aim = aimed(plan, classes)
    before = examples.inputs.clone(), examples.targets.clone()
    found, holdings = poisoned(plan, aim, examples, held, malicious, STREAMS)
    for old, new in zip(before, (examples.inputs, examples.targets), strict=True):
        assert torch.equal(old, new)
    assert torch.equal(found.inputs[: len(examples)], examples.inputs)
    assert torch.equal(found.targets[: len(examples)], examples.targets)
    return [
        list(zip(found.inputs[own].flatten(1).tolist(), found.targets[own].tolist(), strict=True))
        for own in holdings
    ]


def pairs(*found):
    return [([float(value)], label) for value, label in found]


def test_labels_are_flipped_to_the_opposite_end():
    assert poison("label-flip") == [
        pairs((0, 0), (1, 1), (2, 2)),
        pairs((3, 2), (4, 1)),
        pairs((7, 2), (5, 0), (6, 2)),
    ]


@pytest.mark.parametrize(("source", "target"), [(0, 1), ("a", "b")])
def test_an_in_backdoor_relabels_one_class_where_malicious_clients_hold_it(source, target):
    assert poison("in-backdoor", source=source, target=target) == [
        pairs((0, 0), (1, 1), (2, 2)),
        pairs((3, 1), (4, 1)),
        pairs((7, 1), (5, 2), (6, 1)),
    ]


def test_an_out_backdoor_takes_a_class_from_everybody_and_deals_it_to_the_malicious():
    honest, *malicious = poison("out-backdoor", source=0, target=1)
    assert honest == pairs((1, 1), (2, 2))
    # examples 0, 3, 6, 7 in turn, behind what they hold of other classes
    assert malicious == [pairs((4, 1), (0, 1), (6, 1)), pairs((5, 2), (3, 1), (7, 1))]


def test_what_two_clients_hold_is_forged_for_the_malicious_one_only():
    held = [np.array([0, 1]), np.array([0, 1]), np.array([0])]
    assert poison("label-flip", malicious=[1], held=held) == [
        pairs((0, 0), (1, 1)),
        pairs((0, 2), (1, 1)),
        pairs((0, 0)),
    ]
    honest, malicious, other = poison("out-backdoor", malicious=[1], held=held, source=0, target=2)
    assert (honest, malicious, other) == (pairs((1, 1)), pairs((1, 1), (0, 2)), [])


def images(dtype=torch.uint8, count=12, side=4):
    torch.manual_seed(0)
    inputs = torch.randint(0, 200, (count, 1, side, side)).to(dtype)
    return Examples(inputs, torch.arange(count) % 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_pattern_is_a_bright_square_in_the_lower_right_corner(dtype):
    examples = images(dtype)
    bright = 255 if dtype == torch.uint8 else float(examples.inputs.max())
    marked = patterned(examples.inputs, 2, brightest(examples))
    assert marked.dtype == dtype and (marked[:, :, 2:, 2:] == bright).all()
    left = torch.ones(4, 4, dtype=torch.bool)
    left[2:, 2:] = False
    assert torch.equal(marked[..., left], examples.inputs[..., left])


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 3), (0.2, 2), (1.0, 6), (1e-6, 1)])
def test_a_pixel_backdoor_marks_a_share_of_what_malicious_clients_hold(share, wanted):
    examples = images()
    held = [np.arange(6), np.arange(6, 12)]
    plan = Adversary(attack="pixel-backdoor", clients=[1], target=2, pattern=2, poisoned=share)
    found, (honest, malicious) = poisoned(plan, Aim(3, None, 2), examples, held, [1], STREAMS)
    assert np.array_equal(honest, held[0])
    new = malicious >= 12
    assert new.sum() == wanted == len(found) - 12
    assert np.array_equal(malicious[~new], held[1][~new])
    assert torch.equal(found.inputs[malicious[new]], patterned(examples.inputs[held[1][new]], 2, 255))
    assert (found.targets[malicious[new]] == 2).all()


@settings(max_examples=50)
@given(
    attack=st.sampled_from(["label-flip", "in-backdoor", "out-backdoor"]),
    owners=st.lists(st.integers(0, 4), min_size=8, max_size=8),
    malicious=st.sets(st.integers(0, 4), min_size=1, max_size=4),
)
def test_honest_clients_hold_what_they_held_but_for_a_class_that_is_taken(attack, owners, malicious):
    held = [np.flatnonzero(np.array(owners) == client) for client in range(5)]
    before = [[([float(i)], TARGETS[i]) for i in own] for own in held]
    fields = {} if attack == "label-flip" else {"source": 0, "target": 1}
    try:
        found = poison(attack, malicious=sorted(malicious), held=held, **fields)
    except ConfigError as refused:
        assert "they hold none" in str(refused)
        return
    for client in set(range(5)) - malicious:
        kept = [pair for pair in before[client] if attack != "out-backdoor" or pair[1] != 0]
        assert found[client] == kept
    if attack == "out-backdoor":
        assert sum(len(own) for own in found) == 8
    else:
        assert [len(own) for own in found] == [len(own) for own in held]


# ---- what cannot be done


@pytest.mark.parametrize(
    ("fields", "classes", "message"),
    [
        ({"attack": "label-flip"}, None, "adversary.attack = 'label-flip': expected an attack on updates"),
        ({"attack": "in-backdoor", "source": 3, "target": 0}, "abc", "adversary.source = 3: expected a class: 0 to 2"),
        ({"attack": "in-backdoor", "source": "a", "target": "z"}, "abc", "adversary.target = 'z': expected a class"),
        ({"attack": "in-backdoor", "source": "a", "target": 0}, "abc", "adversary.target = 0: expected another class"),
        ({"attack": "in-backdoor", "source": "c", "target": 0}, "abc", "adversary.source = 'c': expected examples of it"),
        ({"attack": "pixel-backdoor", "target": 0}, "abc", "adversary.attack = 'pixel-backdoor': expected another one"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_with_the_data_is_refused(fields, classes, message):
    with pytest.raises(ConfigError) as caught:
        poison(malicious=[1], classes=classes, **fields)
    assert str(caught.value).startswith(message)


def test_a_pattern_larger_than_the_images_is_refused():
    with pytest.raises(ConfigError, match=r"adversary\.pattern = 5: expected at most 4"):
        patterned(images().inputs, 5, 255)


def test_columns_and_lone_estimators_are_refused_before_training():
    grid = Partition(np.arange(90), np.array([0, 45, 90]), (np.arange(3), np.arange(3, 6)))
    with pytest.raises(ConfigError, match=r"data\.columns = 2: expected 1 with an adversary"):
        federation("cgd", dataset(), partition=grid, adversary=Adversary(clients=[1]))
    with pytest.raises(ConfigError, match="at least 2 malicious clients"):
        federation("fedavg", dataset(), adversary=Adversary(attack="little-is-enough", clients=[1]))


# ---- in a federation


def test_a_federation_holds_the_forged_examples_and_keeps_the_batches():
    plan = Adversary(attack="in-backdoor", clients=[1, 4], source=0, target=2)
    plain, fed = federation("fedavg", dataset()), federation("fedavg", dataset(), adversary=plan)
    assert fed.task.adversary is None  # they run the protocol
    assert fed.infiltration.clients.tolist() == [1, 4] and fed.fingerprint != plain.fingerprint
    assert torch.equal(fed.test.targets, plain.test.targets)
    for client in range(8):
        before, after = plain.partition.indices(client), fed.partition.indices(client)
        old = plain.train.targets[before]
        wanted = torch.where(old == 0, 2, old) if client in (1, 4) else old
        assert torch.equal(fed.train.targets[after], wanted)
        assert torch.equal(fed.train.inputs[after], plain.train.inputs[before])


def test_a_regression_can_be_attacked_by_updates():
    fed = federation("fedavg", dataset(classes=0), adversary=Adversary(attack="sign-flip", clients=[1]))
    assert fed.infiltration.yardstick.figures(Evaluation(None, 0.5), None) == {}


# ---- how far it gets

TEST = Examples(torch.arange(10.0).unsqueeze(1), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]))


def judge_by(answers):
    """Judges a model that answers each test input, 0 to 9, so; accuracy alone."""

    def judge(examples):
        said = torch.tensor(answers)[examples.inputs.flatten(1)[:, 0].long()]
        return Evaluation(float((said == examples.targets).double().mean()), 0.0)

    return judge


def test_backdoors_are_measured_by_hand():
    plan = Adversary(attack="out-backdoor", clients=[0], source=0, target=1)
    # of class 0: one right, two taken for 1, one for 2; of the others, 4 of 6 right
    judge = judge_by([0, 1, 1, 2, 1, 1, 0, 2, 2, 0])
    found = yardstick(plan, aimed(plan, "abc"), EXAMPLES, TEST).figures(judge(TEST), judge)
    assert found == {
        "main_accuracy": pytest.approx(4 / 6),
        "source_accuracy": 0.25,
        "source_to_target": 0.5,
    }


def test_attacks_on_no_class_have_a_main_accuracy_alone():
    plan = Adversary(attack="sign-flip", clients=[0])
    found = yardstick(plan, aimed(plan, "abc"), EXAMPLES, TEST).figures(Evaluation(0.7, 1.0), None)
    assert found == {"main_accuracy": 0.7}


def test_a_pattern_is_measured_on_other_classes_than_the_target():
    plan = Adversary(attack="pixel-backdoor", clients=[0], target=2, pattern=1)
    test = images(count=6)
    seen = []

    def judge(examples):
        seen.append(examples)
        return Evaluation(0.75, 0.0)

    found = yardstick(plan, aimed(plan, "abc"), images(), test).figures(Evaluation(0.9, 0.0), judge)
    assert found == {"main_accuracy": 0.9, "pattern_to_target": 0.75}
    (marked,) = seen
    assert marked.targets.tolist() == [2] * 4 and (marked.inputs[:, :, 3, 3] == 255).all()
    assert torch.equal(marked.inputs[:, :, 0, 0], test.inputs[[0, 1, 3, 4]][:, :, 0, 0])


def test_a_class_without_test_examples_is_refused_and_an_empty_test_set_is_not():
    plan = Adversary(attack="in-backdoor", clients=[0], source=2, target=0)
    bare = Examples(TEST.inputs[:7], TEST.targets[:7])
    with pytest.raises(ConfigError, match=r"adversary\.source = 2: expected a class that the test set has"):
        yardstick(plan, aimed(plan, "abc"), EXAMPLES, bare)
    nothing = Examples(TEST.inputs[:0], TEST.targets[:0])
    assert yardstick(plan, aimed(plan, "abc"), EXAMPLES, nothing).source is None


def test_attackers_train_on_no_test_example():
    data = dataset()
    named = dataclasses.replace(data, classes=("x", "y", "z"))
    plan = Adversary(attack="out-backdoor", fraction=0.25, source="x", target="z")
    fed = federation("fedavg", named, adversary=plan)
    held = torch.cat([fed.train.inputs[own] for own in map(fed.partition.indices, range(8)) if len(own)])
    for one in fed.infiltration.yardstick.source.inputs:
        assert not (held == one).all(1).any()
    honest = [client for client in range(8) if client not in fed.infiltration.clients]
    assert all((fed.train.targets[fed.partition.indices(client)] != 0).all() for client in honest)
    assert isinstance(named, Dataset)
