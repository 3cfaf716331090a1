import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from discreet.data.dataset import Reading
from discreet.data.text import Tokenizer, read_reviews
from discreet.errors import DataError


def identifier(word, vocabulary):
    return murmurhash3_32(word.encode(), seed=0) % 2**32 % (vocabulary - 1) + 1


def test_words_by_hand():
    rows = Tokenizer(vocabulary=1000, max_tokens=6).encode(["A GOOD film,<br /><br />truly good!", "", "I"])
    expected = [identifier(word, 1000) for word in ("good", "film", "truly", "good")]
    assert rows.tolist() == [[*expected, 0, 0], [0] * 6, [0] * 6]
    assert rows.dtype == np.int32


def test_murmurhash_is_the_published_one():
    # Reference value of MurmurHash3_x86_32 with seed 0, from its author's test vectors: hash("") = 0.
    assert murmurhash3_32(b"", seed=0) == 0
    # "hello" with seed 0 is 0x248bfa47.
    assert Tokenizer(2**31 - 1, 1).encode(["hello"]).tolist() == [[0x248BFA47 % (2**31 - 2) + 1]]


def test_truncation_keeps_the_first_words():
    whole = Tokenizer(500, 9).encode(["one two three four five"])
    assert Tokenizer(500, 3).encode(["one two three four five"]).tolist() == whole[:, :3].tolist()


@given(
    texts=st.lists(st.text(max_size=40), max_size=5), vocabulary=st.integers(2, 50), length=st.integers(1, 8)
)
def test_ids_are_in_range_and_padding_is_at_the_end(texts, vocabulary, length):
    rows = Tokenizer(vocabulary, length).encode(texts)
    assert (
        rows.shape == (len(texts), length) and rows.min(initial=0) >= 0 and rows.max(initial=0) < vocabulary
    )
    for row in rows:
        words = np.count_nonzero(row)
        assert (row[:words] > 0).all() and (row[words:] == 0).all()


@given(texts=st.lists(st.text(max_size=40), min_size=2, max_size=5))
def test_a_text_is_encoded_alike_whatever_the_others_say(texts):
    tokenizer = Tokenizer(100, 5)
    alone = np.concatenate([tokenizer.encode([text]) for text in texts])
    np.testing.assert_array_equal(tokenizer.encode(texts), alone)


FILES = {
    f"aclImdb/{half}/{label}/{number}_{rating}.txt": f"{half} {label} number{number}".encode()
    for half in ("train", "test")
    for label, rating in (("neg", 2), ("pos", 9))
    for number in range(3)
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_reviews_from_a_folder_and_an_archive(tmp_path):
    extra = {
        "aclImdb/train/unsup/0_0.txt": b"unlabelled",
        "aclImdb/README": b"",
        "aclImdb/train/urls_pos.txt": b"",
    }
    reading = Reading(max_tokens=4, vocabulary=5000)
    shuffled = dict(reversed((FILES | extra).items()))
    archive = read_reviews(pack(tmp_path / "aclImdb_v1.tar.gz", shuffled), reading)
    folder = read_reviews(write(tmp_path, FILES | extra) / "aclImdb", reading)
    for arrays in (archive, folder):
        assert arrays.classes == ("neg", "pos")
        assert arrays.train_targets.tolist() == arrays.test_targets.tolist() == [0, 0, 0, 1, 1, 1]
        expected = [identifier(word, 5000) for word in ("train", "pos", "number1")]
        assert arrays.train_inputs[4].tolist() == [*expected, 0]
        assert arrays.test_inputs[0, 0] == identifier("test", 5000)
    np.testing.assert_array_equal(archive.train_inputs, folder.train_inputs)


def test_a_group_without_reviews(tmp_path):
    files = {name: content for name, content in FILES.items() if "test/pos" not in name}
    with pytest.raises(DataError, match="no reviews in test/pos"):
        read_reviews(write(tmp_path, files), Reading())


def test_text_that_is_not_utf8(tmp_path):
    with pytest.raises(DataError, match=r"pos/1_9.txt: not a text in UTF-8: .* at byte 2"):
        read_reviews(write(tmp_path, FILES | {"aclImdb/train/pos/1_9.txt": b"ok\xff"}), Reading())


def test_truncated_archive(tmp_path):
    content = pack(tmp_path / "a.tar.gz", FILES).read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a.tar.gz: damaged"):
        read_reviews(tmp_path / "a.tar.gz", Reading())
