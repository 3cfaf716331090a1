import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from discreet.data.dataset import split
from discreet.data.features import read_table
from discreet.data.scaling import Scaling
from discreet.errors import ConfigError, DataError

ROWS = [
    # age, weight, hospital, ill
    (20, 1.5, "north", "yes"),
    (30, 2.5, "south", "no"),
    (40, 3.5, "north", "no"),
    (50, 4.5, "east", "yes"),
    (60, 5.5, "south", "yes"),
    (70, 6.5, "north", "no"),
]
HEADER = "age,weight,hospital,ill"


def text(rows=ROWS, header=HEADER):
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def csv(tmp_path, content=None, name="table.csv"):
    path = tmp_path / name
    path.write_text(text() if content is None else content)
    return path


def parquet_of(tmp_path, **columns):
    path = tmp_path / "table.parquet"
    if not columns:
        names = HEADER.split(",")
        columns = {name: [row[number] for row in ROWS] for number, name in enumerate(names)}
    parquet.write_table(pa.table(columns), path)
    return path


def load(path, target="ill", client_column="hospital", **more):
    return read_table(path, target=target, client_column=client_column, **more)


def fails(pattern, path, *args, error=DataError, **more):
    with pytest.raises(error, match=pattern) as caught:
        load(path, *args, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [csv, parquet_of])
def test_values_without_scaling(tmp_path, make):
    arrays = load(make(tmp_path), standardise=False, test_fraction=0.3)
    assert arrays.classes == ("no", "yes")
    assert arrays.train_inputs.dtype == np.float32 and arrays.train_inputs.shape == (4, 2)
    assert arrays.test_inputs.shape == (2, 2) and sorted(arrays.test_targets.tolist()) == [0, 1]
    by_age = {row[0]: row for row in ROWS}
    for inputs, targets in (
        (arrays.train_inputs, arrays.train_targets),
        (arrays.test_inputs, arrays.test_targets),
    ):
        for (age, weight), target in zip(inputs.tolist(), targets.tolist(), strict=True):
            assert weight == by_age[age][1] and ("no", "yes")[target] == by_age[age][3]
    owners = [by_age[age][2] for age in arrays.train_inputs[:, 0].tolist()]
    assert arrays.columns["hospital"].tolist() == owners


def test_scaling_uses_the_train_rows_alone(tmp_path):
    arrays = load(csv(tmp_path), test_path=csv(tmp_path, text([(100, 3.5, "x", "no")]), "test.csv"))
    # Ages 20 to 70: mean 45, variance (25^2 + 15^2 + 5^2) / 3 = 875 / 3. Weights: mean 4.0, variance 35 / 12.
    assert arrays.test_inputs == pytest.approx(
        np.array([[55 / (875 / 3) ** 0.5, -0.5 / (35 / 12) ** 0.5]]), rel=1e-6
    )
    assert arrays.train_inputs.mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert arrays.train_inputs.std(axis=0) == pytest.approx([1, 1], rel=1e-6)


def test_constant_features_become_zero(tmp_path):
    content = "a,b,y\n" + "".join(f"0.1,{n},{n % 2}\n" for n in range(10))
    arrays = read_table(csv(tmp_path, content), target="y")
    assert (arrays.train_inputs[:, 0] == 0).all() and np.isfinite(arrays.test_inputs).all()


@pytest.mark.parametrize(
    ("values", "classes", "targets"),
    [
        (["10", "9", "10", "-1"], ("-1", "9", "10"), [2, 1, 2, 0]),  # as numbers, not as texts
        (["b", "a", "b", "ä"], ("a", "b", "ä"), [1, 0, 1, 2]),
        (["true", "false", "true", "false"], ("False", "True"), [1, 0, 1, 0]),
    ],
)
def test_classes_are_numbered_in_sorted_order(tmp_path, values, classes, targets):
    content = "x,y\n" + "".join(f"{n},{value}\n" for n, value in enumerate(values))
    arrays = read_table(csv(tmp_path, content), target="y", test_path=csv(tmp_path, content, "t.csv"))
    assert arrays.classes == classes and arrays.train_targets.tolist() == targets
    assert arrays.test_targets.tolist() == targets and arrays.train_targets.dtype == np.int64


def test_float_targets_make_a_regression(tmp_path):
    content = "a,y\n" + "".join(f"{n},{n / 2}\n" for n in range(10))
    arrays = read_table(csv(tmp_path, content), target="y", standardise=False)
    assert arrays.classes is None and arrays.train_targets.shape == (8, 1)
    assert arrays.train_targets.dtype == np.float32
    np.testing.assert_array_equal(arrays.train_targets, arrays.train_inputs / 2)


@pytest.mark.parametrize("make", ["csv", "npz"])
def test_float_targets_are_scaled_by_the_train_rows_as_features_are(tmp_path, make):
    train, test = [(1.0, 10.0), (2.0, 30.0), (3.0, 10.0), (4.0, 30.0)], [(2.5, 50.0)]
    if make == "csv":
        rows = ["\n".join(["a,y", *(f"{a},{y}" for a, y in part)]) + "\n" for part in (train, test)]
        path, test_path = csv(tmp_path, rows[0]), csv(tmp_path, rows[1], "test.csv")
        arrays = read_table(path, target="y", test_path=test_path)
    else:
        (a, y), (b, z) = (np.array(part).T for part in (train, test))
        np.savez(tmp_path / "t.npz", x=a[:, None], y=y, x_test=b[:, None], y_test=z)
        arrays = read_table(tmp_path / "t.npz", target=None)
    # mean 20, deviation 10
    assert arrays.train_targets.dtype == arrays.test_targets.dtype == np.float32
    assert arrays.train_targets.tolist() == [[-1], [1], [-1], [1]] and arrays.test_targets.tolist() == [[3]]
    assert arrays.target_scaling == Scaling((20.0,), (10.0,))
    assert arrays.target_scaling.restored(arrays.test_targets).tolist() == [[50.0]]


def test_targets_in_their_own_unit_and_classes_have_no_scaling(tmp_path):
    assert load(csv(tmp_path)).target_scaling is None
    content = "a,y\n" + "".join(f"{n},{n / 2}\n" for n in range(10))
    assert read_table(csv(tmp_path, content), target="y", standardise=False).target_scaling is None


def test_each_target_is_scaled_by_its_own_figures(tmp_path):
    y = np.array([[0.0, 5.0], [2.0, 5.0], [0.0, 5.0], [2.0, 5.0]])
    np.savez(tmp_path / "t.npz", x=np.arange(4.0)[:, None], y=y, x_test=np.ones((1, 1)), y_test=y[:1] + 1)
    arrays = read_table(tmp_path / "t.npz", target=None)
    assert arrays.train_targets.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]], "a constant target is 0"
    assert arrays.test_targets.tolist() == [[0, 1]]


def test_targets_too_large_for_their_type_are_refused(tmp_path):
    y = np.array([[0.0, 1e300], [1.0, 1.0], [2.0, 1.0]])
    np.savez(tmp_path / "t.npz", x=np.arange(3.0)[:, None], y=y)
    with pytest.raises(DataError, match="target 2 has values too large for 32-bit floats"):
        read_table(tmp_path / "t.npz", target=None, standardise=False, test_fraction=0.3)


def test_booleans_are_features(tmp_path):
    path = parquet_of(tmp_path, a=[True, False, True, False], y=["p", "q", "p", "q"])
    arrays = read_table(path, target="y", standardise=False, test_fraction=0.5)
    np.testing.assert_array_equal(arrays.train_inputs[:, 0], 1 - arrays.train_targets)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (text().replace("40,3.5", "40,"), r"row 3, column 'weight': a value is missing"),
        (text().replace("40,3.5", "40,inf"), r"row 3, column 'weight': inf is no finite number"),
        (text().replace("40,3.5", "40,nan"), r"row 3, column 'weight': a value is missing"),
        (text().replace("40,3.5", "40,oops"), r"row 3, column 'weight': 'oops' is no number"),
        (text().replace("40,3.5", "40"), r"not a CSV table: .*Row #4: Expected 4 columns, got 3"),
        (text()[:-8], r"not a CSV table: .*Expected 4 columns, got 3"),
        ("", r"not a CSV table: Empty CSV file"),
        (HEADER + "\n", "has no rows"),
        (text().replace("weight", "age"), "has two columns 'age'"),
        (text().replace(",", ";"), "expected commas"),
        (text([(1, 2, "a", "no"), (3, 4, "b", "no")]), "single value 'no': expected at least two"),
        ("hospital,ill\na,yes\nb,no\n", "nothing to learn from"),
        ("age,hospital,ill\n1,a,\n2,b,no\n", "row 1, column 'ill': a value is missing"),
        ("age,hospital,ill\n1,,yes\n2,b,no\n", "row 1, column 'hospital': a value is missing"),
    ],
)
def test_tables_that_are_refused(tmp_path, content, pattern):
    path = csv(tmp_path, content)
    fails(pattern, path)
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_text_columns_have_to_be_named_as_client_column(tmp_path):
    fails(r"row 1, column 'hospital': 'north' is no number", csv(tmp_path), client_column=None)


def test_columns_that_do_not_exist(tmp_path):
    path = csv(tmp_path)
    fails(r"data.target = 'il': .*it has age, weight.*; did you mean 'ill'\?", path, "il", error=ConfigError)
    fails(r"data.client_column = 'hospitals'", path, client_column="hospitals", error=ConfigError)
    fails(r"data.target = None", path, None, error=ConfigError)
    fails(r"another column than data.target", path, "ill", "ill", error=ConfigError)


def test_suffixes(tmp_path):
    fails(r"data.path = .*\.csv, \.npz, \.parquet", csv(tmp_path, name="table.xlsx"), error=ConfigError)
    fails(r"no such file", tmp_path / "none.csv")


def test_test_file_with_a_class_that_training_lacks(tmp_path):
    test = csv(tmp_path, text([(1, 2.5, "x", "no"), (1, 2.5, "x", "maybe")]), "test.csv")
    fails(
        r"test.csv: row 2: class 'maybe' is not in .*table.csv, which has no, yes",
        csv(tmp_path),
        test_path=test,
    )


def test_test_file_without_a_feature(tmp_path):
    test = csv(tmp_path, "age,ill\n1,no\n", "test.csv")
    fails(r"test.csv: has no column 'weight'", csv(tmp_path), test_path=test)


def test_test_file_in_another_order_without_the_client_column(tmp_path):
    test = csv(tmp_path, "weight,ill,age\n2.5,no,30\n", "test.csv")
    arrays = load(csv(tmp_path), test_path=test, standardise=False)
    assert arrays.test_inputs.tolist() == [[30, 2.5]] and len(arrays.train_inputs) == len(ROWS)


def test_values_beyond_float32(tmp_path):
    content = "a,y\n" + "".join(f"{10.0**39 * n},{n % 2}\n" for n in range(10))
    with pytest.raises(DataError, match="column 'a' has values too large"):
        read_table(csv(tmp_path, content), target="y", standardise=False)
    assert np.isfinite(read_table(csv(tmp_path, content), target="y").train_inputs).all()


def test_truncated_parquet(tmp_path):
    path = parquet_of(tmp_path)
    content = path.read_bytes()
    for length in (0, 3, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        fails(r"table.parquet: damaged or not a Parquet file", path)


def test_parquet_with_missing_values(tmp_path):
    path = parquet_of(tmp_path, a=[1.0, None, 3.0], y=["p", "q", "p"])
    fails(r"row 2, column 'a': a value is missing", path, "y", None)
    path = parquet_of(tmp_path, a=[1.0, 2.0, float("nan")], y=["p", "q", "p"])
    fails(r"row 3, column 'a': nan is no finite number", path, "y", None)


def npz(tmp_path, **arrays):
    path = tmp_path / "table.npz"
    np.savez(path, **arrays)
    return path


X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10) % 2


def test_npz(tmp_path):
    path = npz(tmp_path, x=X, y=Y, client=Y + 5)
    arrays = read_table(path, target=None, standardise=False)
    assert len(arrays.train_inputs) == 8 and arrays.classes == ("0", "1")
    rows = (arrays.train_inputs[:, 0] / 2).astype(int)
    assert arrays.columns["client"].tolist() == (Y[rows] + 5).tolist()
    np.testing.assert_array_equal(arrays.train_targets, Y[rows])


def test_npz_with_a_test_split_and_many_outputs(tmp_path):
    path = npz(tmp_path, x=X, y=X * 2, x_test=X[:3], y_test=X[:3] * 2)
    arrays = read_table(path, target=None, standardise=False)
    assert arrays.classes is None and arrays.train_targets.shape == (10, 2)
    np.testing.assert_array_equal(arrays.test_targets, X[:3] * 2)


def with_nan(x):
    x = x.copy()
    x[4, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "pattern"),
    [
        ({"x": X}, "has no array 'y'"),
        ({"x": X, "y": Y[:9]}, r"y has \(9,\) values, but x has 10 rows"),
        ({"x": X, "y": Y, "client": Y[:3]}, r"client has \(3,\) values"),
        ({"x": with_nan(X), "y": Y}, "row 5, x, column 2: nan is no finite number"),
        ({"x": X, "y": with_nan(X)}, "row 5, y, column 2: nan is no finite number"),
        ({"x": X.astype(str), "y": Y}, "x is <U"),
        ({"x": X.reshape(5, 2, 2), "y": Y[:5]}, "expected numbers of shape"),
        ({"x": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y * 7}, "row 2: class '7' is not in"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "2 features, but the test rows have 1"),
        ({"x": X, "y": Y, "x_test": X, "y_test": X}, "targets are float64"),
        ({"x": X, "y": np.array([{}] * 10)}, "Object arrays cannot be loaded"),
    ],
)
def test_npz_that_are_refused(tmp_path, arrays, pattern):
    fails(pattern, npz(tmp_path, **arrays), None, None)


def test_damaged_npz(tmp_path):
    path = npz(tmp_path, x=X, y=Y)
    content = path.read_bytes()
    for length in (0, 2, 50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        fails(r"table.npz: damaged or not an NPZ", path, None, None)
    flipped = bytearray(content)
    flipped[250] ^= 1
    path.write_bytes(flipped)
    fails(r"table.npz: damaged or not an NPZ", path, None, None)
    path.write_bytes(pickle.dumps(json.dumps([1])))
    fails(r"table.npz: damaged or not an NPZ", path, None, None)
    with path.open("wb") as file:
        np.save(file, X)
    fails(r"table.npz: holds a single array", path, None, None)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    percent=st.integers(1, 99),
    seed=st.integers(0, 9),
)
def test_split_is_exact_and_stratified(sizes, percent, seed):
    fraction = percent / 100
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if max(sizes) == 1:
        with pytest.raises(DataError):
            split("x", labels, fraction, seed)
        return
    train, test = split("x", labels, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    taken, sizes = np.bincount(labels[test], minlength=len(sizes)), np.array(sizes)
    assert (taken < sizes).all(), "every class keeps an example"
    room = int((sizes - 1).sum())
    assert len(test) == min(room, -(-percent * len(labels) // 100)), "rounded up, in whole numbers"
    if len(test) < room and (taken < sizes - 1).all():
        assert (np.abs(taken - fraction * sizes) < 2).all()
    again = split("x", labels, fraction, seed)
    np.testing.assert_array_equal(test, again[1])


def test_split_of_a_regression_differs_by_seed():
    targets = np.zeros((100, 1), np.float32)
    tests = [split("x", targets, 0.25, seed)[1].tolist() for seed in (0, 1)]
    assert len(tests[0]) == 25 and tests[0] != tests[1]
