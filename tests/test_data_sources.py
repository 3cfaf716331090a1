import gzip
import hashlib
import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from discreet.data import named
from discreet.data.places import roots
from discreet.data.sources import SOURCES, Dataset, available, load
from discreet.errors import ConfigError, DataError

REAL = os.environ.get("DISCREET_DATA")


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path, monkeypatch):
    """Only what a test makes is found."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "prepared"))
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.delenv("SCIKIT_LEARN_DATA", raising=False)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def idx(array):
    array = np.asarray(array, np.uint8)
    return (
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def write_idx(folder, suffix="", value=7, dot="-"):
    folder.mkdir(parents=True, exist_ok=True)
    for half, count in (("train", 20), ("t10k", 10)):
        images, labels = idx(np.full((count, 3, 2), value)), idx(np.arange(count) % 10)
        for stem, dimensions, content in (("images", 3, images), ("labels", 1, labels)):
            file = folder / f"{half}-{stem}{dot}idx{dimensions}-ubyte{suffix}"
            file.write_bytes(gzip.compress(content) if suffix else content)


def write_cifar_binary(folder, count=2):
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes((b"\3" + bytes(3072)) * count)


def write_images(folder, classes, suffix=".png"):
    for half in ("train", "test"):
        for number, label in enumerate(classes):
            (folder / half / label).mkdir(parents=True)
            Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / half / label / f"0{suffix}")


def test_digits():
    data = load("digits")
    assert (
        isinstance(data, Dataset) and data.kind == "image" and data.outputs == 10 and data.shape == (1, 8, 8)
    )
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert (
        data.train.inputs.dtype == torch.float32
        and data.train.inputs.max() == 1
        and data.train.inputs.min() == 0
    )
    assert data.vocabulary is None and data.columns == {}
    # 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 images of each digit: a fifth of each.
    counts = torch.bincount(data.test.targets)
    assert ((counts - torch.tensor([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]) / 5).abs() < 1).all()
    again = load("digits", seed=5, test_fraction=0.5)
    assert torch.equal(data.test.inputs, again.test.inputs)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    data = load("digits")
    ours = torch.cat([data.train.inputs, data.test.inputs]).reshape(-1, 64).numpy() * 16
    targets = torch.cat([data.train.targets, data.test.targets]).numpy()
    key = lambda x, y: sorted(map(tuple, np.column_stack([x, y]).astype(int)))  # noqa: E731
    assert key(ours, targets) == key(images, labels)


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize(("suffix", "dot"), [("", "-"), (".gz", "-"), ("", ".")])
def test_mnist_in_its_usual_places(root, folder, suffix, dot):
    write_idx(root / folder, suffix, dot=dot)
    data = load("mnist", data_dir=root)
    assert data.train.inputs.shape == (20, 1, 3, 2) and data.train.inputs.dtype == torch.uint8
    assert data.shape == (1, 3, 2) and data.classes == tuple("0123456789") and len(data.test) == 10
    inputs, _ = data.train.gather(torch.tensor([0]))
    assert inputs == pytest.approx(7 / 255)


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", ""])
def test_fashion_mnist(root, folder):
    write_idx(root / folder, ".gz", value=9)
    data = load("fashion-mnist", data_dir=root)
    assert data.classes is not None and data.classes[9] == "Ankle boot" and (data.test.inputs == 9).all()


def test_sets_with_files_named_alike_are_told_apart_by_their_labels(root, monkeypatch):
    write_idx(root)
    write_idx(root / "mnist", value=1)
    labels = hashlib.sha256(idx(np.arange(20) % 10)).hexdigest()
    assert (load("mnist", data_dir=root).train.inputs == 1).all(), "root/mnist before root"
    monkeypatch.setattr(named, "_FASHION_LABELS", labels)
    with pytest.raises(DataError, match=r"^mnist: not found"):
        load("mnist", data_dir=root)
    assert load("fashion-mnist", data_dir=root)


def test_order_of_the_roots(root, tmp_path, monkeypatch):
    second = tmp_path / "second"
    third = roots(None)[-1]
    for value, folder in ((3, third), (2, second), (1, root)):
        write_idx(folder / "mnist", value=value)
        if value == 2:
            monkeypatch.setenv("DISCREET_DATA", str(second))
        chosen = root if value == 1 else None
        assert (load("mnist", data_dir=chosen).train.inputs == value).all()
    assert roots(root) == (root, second, third)


def test_missing_set_names_the_places_and_the_remedy(root):
    with pytest.raises(DataError) as caught:
        load("cifar100", data_dir=root)
    message = str(caught.value)
    assert message.startswith("cifar100: not found in ") and "\n" not in message
    assert (
        str(root) in message and str(roots(None)[0]) in message and "discreet data fetch cifar100" in message
    )


def test_part_of_a_set_names_the_missing_file(root):
    write_idx(root / "mnist")
    (root / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"data/mnist: .* t10k-labels-idx1-ubyte is missing"):
        load("mnist", data_dir=root)


def test_data_dir_that_is_no_folder(root):
    with pytest.raises(DataError, match="no such folder"):
        load("mnist", data_dir=root / "none")


@pytest.mark.parametrize("folder", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "."])
def test_cifar10_binary_folder(root, folder):
    inner = root / folder if folder != "." else root / "any"
    write_cifar_binary(inner)
    data = load("cifar10", data_dir=inner if folder == "." else root)
    assert data.train.inputs.shape == (10, 3, 32, 32) and len(data.test) == 2 and data.outputs == 10


def test_cifar10_as_images_is_prepared_once(root, tmp_path):
    write_images(root / "cifar10", named.cifar.CIFAR10_CLASSES)
    first = load("cifar10", data_dir=root)
    (kept,) = (tmp_path / "prepared").iterdir()
    second = load("cifar10", data_dir=root, max_tokens=9)
    assert torch.equal(first.train.inputs, second.train.inputs) and first.classes == second.classes
    assert list((tmp_path / "prepared").iterdir()) == [kept]
    assert first.train.inputs[:, 0, 0, 0].tolist() == list(range(10))


def test_what_lies_beside_a_set_in_the_same_root_is_left_alone(root):
    write_images(root, named.cifar.CIFAR10_CLASSES)
    for half in ("train", "test"):
        for label in ("neg", "pos"):
            (root / half / label).mkdir()
            (root / half / label / "0_1.txt").write_text("words")
    (root / "other" / "test" / "pos").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(root / "other" / "0.png")
    (root / "other" / "test" / "pos" / "1_1.txt").write_text("words")
    assert load("cifar10", data_dir=root).train.inputs.shape == (10, 3, 4, 4)
    assert len(load("imdb", data_dir=root).test) == 2


def write_reviews(folder):
    for half in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / half / label).mkdir(parents=True)
            for number in range(2):
                (folder / half / label / f"{number}_1.txt").write_text(f"{half} {label}")


@pytest.mark.parametrize("folder", ["aclImdb", "imdb/aclImdb", "."])
def test_imdb(root, folder):
    inner = root / "x" if folder == "." else root / folder
    write_reviews(inner)
    where = inner if folder == "." else root
    data = load("imdb", data_dir=where, max_tokens=5, vocabulary=50)
    assert data.kind == "text" and data.vocabulary == 50 and data.shape == (5,) and data.outputs == 2
    assert data.train.inputs.dtype == torch.int32 and data.train.inputs.max() < 50
    assert (data.train.inputs[:, 2:] == 0).all() and (data.train.inputs[:, :2] > 0).all()
    assert load("imdb", data_dir=where, max_tokens=3).shape == (3,)


def test_lfw(root):
    for person in ("A_B", "C_D"):
        folder = root / "lfw_home" / "lfw_funneled" / person
        folder.mkdir(parents=True)
        for number in range(1, 6):
            Image.new("RGB", (250, 250), (number, number, number)).save(folder / f"{person}_{number:04}.jpg")
    data = load("lfw", data_dir=root, min_faces=5)
    assert (
        data.shape == (1, 62, 47)
        and data.classes == ("A B", "C D")
        and (len(data.train), len(data.test)) == (8, 2)
    )
    with pytest.raises(DataError, match="nobody in it has 6 images"):
        load("lfw", data_dir=root, min_faces=6)


def test_lfw_where_scikit_learn_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sk"))
    with pytest.raises(DataError, match=r"lfw: not found in .*sk; 'discreet data fetch lfw'"):
        load("lfw")
    (tmp_path / "sk" / "lfw_home" / "lfw_funneled").mkdir(parents=True)
    with pytest.raises(DataError, match="lfw_funneled: nobody in it"):
        load("lfw")


def test_table(root):
    path = root / "t.csv"
    path.write_text("a,who,y\n" + "".join(f"{n},p{n % 3},{n % 2}\n" for n in range(20)))
    data = load("table", path=path, target="y", client_column="who", standardise=False)
    assert data.kind == "table" and data.shape == (1,) and data.outputs == 2
    assert data.train.targets.dtype == torch.int64 and (len(data.train), len(data.test)) == (16, 4)
    assert data.columns["who"].tolist() == [f"p{int(n) % 3}" for n in data.train.inputs[:, 0]]


def test_table_regression_has_one_output(root):
    np.savez(root / "t.npz", x=np.eye(6), y=np.arange(6) / 4)
    data = load("table", path=root / "t.npz")
    assert data.classes is None and data.outputs == 1 and data.train.targets.shape == (4, 1)


def test_images(root, tmp_path):
    write_images(root, ["cat", "dog", "owl"], ".jpg")
    data = load("images", path=root)
    assert data.outputs == 3 and data.shape == (3, 4, 4) and len(data.test) == 3
    assert load("images", path=root, image_size=2).shape == (3, 2, 2)
    assert load("images", path=root, image_size=0).shape == (3, 4, 4)
    assert len(list((tmp_path / "prepared").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"name": "mnits"}, r"data.name = 'mnits': expected one of digits, .*; did you mean 'mnist'\?"),
        ({"name": "CIFAR-10"}, r"did you mean 'cifar10'\?"),
        ({"name": "zzz"}, r"data.name = 'zzz': expected one of digits"),
        ({"name": "table"}, r"data.path = None"),
        ({"name": "images"}, r"data.path = None"),
        ({"name": "mnist", "path": "x"}, r"data.path = 'x': expected none for data.name = 'mnist'"),
        ({"name": "images", "path": "x", "target": "y"}, r"data.target = 'y'"),
        ({"name": "digits", "test_fraction": 1.0}, r"data.test_fraction = 1.0"),
        ({"name": "digits", "test_fraction": float("nan")}, r"data.test_fraction"),
        ({"name": "imdb", "max_tokens": 0}, r"data.max_tokens = 0"),
        ({"name": "imdb", "vocabulary": 1}, r"data.vocabulary = 1"),
        ({"name": "lfw", "min_faces": 1}, r"data.min_faces = 1"),
        ({"name": "images", "path": "x", "image_size": -1}, r"data.image_size = -1"),
    ],
)
def test_arguments_that_do_not_fit(arguments, pattern):
    with pytest.raises(ConfigError, match=pattern):
        load(**arguments)


@pytest.mark.parametrize("name", ["table", "images"])
def test_missing_path(name, root):
    with pytest.raises(ConfigError, match=r"^data\.path .*a file or folder that exists"):
        load(name, path=root / "none.csv", target="y") if name == "table" else load(name, path=root / "none")


def test_available(root):
    write_idx(root / "mnist", ".gz")
    write_cifar_binary(root / "cifar-10-batches-bin", 3)
    write_reviews(root / "aclImdb")
    (root / "cifar-100-python.tar.gz").write_bytes(b"")
    found = {item.name: item for item in available(root)}
    assert list(found) == [name for name in SOURCES if name not in ("table", "images")]
    assert (found["digits"].train, found["digits"].test) == (1437, 360)
    assert found["digits"].path is not None and found["digits"].path.exists()
    assert found["mnist"].path == root / "mnist" and (found["mnist"].train, found["mnist"].test) == (20, 10)
    assert (found["cifar10"].train, found["cifar10"].test) == (15, 3)
    assert (found["imdb"].train, found["imdb"].test) == (4, 4)
    assert (
        found["cifar100"].path == root / "cifar-100-python.tar.gz" and "not opened" in found["cifar100"].note
    )
    assert (
        found["lfw"].path is None
        and found["lfw"].train is None
        and "discreet data fetch lfw" in found["lfw"].note
    )


def test_available_reports_damage_and_goes_on(root):
    write_idx(root / "mnist")
    (root / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"junk")
    mnist = next(item for item in available(root) if item.name == "mnist")
    assert mnist.train is None and "train-labels-idx1-ubyte: starts with" in mnist.note


def real(name):
    """A set in the folder that $DISCREET_DATA named before the tests began; else the test is skipped."""
    if REAL is None and name != "fashion-mnist":
        pytest.skip("DISCREET_DATA is not set")
    try:
        return load(name, data_dir=None if REAL is None else Path(REAL))
    except DataError as error:
        if ": not found in" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.data
def test_real_mnist():
    real("mnist")
    start = time.perf_counter()
    data = real("mnist")
    assert time.perf_counter() - start < 3  # 0.4 s on an idle machine
    assert data.train.inputs.shape == (60_000, 1, 28, 28) and len(data.test) == 10_000
    assert data.train.inputs.double().mean().item() == pytest.approx(33.3184, abs=5e-5)
    assert data.train.targets[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.data
def test_real_fashion_mnist():
    data = real("fashion-mnist")
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert torch.bincount(data.train.targets).tolist() == [6000] * 10
    assert data.train.targets[0] == 9  # an ankle boot, as in the set's own description


@pytest.mark.data
@pytest.mark.slow
def test_real_cifar10():
    data = real("cifar10")
    assert data.train.inputs.shape == (50_000, 3, 32, 32) and len(data.test) == 10_000
    assert torch.bincount(data.train.targets).tolist() == [5000] * 10
    # The published channel means are 125.3, 123.0 and 113.9.
    means = data.train.inputs.double().mean(dim=(0, 2, 3)).tolist()
    assert means == pytest.approx([125.3, 123.0, 113.9], abs=0.3)


@pytest.mark.data
@pytest.mark.slow
def test_real_imdb():
    data = real("imdb")
    assert data.train.inputs.shape == (25_000, 256) and data.test.inputs.shape == (25_000, 256)
    assert (
        torch.bincount(data.train.targets).tolist()
        == torch.bincount(data.test.targets).tolist()
        == [12_500] * 2
    )
    assert ((data.train.inputs > 0).sum(dim=1) > 0).all()
