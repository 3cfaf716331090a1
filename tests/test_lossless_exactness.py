"""The law of exactness and training beside a plain loop, as the example measures them; ResNet-20 by the public API."""

import sys

import pytest
import torch

import discreet
from discreet.randomness import Seeded
from perturbed_models import half_squares, images
from scripts import loaded


@pytest.fixture(scope="module")
def example():
    with loaded("examples", "lossless_exactness.py") as module:
        yield module


@pytest.mark.parametrize("m", [1, 10])
@pytest.mark.parametrize(("precision", "digit"), [("float64", 2.0**-53), ("float32", 2.0**-24)])
def test_errors_grow_as_the_square_of_the_noise(example, precision, digit, m):
    fed = example.prepare(example.experiment("digits", "mlp", clients=20))
    found = example.law(fed, precision, m, (1.0, 10.0, 30.0, 100.0), repeats=5)
    assert abs(found.slope - 2) < 0.2
    # some roundings of numbers that are rho^2 times as large as what is left
    assert all(
        0.1 < error / (digit * rho**2) < 30
        for rho, error in zip((10, 30, 100), found.errors[1:], strict=True)
    )
    assert found.errors[0] < (1e-11 if precision == "float64" else 1e-6)


def test_the_slope_leaves_out_what_has_no_digit_left(example):
    # 3 rho^2 from 10 to 100; a floor below, and errors of all there is above
    errors = [1e-9, 1e-9, 3e-8, 2.7e-7, 3e-6, 1.0, 1.0]
    assert example.slope_of(example.RHOS, errors) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_training_is_that_of_a_plain_loop(example, model):
    chosen = example.experiment("digits", model, clients=3, batch=16, rounds=40, m=2, learning_rate=0.6)
    both = example.beside(chosen)
    assert both.largest <= 1e-9 < 0.01 < both.size
    assert both.right[0] == both.right[1] and both.differing == 0
    # it has learnt something, which an untrained model has not
    assert both.right[0] > 0.2 * 360


def test_a_loop_with_other_batches_would_show(example):
    chosen = example.experiment("digits", "mlp", clients=3, batch=16, rounds=5)
    fed = example.prepare(chosen)

    class Other(Seeded):
        """As far as the batches go, of another seed."""

        def stream(self, round, client, purpose):
            return super().stream(round + 1, client, purpose)

    swapped = example.replace(fed, task=example.replace(fed.task, randomness=Other(1)))
    assert float((example.plain(fed) - example.plain(swapped)).abs().max()) > 1e-4


def test_the_example_prints_and_draws(example, tmp_path, monkeypatch, capsys):
    path = tmp_path / "law.png"
    asked = [
        example.__file__,
        "--data",
        "digits",
        "--m",
        "1",
        "--repeats",
        "1",
        "--rounds",
        "2",
        "--plot",
        path,
    ]
    monkeypatch.setattr(sys, "argv", list(map(str, asked)))
    threads = torch.get_num_threads()
    try:
        example.main()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        "precision",
        "float64",
        "float32",
        "network",
        "mlp",
        "cnn",
    ]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_resnet_20_trains_on_pictures_like_those_of_cifar_10():
    data = images((3, 32, 32), targets=10, train=6, test=3)
    chosen = discreet.Experiment(
        data=discreet.Data(clients=3),
        model=discreet.Model(name="resnet", loss="squared-error"),
        scheme=discreet.Lossless(learning_rate=0.05, optimizer="momentum"),
        rounds=2,
        eval_every=2,
        seed=5,
    )
    run = discreet.simulate(chosen, data=data)
    assert run.result["parameters"] == 271_690
    module = run.network.to_module(run.network.initial(Seeded(5))).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = half_squares(module(data.train.inputs.double()), data.train.targets).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    wanted = torch.cat([one.detach().flatten() for one in module.parameters()])
    assert float((run.vector - wanted).abs().max()) < 1e-9
    assert losses[-1] < losses[0]  # and not at a standstill
