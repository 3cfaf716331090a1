import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.data.idx import count_idx, read_idx, read_idx_set
from discreet.errors import DataError

CLASSES = tuple("0123456789")


def idx(array):
    array = np.asarray(array, np.uint8)
    return (
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def fails(path, pattern, dimensions=3):
    with pytest.raises(DataError, match=pattern) as caught:
        read_idx(path, dimensions)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    zipped=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_is_read(tmp_path, shape, zipped, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    read = read_idx(path, len(shape))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)
    assert count_idx(path) == shape[0]


def test_every_truncation_is_an_error_and_none_is_another_exception(tmp_path):
    whole = idx(np.arange(12).reshape(3, 2, 2))
    path = tmp_path / "images"
    for zipped in (False, True):
        content = gzip.compress(whole) if zipped else whole
        for length in range(len(content)):
            path.write_bytes(content[:length])
            fails(path, "truncated|damaged gzip|starts with")


def test_bytes_after_the_last_value(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(idx([1, 2, 3]) + b"\0")
    fails(path, "after the 3", 1)


def test_flipped_bit_in_gzip_fails_its_checksum(tmp_path):
    path = tmp_path / "images.gz"
    content = bytearray(gzip.compress(idx(np.zeros((4, 8, 8))), compresslevel=0))
    content[60] ^= 1
    path.write_bytes(content)
    fails(path, "gzip.*CRC")


@pytest.mark.parametrize(
    ("header", "pattern"),
    [
        (b"\0\0\x0d\x03" + struct.pack(">3I", 1, 1, 1) + b"\0" * 4, "starts with 00000d03"),
        (b"\x89PNG\r\n\x1a\n", "starts with 89504e47"),
        (b"\0\0\x08\x01" + struct.pack(">I", 1) + b"\0", "has 1 dimensions: expected 3"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 9), "promises"),
    ],
)
def test_wrong_headers(tmp_path, header, pattern):
    path = tmp_path / "file"
    path.write_bytes(header)
    fails(path, pattern)


def test_missing_file(tmp_path):
    fails(tmp_path / "nothing", "cannot be read")


def write_set(folder, train=3, test=2, labels=None, size=(4, 5), test_size=None):
    paths = [folder / name for name in ("train-images", "train-labels", "test-images", "test-labels")]
    labels = np.arange(train) if labels is None else labels
    paths[0].write_bytes(idx(np.full((train, *size), 7)))
    paths[1].write_bytes(idx(labels))
    paths[2].write_bytes(idx(np.full((test, *(test_size or size)), 9)))
    paths[3].write_bytes(idx(np.zeros(test)))
    return paths


def test_set(tmp_path):
    arrays = read_idx_set(write_set(tmp_path), CLASSES)
    assert arrays.train_inputs.shape == (3, 1, 4, 5) and arrays.test_inputs.shape == (2, 1, 4, 5)
    assert arrays.train_targets.tolist() == [0, 1, 2] and arrays.train_targets.dtype == np.int64
    assert (arrays.test_inputs == 9).all()


def test_counts_that_disagree(tmp_path):
    with pytest.raises(DataError, match=r"train-labels: 4 labels, but .* has 3 images"):
        read_idx_set(write_set(tmp_path, labels=[0, 1, 2, 3]), CLASSES)


def test_label_outside_the_classes(tmp_path):
    with pytest.raises(DataError, match=r"train-labels: label 10 at item 2: expected 0 to 9"):
        read_idx_set(write_set(tmp_path, labels=[0, 10, 2]), CLASSES)


def test_train_and_test_images_of_different_sizes(tmp_path):
    with pytest.raises(DataError, match=r"test-images: images of 3x3 pixels"):
        read_idx_set(write_set(tmp_path, size=(2, 2), test_size=(3, 3)), CLASSES)


def test_no_images(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        read_idx_set(write_set(tmp_path, train=0), CLASSES)
