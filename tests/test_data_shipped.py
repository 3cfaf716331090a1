import numpy as np
import pytest
import torch

from discreet import config
from discreet.config import Data, Experiment, Model
from discreet.data.shipped import SHIPPED
from discreet.data.sources import available, load
from discreet.errors import ConfigError
from discreet.preparation import prepare


def theirs(name):
    from sklearn.datasets import load_breast_cancer, load_diabetes

    return load_breast_cancer() if name == "breast-cancer" else load_diabetes(scaled=False)


def both(data, what):
    """Train and test rows, one after the other."""
    return torch.cat([getattr(data.train, what), getattr(data.test, what)]).double().numpy()


@pytest.mark.parametrize(
    ("name", "features", "train", "test"), [("diabetes", 10, 353, 89), ("breast-cancer", 30, 455, 114)]
)
def test_the_sets_are_those_of_scikit_learn(name, features, train, test):
    data, raw = load(name, standardise=False), theirs(name)
    assert data.kind == "table" and data.shape == (features,) and data.target_scaling is None
    assert (len(data.train), len(data.test)) == (train, test) == (SHIPPED[name].train, SHIPPED[name].test)
    rows = np.column_stack([raw.data.astype(np.float32), raw.target])
    ours = np.column_stack([both(data, "inputs"), both(data, "targets")])
    assert sorted(map(tuple, ours)) == sorted(map(tuple, rows.astype(np.float64)))


def test_diabetes_is_a_regression_whose_target_is_scaled_by_the_train_rows():
    data, plain = load("diabetes"), load("diabetes", standardise=False)
    assert data.classes is None and data.outputs == 1
    assert data.train.targets.dtype == torch.float32 and data.train.targets.shape == (353, 1)
    for part in (data.train.inputs, data.train.targets):
        values = part.double()
        assert values.mean(0).abs().max() < 1e-6 and (values.std(0, correction=0) - 1).abs().max() < 1e-6
    # the test rows have no part in the figures: their own mean is not 0
    assert data.test.targets.double().mean().abs() > 1e-3
    train, test = plain.train.targets.double(), plain.test.targets.double()
    mean, spread = train.mean().item(), train.std(correction=0).item()
    assert data.target_scaling.mean == pytest.approx((mean,)) and data.target_scaling.spread == pytest.approx(
        (spread,)
    )
    assert torch.allclose(data.test.targets.double(), (test - mean) / spread, atol=1e-6)
    restored = data.target_scaling.restored(data.test.targets.numpy())
    assert np.allclose(restored, test.numpy(), rtol=1e-6)


def test_test_features_are_scaled_by_the_figures_of_the_train_rows():
    for name in ("diabetes", "breast-cancer"):
        data, plain = load(name), load(name, standardise=False)
        train = plain.train.inputs.double()
        wanted = (plain.test.inputs.double() - train.mean(0)) / train.std(0, correction=0)
        assert torch.allclose(data.test.inputs.double(), wanted, atol=1e-5)


def test_breast_cancer_is_divided_by_class():
    data = load("breast-cancer")
    assert data.classes == ("malignant", "benign") and data.train.targets.dtype == torch.int64
    assert data.target_scaling is None, "classes are not scaled"
    # 212 malignant and 357 benign: a fifth of each, 42.4 and 71.4 before rounding, 114 in all
    test, whole = torch.bincount(data.test.targets), torch.bincount(data.train.targets)
    assert test.sum() == 114 and abs(test[0] - 42.4) < 1 and (test + whole).tolist() == [212, 357]


@pytest.mark.parametrize("name", ["diabetes", "breast-cancer"])
def test_they_are_divided_alike_whatever_the_seed(name):
    one, other = load(name), load(name, seed=5, test_fraction=0.5)
    assert torch.equal(one.test.inputs, other.test.inputs) and torch.equal(
        one.train.targets, other.train.targets
    )


def test_they_are_listed_as_always_there():
    found = {item.name: item for item in available()}
    for name, kept in SHIPPED.items():
        item = found[name]
        assert (
            item.path is not None
            and item.path.exists()
            and (item.train, item.test) == (kept.train, kept.test)
        )


def test_a_wrong_name_is_told_the_right_one():
    with pytest.raises(ConfigError, match="did you mean 'breast-cancer'"):
        config.from_table({"data": {"name": "breast-cancr"}})


@pytest.mark.parametrize("partition", ["dirichlet", "shards"])
def test_values_are_refused_by_partitions_that_need_classes_in_one_line(partition):
    experiment = Experiment(data=Data(name="diabetes", partition=partition), model=Model(name="linear"))
    with pytest.raises(
        ConfigError, match=r"data\.partition = .*such as iid.*float32 of shape \(353, 1\)"
    ) as caught:
        prepare(experiment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("partition", ["iid", "lognormal", "resampled"])
def test_values_are_dealt_by_the_other_partitions(partition):
    experiment = Experiment(
        data=Data(name="diabetes", partition=partition, clients=4), model=Model(name="linear")
    )
    federation = prepare(experiment)
    assert federation.partition.clients == 4 and federation.train.targets.shape == (353, 1)


def test_classes_of_a_table_are_dealt_by_label():
    experiment = Experiment(
        data=Data(name="breast-cancer", partition="shards", labels_per_client=1, clients=4),
        model=Model(name="linear"),
    )
    federation = prepare(experiment)
    for client in range(4):
        labels = federation.train.targets[
            torch.from_numpy(federation.partition.indices(client).astype(np.int64))
        ]
        assert len(labels.unique()) == 1


def test_reconstructed_inputs_are_no_scaled_targets():
    experiment = Experiment(
        data=Data(name="diabetes", task="reconstruct"), model=Model(name="autoencoder", options={"code": 2})
    )
    assert prepare(experiment).target_scaling is None
    assert prepare(Experiment(data=Data(name="diabetes"))).target_scaling is not None
