import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from discreet.augment import FlipCrop
from discreet.batches import draw_batches
from discreet.cohort import Cohort, Examples
from discreet.errors import ConfigError
from discreet.losses import cross_entropy
from discreet.network import network_of
from discreet.optimizers import OPTIMIZERS, LocalTraining
from discreet.randomness import Seeded
from discreet.training import Learner, mean_gradients, train
from federations import dataset, same_bits

CPU = torch.device("cpu")
STREAMS = Seeded(3)


def make_cohort(sizes, *, ids=None, round=1, examples=None, capacity=None, first=0):
    """Clients with so many examples each, of `examples`, from `first` on."""
    edges = first + np.concatenate([[0], np.cumsum(sizes)])
    examples = dataset().train if examples is None else examples
    return Cohort(
        ids=np.arange(len(sizes)) if ids is None else np.array(ids),
        examples=examples,
        indices=tuple(np.arange(start, end) for start, end in itertools.pairwise(edges)),
        round=round,
        capacity=max(sizes, default=0) if capacity is None else capacity,
        row=np.arange(len(sizes)),
        column=np.zeros(len(sizes), dtype=np.int64),
        kept=(None,) * len(sizes),
    )


def alone(cohort, lane):
    return cohort.select(slice(lane, lane + 1))


def make_learner(module=None, path="layers", lanes=3, augment=None):
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) if module is None else module
    return Learner(network_of(module), cross_entropy, path, lanes, CPU, augment)


def start_of(learner):
    # modules are made at import, with whatever weights: start from known ones
    return 0.4 * torch.randn(learner.network.count, generator=torch.Generator().manual_seed(0))


def train_alone(learner, plan, start, cohort, lane, streams=STREAMS):
    """Train one client in plain PyTorch: a module, an optimizer of torch and a loop over its batches."""
    module = learner.network.to_module(start).train()
    optimizer = plan.make_optimizer(list(module.parameters()))
    batches = draw_batches(plan, alone(cohort, lane), 1, streams)
    losses = []
    for step in range(batches.steps[0]):
        chosen = batches.indices[0, step][batches.weights[0, step] > 0]
        optimizer.zero_grad()
        loss = F.cross_entropy(module(cohort.examples.inputs[chosen]), cohort.examples.targets[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([p.detach().flatten() for p in module.parameters()]) - start, np.mean(losses)


# ---- batches


@given(
    st.lists(st.integers(0, 23), min_size=1, max_size=4),
    st.integers(0, 30),
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 9)), st.tuples(st.just("epochs"), st.integers(1, 3))
    ),
)
def test_every_pass_is_a_permutation_cut_into_batches(sizes, batch_size, length):
    kind, count = length
    plan = LocalTraining(**{kind: count}, batch_size=batch_size)
    cohort = make_cohort(sizes)
    batches = draw_batches(plan, cohort, 4, STREAMS)
    assert batches.indices.shape[0] == 4 and batches.indices.dtype == torch.int64
    assert batches.steps[len(sizes) :] == (0,) * (4 - len(sizes))
    for lane, size in enumerate(sizes):
        if not size:
            assert batches.steps[lane] == 0 and not batches.weights[lane].any()
            continue
        taken = min(batch_size or size, size)
        a_pass = -(-size // taken)
        assert batches.steps[lane] == (count if kind == "steps" else count * a_pass)
        drawn = [
            batches.indices[lane, step][batches.weights[lane, step] > 0].tolist()
            for step in range(batches.steps[lane])
        ]
        for first in range(0, len(drawn), a_pass):
            whole = [example for step in drawn[first : first + a_pass] for example in step]
            assert len(set(whole)) == len(whole) and set(whole) <= set(cohort.indices[lane].tolist())
            if first + a_pass <= len(drawn):
                assert sorted(whole) == cohort.indices[lane].tolist()
        assert all(len(step) == taken for place, step in enumerate(drawn) if (place + 1) % a_pass)
        weights = batches.weights[lane, : batches.steps[lane]]
        assert torch.allclose(weights.sum(1), torch.ones(len(weights)))
        assert all(len(set(row[row > 0].tolist())) == 1 for row in weights)


def test_batches_are_a_clients_own_whoever_is_beside_it():
    plan, cohort = LocalTraining(steps=5, batch_size=4), make_cohort([7, 0, 13, 2], ids=[4, 9, 6, 1])
    together = draw_batches(plan, cohort, 6, STREAMS)
    for lane, size in enumerate(cohort.sizes):
        one = draw_batches(plan, alone(cohort, lane), 1, STREAMS)
        steps = one.steps[0]
        assert steps == together.steps[lane] == (5 if size else 0)
        assert torch.equal(one.indices[0], together.indices[lane, :steps])
        assert torch.equal(one.weights[0], together.weights[lane, :steps])
        assert torch.equal(one.keys[0], together.keys[lane])


@pytest.mark.parametrize("change", ["seed", "round", "client"])
def test_batches_depend_on_seed_round_and_client(change):
    plan = LocalTraining(epochs=1, batch_size=4)
    cohort = make_cohort([20])
    other = {
        "seed": (cohort, Seeded(4)),
        "round": (replace(cohort, round=2), STREAMS),
        "client": (replace(cohort, ids=np.array([1])), STREAMS),
    }[change]
    one, two = draw_batches(plan, cohort, 1, STREAMS), draw_batches(plan, other[0], 1, other[1])
    assert not torch.equal(one.indices, two.indices) and not torch.equal(one.keys, two.keys)


def test_each_pass_is_shuffled_anew():
    batches = draw_batches(LocalTraining(epochs=2, batch_size=20), make_cohort([20]), 1, STREAMS)
    assert not torch.equal(batches.indices[0, 0], batches.indices[0, 1])


def test_every_order_is_equally_likely():
    # 6 orders, 3,000 clients of 3 examples: chi-square with 5 degrees of freedom, one false alarm in 10^6
    cohort = replace(make_cohort([3] * 3000), indices=(np.arange(3),) * 3000)
    batches = draw_batches(LocalTraining(steps=1, batch_size=3), cohort, 3000, STREAMS)
    counts = np.unique(batches.indices[:, 0].numpy() @ [9, 3, 1], return_counts=True)[1]
    assert len(counts) == 6 and ((counts - 500) ** 2 / 500).sum() < 35.9


# ---- training

OPTIONS = {
    "sgd": {"momentum": 0.9, "optimizer_options": {"nesterov": True}},
    "adam": {"optimizer_options": {"amsgrad": True, "betas": [0.8, 0.9]}},
    "rmsprop": {"momentum": 0.5, "optimizer_options": {"centered": True}},
}
PLANS = (
    [(name, {}) for name in OPTIMIZERS]
    + list(OPTIONS.items())
    + [("sgd", {"weight_decay": 0.1}), ("adamw", {"weight_decay": 0.1})]
)


@pytest.mark.parametrize(("optimizer", "options"), PLANS)
def test_an_optimizer_on_the_stack_is_torchs_on_each_client_alone(optimizer, options):
    plan = LocalTraining(epochs=2, batch_size=4, optimizer=optimizer, learning_rate=0.05, **options)
    learner, cohort = make_learner(), make_cohort([7, 13, 2, 4])
    start = start_of(learner)
    trained = train(learner, plan, start, cohort, STREAMS)
    assert trained.accepted.all()
    for lane in range(4):
        change, loss = train_alone(learner, plan, start, cohort, lane)
        assert torch.allclose(trained.changes[lane], change, rtol=1e-3, atol=2e-5)
        assert trained.losses[lane].item() == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
def test_each_client_may_start_from_its_own_parameters(path):
    plan = LocalTraining(steps=3, batch_size=4)
    learner, cohort = make_learner(path=path), make_cohort([7, 13, 2, 4])
    starts = start_of(learner) * torch.tensor([[1.0], [0.9], [-1.0], [0.5]])
    trained = train(learner, plan, starts, cohort, STREAMS)
    for lane in range(4):
        change, _ = train_alone(learner, plan, starts[lane], cohort, lane)
        assert torch.allclose(trained.changes[lane], change, atol=1e-5)


@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
@pytest.mark.parametrize(
    "plan", [LocalTraining(steps=3, batch_size=4), LocalTraining(epochs=2, batch_size=4)]
)
def test_a_client_alone_has_the_same_bits(path, plan):
    learner, cohort = make_learner(path=path), make_cohort([7, 13, 0, 4, 20])
    start = start_of(learner)
    together = train(learner, plan, start, cohort, STREAMS)
    assert together.accepted.tolist() == [True, True, False, True, True]
    assert together.losses.isnan().tolist() == [False, False, True, False, False]
    for lane in (0, 1, 3, 4):
        one = train(learner, plan, start, alone(cohort, lane), STREAMS)
        assert same_bits(one.changes[0], together.changes[lane])
        assert same_bits(one.losses[0], together.losses[lane])


def test_a_client_with_fewer_steps_stops_at_its_own_last():
    learner, cohort = make_learner(), make_cohort([4, 20])
    plan = LocalTraining(epochs=1, batch_size=4)
    trained = train(learner, plan, start_of(learner), cohort, STREAMS)
    short = train(learner, LocalTraining(steps=1, batch_size=4), start_of(learner), cohort, STREAMS)
    assert same_bits(trained.changes[0], short.changes[0])
    assert not same_bits(trained.changes[1], short.changes[1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
def test_a_client_with_bad_data_is_not_accepted_and_touches_no_other(path, bad, optimizer):
    # the bad client holds example 0; clients with smaller batches than others are padded, and not with that one
    plan = LocalTraining(epochs=1, batch_size=6, optimizer=optimizer)
    examples = dataset().train
    poisoned = examples.inputs.clone()
    poisoned[:5] = bad
    learner, start = make_learner(path=path), start_of(make_learner())
    sizes = [5, 3, 10, 14]
    clean = train(learner, plan, start, make_cohort(sizes, examples=examples), STREAMS)
    found = train(
        learner, plan, start, make_cohort(sizes, examples=Examples(poisoned, examples.targets)), STREAMS
    )
    assert found.accepted.tolist() == [False, True, True, True]
    assert same_bits(found.changes[1:], clean.changes[1:])
    assert same_bits(found.losses[1:], clean.losses[1:])


@pytest.mark.parametrize("batch_size", [0, 6])
def test_a_gradient_of_bad_data_touches_no_other(batch_size):
    examples = dataset(train=200).train
    poisoned = examples.inputs.clone()
    poisoned[:5] = float("nan")
    learner, start = make_learner(), start_of(make_learner())
    sizes = [5, 140, 3, 10]  # beside one that takes two pieces, the others stand idle for one
    clean = mean_gradients(learner, start, make_cohort(sizes, examples=examples), STREAMS, batch_size)
    bad = make_cohort(sizes, examples=Examples(poisoned, examples.targets))
    found = mean_gradients(learner, start, bad, STREAMS, batch_size)
    assert found.accepted.tolist() == [False, True, True, True]
    assert same_bits(found.changes[1:], clean.changes[1:])


def test_batch_statistics_are_of_a_clients_own_examples():
    """BatchNorm without running statistics sees padding too: it must not be another client's example."""
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))
    learner = make_learner(module, path="vmap")
    examples = dataset().train
    changed = examples.inputs.clone()
    changed[0] += 10
    plan, start = LocalTraining(steps=2, batch_size=6), start_of(learner)
    one = train(learner, plan, start, make_cohort([4, 10], examples=examples, first=1), STREAMS)
    two = train(
        learner,
        plan,
        start,
        make_cohort([4, 10], examples=Examples(changed, examples.targets), first=1),
        STREAMS,
    )
    assert same_bits(one.changes, two.changes)


def test_inputs_in_float64_are_trained_on_in_the_models_type():
    examples = dataset().train
    double = Examples(examples.inputs.double(), examples.targets)
    plan, learner = LocalTraining(steps=2, batch_size=6), make_learner()
    start = start_of(learner)
    one = train(learner, plan, start, make_cohort([4, 10], examples=examples), STREAMS)
    two = train(learner, plan, start, make_cohort([4, 10], examples=double), STREAMS)
    assert same_bits(one.changes, two.changes)
    one, two = (
        mean_gradients(learner, start, make_cohort([4, 10], examples=these), STREAMS)
        for these in (examples, double)
    )
    assert same_bits(one.changes, two.changes)


def test_nothing_that_is_given_is_changed():
    learner, cohort = make_learner(), make_cohort([7, 13, 4])
    start = start_of(learner)
    before = start.clone(), cohort.examples.inputs.clone(), [rows.copy() for rows in cohort.indices]
    module = [p.clone() for p in learner.network.module.parameters()]
    for path in ("layers", "vmap", "autograd"):
        train(replace(learner, path=path), LocalTraining(steps=2), start, cohort, STREAMS)
        train(replace(learner, path=path), LocalTraining(steps=2), start.repeat(3, 1), cohort, STREAMS)
        mean_gradients(replace(learner, path=path), start, cohort, STREAMS)
    assert same_bits(start, before[0]) and same_bits(cohort.examples.inputs, before[1])
    assert all(np.array_equal(one, two) for one, two in zip(cohort.indices, before[2], strict=True))
    assert all(torch.equal(p, q) for p, q in zip(learner.network.module.parameters(), module, strict=True))


# ---- gradients of a cohort


@pytest.mark.parametrize("path", ["layers", "vmap", "autograd"])
def test_mean_gradients_are_autograds_over_all_of_a_clients_examples(path):
    learner = make_learner(path=path)
    # 150 examples are taken in two pieces
    cohort = make_cohort([150, 3, 0, 40], examples=dataset(train=200).train)
    start = start_of(learner)
    found = mean_gradients(learner, start, cohort, STREAMS)
    assert found.accepted.tolist() == [True, True, False, True]
    for lane in (0, 1, 3):
        rows = torch.from_numpy(cohort.indices[lane])
        module = learner.network.to_module(start)
        loss = F.cross_entropy(module(cohort.examples.inputs[rows]), cohort.examples.targets[rows])
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        assert torch.allclose(found.changes[lane], wanted, rtol=1e-4, atol=1e-6)
        assert found.losses[lane].item() == pytest.approx(loss.item(), rel=1e-5)
    assert found.losses[2].isnan()


def test_mean_gradients_of_a_batch_are_those_of_its_examples():
    learner, cohort = make_learner(), make_cohort([20, 3])
    start = start_of(learner)
    found = mean_gradients(learner, start, cohort, STREAMS, batch_size=5)
    step = train(learner, LocalTraining(steps=1, batch_size=5, learning_rate=0.5), start, cohort, STREAMS)
    assert torch.allclose(found.changes, step.changes / -0.5, atol=1e-6)


# ---- dropout and augmentation

DROPOUT = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


@pytest.mark.parametrize("path", ["vmap", "autograd"])
def test_dropout_depends_on_seed_round_and_client_alone(path):
    learner = make_learner(DROPOUT, path)
    plan, cohort, start = LocalTraining(steps=2, batch_size=4), make_cohort([4, 4, 4, 4]), start_of(learner)
    # all clients hold the same four examples, and take them all: only dropout sets them apart
    cohort = replace(cohort, indices=(np.arange(4),) * 4, ids=np.array([8, 3, 5, 1]))
    together = train(learner, plan, start, cohort, STREAMS).changes
    assert len({tuple(row) for row in together.tolist()}) == 4
    for lane in range(4):
        assert same_bits(train(learner, plan, start, alone(cohort, lane), STREAMS).changes[0], together[lane])
    for other in (
        train(learner, plan, start, replace(cohort, round=2), STREAMS),
        train(learner, plan, start, cohort, Seeded(9)),
    ):
        assert not torch.isclose(other.changes, together, atol=1e-6).all(1).any()


def test_dropout_differs_from_step_to_step():
    learner = make_learner(DROPOUT, "vmap")
    cohort = make_cohort([1])  # the same example in every step: only the mask can differ
    losses = [
        train(
            learner,
            LocalTraining(steps=steps, batch_size=4, learning_rate=1e-12),
            start_of(learner),
            cohort,
            STREAMS,
        ).losses.item()
        for steps in (1, 2, 3)
    ]
    second, third = 2 * losses[1] - losses[0], 3 * losses[2] - 2 * losses[1]
    assert abs(second - losses[0]) > 1e-3 and abs(third - second) > 1e-3


def images(count=40):
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8)
    return Examples(pixels, torch.randint(0, 3, (count,)))


def test_augmentation_is_a_clients_own():
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    learner = make_learner(module, augment=FlipCrop(pad=2))
    plan, start = LocalTraining(steps=3, batch_size=4), start_of(learner)
    cohort = make_cohort([4] * 4, ids=[8, 3, 5, 1], examples=images())
    cohort = replace(cohort, indices=(np.arange(4),) * 4)
    together = train(learner, plan, start, cohort, STREAMS).changes
    for lane in range(4):
        assert same_bits(train(learner, plan, start, alone(cohort, lane), STREAMS).changes[0], together[lane])
    plain = train(replace(learner, augment=None), plan, start, cohort, STREAMS).changes
    rows = torch.cat([together, plain[:1]])
    distances = torch.cdist(rows, rows) + torch.eye(5)
    assert distances.min() > 1e-3
    other = train(learner, plan, start, replace(cohort, round=2), STREAMS).changes
    assert (other - together).norm(dim=1).min() > 1e-3


def test_augmented_batches_by_hand():
    """A flip of images two pixels wide swaps their columns, for those that the stream says."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    learner = make_learner(module, augment=FlipCrop(pad=0))
    examples = Examples(torch.tensor([[[[1.0, 0.0]]]] * 8), torch.zeros(8, dtype=torch.int64))
    cohort = make_cohort([8], examples=examples)
    plan = LocalTraining(steps=1, batch_size=0, learning_rate=1.0)
    change = train(learner, plan, torch.zeros(4), cohort, STREAMS).changes.view(2, 2)
    flipped = FlipCrop(pad=0).draw(STREAMS.stream(1, 0, "augmentation"), (1, 8)).flips.mean()
    assert 0 < flipped < 1
    # at weights 0 both classes have probability 1/2: the gradient of the first is -1/2 times the mean input
    wanted = torch.tensor([1 - flipped, flipped], dtype=torch.float32) / 2
    assert torch.allclose(change, torch.stack([wanted, -wanted]))


# ---- the plan


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"steps": 1, "epochs": 1}, "scheme.epochs"),
        ({"optimizer": "lbfgs"}, "scheme.optimizer"),
        ({"optimizer": "adam", "momentum": 0.9}, "scheme.momentum"),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "scheme.weight_decay"),
        ({"optimizer_options": {"nosuch": 1}}, "scheme.optimizer_options"),
        ({"optimizer_options": {"lr": 0.5}}, "scheme.optimizer_options"),
        ({"optimizer_options": {"momentum": 0.5}}, "scheme.optimizer_options"),
        ({"optimizer_options": {"weight_decay": 0.5}}, "scheme.optimizer_options"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [2.0, 0.9]}}, "scheme.optimizer_options"),
    ],
)
def test_an_impossible_plan_is_refused_by_key(settings, key):
    with pytest.raises(ConfigError) as caught:
        LocalTraining(**settings)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("plan", "size", "batch", "steps"),
    [
        (LocalTraining(), 25, 10, 3),
        (LocalTraining(epochs=2), 20, 10, 4),
        (LocalTraining(steps=7), 25, 10, 7),
        (LocalTraining(steps=7), 0, 10, 0),
        (LocalTraining(epochs=5), 0, 10, 0),
        (LocalTraining(), 3, 10, 1),
    ],
)
def test_how_many_steps_a_client_takes(plan, size, batch, steps):
    assert plan.steps_for(size, batch) == steps
