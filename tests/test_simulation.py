"""Whole runs from Python: their figures, what they keep, and what they refuse."""

import dataclasses
import json
import signal
import sys
import threading
import tomllib
from types import ModuleType

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from discreet import config
from discreet.cohort import Examples
from discreet.config import Data, Engine, Experiment, Model
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.errors import ConfigError, DataError, Diverged, ModelError, RunFolderError, UserError
from discreet.report import write_report
from discreet.schemes import FedAvg, FedSGD, Local
from discreet.simulation import simulate
from federations import (
    SIZES,
    assert_same_run,
    dataset,
    deal,
    experiment,
    same_bits,
    with_inputs,
    without_times,
)


class Net(nn.Module):
    """A user's own model, in a form that only autograd can do."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.inner = nn.Linear(*input_shape, 4)
        self.outer = nn.Linear(4, outputs)

    def forward(self, inputs):
        return self.outer(torch.tanh(self.inner(inputs)))


def smooth(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.2)


def accuracy(module, examples):
    with torch.no_grad():
        return float((module(examples.inputs).argmax(1) == examples.targets).double().mean())


# --- what a run gives


def test_the_figures_are_those_of_its_models(blobs):
    run = simulate(experiment("fedavg", rounds=6), data=blobs)
    assert run.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    for best, scores, vector in ((False, run.final, run.vector), (True, run.best, run.best_vector)):
        module = run.model(best=best)
        assert not module.training
        assert accuracy(module, blobs.test) == pytest.approx(scores["accuracy"], abs=1e-9)
        with torch.no_grad():
            loss = functional.cross_entropy(module(blobs.test.inputs).double(), blobs.test.targets)
        assert float(loss) == pytest.approx(scores["loss"], rel=1e-5)
        assert sum(parameter.numel() for parameter in module.parameters()) == len(vector)
    assert run.final["round"] == 6
    assert run.best["round"] == 1 + int(np.argmax(run.accuracy))  # the first of the best
    assert run.loss[5] == run.final["loss"]


def test_a_series_has_nan_where_a_round_was_not_evaluated(blobs):
    run = simulate(experiment("fedavg", rounds=5, eval_every=3), data=blobs)
    assert np.isnan(run.accuracy).tolist() == [True, True, False, True, False]
    assert not np.isnan(run.series("train_loss")).any()
    assert np.isnan(run.series("no such figure")).all()


def test_a_scheme_without_a_global_model_says_so(blobs):
    run = simulate(experiment("local"), data=blobs)
    assert run.vector is None and run.best_vector is None
    with pytest.raises(ValueError, match="local has no global model"):
        run.model()
    assert run.result["worst"]["accuracy"] <= run.final["accuracy"]
    assert run.result["worst"]["loss"] >= run.final["loss"]
    assert run.result["uplink_bytes"] == run.result["downlink_bytes"] == run.result["bits_per_parameter"] == 0


def test_it_can_be_plotted(blobs):
    figure = simulate(experiment("fedavg"), data=blobs).plot()
    assert isinstance(figure, Figure)
    drawn = [line.get_ydata() for axes in figure.axes for line in axes.lines]
    assert any(len(values) == 3 for values in drawn)


def test_the_best_round_is_chosen_on_held_out_examples():
    data = dataset(train=120)
    plan = dataclasses.replace(experiment("fedavg", rounds=8), data=Data(clients=8, holdout=0.25))
    run = simulate(plan, data=data)
    held = run.series("holdout_accuracy")
    assert run.best["round"] == 1 + int(np.argmax(held))
    line = run.metrics[run.best["round"] - 1]
    assert run.best["accuracy"] == line["accuracy"]  # of the test set, which is what is reported
    assert all(value * 30 == pytest.approx(round(value * 30)) for value in held)  # a quarter of 120 examples
    assert any(line["accuracy"] != line["holdout_accuracy"] for line in run.metrics)


def test_on_round_is_told_of_every_round(blobs):
    told = []
    run = simulate(
        experiment("fedavg"),
        data=blobs,
        on_round=lambda metrics, rounds: told.append((metrics["round"], rounds)),
    )
    assert told == [(1, 3), (2, 3), (3, 3)] and len(run.metrics) == 3


def test_torchs_threads_and_generator_are_left_as_they_were(blobs):
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    plan = dataclasses.replace(experiment("fedavg"), engine=Engine(workers=2, threads=2))
    simulate(plan, data=blobs)
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == threads
    with pytest.raises(KeyboardInterrupt):
        simulate(plan, data=blobs, on_round=lambda metrics, rounds: signal.raise_signal(signal.SIGINT))
    assert torch.get_num_threads() == threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("discreet")]


# --- rules at the edges


def test_a_batch_larger_than_a_clients_data_takes_it_all(blobs):
    # the largest client has 20 examples: from there on, larger batches are no larger
    runs = [
        simulate(experiment(FedAvg(steps=2, batch_size=size)), data=blobs, partition=deal())
        for size in (0, 20, 21, 1000)
    ]
    for other in runs[1:]:
        assert same_bits(runs[0].vector, other.vector)


def test_an_evaluation_with_no_rows_gives_none(blobs, tmp_path):
    nothing = Examples(blobs.test.inputs[:0], blobs.test.targets[:0])
    run = simulate(experiment("fedavg"), data=dataclasses.replace(blobs, test=nothing), out=tmp_path)
    assert run.final == {"round": 3, "accuracy": None, "loss": None}
    assert np.isnan(run.accuracy).all() and np.isnan(run.loss).all()
    assert json.loads((tmp_path / "result.json").read_text())["final"]["loss"] is None
    write_report([tmp_path], tmp_path / "page.html")


def test_a_client_without_examples_is_counted_as_empty(blobs, tmp_path):
    run = simulate(experiment("fedavg"), data=blobs, partition=deal(), out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert without_times(lines) == without_times(run.metrics)
    assert [(line["participants"], line["empty"], line["dropped"]) for line in lines] == [(7, 1, [])] * 3
    # 8 clients hear of the model, 7 answer with it and their weight
    count = len(run.vector)
    assert [line["downlink_bytes"] for line in lines] == [8 * 4 * count] * 3
    assert [line["uplink_bytes"] for line in lines] == [7 * 4 * (count + 1)] * 3


@pytest.mark.parametrize("name", ["fedavg", "signfed", "fedsgd"])
def test_a_client_whose_numbers_overflow_is_dropped_by_name(name, tmp_path):
    data, parts = dataset(), deal()
    inputs = data.train.inputs.clone()
    inputs[parts.indices(7)] = 3e38
    run = simulate(experiment(name), data=with_inputs(data, inputs), partition=parts, out=tmp_path)
    assert run.vector.isfinite().all()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["dropped"] for line in lines] == [["7"]] * 3
    assert run.result["dropped_updates"] == 3


def test_dropping_a_client_is_as_if_it_held_nothing():
    data, parts = dataset(), deal()
    inputs = data.train.inputs.clone()
    inputs[parts.indices(7)] = 3e38
    run = simulate(experiment("fedavg"), data=with_inputs(data, inputs), partition=parts)
    empty = Partition(parts.order[: parts.offsets[7]], np.append(parts.offsets[:8], parts.offsets[7]))
    other = simulate(experiment("fedavg"), data=data, partition=empty)
    assert same_bits(run.vector, other.vector)


def test_a_poisson_round_with_nobody_leaves_the_model(blobs):
    plan = experiment("fedavg", rounds=12, fraction=0.05, sampling="poisson", seed=3)
    run = simulate(plan, data=blobs)
    counts = run.series("participants")
    assert 0 in counts and counts.sum() > 0  # this seed is fixed
    for number in np.flatnonzero(counts[1:] == 0) + 1:
        assert run.loss[number] == run.loss[number - 1]
        assert run.metrics[number]["uplink_bytes"] == run.metrics[number]["downlink_bytes"] == 0
        assert run.metrics[number]["train_loss"] is None


def test_one_training_example_will_do(blobs):
    one = dataclasses.replace(blobs, train=Examples(blobs.train.inputs[:1], blobs.train.targets[:1]))
    plan = dataclasses.replace(experiment("fedavg"), data=Data(clients=1))
    assert simulate(plan, data=one).result["participants"] == 1


def test_a_run_that_diverges_keeps_its_last_good_round(blobs, tmp_path):
    wild = experiment(FedSGD(learning_rate=1e13), rounds=9)
    with pytest.raises(
        Diverged, match=r"diverged in round (\d+): .*scheme\.learning_rate \(now 10000000000000\.0\)"
    ) as caught:
        simulate(wild, data=blobs, out=tmp_path)
    last = caught.value.round - 1
    assert last >= 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == last
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(Diverged) as again:
        simulate(wild, data=blobs, out=tmp_path, resume=True)
    assert again.value.round == caught.value.round
    short = simulate(dataclasses.replace(wild, rounds=last), data=blobs)
    assert short.vector.isfinite().all()
    # the error says how good the model is that it keeps, whether that was evaluated in the run or not
    for told in (caught.value.last, again.value.last):
        assert told == {"final": short.result["final"], "best": short.result["best"]}
    with pytest.raises(Diverged) as unseen:
        simulate(dataclasses.replace(wild, eval_every=9), data=blobs)
    assert unseen.value.last["final"]["round"] == unseen.value.round - 1
    assert unseen.value.last["final"] == unseen.value.last["best"]


# --- what is given in place of what is named


def test_a_model_and_a_loss_of_ones_own_are_named_in_the_folder(blobs, tmp_path):
    plan = dataclasses.replace(experiment("fedavg"), model=Model())
    run = simulate(plan, data=blobs, model=Net, loss=smooth, out=tmp_path)
    settings = tomllib.loads((tmp_path / "config.toml").read_text())
    assert settings["model"] == {"name": f"{__name__}:Net", "loss": f"{__name__}:smooth"}
    assert run.result["model"] == f"{__name__}:Net"
    assert isinstance(run.model(), Net)
    # what is written there is what ran
    again = simulate(config.from_table(settings), data=blobs)
    assert_same_run(run, again)


@pytest.mark.parametrize("names", [(), ("data",), ("data", "model", "loss"), ("data", "partition")])
def test_what_came_from_python_is_written_down_and_can_only_be_repeated_there(blobs, tmp_path, names):
    plan = Experiment(rounds=1, data=Data(clients=8), scheme=FedAvg(steps=1))
    objects = {"data": blobs, "partition": deal(), "model": Net, "loss": smooth}
    given = {name: objects[name] for name in names}
    run = simulate(plan, **given, out=tmp_path)
    assert run.experiment.given == list(names)
    settings = tomllib.loads((tmp_path / "config.toml").read_text())
    assert settings["given"] == list(names)
    if names:
        with pytest.raises(ConfigError, match=r"^given .*from Python"):
            config.load(str(tmp_path / "config.toml"))
    else:
        assert config.load(str(tmp_path / "config.toml")) == run.experiment
    more = simulate(dataclasses.replace(plan, rounds=2), **given, out=tmp_path, resume=True)
    assert len(more.metrics) == 2


def test_without_privacy_sums_are_in_the_clear(blobs, tmp_path):
    run = simulate(experiment("fedavg", rounds=1), data=blobs, out=tmp_path)
    assert run.result["secure"] == run.experiment.secure == "none" and run.result["privacy"] is None
    assert tomllib.loads((tmp_path / "config.toml").read_text())["secure"] == "none"
    assert run.result["notes"] == [] and "released" not in run.metrics[0]


def test_there_is_nothing_to_resume_without_a_folder(blobs):
    with pytest.raises(ConfigError, match=r"^out .*the run folder to go on with"):
        simulate(experiment("fedavg"), data=blobs, resume=True)


def test_a_ready_made_model_starts_from_its_own_weights(blobs):
    torch.manual_seed(5)
    ours = Net((6,), 3)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    plan = dataclasses.replace(experiment(FedAvg(steps=1, learning_rate=1e-30)), model=Model())
    run = simulate(plan, data=blobs, model=ours)
    for name, tensor in run.model().state_dict().items():
        assert torch.equal(tensor, before[name]) and torch.equal(ours.state_dict()[name], before[name])


def test_a_named_data_set_given_in_place_of_another_is_written_down(tmp_path):
    data = dataclasses.replace(dataset(), name="mnist")
    simulate(experiment("fedavg"), data=data, out=tmp_path)
    assert tomllib.loads((tmp_path / "config.toml").read_text())["data"]["name"] == "mnist"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: {"partition": deal(tuple(reversed(SIZES)))},
            "other training data, or with another partition",
        ),
        (lambda data: {"data": dataset(seed=1)}, "other training data"),
        (lambda data: {"data": dataset(train=80)}, "other training data"),
        (lambda data: {"data": dataset(features=7)}, "other training data"),
    ],
)
def test_a_folder_made_with_other_data_is_refused(blobs, tmp_path, change, said):
    given = {"data": blobs, "partition": deal()}
    simulate(experiment("fedavg"), **given, out=tmp_path)
    longer = experiment("fedavg", rounds=4)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match=said):
        simulate(longer, **(given | change(blobs)), out=tmp_path, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert len(simulate(longer, **given, out=tmp_path, resume=True).metrics) == 4


def test_a_folder_made_with_another_model_is_refused(blobs, tmp_path, monkeypatch):
    module = ModuleType("someones_model")
    monkeypatch.setitem(sys.modules, "someones_model", module)
    module.make = lambda outputs: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, outputs))
    plan = dataclasses.replace(experiment("fedavg"), model=Model(name="someones_model:make"))
    simulate(plan, data=blobs, out=tmp_path)
    module.make = lambda outputs: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, outputs))
    with pytest.raises(
        RunFolderError, match=r"another model \(vector of shape \(53,\) there and \(43,\) here\)"
    ):
        simulate(dataclasses.replace(plan, rounds=4), data=blobs, out=tmp_path, resume=True)


# --- folders


def test_a_saved_run_goes_on_as_one_that_was_written_while_it_ran(blobs, tmp_path):
    for name in ("fedavg", "local"):
        run = simulate(experiment(name), data=blobs)
        assert run.save(tmp_path / name) == tmp_path / name
        with pytest.raises(RunFolderError, match="not empty"):
            run.save(tmp_path / name)
        more = simulate(experiment(name, rounds=5), data=blobs, out=tmp_path / name, resume=True)
        assert_same_run(more, simulate(experiment(name, rounds=5), data=blobs))
    page = tmp_path / "page.html"
    write_report([tmp_path], page)
    assert "local" in page.read_text()


def test_there_is_no_result_while_a_run_goes_on(blobs, tmp_path):
    simulate(experiment("fedavg"), data=blobs, out=tmp_path)
    assert (tmp_path / "result.json").exists()
    there = []
    simulate(
        experiment("fedavg", rounds=5),
        data=blobs,
        out=tmp_path,
        resume=True,
        on_round=lambda metrics, rounds: there.append((tmp_path / "result.json").exists()),
    )
    assert there == [False, False]


@pytest.mark.parametrize("lost", ["facts", "kept", "tensor", "round"])
def test_a_checkpoint_that_lacks_something_is_damaged(blobs, tmp_path, lost):
    from safetensors.torch import load_file, save_file

    plan = experiment("local")
    simulate(plan, data=blobs, out=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    facts, tensors = json.loads((tmp_path / "state.json").read_text()), load_file(path)
    if lost == "facts":
        del facts["waiting"]
    elif lost == "kept":
        facts["kept"] = facts["kept"][:-1]
    elif lost == "tensor":
        del tensors["state.vector"]
    else:
        facts["round"] = "three"
    save_file(tensors, path, {"facts": json.dumps(facts)})
    with pytest.raises(
        RunFolderError, match=r"checkpoint\.safetensors: is damaged \(.+\): give another --out"
    ):
        simulate(plan, data=blobs, out=tmp_path, resume=True)


def test_a_folder_that_cannot_be_had_is_found_out_before_data_is_read(tmp_path):
    (tmp_path / "thesis.tex").touch()
    missing = Experiment(data=Data(name="table", path="no.csv", target="y"))
    with pytest.raises(RunFolderError, match="not empty"):
        simulate(missing, out=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.path .*no\.csv"):
        simulate(missing, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- mistakes in data made by hand


def broken(**changes):
    """The blobs with some values changed: train or test, inputs or targets -> (index, value)."""
    data = dataset()
    parts = {"train": data.train, "test": data.test}
    for key, (index, value) in changes.items():
        half, field = key.split("_")
        tensor = getattr(parts[half], field).clone()
        tensor[index] = value
        parts[half] = dataclasses.replace(parts[half], **{field: tensor})
    return dataclasses.replace(data, **parts)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (broken(train_targets=(11, 3)), "blobs: train target 11 is 3: expected a whole number from 0 to 2"),
        (broken(train_targets=(0, -1)), "blobs: train target 0 is -1"),
        (broken(test_targets=(29, 7)), "blobs: test target 29 is 7"),
        (
            broken(train_inputs=((4, 2), float("nan"))),
            "blobs: train input 4 holds nan: expected finite numbers",
        ),
        (broken(test_inputs=((0, 0), -float("inf"))), "blobs: test input 0 holds -inf"),
        (
            dataclasses.replace(
                dataset(), train=Examples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
            ),
            "blobs: has no training examples",
        ),
        (
            dataclasses.replace(dataset(), train=Examples(torch.zeros(3, 6), torch.zeros(3))),
            r"blobs: has train targets of type torch\.float32: expected whole numbers from 0 to 2",
        ),
        (
            Dataset(
                "words",
                "text",
                Examples(torch.full((4, 2), 9, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)),
                Examples(torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)),
                ("a", "b"),
                vocabulary=9,
            ),
            "words: train input 0 is 9: expected a whole number from 0 to 8",
        ),
    ],
)
def test_data_that_cannot_be_trained_on(data, said, tmp_path):
    with pytest.raises(DataError, match=said):
        simulate(experiment("fedavg"), data=data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_regression_with_a_value_that_is_none():
    data = dataset(classes=0)
    data.train.targets[5, 1] = float("inf")
    with pytest.raises(DataError, match="blobs: train target 5 holds inf"):
        simulate(experiment("fedavg"), data=data)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"partition": Partition(np.arange(91), np.array([0, 91]))},
            ConfigError,
            "data.partition = 'example 90': expected indices from 0 to 89",
        ),
        ({"partition": Partition(np.arange(-1, 5), np.array([0, 6]))}, ConfigError, "example -1"),
        ({"model": nn.Linear(6, 4)}, ModelError, r"output has shape \(2, 4\)"),
        ({"model": lambda: 3}, ModelError, "returned a int"),
        ({"loss": lambda outputs, targets: outputs.sum()}, ModelError, "one value an example"),
    ],
)
def test_other_things_of_ones_own_that_do_not_fit(blobs, tmp_path, change, error, said):
    plan = dataclasses.replace(experiment("fedavg"), model=Model())
    with pytest.raises(error, match=said) as caught:
        simulate(plan, data=blobs, out=tmp_path / "run", **change)
    assert isinstance(caught.value, UserError)
    assert not (tmp_path / "run").exists()


def test_texts_need_a_model_for_texts():
    words = Dataset(
        "words",
        "text",
        Examples(torch.ones(8, 2, dtype=torch.int32), torch.arange(8) % 2),
        Examples(torch.ones(4, 2, dtype=torch.int32), torch.arange(4) % 2),
        ("a", "b"),
        vocabulary=9,
    )
    plan = Experiment(rounds=1, data=Data(clients=2), scheme=Local(steps=1), model=Model(name="mlp"))
    with pytest.raises(ConfigError, match=r"model\.name = 'mlp': expected text, or a model of your own"):
        simulate(plan, data=words)
    text = dataclasses.replace(plan, model=Model(name="text", options={"embedding": 3}))
    assert simulate(text, data=words).final["round"] == 1
