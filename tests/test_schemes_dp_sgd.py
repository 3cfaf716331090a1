"""Record-level DP-SGD: a step by hand, its noise, its lots, what a record can do, what is accounted, what is refused."""

import dataclasses
import json
import math
import sys

import dp_accounting as dp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import pld, rdp
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

pytest.importorskip("opacus", reason="DP-SGD goes through Opacus, an extra: pip install 'discreet[opacus]'")

from discreet import DPSGD, ConfigError, ModelError, Privacy, simulate
from discreet.cohort import Examples
from discreet.config import Dropouts, load
from discreet.errors import MissingExtra
from discreet.forecast import plan
from discreet.privacy import renyi
from discreet.privacy.releases import Gaussian, Poisson, Released
from discreet.schemes import dp_sgd, per_record
from discreet.schemes.per_record import NoisySteps, find_opacus
from federations import SIZES, assert_same_run, dataset, deal, experiment, federation, play, with_inputs

DATA = dataset()
RECORDS = sum(SIZES)
MINE = slice(2, 2 + RECORDS)  # of the training examples, as `deal` deals them
QUIET = Privacy(noise_multiplier=1e-7)


def settings(**changes):
    return DPSGD(**({"steps": 1, "lot_size": RECORDS, "learning_rate": 0.5} | changes))


def run(chosen, *, data=DATA, model=None, **changes):
    changes = {"privacy": QUIET, "widths": None if model else (5,)} | changes
    return simulate(experiment(chosen, **changes), data=data, partition=deal(), model=model)


def kept(result):
    (own,) = result.checkpoint.tensors["kept"]
    return own


# ---- one step, by hand


class Scaled(nn.Module):
    """A layer of one's own: Opacus takes its gradients by `torch.func.vmap`."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 0.7))

    def forward(self, inputs):
        return torch.tanh(inputs * self.scale)


class Unused(nn.Module):
    """Has a parameter without a part in the output, a frozen one and a scalar."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.idle = nn.Linear(2, 2)
        self.layer.bias.requires_grad = False

    def forward(self, inputs):
        return self.layer(inputs)


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.factor = nn.Linear(6, 3), nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs):
        return self.layer(inputs) * self.factor


def tied():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3))


def standing_still():
    normal = nn.BatchNorm1d(6, affine=False)
    normal.running_mean += 0.1
    return nn.Sequential(normal, nn.Linear(6, 3))


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(24),
        nn.Linear(24, 3),
    ),
    "own layer": lambda: nn.Sequential(Scaled(), nn.Linear(6, 3)),
    "unused and frozen": Unused,
    "scalar": Scalar,
    "tied": tied,
    "BatchNorm that stands still": standing_still,
}


def gradients_by_hand(network, vector, inputs, targets):
    """Each record's gradient at `vector`, alone and in float64, shape (records, n)."""
    rows = []
    for one, target in zip(inputs.double(), targets, strict=True):
        at = vector.double().requires_grad_()
        outputs = network.apply(at, one[None], training=True)
        rows.append(torch.autograd.grad(F.cross_entropy(outputs, target[None]), at)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [0.3, 0.0])
def test_a_step_is_the_mean_of_clipped_gradients(name, share):
    """The clip norm is a quantile of the norms, or clips all of them."""
    torch.manual_seed(0)
    model = MODELS[name]()
    network = federation("fedsgd", DATA, model=model, widths=None).task.learner.network
    start = network.flatten(dict(network.module.named_parameters())).detach()
    gradients = gradients_by_hand(network, start, DATA.train.inputs[MINE], DATA.train.targets[MINE])
    norms = gradients.norm(dim=1)
    clip_norm = float(norms.quantile(share)) if share else 0.01
    assert (norms < clip_norm).sum() == math.ceil(share * (RECORDS - 1))
    clipped = gradients * (clip_norm / norms).clamp(max=1)[:, None]
    result = run(settings(clip_norm=clip_norm), model=model, rounds=1)
    moved = (kept(result)[0].double() - start.double()) / -0.5
    torch.testing.assert_close(moved, clipped.mean(0), rtol=1e-3, atol=2e-6)
    assert float((moved - gradients.mean(0)).norm()) > 1e-3  # without clipping it would be another


def test_a_lot_in_pieces_is_the_same_step(monkeypatch):
    """Noise and draws too: only the order of sums differs."""
    privacy = Privacy(noise_multiplier=1.0)
    chosen = settings(steps=4, lot_size=20, momentum=0.5)
    whole = run(chosen, privacy=privacy)
    pieces, real = [], NoisySteps._differentiate
    monkeypatch.setattr(
        NoisySteps, "_differentiate", lambda *given: pieces.append(len(given[2])) or real(*given)
    )
    monkeypatch.setattr(per_record, "NUMBERS_AT_ONCE", 7 * whole.result["parameters"] + 1)
    cut = run(chosen, privacy=privacy)
    assert max(pieces) == 7 and len(pieces) > 2 * 12
    torch.testing.assert_close(kept(cut), kept(whole), rtol=1e-4, atol=1e-6)


def test_momentum_goes_on_from_round_to_round():
    whole, cut = (
        run(settings(steps=steps, momentum=0.9), rounds=rounds) for steps, rounds in ((6, 1), (2, 3))
    )
    torch.testing.assert_close(kept(cut), kept(whole), rtol=1e-4, atol=1e-6)
    afresh = run(settings(steps=6, momentum=0.0), rounds=1)
    assert float((kept(afresh)[0] - kept(whole)[0]).norm()) > 0.1


def test_a_round_is_a_pass_where_no_steps_are_named():
    fed = federation(settings(steps=None, lot_size=20), DATA)
    assert fed.scheme.releases(fed.task) == 3  # 59 / 20
    assert run(settings(steps=None, lot_size=20), rounds=2).result["privacy"]["releases"] == 6


def test_augmented_and_dropped_out_records_repeat():
    inputs = torch.rand(90, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    pictures = dataclasses.replace(
        with_inputs(DATA, inputs), test=Examples(inputs[:30], DATA.test.targets), kind="images"
    )
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(32, 3))
    chosen = experiment(settings(steps=3, lot_size=9), widths=None, privacy=QUIET)
    losses = []
    for augment in ("flip-crop", "flip-crop", "none"):
        changed = dataclasses.replace(chosen, data=dataclasses.replace(chosen.data, augment=augment))
        losses.append(simulate(changed, data=pictures, partition=deal(), model=model).loss.tolist())
    assert losses[0] == losses[1] != losses[2]


# ---- the noise


def test_the_noise_has_the_promised_spread():
    """Chi-square and Kolmogorov-Smirnov at one alarm in 10^6 each."""
    multiplier, clip_norm, rate = 3.0, 0.2, 0.5
    found = []
    for seed in range(4):
        quiet, noisy = (
            kept(
                run(
                    settings(clip_norm=clip_norm, learning_rate=rate),
                    rounds=1,
                    seed=seed,
                    widths=(200,),
                    privacy=Privacy(noise_multiplier=one),
                )
            )[0]
            for one in (1e-7, multiplier)
        )
        found.append((noisy - quiet).double() * RECORDS / (rate * multiplier * clip_norm))
    unit = torch.cat(found).numpy()
    assert len(unit) == 4 * 2003
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(unit))
    assert low < (unit**2).sum() < high
    assert stats.kstest(unit, "norm").pvalue > 1e-6
    assert len(np.unique(unit)) > 0.99 * len(unit)


def steps_of(fed, *, expected=4, multiplier=1e-9, clip_norm=1.0, seed=0):
    return NoisySteps(
        fed.task.learner,
        find_opacus("dp-sgd"),
        fed.task.initial()[None],
        learning_rate=1.0,
        momentum=0.0,
        clip_norm=clip_norm,
        noise_multiplier=multiplier,
        expected=expected,
        generator=torch.Generator().manual_seed(seed),
    )


def stepped(fed, lot, **others):
    """By how much a step of a lot moves the model, times the expected size of a lot: its noisy sum."""
    steps = steps_of(fed, **others)
    met = steps.step(lot, lambda piece: piece)
    return (fed.task.initial() - steps.state()[0]).double() * others.get("expected", 4), met


def test_an_empty_lot_is_a_step_with_noise_alone():
    fed = federation(settings(), DATA, widths=(50,))
    nobody = Examples(DATA.train.inputs[:0], DATA.train.targets[:0])
    moved, met = stepped(fed, nobody, multiplier=2.0, clip_norm=0.5)
    assert met == (0, 0.0)
    # 503 draws of standard deviation 1; chi-square, one alarm in 10^6
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], fed.task.parameters)
    assert low < float((moved**2).sum()) < high


# ---- a record


FED = federation(settings(), DATA)
ODD = st.sampled_from([0.0, 1.0, -1.0, 1e3, 1e10, 1e19, 3e38, math.inf, -math.inf, math.nan])


@given(values=st.lists(ODD | st.floats(-100, 100, width=32), min_size=6, max_size=6), label=st.integers(0, 2))
def test_a_record_moves_the_sum_by_at_most_the_clip_norm(values, label):
    lot = Examples(DATA.train.inputs[:5], DATA.train.targets[:5])
    record = torch.tensor([values])
    neighbour = Examples(torch.cat([lot.inputs, record]), torch.cat([lot.targets, torch.tensor([label])]))
    (without, _), (with_it, met) = (stepped(FED, one, clip_norm=0.5) for one in (lot, neighbour))
    assert float((with_it - without).norm()) <= 0.5 + 1e-5
    if not all(map(math.isfinite, values)):
        assert met.usable == 5 and torch.allclose(with_it, without, atol=1e-5)


def test_the_clip_norm_is_reached():
    """The bound above would hold if nothing moved at all."""
    lot = Examples(DATA.train.inputs[:5], DATA.train.targets[:5])
    sizes = [float(stepped(FED, lot, clip_norm=c)[0].norm()) for c in (1e-4, 2e-4)]
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.02)
    loud = [Examples(100 * DATA.train.inputs[:1], torch.tensor([label])) for label in range(3)]
    assert max(float(stepped(FED, one, clip_norm=0.5)[0].norm()) for one in loud) == pytest.approx(
        0.5, abs=1e-4
    )


def test_a_run_with_a_record_that_is_nan_goes_on_without_it():
    fed = federation(settings(steps=4), DATA, privacy=QUIET)
    spoilt = fed.train.inputs.clone()
    spoilt[10] = math.nan
    bad = dataclasses.replace(fed, train=Examples(spoilt, fed.train.targets))
    played = play(bad, [[0]])
    ((_, accepted, loss, own),) = played.given[0].values()
    assert accepted and loss.isfinite() and own.isfinite().all()
    assert not torch.equal(own[0], fed.task.initial())


# ---- the lots


def test_lots_are_poisson_samples(monkeypatch):
    """Chi-square over records, over sizes, and of pairs; one alarm in 10^6 each."""
    numbered = with_inputs(DATA, torch.arange(90.0)[:, None].repeat(1, 6))
    lots = []

    class Noted:
        piece = 10

        def __init__(self, learner, opacus, start, **others):
            self.start = start

        def check(self, records):
            pass

        def step(self, lot, key):
            lots.append(lot.inputs[:, 0].long().numpy())
            return per_record.Step(len(lot), 1.0)

        def state(self):
            return self.start

    monkeypatch.setattr(dp_sgd, "NoisySteps", Noted)
    count, rounds, probability = 500, 4, 8 / RECORDS
    run(settings(steps=count, lot_size=8), data=numbered, rounds=rounds)
    assert len(lots) == count * rounds
    drawn = np.zeros((len(lots), 90))
    for place, lot in enumerate(lots):
        assert (np.diff(lot) > 0).all()  # nobody twice
        drawn[place, lot] = 1
    assert not drawn[:, :2].any() and not drawn[:, 2 + RECORDS :].any()
    drawn = drawn[:, MINE]
    mean, variance = len(lots) * probability, len(lots) * probability * (1 - probability)
    assert ((drawn.sum(0) - mean) ** 2 / variance).sum() < stats.chi2.isf(1e-6, RECORDS)
    law = stats.binom(RECORDS, probability)
    sizes = np.bincount(np.clip(drawn.sum(1), 3, 13).astype(int) - 3, minlength=11)
    expected = len(lots) * np.array([law.cdf(3), *law.pmf(np.arange(4, 13)), law.sf(12)])
    assert ((sizes - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6, 10)
    # two steps one after the other share a record as often as two independent lots do
    both = (drawn[1:] * drawn[:-1]).sum()
    chance = probability**2
    trials = (len(lots) - 1) * RECORDS
    assert abs(both - trials * chance) < stats.norm.isf(5e-7) * math.sqrt(1.2 * trials * chance)


# ---- what is accounted


def by_rdp(releases, probability, multiplier, delta):
    """Epsilon by dp-accounting itself."""
    accountant = rdp.RdpAccountant(renyi.ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(multiplier)), releases)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(("lot", "probability"), [(8, 8 / RECORDS), (1000, 1.0)])
def test_what_a_run_costs_is_what_dp_accounting_says(lot, probability):
    privacy = Privacy(noise_multiplier=1.3, delta=1e-3)
    # the share of the clients that take part has no meaning here, and no part in the cost
    result = run(
        settings(steps=4, lot_size=lot), privacy=privacy, rounds=3, fraction=0.25, sampling="poisson"
    ).result
    found = result["privacy"]
    assert found["epsilon"] == pytest.approx(by_rdp(12, probability, 1.3, 1e-3), rel=1e-6)
    assert (found["unit"], found["noise"], found["adjacency"]) == ("record", "gaussian", "add-remove")
    assert (found["releases"], found["noise_multiplier"], found["delta"]) == (12, 1.3, 1e-3)
    assert result["secure"] == "none" and result["uplink_bytes"] == result["downlink_bytes"] == 0


def test_loss_distributions_may_account():
    privacy = Privacy(noise_multiplier=1.3, delta=1e-3, accountant="pld")
    found = run(settings(steps=4, lot_size=8), privacy=privacy, rounds=3).result["privacy"]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp.PoissonSampledDpEvent(8 / RECORDS, dp.GaussianDpEvent(1.3)), 12)
    assert found["epsilon"] == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-2)
    assert found["epsilon"] < 0.95 * by_rdp(12, 8 / RECORDS, 1.3, 1e-3)


def test_noise_is_chosen_for_all_steps_of_all_rounds():
    privacy = Privacy(epsilon=2.0, delta=1e-3)
    result = run(settings(steps=5, lot_size=8), privacy=privacy, rounds=4)
    found = result.result["privacy"]
    assert len(result.metrics) == 4 and found["releases"] == 20
    assert 1.99 < by_rdp(20, 8 / RECORDS, found["noise_multiplier"], 1e-3) <= 2.0


def test_a_run_stops_before_the_round_that_would_pass_its_budget():
    cost = by_rdp(12, 8 / RECORDS, 1.0, 1e-3)
    budget = by_rdp(14, 8 / RECORDS, 1.0, 1e-3)  # for two more steps, and not for a round of three
    privacy = Privacy(noise_multiplier=1.0, epsilon=budget, delta=1e-3)
    result = run(settings(steps=3, lot_size=8), privacy=privacy, rounds=7)
    assert len(result.metrics) == 4 and result.result["privacy"]["releases"] == 12
    assert result.result["privacy"]["epsilon"] == pytest.approx(cost)
    assert "accuracy" in result.metrics[-1]
    small = dataclasses.replace(privacy, epsilon=by_rdp(2, 8 / RECORDS, 1.0, 1e-3))
    with pytest.raises(ConfigError, match=r"privacy\.epsilon = .*at least one round"):
        run(settings(steps=3, lot_size=8), privacy=small)


def test_what_is_released_is_one_step():
    fed = federation(settings(steps=3, lot_size=8), DATA, privacy=Privacy(noise_multiplier=0.7))
    assert fed.scheme.release(fed.task) == Released(Poisson(8 / RECORDS), Gaussian(0.7))


class Interrupted(Exception):
    pass


def test_a_resumed_run_goes_on_bit_for_bit_with_its_momentum_and_its_ledger(tmp_path):
    chosen = experiment(
        settings(steps=2, lot_size=8, momentum=0.9), rounds=4, privacy=Privacy(epsilon=3.0, delta=1e-3)
    )

    def interrupt(metrics, rounds):
        if metrics["round"] == 2:
            raise Interrupted

    given = {"data": DATA, "partition": deal()}
    whole = simulate(chosen, **given)
    with pytest.raises(Interrupted):
        simulate(chosen, out=tmp_path / "run", on_round=interrupt, **given)
    resumed = simulate(chosen, out=tmp_path / "run", resume=True, **given)
    assert_same_run(whole, resumed)
    assert kept(resumed).shape == (2, resumed.result["parameters"])
    saved = json.loads((tmp_path / "run" / "result.json").read_text())["privacy"]
    assert saved == whole.result["privacy"] and saved["releases"] == 8
    assert 2.99 < saved["epsilon"] <= 3.0


# ---- what is refused


def test_without_opacus_there_is_one_line(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtra) as caught:
        run(settings())
    assert str(caught.value) == "scheme.name = 'dp-sgd': needs opacus: pip install 'discreet[opacus]'"
    assert isinstance(caught.value, ConfigError)


class Centred(nn.Module):
    """Takes the mean of the batch off: what it does to a record depends on the others."""

    def forward(self, inputs):
        return inputs - inputs.mean(0)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("shift", torch.ones(6))

    def forward(self, inputs):
        return inputs * self.weight + self.shift


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.cells(inputs[:, :, None])[0][:, -1])


class Branching(nn.Module):
    """What vmap cannot do: a decision by the value of a parameter times the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, inputs):
        scaled = inputs * self.weight
        return scaled if float(scaled.detach().sum()) > -1e9 else -scaled


def after(layer):
    return nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (after(nn.BatchNorm1d(6)), r"^layer 1 \(BatchNorm1d\): Opacus gives no .*: use GroupNorm"),
        (
            after(nn.BatchNorm1d(6, affine=False, track_running_stats=False)),
            r"^layer 1 \(BatchNorm1d\): .*: use GroupNorm",
        ),
        (Recurrent(), r"^layer cells \(LSTM\): Opacus gives no .*: opacus.layers has DPLSTM"),
        (after(Buffered()), r"^layer 1 \(Buffered\): Opacus gives no .* no buffers"),
        (after(Branching()), r"Opacus, which has no rule of its own for layer 1 \(Branching\): RuntimeError"),
        (after(Centred()), r"^parameter 0\.weight: .* not that of the record alone"),
    ],
)
def test_a_model_that_opacus_cannot_do_is_refused_by_the_layer_s_name(model, message):
    with pytest.raises(ModelError, match=message) as caught:
        run(settings(), model=model, gradients="autograd")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("privacy", "others", "key"),
    [
        ({"noise": "skellam"}, {}, "privacy.noise"),
        ({"dropout_tolerance": 0.1}, {}, "privacy.dropout_tolerance"),
        ({"assumed_dishonest": 1}, {}, "privacy.assumed_dishonest"),
        ({}, {"dropouts": Dropouts(unmask=0.1)}, "dropouts"),
        ({}, {"secure": "masked"}, "secure"),
    ],
)
def test_what_has_a_meaning_only_among_clients_is_refused(privacy, others, key):
    with pytest.raises(ConfigError) as caught:
        run(settings(), privacy=Privacy(noise_multiplier=1.0, **privacy), **others)
    assert caught.value.key == key and "dp-sgd" in str(caught.value)


def test_without_records_there_is_nothing_to_draw():
    with pytest.raises(ConfigError, match="data = 'no training examples': expected at least one record"):
        simulate(experiment(settings()), data=DATA, partition=deal([0] * 4))


def test_there_is_no_plan_of_messages_where_none_are_sent():
    with pytest.raises(
        ConfigError, match=r"scheme\.name = 'dp-sgd': expected a scheme in which clients send"
    ):
        plan(experiment(settings(), privacy=Privacy(noise_multiplier=1.0)))


@pytest.mark.parametrize(
    "changes",
    [{"lot_size": 0}, {"steps": 0}, {"clip_norm": 0.0}, {"momentum": 1.0}, {"learning_rate": math.inf}],
)
def test_impossible_values_are_named(changes):
    with pytest.raises(ConfigError) as caught:
        DPSGD(**changes)
    assert caught.value.key == f"scheme.{next(iter(changes))}"


# ---- as it is used


def test_it_learns_digits_from_the_command_line(inside, tmp_path):
    changes = ["scheme.name=dp-sgd", "scheme.steps=15", "scheme.lot_size=200", "scheme.learning_rate=2.0"]
    changes += ["rounds=4", "privacy.epsilon=8.0", "fraction=1", "eval_every=4"]
    (tmp_path / "mine.toml").write_text(
        "seed = 1\n[data]\nname = 'digits'\n[model]\nname = 'mlp'\nwidths = [32]\n"
    )
    options = [part for change in changes for part in ("--set", change)]
    ended = inside("run", "mine.toml", *options, "--out", "run", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "one record" in ended.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["final"]["accuracy"] > 0.8
    assert 7.9 < result["privacy"]["epsilon"] <= 8.0
    assert load(str(tmp_path / "run" / "config.toml")).secure == "none"
