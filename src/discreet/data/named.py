"""The sets that have a name: the forms in which each is found, its classes, and how it is read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from discreet.data import cifar
from discreet.data.dataset import Arrays, Kind, Reading
from discreet.data.idx import count_idx, holds_labels_of, read_idx_set
from discreet.data.images import count_faces, read_faces, read_image_tree
from discreet.data.places import Count, Form
from discreet.data.text import read_reviews

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = tuple("0123456789")

# SHA-256 of the unpacked train labels, by which the two sets are told apart: their files have the same names.
_MNIST_LABELS = "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
_FASHION_LABELS = "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"


@dataclass(frozen=True)
class NamedSet:
    """A set with a name.

    Attributes:
        kind: of its inputs.
        forms: in which it is looked for, the cheapest to read first.
        system: further folders to look in.
    """

    kind: Kind
    forms: tuple[Form, ...]
    system: tuple[Path, ...] = ()


def _idx_forms(classes: tuple[str, ...], folders: tuple[str, ...], not_labels: str) -> tuple[Form, ...]:
    stems = (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))
    members = tuple(
        tuple(f"{stem}{dot}idx{dimensions}-ubyte{suffix}" for dot in "-." for suffix in ("", ".gz"))
        for stem, dimensions in stems
    )

    def read(paths: Sequence[Path], reading: Reading) -> Arrays:
        return read_idx_set(paths, classes)

    def count(paths: Sequence[Path], reading: Reading) -> Count:
        return count_idx(paths[1]), count_idx(paths[3]), "IDX files, counts from their headers"

    def accepts(paths: Sequence[Path]) -> bool:
        return not holds_labels_of(paths[1], not_labels)

    return (Form(members, folders, read, count, accepts),)


def _cifar_forms(
    number: int, python: cifar.Layout, binary: cifar.Layout, python_folder: str, binary_folder: str
) -> tuple[Form, ...]:
    name = f"cifar{number}"
    around = ("", name, f"CIFAR{number}", f"cifar-{number}")

    def folder_form(layout: cifar.Layout, inner: str) -> Form:
        def read(paths: Sequence[Path], reading: Reading) -> Arrays:
            return cifar.read_cifar(paths[0].parent, layout, reading.progress)

        def count(paths: Sequence[Path], reading: Reading) -> Count:
            if layout.binary:
                *train, test = paths
                sizes = cifar.count_binary(train, layout), cifar.count_binary([test], layout)
                return *sizes, "binary version, counts from the files' sizes"
            return 50_000, 10_000, "Python version, counts as published (files not opened)"

        folders = tuple(os.path.join(outer, inner) for outer in around) + around
        return Form(tuple((file,) for file in layout.files), folders, read, count)

    def archive_form(layout: cifar.Layout, file: str) -> Form:
        def read(paths: Sequence[Path], reading: Reading) -> Arrays:
            return cifar.read_cifar(paths[0], layout, reading.progress)

        return Form(((file,),), around, read, _published(50_000, 10_000), slow=True)

    forms = (
        folder_form(python, python_folder),
        folder_form(binary, binary_folder),
        archive_form(python, f"cifar-{number}-python.tar.gz"),
        archive_form(binary, f"cifar-{number}-binary.tar.gz"),
    )
    if number != 10:
        return forms
    tree = tuple((f"{half}/{label}",) for half in ("train", "test") for label in cifar.CIFAR10_CLASSES)
    return (
        *forms,
        Form(((f"{name}_jpeg.tar.gz",),), around, _read_tree, _published(50_000, 10_000), slow=True),
        Form(tree, (*around, f"{name}_jpeg"), _read_tree_folder, _count_tree, slow=True),
    )


def _read_tree(paths: Sequence[Path], reading: Reading) -> Arrays:
    return read_image_tree(paths[0], reading)


def _read_tree_folder(paths: Sequence[Path], reading: Reading) -> Arrays:
    return read_image_tree(paths[0].parent.parent, reading, ("train", "test"))


def _count_tree(paths: Sequence[Path], reading: Reading) -> Count:
    counts = {"train": 0, "test": 0}
    for folder in paths:
        counts[folder.parent.name] += len(os.listdir(folder))
    return counts["train"], counts["test"], "folder of images, files counted and not decoded"


def _published(train: int, test: int) -> Callable[[Sequence[Path], Reading], Count]:
    return lambda paths, reading: (train, test, "archive, counts as published (not opened)")


def _imdb_forms() -> tuple[Form, ...]:
    around = ("", "imdb", "IMDB", "IMDb")
    groups = tuple((f"{half}/{label}",) for half in ("train", "test") for label in ("neg", "pos"))

    def read_archive(paths: Sequence[Path], reading: Reading) -> Arrays:
        return read_reviews(paths[0], reading)

    def read_folder(paths: Sequence[Path], reading: Reading) -> Arrays:
        return read_reviews(paths[0].parent.parent, reading, ("train", "test"))

    def count(paths: Sequence[Path], reading: Reading) -> Count:
        sizes = [len(os.listdir(path)) for path in paths]
        return sizes[0] + sizes[1], sizes[2] + sizes[3], "folder of texts, files counted and not read"

    folders = (*around, *(os.path.join(outer, "aclImdb") for outer in around))
    archives = ("aclImdb_v1.tar.gz", "aclImdb_labelled.tar.gz", "aclImdb.tar.gz")
    return (
        Form((archives,), around, read_archive, _published(25_000, 25_000), slow=True),
        Form(groups, folders, read_folder, count, slow=True),
    )


def _lfw_forms() -> tuple[Form, ...]:
    def read(paths: Sequence[Path], reading: Reading) -> Arrays:
        return read_faces(paths[0], reading)

    def count(paths: Sequence[Path], reading: Reading) -> Count:
        if not paths[0].is_dir():
            return None, None, "archive, not opened"
        faces = count_faces(paths[0], reading.min_faces)
        test = math.ceil(faces * reading.test_fraction - 1e-9)
        return faces - test, test, f"people with at least {reading.min_faces} images, divided as by default"

    around = ("lfw_home", "", "lfw", "LFW")
    return (
        Form((("lfw_funneled",),), around, read, count, slow=True),
        Form((("lfw-funneled.tgz",),), around, read, count, slow=True),
    )


def _sklearn_home() -> Path:
    # scikit-learn's own function for this creates the folder.
    chosen = os.environ.get("SCIKIT_LEARN_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / "scikit_learn_data"


def named_sets() -> dict[str, NamedSet]:
    """The sets that are looked for on the disk, by name."""
    return {
        "mnist": NamedSet("image", _idx_forms(DIGITS, ("mnist", "MNIST/raw", "MNIST", ""), _FASHION_LABELS)),
        "fashion-mnist": NamedSet(
            "image",
            _idx_forms(
                FASHION_CLASSES,
                ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion", ""),
                _MNIST_LABELS,
            ),
            (Path("/usr/share/datasets/fashion-mnist"),),
        ),
        "cifar10": NamedSet(
            "image",
            _cifar_forms(
                10, cifar.CIFAR10_PYTHON, cifar.CIFAR10_BINARY, "cifar-10-batches-py", "cifar-10-batches-bin"
            ),
        ),
        "cifar100": NamedSet(
            "image",
            _cifar_forms(
                100, cifar.CIFAR100_PYTHON, cifar.CIFAR100_BINARY, "cifar-100-python", "cifar-100-binary"
            ),
        ),
        "imdb": NamedSet("text", _imdb_forms()),
        "lfw": NamedSet("image", _lfw_forms(), (_sklearn_home(),)),
    }
