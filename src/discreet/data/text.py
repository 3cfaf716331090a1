"""Texts as token ids, and the IMDB reviews.

The vocabulary is public and does not depend on the data: a word's id is a hash of the word. Building a vocabulary
from the words that occur would tell every participant which words the others wrote; here nothing about anybody's
words leaks by the vocabulary, at the price that some words share an id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discreet.data.archives import walk
from discreet.data.dataset import Arrays, Reading
from discreet.errors import DataError

CLASSES = ("neg", "pos")
_REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/]+)\.txt$")
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass(frozen=True)
class Tokenizer:
    """Turns texts into rows of token ids.

    A text is lower-cased and cut into words of two or more letters or digits, by the rules of scikit-learn's
    `CountVectorizer`; HTML line breaks count as spaces. A word's id is MurmurHash3 (32 bits, seed 0) of its UTF-8
    bytes modulo (vocabulary - 1), plus 1: ids 1 to vocabulary - 1. The id 0 is padding.

    Attributes:
        vocabulary: the number of ids, padding included; at least 2.
        max_tokens: words after this many are dropped; at least 1.
    """

    vocabulary: int = 10_000
    max_tokens: int = 256

    def encode(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Token ids of shape (texts, max_tokens), padded with 0 at the end.

        A text without words is a row of zeros.
        """
        ids = np.zeros((len(texts), self.max_tokens), np.int32)
        lookup, words_of = self._lookup(), _words()
        for row, text in zip(ids, texts, strict=True):
            words = words_of(_LINE_BREAK.sub(" ", text))[: self.max_tokens]
            row[: len(words)] = [lookup[word] for word in words]
        return ids

    def _lookup(self) -> _Ids:
        return _Ids(self.vocabulary)


class _Ids(dict[str, int]):
    """Ids of the words seen so far: hashing each occurrence anew would take most of the time."""

    def __init__(self, vocabulary: int) -> None:
        # scikit-learn takes a second to import, which commands that load no text need not wait for.
        from sklearn.utils import murmurhash3_32

        super().__init__()
        self._hash, self._modulus = murmurhash3_32, vocabulary - 1

    def __missing__(self, word: str) -> int:
        self[word] = number = int(self._hash(word, seed=0, positive=True)) % self._modulus + 1
        return number


def _words() -> Callable[[str], list[str]]:
    from sklearn.feature_extraction.text import CountVectorizer

    analyzer: Callable[[str], list[str]] = CountVectorizer().build_analyzer()
    return analyzer


def read_reviews(path: Path, reading: Reading, below: tuple[str, ...] = ()) -> Arrays:
    """Reads the Large Movie Review Dataset: {train,test}/{neg,pos}/ID_RATING.txt, from a folder or an archive.

    An archive is read once, as a stream. Unlabelled reviews are passed over.

    Args:
        path: the folder or archive.
        reading: the tokenizer's settings.
        below: read only what lies in these folders of `path`, where other things may lie beside them.

    Returns:
        Token ids int32 (count, max_tokens) as `Tokenizer` gives them, and class numbers: 0 negative, 1 positive.

    Raises:
        DataError: if a text is not UTF-8, or one of the four groups has none.

    Source: Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011.
    """
    tokenizer = Tokenizer(reading.vocabulary, reading.max_tokens)
    found: dict[tuple[str, str], list[tuple[str, NDArray[np.int32]]]] = {
        (half, label): [] for half in ("train", "test") for label in CLASSES
    }
    batch: list[tuple[tuple[str, str], str, str]] = []

    def wanted(name: str) -> bool:
        return _REVIEW.search(name) is not None and (not below or PurePosixPath(name).parts[0] in below)

    def encode() -> None:
        rows = tokenizer.encode([text for _, _, text in batch])
        for (group, name, _), row in zip(batch, rows, strict=True):
            found[group].append((name, row))
        batch.clear()

    for name, content in walk(path, wanted, what="reading imdb", progress=reading.progress):
        match = _REVIEW.search(name)
        if match is None:
            continue
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                path / name, f"not a text in UTF-8: {error.reason} at byte {error.start}"
            ) from error
        batch.append(((match[1], match[2]), PurePosixPath(name).name, text))
        if len(batch) == 5000:
            encode()
    encode()
    for (half, label), rows in found.items():
        if not rows:
            raise DataError(
                path, f"no reviews in {half}/{label}: expected aclImdb/{half}/{label}/ID_RATING.txt"
            )
    return Arrays(*_half(found, "train"), *_half(found, "test"), CLASSES)


def _half(
    found: dict[tuple[str, str], list[tuple[str, NDArray[np.int32]]]], half: str
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    rows = [row for label in CLASSES for _, row in sorted(found[half, label], key=lambda item: item[0])]
    counts = [len(found[half, label]) for label in CLASSES]
    return np.stack(rows), np.repeat(np.arange(len(CLASSES), dtype=np.int64), counts)
