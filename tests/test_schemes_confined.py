"""CGD against loops written out by hand: every participant with a model of its own, moved by the sum of gradients."""

import dataclasses
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from discreet import simulate
from discreet.cohort import Examples
from discreet.config import Data, Experiment, Model
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.errors import ConfigError
from discreet.preparation import prepare
from discreet.rounds import play_round
from discreet.schemes import ConfinedGradientDescent as CGD
from discreet.schemes.confined import heads, judged, kernel, participants

FEATURES, CLASSES = 7, 3


def dataset(count=41, features=FEATURES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, generator=generator)
    targets = torch.randint(0, CLASSES, (count,), generator=generator)
    examples = Examples(inputs, targets)
    test = Examples(inputs[:10].clone(), targets[:10].clone())
    return Dataset("made", "table", examples, test, tuple(map(str, range(CLASSES))))


def mlp(hidden=(5,), activation=nn.ReLU, bias=True):
    sizes = (FEATURES, *hidden, CLASSES)
    layers = []
    for below, above in pairwise(sizes[:-1]):
        layers += [nn.Linear(below, above, bias=bias), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=bias))


def split(rows, columns, count=41):
    """Uneven rows, and uneven columns that are not in order."""
    bounds = np.round(np.linspace(0, count, rows + 1) ** 1.1)
    offsets = np.minimum(bounds / bounds[-1] * count, count).round().astype(np.int64)
    order = np.random.default_rng(5).permutation(count)
    features = None
    if columns:
        shuffled = np.random.default_rng(6).permutation(FEATURES)
        features = tuple(np.sort(part) for part in np.array_split(shuffled, columns))
    return Partition(order, offsets, features)


def experiment(scheme, rounds=4, **settings):
    return Experiment(data=Data(), model=Model(), scheme=scheme, rounds=rounds, **settings)


def federation(scheme, partition, model=None, **settings):
    return prepare(experiment(scheme, **settings), dataset(), partition, model or mlp())


def by_hand(fed, scheme, rounds, step):
    """The models of all participants after some rounds, each as (block, bias or None, upper layers).

    Everything in float64, one participant at a time, gradients by autograd; `step` is the rule on the history of
    totals. Returns the blocks' and upper displacement as the scheme lays them out, for comparison.
    """
    parts, data = fed.partition, fed.train
    joint = scheme.forward == "joint"
    columns = parts.column_count
    layout = scheme.layout(fed.task)
    width, hidden, upper_size = layout.width, layout.cut.hidden, layout.cut.upper_size
    displacement = torch.zeros(layout.length, dtype=torch.float64)
    firsts = {}
    for client in range(parts.clients):
        length, streams = layout.own_length(client % columns), fed.task.randomness
        if scheme.heads == "own":
            own = scheme.draw(streams, client, length)
        else:
            head = scheme.draw(streams, client - client % columns, upper_size, "head of a row")
            own = torch.cat([scheme.draw(streams, client, length - upper_size), head])
        firsts[client] = layout.parted(own.double(), client % columns)
    history = []
    for _ in range(rounds):
        blocks_total = torch.zeros(columns, hidden, width, dtype=torch.float64)
        upper_total = torch.zeros(upper_size, dtype=torch.float64)
        for row in range(parts.rows):
            held = torch.from_numpy(np.asarray(parts.indices(row), dtype=np.int64))
            if not len(held):
                continue
            inputs, targets = data.inputs[held].double(), data.targets[held]
            owners = []
            for column in range(columns):
                features = layout.features[column]
                extended = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)[:, features]
                padded = torch.zeros(len(inputs), width, dtype=torch.float64)
                padded[:, : len(features)] = extended
                block, upper = firsts[row * columns + column]
                moved = displacement[: columns * hidden * width].view(columns, hidden, width)[column]
                owners.append(
                    (
                        padded,
                        (block + moved).requires_grad_(),
                        (upper + displacement[columns * hidden * width :]).requires_grad_(),
                    )
                )
            shares = [padded @ block.T for padded, block, _ in owners]
            for place, (_, block, upper) in enumerate(owners):
                # what the others of the row sent is a number to a participant, not something to differentiate
                others = sum((one.detach() for other, one in enumerate(shares) if other != place), 0.0)
                inner = shares[place] + (others if joint else 0.0)
                module = layout.cut.module().double()
                named = dict(zip(layout.cut.names, layout.cut.unflatten(upper), strict=True))
                outputs = torch.func.functional_call(module, named, (inner,))
                loss = nn.functional.cross_entropy(outputs, targets, reduction="sum") / len(parts.order)
                by_block, by_upper = torch.autograd.grad(
                    loss, [block, upper], retain_graph=True, materialize_grads=True
                )
                blocks_total[place] += by_block
                upper_total += by_upper / columns
        total = torch.cat([blocks_total.flatten(), upper_total])
        history.append(total)
        displacement = displacement + step(history)
    return displacement


def run_rounds(fed, rounds, fused=True, data=None):
    """The displacement after some rounds, by the simulator's driver or by single contributions."""
    if fused:
        return simulate_state(fed, rounds, data or dataset())
    scheme, task = fed.scheme, fed.task
    state = scheme.init(task)
    for number in range(1, rounds + 1):
        playing = play_round(scheme, task, state, number)
        try:
            ask = next(playing)
            while True:
                cohort = fed.cohort(np.arange(fed.partition.clients), number, {})
                total, _ = scheme._added(task, ask.phase, ask.payload, ask.received, cohort)
                ask = playing.send(total)
        except StopIteration as end:
            state = end.value
    return state.displacement


def simulate_state(fed, rounds, data):
    run = simulate(
        dataclasses.replace(fed.experiment, rounds=rounds, given=[], data=Data(), model=Model()),
        data=data,
        partition=fed.partition,
        model=fed.task.learner.network.original,
    )
    return run.checkpoint.tensors["state.displacement"]


def plain(history):
    return -0.5 * history[-1]


GRIDS = [(1, 0), (4, 0), (1, 1), (3, 1), (1, 3), (4, 3), (5, 7)]


@pytest.mark.parametrize("forward", ["joint", "independent"])
@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_rounds_are_those_of_models_trained_by_hand(rows, columns, forward):
    scheme = CGD(forward=forward, initial_scale=0.3)
    fed = federation(scheme, split(rows, columns))
    wanted = by_hand(fed, scheme, 4, plain)
    for fused in (True, False):
        torch.testing.assert_close(run_rounds(fed, 4, fused).double(), wanted, rtol=1e-4, atol=2e-6)
    assert wanted.norm() > 0.1


MODELS = {
    "two hidden layers": mlp((5, 4)),
    "no bias": mlp(bias=False),
    "no hidden layer": mlp(()),
    "tanh": mlp((5, 4), nn.Tanh),
    "layer norm": nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, CLASSES)),
}


@pytest.mark.parametrize("forward", ["joint", "independent"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (4, 3)])
def test_participants_of_a_row_may_start_from_one_head(rows, columns, model, forward):
    scheme = CGD(forward=forward, initial_scale=0.3, heads="row")
    fed = federation(scheme, split(rows, columns), model)
    wanted = by_hand(fed, scheme, 3, plain)
    for fused in (True, False):
        torch.testing.assert_close(run_rounds(fed, 3, fused).double(), wanted, rtol=1e-4, atol=2e-6)


def sparse(values):
    """Examples with nothing in most places, and columns that a whole row has nothing in; classes or values."""
    made = dataset(60)
    inputs = made.train.inputs * (torch.rand(60, FEATURES, generator=torch.Generator().manual_seed(2)) < 0.2)
    inputs[:30, [1, 4]] = 0
    targets = torch.sin(made.train.inputs[:, :CLASSES]) if values else made.train.targets
    both = Examples(inputs, targets), Examples(inputs[:10].clone(), targets[:10].clone())
    return Dataset("sparse", "table", *both, None if values else made.classes)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("columns", [0, 3, 7])
def test_columns_in_which_most_examples_have_nothing(monkeypatch, columns, values):
    """The quick way leaves those examples out; it must come to what all single contributions do."""
    picked, made = [], heads.strips_of

    def seen(inputs, hidden):
        found = made(inputs, hidden)
        picked.extend(strip.picked is not None for strip in found)
        return found

    monkeypatch.setattr("discreet.schemes.confined.fused.strips_of", seen)
    monkeypatch.setattr(heads, "IN_CACHE", 1)  # a strip for each column
    scheme = CGD(initial_scale=0.3)
    data = sparse(values)
    fed = prepare(experiment(scheme), data, split(4, columns, 60), mlp())
    quick, single = (run_rounds(fed, 3, fused, data) for fused in (True, False))
    torch.testing.assert_close(quick, single, rtol=1e-4, atol=1e-6)
    assert single.norm() > 0.01 and any(picked) == bool(columns)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    "model",
    [mlp(), nn.Sequential(nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)), mlp(bias=False)],
    ids=["relu", "linear", "no bias"],
)
@pytest.mark.parametrize("columns", [3, 7])
def test_the_compiled_loop_comes_to_the_same(monkeypatch, columns, model, values):
    pytest.importorskip("numba", reason="needs the extra `fast`: pip install 'discreet[fast]'")
    used, made = [], kernel.compiled

    def seen(*shape):
        used.append(made(*shape))
        return used[-1]

    monkeypatch.setattr("discreet.schemes.confined.fused.compiled", seen)
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 0)
    data = sparse(values)
    fed = prepare(experiment(CGD(initial_scale=0.3)), data, split(4, columns, 60), model)
    quick, single = (run_rounds(fed, 3, way, data) for way in (True, False))
    assert used != [] and None not in used
    torch.testing.assert_close(quick, single, rtol=1e-4, atol=1e-6)
    assert single.norm() > 0.01


def test_the_compiled_loop_adds_up_products(monkeypatch):
    """More columns than it takes over at once; sums to be added to; a number that is not finite is passed on."""
    pytest.importorskip("numba", reason="needs the extra `fast`: pip install 'discreet[fast]'")
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 0)
    generator = torch.Generator().manual_seed(4)
    examples, columns, width, outputs, hidden = 5, kernel.TOGETHER + 3, 2, 3, 4
    inputs = torch.randn(examples, columns, width, generator=generator)
    inputs[0], inputs[1, :, 0] = 0, 0
    by_outputs = torch.randn(examples, outputs, columns, generator=generator)
    weight = torch.randn(outputs, columns, hidden, generator=generator)
    passed = (torch.randn(examples, hidden, generator=generator) > 0).float()
    before = torch.randn(columns, width, hidden, generator=generator)
    add = kernel.compiled(inputs[None], outputs, hidden, inputs.device)
    for mask in (passed, None):
        found = before.clone()
        add(inputs, by_outputs, weight, mask, found)
        factors = [one.double() for one in (inputs, by_outputs, weight, passed)]
        if mask is None:
            factors[3].fill_(1)
        wanted = before.double() + torch.einsum("bcw,boc,och,bh->cwh", *factors)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    by_outputs[2, 1, 4] = float("inf")
    add(inputs, by_outputs, weight, None, found)
    assert (~found.isfinite()).any((1, 2)).tolist() == [column == 4 for column in range(columns)]


@pytest.mark.parametrize(
    ("inputs", "outputs", "device"),
    [((1, 2, 3, 4), 33, "cpu"), ((1, 2, 3, 65), 3, "cpu"), ((1, 2, 3, 4), 3, "cuda")],
)
def test_no_loop_is_compiled_where_it_would_not_pay(monkeypatch, inputs, outputs, device):
    assert kernel.compiled(torch.zeros(1, 10, 7, 2), 3, 4, torch.device("cpu")) is None
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 0)
    assert kernel.compiled(torch.zeros(inputs), outputs, 5, torch.device(device)) is None


@pytest.mark.parametrize(
    ("error", "warned"),
    [
        (ModuleNotFoundError("No module named 'numba'", name="numba"), ()),
        (ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite"), ("llvmlite",)),
        (ImportError("Numba needs NumPy 2.4 or less"), ("NumPy 2.4",)),
    ],
)
def test_without_numba_no_loop_is_compiled(monkeypatch, recwarn, error, warned):
    def import_module(name):
        raise error

    kernel._numba.cache_clear()
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 0)
    monkeypatch.setattr(kernel.importlib, "import_module", import_module)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for _ in range(2):
            assert kernel.compiled(torch.zeros(1, 2, 3, 4), 3, 5, torch.device("cpu")) is None
    monkeypatch.undo()
    kernel._numba.cache_clear()
    assert len(recwarn) == len(warned)
    assert all(said in str(one.message) for one, said in zip(recwarn, warned, strict=True))


@pytest.mark.parametrize("evaluated", [0, 5])
def test_with_one_head_a_row_has_one_prediction(evaluated):
    scheme = CGD(initial_scale=0.3, heads="row", evaluated=evaluated)
    fed = federation(scheme, split(4, 3))
    state, layout = scheme.init(fed.task), scheme.layout(fed.task)
    found = scheme.evaluate(fed.task, state, {}, fed.test, map)
    each = judged.evaluate(
        *(fed.task, fed.task.grid, layout),
        scheme.models(fed.task).first,
        *(state, fed.test, evaluated, True, False, map),
    )
    assert (found.accuracy, found.worst_accuracy) == (each.accuracy, each.worst_accuracy)
    # many heads are one product, of which the last bits differ
    assert (found.loss, found.worst_loss) == pytest.approx((each.loss, each.worst_loss), rel=1e-6)
    assert found.worst_loss > found.loss


@pytest.mark.parametrize("forward", ["joint", "independent"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("rows", "columns"), [(3, 0), (3, 2)])
def test_any_network_that_begins_with_a_linear_layer(rows, columns, model, forward):
    scheme = CGD(forward=forward, initial_scale=0.3)
    fed = federation(scheme, split(rows, columns), model)
    wanted = by_hand(fed, scheme, 3, plain)
    for fused in (True, False):
        torch.testing.assert_close(run_rounds(fed, 3, fused).double(), wanted, rtol=1e-4, atol=2e-6)


# ---- one participant is centralized training; differences never change


def centralized_by_hand(scheme, fed, rounds, step):
    """One whole network from the participant's own start, by autograd in float64."""
    start = scheme.confined(fed.task, scheme.init(fed.task), 0).double()
    vector, history = start.clone(), []
    inputs, targets = fed.train.inputs.double(), fed.train.targets
    for _ in range(rounds):
        free = vector.clone().requires_grad_()
        outputs = fed.task.learner.network.apply(free, inputs)
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, targets), free)
        history.append(gradient)
        vector = vector + step(history)
    return vector


@pytest.mark.parametrize("columns", [0, 1])
def test_one_participant_is_centralized_training(columns):
    scheme = CGD(initial_scale=0.3)
    fed = federation(scheme, split(1, columns))
    run = simulate(fed.experiment, data=dataset(), partition=fed.partition, model=mlp())
    wanted = centralized_by_hand(scheme, fed, fed.experiment.rounds, plain)
    torch.testing.assert_close(run.confined(0).double(), wanted, rtol=1e-4, atol=2e-6)


def test_a_grid_of_one_column_is_rows_bit_for_bit():
    runs = [
        simulate(experiment(CGD(initial_scale=0.3)), data=dataset(), partition=split(4, columns), model=mlp())
        for columns in (0, 1)
    ]
    first, second = (run.checkpoint.tensors["state.displacement"] for run in runs)
    assert torch.equal(first, second)


MODULES = {
    "cut": mlp(),
    "whole": nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(10, CLASSES)
    ),
}


@pytest.mark.parametrize("model", MODULES.values(), ids=MODULES)
def test_models_differ_by_a_constant_for_ever(model):
    scheme = CGD(initial_scale=0.3)
    fed = federation(scheme, split(4, 0), model)
    runs = [
        simulate(experiment(scheme, rounds=rounds), data=dataset(), partition=fed.partition, model=model)
        for rounds in (1, 4)
    ]
    moved = [run.checkpoint.tensors["state.displacement"] for run in runs]
    assert not torch.equal(*moved)
    for participant in range(4):
        first = scheme.confined(fed.task, scheme.init(fed.task), participant)
        for run in runs:
            # the displacement is the same tensor for all: models are their own start plus that, bit for bit
            nothing = scheme.confined(fed.task, scheme.init(fed.task), participant)
            assert torch.equal(nothing, first)
            torch.testing.assert_close(
                run.confined(participant) - first,
                run.confined(0) - scheme.confined(fed.task, scheme.init(fed.task), 0),
                rtol=0,
                atol=2e-7,
            )


def test_whole_networks_are_moved_by_the_sum_of_their_gradients():
    scheme = CGD(initial_scale=0.3)
    model = MODULES["whole"]
    fed = federation(scheme, split(3, 0), model)
    run = simulate(experiment(scheme, rounds=3), data=dataset(), partition=fed.partition, model=model)
    network, count = fed.task.learner.network, len(fed.partition.order)
    moved = torch.zeros(network.count, dtype=torch.float64)
    for _ in range(3):
        total = torch.zeros_like(moved)
        for row in range(3):
            held = torch.from_numpy(np.asarray(fed.partition.indices(row)))
            first = scheme.draw(fed.task.randomness, row, network.count).double()
            free = (first + moved).requires_grad_()
            outputs = network.apply(free, fed.train.inputs[held].double())
            loss = nn.functional.cross_entropy(outputs, fed.train.targets[held], reduction="sum") / count
            total += torch.autograd.grad(loss, free)[0]
        moved = moved - 0.5 * total
    torch.testing.assert_close(
        run.checkpoint.tensors["state.displacement"].double(), moved, rtol=1e-4, atol=2e-6
    )


def test_columns_of_a_network_that_cannot_be_split_are_refused():
    with pytest.raises(ConfigError, match=r"data\.columns = 2.*linear layer"):
        federation(CGD(), split(3, 2), MODULES["whole"])


# ---- steps


def rule_by_hand(scheme):
    """The documented rules, on the whole history of totals each time."""

    def step(history):
        number = len(history)
        size = scheme.learning_rate
        if scheme.decay:
            size /= (number + scheme.decay * scheme.horizon) ** 2
        total = history[-1]
        kept = [scheme.momentum ** (number - 1 - place) for place in range(number)]
        square = sum(
            (1 - scheme.square_average) * scheme.square_average ** (number - 1 - place) * one**2
            for place, one in enumerate(history)
        )
        match scheme.optimizer:
            case "sgd":
                direction = total
            case "momentum":
                direction = sum(share * one for share, one in zip(kept, history, strict=True))
            case "rmsprop":
                direction = total / (square.sqrt() + scheme.floor)
            case "adam":
                mean = sum(
                    (1 - scheme.momentum) * share * one for share, one in zip(kept, history, strict=True)
                )
                mean = mean / (1 - scheme.momentum**number)
                square = square / (1 - scheme.square_average**number)
                direction = mean / (square.sqrt() + scheme.floor)
        return -size * direction

    return step


@pytest.mark.parametrize(
    "rule",
    [
        {"optimizer": "sgd", "decay": 0.5, "horizon": 4, "learning_rate": 3.0},
        {"optimizer": "momentum", "learning_rate": 0.3, "momentum": 0.7},
        {"optimizer": "rmsprop", "learning_rate": 0.05, "square_average": 0.8, "floor": 1e-3},
        {"optimizer": "adam", "learning_rate": 0.05, "square_average": 0.8, "floor": 1e-3},
    ],
    ids=lambda rule: rule["optimizer"],
)
def test_every_rule_is_a_function_of_the_totals_alone(rule):
    scheme = CGD(initial_scale=0.3, **rule)
    fed = federation(scheme, split(3, 2))
    wanted = by_hand(fed, scheme, 4, rule_by_hand(scheme))
    torch.testing.assert_close(run_rounds(fed, 4).double(), wanted, rtol=1e-3, atol=1e-5)


# ---- where models start


def test_each_participant_draws_its_own_model():
    task = federation(CGD(), split(4, 0)).task
    draws = torch.stack([CGD(initial_scale=0.5).draw(task.randomness, one, 4000) for one in range(4)])
    # standard errors: 0.5 / sqrt(4000) of a mean, 0.5 / sqrt(8000) of a deviation; 5 of them, over 8 figures
    assert (draws.mean(1).abs() < 5 * 0.5 / 4000**0.5).all()
    assert ((draws.std(1) - 0.5).abs() < 5 * 0.5 / 8000**0.5).all()
    assert (torch.corrcoef(draws).triu(1).abs() < 5 / 4000**0.5).all()
    flat = CGD(initial_scale=0.5, initial="uniform").draw(task.randomness, 0, 4000)
    assert flat.abs().max() <= 0.5 and abs(float(flat.std()) - 0.5 / 3**0.5) < 0.02


def test_delta_may_be_each_participants_own():
    task = federation(CGD(), split(3, 0)).task
    one = CGD(initial_scale=1.0)
    listed = CGD(initial_scale=[1.0, 2.0, 4.0])
    for participant, scale in enumerate((1.0, 2.0, 4.0)):
        torch.testing.assert_close(
            listed.draw(task.randomness, participant, 9), scale * one.draw(task.randomness, participant, 9)
        )
    ranged = CGD(initial_range=[0.1, 0.2])
    spreads = [float(ranged.draw(task.randomness, participant, 20_000).std()) for participant in range(40)]
    assert 0.095 < min(spreads) < 0.12 and 0.18 < max(spreads) < 0.205


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"initial_scale": 0.0}, "initial_scale"),
        ({"initial_scale": [0.1, -1.0]}, "initial_scale"),
        ({"initial_scale": []}, "initial_scale"),
        ({"initial_range": [0.2, 0.1]}, "initial_range"),
        ({"initial_range": [0.1]}, "initial_range"),
        ({"decay": 0.1}, "horizon"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"optimizer": "lbfgs"}, "optimizer"),
        ({"forward": "both"}, "forward"),
    ],
)
def test_impossible_settings_are_refused(settings, key):
    with pytest.raises(ConfigError, match=rf"scheme\.{key}"):
        CGD(**settings)


def test_a_list_of_scales_has_one_for_each_participant():
    with pytest.raises(ConfigError, match=r"scheme\.initial_scale = '3 values'.*6 participants"):
        federation(CGD(initial_scale=[0.1, 0.2, 0.3]), split(3, 2))


# ---- secure sums


@pytest.mark.parametrize(("rows", "columns"), [(4, 0), (3, 2)])
def test_shared_sums_are_the_clear_ones_up_to_rounding(rows, columns):
    scheme = CGD(initial_scale=0.3)
    partition = split(rows, columns)
    clear, shared = (
        simulate(
            experiment(scheme, rounds=6, secure=secure, share_holders=2 if secure == "none" else 4),
            data=dataset(),
            partition=partition,
            model=mlp(),
        )
        for secure in ("none", "additive")
    )
    fed = federation(scheme, partition, secure="additive")
    # unbiased rounding errs by less than a step for each participant, and those of pre-activations pass through it
    step = 1 / scheme._fixed(fed.task).scale("gradient")
    bound = 6 * 0.5 * 10 * step * fed.partition.clients + 1e-5
    difference = (
        clear.checkpoint.tensors["state.displacement"] - shared.checkpoint.tensors["state.displacement"]
    )
    assert difference.abs().max() < bound
    assert all(line["saturated"] == 0 for line in shared.metrics)
    # 3 seeds and one vector of 32-bit words a participant and phase
    (uplink,) = {line["uplink_bytes"] for line in shared.metrics}
    phases = scheme.phases(fed.task)
    assert uplink == fed.partition.clients * sum(3 * 33 + 1 + 4 * phase.length for phase in phases)


def test_what_does_not_fit_is_cut_and_counted():
    scheme = CGD(initial_scale=3.0, largest_gradient=1e-3)
    run = simulate(
        experiment(scheme, rounds=2, secure="additive"), data=dataset(), partition=split(4, 0), model=mlp()
    )
    assert run.metrics[0]["saturated"] > 0


def test_masked_sums_need_whole_rows():
    with pytest.raises(ConfigError, match=r"secure = 'masked'.*additive"):
        federation(CGD(), split(4, 2), secure="masked")
    rows = federation(CGD(), split(4, 0), secure="masked")
    run = simulate(rows.experiment, data=dataset(), partition=rows.partition, model=mlp())
    shared = simulate(
        dataclasses.replace(rows.experiment, secure="additive"),
        data=dataset(),
        partition=rows.partition,
        model=mlp(),
    )
    # both are exact sums of the same integers
    first, second = (one.checkpoint.tensors["state.displacement"] for one in (run, shared))
    assert torch.equal(first, second)


def test_no_more_share_holders_than_participants():
    with pytest.raises(ConfigError, match=r"share_holders = 5.*at most 4"):
        federation(CGD(), split(4, 0), secure="additive", share_holders=5)


# ---- batches, delays, results


@pytest.mark.parametrize(("rows", "columns"), [(4, 0), (3, 2)])
def test_the_participants_of_a_row_draw_the_same_batch(rows, columns):
    scheme = CGD(initial_scale=0.3, batch_size=4)
    fed = federation(scheme, split(rows, columns))
    cohort = fed.cohort(np.arange(fed.partition.clients), 3, {})
    layout = scheme.layout(fed.task)
    drawn = participants.rows_of(cohort, layout.padded, 41, 4, fed.task.randomness)
    for lane, row in enumerate(cohort.row.tolist()):
        first = row * max(1, columns)
        assert torch.equal(drawn.indices[lane], drawn.indices[first])
        held = fed.partition.indices(row)
        assert set(drawn.indices[lane].tolist()) <= set(held.tolist())
        torch.testing.assert_close(drawn.weights[lane].sum(), torch.tensor(len(held) / 41))
    other = participants.rows_of(
        dataclasses.replace(cohort, round=4), layout.padded, 41, 4, fed.task.randomness
    )
    assert not torch.equal(drawn.indices, other.indices)
    run = simulate(fed.experiment, data=dataset(), partition=fed.partition, model=mlp())
    assert np.isfinite(run.loss).all()


def test_who_lags_behind_uses_an_older_displacement():
    late = CGD(initial_scale=0.3, max_delay=2)
    fed = federation(late, split(4, 0), rounds=12)
    state = late.init(fed.task)
    assert state.history.shape == (2, late.layout(fed.task).length)
    payload = late.broadcast(fed.task, dataclasses.replace(state, history=state.history + 1), 9)
    cohort = fed.cohort(np.arange(4), 9, {})
    seen = {
        float(late._seen(fed.task, payload, dataclasses.replace(cohort, round=number)).sum())
        for number in range(3, 30)
    }
    assert len(seen) > 3
    first = late._seen(fed.task, payload, dataclasses.replace(cohort, round=1))
    assert not first.any()  # before the first step nobody can be late
    run = simulate(fed.experiment, data=dataset(), partition=fed.partition, model=mlp())
    prompt = simulate(
        experiment(CGD(initial_scale=0.3), rounds=12), data=dataset(), partition=fed.partition, model=mlp()
    )
    moved = [one.checkpoint.tensors["state.displacement"] for one in (run, prompt)]
    assert not torch.allclose(*moved, atol=1e-4)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_mean_and_worst_are_over_all_confined_models():
    scheme = CGD(initial_scale=0.5)
    partition = split(4, 0)
    run = simulate(experiment(scheme), data=dataset(), partition=partition, model=mlp())
    data, accuracies, losses = dataset().test, [], []
    for participant in range(4):
        outputs = run.model(participant=participant)(data.inputs)
        accuracies.append(float((outputs.argmax(1) == data.targets).float().mean()))
        losses.append(float(nn.functional.cross_entropy(outputs, data.targets).detach()))
    last = run.metrics[-1]
    assert last["accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert last["worst_accuracy"] == pytest.approx(min(accuracies), abs=1e-6)
    assert last["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert last["worst_loss"] == pytest.approx(max(losses), rel=1e-5)
    assert run.result["worst"] == {"accuracy": last["worst_accuracy"], "loss": last["worst_loss"]}
    with pytest.raises(ValueError, match="ask for a participant's"):
        run.model()
    with pytest.raises(ConfigError, match="participant = 4"):
        run.model(participant=4)


def test_a_checkpoint_holds_no_model():
    run = simulate(experiment(CGD(initial_scale=0.5)), data=dataset(), partition=split(4, 2), model=mlp())
    assert set(run.checkpoint.tensors) == {
        "state.displacement",
        "state.mean",
        "state.square",
        "state.total_norm",
        "state.history",
    }
    with pytest.raises(ConfigError, match="each holds a part"):
        run.model(participant=0)


def test_a_participant_whose_gradient_is_not_finite_is_dropped_by_name():
    data = dataset()
    partition = split(4, 0)
    spoilt = data.train.inputs.clone()
    spoilt[int(partition.indices(2)[0])] = 3e38
    data = dataclasses.replace(data, train=Examples(spoilt, data.train.targets))
    for secure in ("none", "additive"):
        run = simulate(
            experiment(CGD(initial_scale=0.3), secure=secure), data=data, partition=partition, model=mlp()
        )
        # with secure sums it sends zeros, as who has nothing to add must not be seen
        there = 3 if secure == "none" else 4
        assert all(line["dropped"] == ["2"] and line["participants"] == there for line in run.metrics)
        assert np.isfinite(run.loss).all()


def test_many_small_parts_survive_fixed_point():
    """A grid of 60 x 12 participants: each adds a 60th of a block and a 720th of the upper layers."""
    data = dataset(600, features=12, seed=1)
    order = np.arange(600)
    partition = Partition(
        order, np.arange(0, 601, 10, dtype=np.int64), tuple(np.array([feature]) for feature in range(12))
    )
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    feds = [
        prepare(experiment(CGD(initial_scale=0.1), secure=secure), data, partition, model)
        for secure in ("none", "additive")
    ]
    totals = []
    for fed in feds:
        task, scheme = fed.task, fed.scheme
        playing = play_round(scheme, task, scheme.init(task), 1)
        ask = next(playing)
        try:
            while True:
                ask = playing.send(scheme._added(task, ask.phase, ask.payload, ask.received, whole(fed))[0])
        except StopIteration as end:
            totals.append(-2 * end.value.displacement.double())
    clear, shared = totals
    upper = feds[0].scheme.layout(feds[0].task).cut.upper_size
    step = 1 / feds[1].scheme._fixed(feds[1].task).scale("gradient")
    for own, parties in ((slice(0, len(clear) - upper), 60), (slice(len(clear) - upper, None), 720)):
        # a rounding error is of variance at most step^2 / 4: six deviations of the sum, beside float32's own error
        assert (clear[own] - shared[own]).abs().max() < 6 * step * parties**0.5 / 2 + 1e-5
        assert (clear[own] - shared[own]).norm() < 0.01 * clear[own].norm()


def whole(fed):
    return fed.cohort(np.arange(fed.partition.clients), 1, {})


def test_participants_without_examples_do_not_stop_a_masked_sum():
    sizes = [9, 0, 8, 0, 0, 12, 12, 0]
    partition = Partition(np.arange(41), np.cumsum([0, *sizes]).astype(np.int64))
    masked, clear = (
        simulate(
            experiment(CGD(initial_scale=0.3), secure=secure),
            data=dataset(),
            partition=partition,
            model=mlp(),
        )
        for secure in ("masked", "none")
    )
    assert all(line["empty"] == 4 and not line["dropped"] for line in masked.metrics)
    first, second = (one.checkpoint.tensors["state.displacement"] for one in (masked, clear))
    assert first.norm() > 0.1
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


def test_a_confined_model_has_its_features_in_the_models_order():
    """A single column whose features are listed in another order than the network's."""
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    rows = split(4, 0)
    partition = Partition(rows.order, rows.offsets, (order,))
    run = simulate(
        experiment(CGD(initial_scale=0.3), rounds=9), data=dataset(), partition=partition, model=mlp()
    )
    test = dataset().test
    outputs = [run.model(participant=one)(test.inputs) for one in range(4)]
    losses = [float(nn.functional.cross_entropy(one, test.targets).detach()) for one in outputs]
    assert run.metrics[-1]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_what_one_scheme_remembers_is_not_anothers():
    fed = federation(CGD(initial_scale=0.01), split(4, 0))
    for scale in (0.01, 0.1):
        scheme = CGD(initial_scale=scale)
        alone = federation(scheme, split(4, 0))
        (phase,) = scheme.phases(fed.task)
        found = [
            scheme.contribute(
                one.task, phase, scheme.broadcast(one.task, scheme.init(one.task), 1), (), whole(one)
            ).elements
            for one in (fed, alone)
        ]
        assert torch.equal(*found)
