import os
import pickle
import struct
import tarfile

import numpy as np
import pytest

from discreet.data import cifar
from discreet.data.dataset import no_progress
from discreet.data.pickles import unpickle_arrays
from discreet.errors import DataError


def images(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def python2(data, labels, key=b"labels"):
    """The very opcodes that Python 2 and NumPy 1 wrote the published batches with."""
    rows, columns = data.shape
    number = lambda n: b"M" + struct.pack("<H", n)  # noqa: E731
    return b"".join(
        [
            b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04",
            b"K\x00\x85q\x05U\x01bq\x06\x87Rq\x07(K\x01",
            number(rows) + number(columns) + b"\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", data.nbytes) + data.tobytes() + b"tb",
            b"U" + bytes([len(key)]) + key + b"](" + b"".join(b"K" + bytes([n]) for n in labels) + b"eu.",
        ]
    )


def write_python10(folder, per_batch=2):
    folder.mkdir()
    rng = np.random.default_rng(5)
    train = []
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        data, labels = images(per_batch, number), rng.integers(0, 10, per_batch).tolist()
        (folder / name).write_bytes(python2(data, labels))
        train.append((data, labels))
    names = [name.encode() for name in cifar.CIFAR10_CLASSES]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return train


def as_tar(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return path


@pytest.mark.parametrize("archived", [False, True])
def test_cifar10_python(tmp_path, archived):
    folder = tmp_path / "cifar-10-batches-py"
    batches = write_python10(folder)
    path = as_tar(folder, tmp_path / "cifar-10-python.tar.gz") if archived else folder
    arrays = cifar.read_cifar(path, cifar.CIFAR10_PYTHON, no_progress)
    expected = np.concatenate([data for data, _ in batches[:5]]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(arrays.train_inputs, expected)
    assert arrays.train_targets.tolist() == [label for _, labels in batches[:5] for label in labels]
    np.testing.assert_array_equal(arrays.test_inputs.reshape(-1, 3072), batches[5][0])
    assert arrays.classes == cifar.CIFAR10_CLASSES


def test_pickle_agrees_with_numpy():
    content = python2(images(3, 0), [1, 2, 3])
    trusted = pickle.loads(content, encoding="bytes")
    ours = unpickle_arrays("file", content)
    assert ours.keys() == trusted.keys() and ours[b"labels"] == trusted[b"labels"]
    np.testing.assert_array_equal(ours[b"data"], trusted[b"data"])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickle_of_today(protocol, order):
    data = np.asarray(images(3, 0), order=order)
    ours = unpickle_arrays("file", pickle.dumps({b"data": data}, protocol=protocol))
    np.testing.assert_array_equal(ours[b"data"], data)


def test_cifar100_python_takes_the_fine_labels(tmp_path):
    names = [f"name{n}".encode() for n in range(100)]
    for name, seed in (("train", 0), ("test", 1)):
        batch = {b"data": images(2, seed), b"fine_labels": [99, seed], b"coarse_labels": [1, 1]}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    arrays = cifar.read_cifar(tmp_path, cifar.CIFAR100_PYTHON, no_progress)
    assert arrays.train_targets.tolist() == [99, 0] and arrays.test_targets.tolist() == [99, 1]
    assert arrays.classes is not None and arrays.classes[99] == "name99"


def write_binary10(folder):
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        (folder / name).write_bytes(b"".join(bytes([number]) + row.tobytes() for row in images(2, number)))


def test_cifar10_binary(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write_binary10(folder)
    arrays = cifar.read_cifar(folder, cifar.CIFAR10_BINARY, no_progress)
    assert arrays.train_targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    np.testing.assert_array_equal(arrays.train_inputs[2:4].reshape(2, -1), images(2, 1))
    assert arrays.test_targets.tolist() == [5, 5] and arrays.classes == cifar.CIFAR10_CLASSES
    assert cifar.count_binary([folder / "test_batch.bin"], cifar.CIFAR10_BINARY) == 2


def test_cifar100_binary_takes_the_fine_label(tmp_path):
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(b"\x05\x63" + images(1, 0).tobytes())
    arrays = cifar.read_cifar(tmp_path, cifar.CIFAR100_BINARY, no_progress)
    assert arrays.train_targets.tolist() == [99] and arrays.classes == tuple(map(str, range(100)))


def test_truncated_binary(tmp_path):
    folder = tmp_path / "bin"
    write_binary10(folder)
    file = folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin: 6145 bytes: expected a multiple of 3073"):
        cifar.read_cifar(folder, cifar.CIFAR10_BINARY, no_progress)


def test_label_outside_the_classes(tmp_path):
    folder = tmp_path / "bin"
    write_binary10(folder)
    file = folder / "data_batch_2.bin"
    file.write_bytes(b"\x0a" + file.read_bytes()[1:])
    with pytest.raises(DataError, match=r"data_batch_2.bin: label 10 at item 1: expected 0 to 9"):
        cifar.read_cifar(folder, cifar.CIFAR10_BINARY, no_progress)


def test_missing_batch(tmp_path):
    folder = tmp_path / "py"
    write_python10(folder)
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match="has no data_batch_4"):
        cifar.read_cifar(folder, cifar.CIFAR10_PYTHON, no_progress)


def test_every_truncation_of_a_pickle_is_an_error():
    content = python2(images(1, 0)[:, :40], [1])
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"^file: "):
            unpickle_arrays("file", content[:length])


def test_altered_pickles_raise_nothing_else():
    content = python2(images(1, 0)[:, :8], [1])
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(800):
        altered = bytearray(content)
        altered[rng.integers(len(content))] = rng.integers(256)
        try:
            unpickle_arrays("file", bytes(altered))
        except DataError:
            refused += 1
    assert refused > 300


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_is_refused_unexecuted(tmp_path, protocol):
    victim = tmp_path / "victim"
    folder = tmp_path / "py"
    write_python10(folder)
    content = pickle.dumps({b"data": Touch(victim)}, protocol=protocol)
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_1: .*names \w+\.open, which is refused"):
        cifar.read_cifar(folder, cifar.CIFAR10_PYTHON, no_progress)
    assert not victim.exists()
    pickle.loads(content)[b"data"].close()
    assert victim.exists(), "the pickle was harmless, so the test proves nothing"


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        b"cnumpy\nndarray\n(K\x01tR.",  # calling the type
        b"(cnumpy\nndarray\no.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",  # pointers to objects
        b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",  # changing a function
        b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.",
        b"\x80\x02U\x01aQ.",  # a persistent reference
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02K\x01.",  # no dictionary
    ],
)
def test_what_a_pickle_may_not_do(content, monkeypatch):
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("executed"))
    with pytest.raises(DataError):
        unpickle_arrays("file", content)


def test_array_state_cannot_claim_that_bytes_are_pointers():
    content = python2(images(1, 0)[:, :8], [1]).replace(b"K\x00tb\x89", b"K\x01tb\x89")  # the type's flags
    array = unpickle_arrays("file", content)[b"data"]
    assert array.dtype == np.uint8 and not array.dtype.hasobject


def test_array_whose_shape_does_not_fit():
    content = python2(images(1, 0)[:, :8], [1]).replace(b"M\x08\x00", b"M\x09\x00")
    with pytest.raises(DataError, match=r"shape \(1, 9\) with 8 values"):
        unpickle_arrays("file", content)


def test_labels_that_are_no_integers(tmp_path):
    folder = tmp_path / "py"
    write_python10(folder)
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": images(1, 0), b"labels": [None]}, protocol=2))
    with pytest.raises(DataError, match="test_batch: its 'labels' is not a list of integers"):
        cifar.read_cifar(folder, cifar.CIFAR10_PYTHON, no_progress)


def test_truncated_archive(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_python10(folder)
    content = as_tar(folder, tmp_path / "whole.tar.gz").read_bytes()
    for length in (0, 5, 100, len(content) // 2, len(content) - 1):
        path = tmp_path / "cut.tar.gz"
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"cut.tar.gz: (damaged|truncated)"):
            cifar.read_cifar(path, cifar.CIFAR10_PYTHON, no_progress)


def test_unpickling_leaves_the_stand_ins_as_they_were():
    before = pickle.dumps({b"data": images(1, 0)}, protocol=2)
    for bad in (b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.", b"\x80\x02c_codecs\nencode\nN}U\x01aK\x01s\x86b."):
        with pytest.raises(DataError):
            unpickle_arrays("file", bad)
    np.testing.assert_array_equal(unpickle_arrays("file", before)[b"data"], images(1, 0))
