"""Data sets by name: load one, or list which are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from discreet.data.cache import prepared
from discreet.data.dataset import Dataset, Kind, Progress, Reading, as_dataset, no_progress
from discreet.data.features import read_table
from discreet.data.images import read_image_tree
from discreet.data.named import named_sets
from discreet.data.places import find, roots
from discreet.data.scattering import check_scattering, scattered
from discreet.data.shipped import SHIPPED
from discreet.errors import ConfigError, DataError
from discreet.names import did_you_mean

Features = Literal["none", "scattering"]
"""What a model is given in the place of images."""

__all__ = ["SOURCES", "Dataset", "Found", "available", "load"]


@dataclass(frozen=True)
class Source:
    """A row of the table of sources.

    Attributes:
        kind: of its inputs.
        summary: one line on what it is.
    """

    kind: Kind
    summary: str


SOURCES: Mapping[str, Source] = {
    "digits": Source("image", "1,797 handwritten digits of 8x8 pixels; always there"),
    "diabetes": Source(
        "table", "442 patients, 10 figures each: how far the disease goes (a value); always there"
    ),
    "breast-cancer": Source("table", "569 tumours, 30 figures each: malignant or benign; always there"),
    "mnist": Source("image", "70,000 handwritten digits of 28x28 pixels"),
    "fashion-mnist": Source("image", "70,000 articles of clothing, 28x28 pixels"),
    "cifar10": Source("image", "60,000 colour images of 32x32 pixels in 10 classes"),
    "cifar100": Source("image", "60,000 colour images of 32x32 pixels in 100 classes"),
    "imdb": Source("text", "50,000 film reviews, positive or negative"),
    "lfw": Source("image", "Labeled Faces in the Wild: who is it?"),
    "table": Source("table", "your own CSV, Parquet or NPZ file"),
    "images": Source("image", "your own folder or archive of images by class"),
}


@dataclass(frozen=True)
class Found:
    """What is known of a set without reading it.

    Attributes:
        name: the set's.
        path: the file or folder where it was found; None if it was not.
        train: the number of train examples; None if not known.
        test: of test examples.
        note: how the numbers were come by, or why the set cannot be read.
    """

    name: str
    path: Path | None
    train: int | None
    test: int | None
    note: str


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    path: Path | str | None = None,
    test_path: Path | str | None = None,
    target: str | None = None,
    client_column: str | None = None,
    ignore: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
    standardise: bool = True,
    image_size: int | tuple[int, int] | None = None,
    min_faces: int = 20,
    max_tokens: int = 256,
    vocabulary: int = 10_000,
    features: Features = "none",
    on_progress: Progress | None = None,
    keep: bool = True,
) -> Dataset:
    """Loads a data set; a pure function of its arguments and the files.

    A named set is looked for in `data_dir`, then ``$DISCREET_DATA``, the user's cache folder, and known system
    folders. What takes long to decode is kept for the next time in ``$DISCREET_CACHE`` or the user's cache folder.

    Args:
        name: a key of `SOURCES`.
        data_dir: the first folder to look in.
        path: for ``table`` a .csv, .parquet or .npz file; for ``images`` a folder, tar or zip that holds
            CLASS/FILE or {train,test}/CLASS/FILE.
        test_path: for ``table`` a second file with the test rows.
        target: for ``table`` the column to predict: integers, booleans or strings are classes, floats a regression.
            An NPZ has the arrays x and y (x_test, y_test, client) instead.
        client_column: for ``table`` the column that says whose each row is; see `Dataset.columns`.
        ignore: for ``table``, columns that are left out.
        test_fraction: the test split's share where the files have none, in (0, 1); stratified by class.
        seed: of that split. The sets that scikit-learn ships are always divided alike.
        standardise: for tables, your own or shipped, scale each feature, and each target of a regression, by its mean
            and standard deviation over the train rows; `Dataset.target_scaling` says by what a target was. These are
            **pooled statistics**, which participants of a real federation would have to agree on.
        image_size: for ``images``, resize to this height and width (or square); without it, or with 0, all must have
            one size.
        min_faces: for ``lfw``, leave out people with fewer images.
        max_tokens: for ``imdb``, the length to which reviews are cut or padded.
        vocabulary: for ``imdb``, the number of token ids. The vocabulary is a public hash, see
            `discreet.data.text.Tokenizer`: nothing about anyone's words leaks by it.
        features: ``scattering``: in the place of images, what `discreet.data.scattering` makes of them.
        on_progress: called as ``on_progress(done, total, what)`` while something slow is read or computed.
        keep: whether images of your own, and features, are kept in the cache.

    Raises:
        ConfigError: on an unknown name (with the nearest right one) or an argument that does not fit.
        MissingExtra: `features` need a package that is not installed.
        DataError: if the set is not found, or a file is damaged or does not hold what it should.
    """
    source = _source(name)
    reading = _reading(test_fraction, seed, max_tokens, vocabulary, image_size, min_faces, on_progress)
    own = {"path": path, "test_path": test_path, "target": target, "client_column": client_column}
    for key, value in own.items():
        fits = name == "table" or (name == "images" and key == "path")
        if value is not None and not fits:
            raise ConfigError(
                f"data.{key}", str(value), f"none for data.name = {name!r}; it is for a table of your own"
            )
    if features not in get_args(Features):
        raise ConfigError("data.features", features, " or ".join(get_args(Features)))
    if features == "scattering":
        check_scattering(name, source.kind)
        return scattered(_images(name, source.kind, path, data_dir, reading, keep), reading.progress, keep)
    if name == "table":
        arrays = read_table(
            _own_path(name, path),
            target=target,
            client_column=client_column,
            test_path=None if test_path is None else Path(test_path),
            ignore=ignore,
            test_fraction=test_fraction,
            seed=seed,
            standardise=standardise,
        )
        return as_dataset(name, source.kind, arrays)
    if name in SHIPPED:
        return as_dataset(name, source.kind, SHIPPED[name].read(standardise))
    if source.kind == "image":
        return _images(name, source.kind, path, data_dir, reading, keep)
    return _load_named(name, data_dir, reading)


def available(data_dir: Path | str | None = None) -> list[Found]:
    """Which named sets are there, where, and with how many examples, without decoding them.

    Raises:
        DataError: if `data_dir` is given and is no folder.
    """
    found = _shipped()
    reading = Reading()
    for name, wanted in named_sets().items():
        where = roots(data_dir, wanted.system)
        try:
            place = find(name, wanted.forms, where)
            train, test, note = place.form.count(place.members, reading)
        except DataError as error:
            found.append(Found(name, None, None, None, str(error)))
        else:
            found.append(Found(name, place.path, train, test, note))
    return found


def _shipped() -> list[Found]:
    # Looked up and not imported: importing scikit-learn takes a second.
    package = find_spec("sklearn")
    path = None if package is None or package.origin is None else Path(package.origin).parent / "datasets"
    return [
        Found(name, path, kept.train, kept.test, "comes with scikit-learn") for name, kept in SHIPPED.items()
    ]


def _images(
    name: str,
    kind: Kind,
    path: Path | str | None,
    data_dir: Path | str | None,
    reading: Reading,
    keep: bool,
) -> Dataset:
    if name in SHIPPED:
        return as_dataset(name, kind, SHIPPED[name].read(False))
    if name != "images":
        return _load_named(name, data_dir, reading)
    folder = _own_path(name, path)
    settings = {
        "image_size": reading.image_size,
        "test_fraction": reading.test_fraction,
        "seed": reading.seed,
    }
    return as_dataset(
        name, kind, prepared(name, [folder], settings, lambda: read_image_tree(folder, reading), keep)
    )


def _load_named(name: str, data_dir: Path | str | None, reading: Reading) -> Dataset:
    wanted = named_sets()[name]
    place = find(name, wanted.forms, roots(data_dir, wanted.system))
    if place.form.slow:
        # Only what the set depends on, so that changing another setting does not decode it anew.
        plain = (
            {"max_tokens": reading.max_tokens, "vocabulary": reading.vocabulary}
            if wanted.kind == "text"
            else {}
        )
        faces = {"min_faces": reading.min_faces, "fraction": reading.test_fraction, "seed": reading.seed}
        settings: dict[str, object] = {**plain, **(faces if name == "lfw" else {})}
        arrays = prepared(name, place.members, settings, lambda: place.form.read(place.members, reading))
    else:
        arrays = place.form.read(place.members, reading)
    return as_dataset(name, wanted.kind, arrays, reading.vocabulary if wanted.kind == "text" else None)


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError("data.name", name, f"one of {', '.join(SOURCES)}{did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def _own_path(name: str, path: Path | str | None) -> Path:
    if path is None:
        what = (
            "a .csv, .parquet or .npz file" if name == "table" else "a folder or archive of images by class"
        )
        raise ConfigError("data.path", None, f"the path of {what}")
    if not Path(path).exists():
        raise ConfigError("data.path", str(path), f"a file or folder that exists, as seen from {Path.cwd()}")
    return Path(path)


def _reading(
    test_fraction: float,
    seed: int,
    max_tokens: int,
    vocabulary: int,
    image_size: int | tuple[int, int] | None,
    min_faces: int,
    on_progress: Progress | None,
) -> Reading:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    size = None if size == (0, 0) else size
    if not 0 < test_fraction < 1:
        raise ConfigError("data.test_fraction", test_fraction, "a number between 0 and 1, both excluded")
    if max_tokens < 1:
        raise ConfigError("data.max_tokens", max_tokens, "at least 1")
    if vocabulary < 2:
        raise ConfigError("data.vocabulary", vocabulary, "at least 2: padding and one word")
    if min_faces < 2:
        raise ConfigError("data.min_faces", min_faces, "at least 2: one image to train on and one to test")
    if size is not None and min(size) < 1:
        raise ConfigError("data.image_size", image_size, "at least 1 pixel each way")
    return Reading(
        test_fraction=test_fraction,
        seed=seed,
        max_tokens=max_tokens,
        vocabulary=vocabulary,
        image_size=size,
        min_faces=min_faces,
        progress=on_progress or no_progress,
    )
