"""Folders (and archives) of images by class, and the faces of LFW."""

from __future__ import annotations

import io
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discreet.data.archives import names, walk
from discreet.data.dataset import Arrays, Reading, split
from discreet.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

FACE_BOX = (78, 70, 172, 195)
"""Left, top, right, bottom of the face in LFW's images of 250 x 250 pixels, as scikit-learn cuts it out."""

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True, eq=False)
class Picture:
    """One decoded image: its split ("train", "test" or ""), class, file, and pixels (channels, height, width)."""

    split: str
    label: str
    name: str
    pixels: NDArray[np.uint8]


def read_image_tree(path: Path, reading: Reading, below: tuple[str, ...] = ()) -> Arrays:
    """Reads images laid out as CLASS/FILE or {train,test}/CLASS/FILE, from a folder, tar or zip.

    Files that are no images by their suffix are passed over, and so are hidden ones. If all images are grey there is
    one channel, else three. Without a test split one is divided off as `split` says.

    Args:
        path: the folder or archive.
        reading: how to resize and to divide.
        below: read only what lies in these folders of `path`, where other things may lie beside them.

    Returns:
        Images uint8 (count, channels, height, width), sorted by class and file name.

    Raises:
        DataError: if an image is damaged or differs in size from the first (unless `reading.image_size` resizes
            them), the layout is another, or a class of the test split has no images to train on.
    """

    def wanted(name: str) -> bool:
        return is_image(name) and (not below or PurePosixPath(name).parts[0] in below)

    top: tuple[str, ...] | None = None
    pictures: list[Picture] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in walk(path, wanted, what=f"decoding {path.name}", progress=reading.progress):
            top = _top(name) if top is None else top
            half, label = _place(path, name, top)
            pixels = decode(path / name, content, reading.image_size)
            if pictures and pixels.shape[1:] != pictures[0].pixels.shape[1:]:
                sizes = [f"{p.shape[2]}x{p.shape[1]}" for p in (pixels, pictures[0].pixels)]
                raise DataError(
                    path / name,
                    f"{sizes[0]} pixels, but {pictures[0].name} has {sizes[1]}: expected equal sizes, "
                    "or data.image_size to resize them",
                )
            pictures.append(Picture(half, label, name, pixels))
    if not pictures:
        raise DataError(path, "no images in it: expected CLASS/FILE or {train,test}/CLASS/FILE")
    return _arrays(path, pictures, reading)


def read_faces(path: Path, reading: Reading) -> Arrays:
    """Reads Labeled Faces in the Wild: NAME/NAME_NNNN.jpg, from the folder lfw_funneled or its archive.

    The faces are cut out and halved in size as scikit-learn's `fetch_lfw_people` does by default, in grey.
    People with fewer than `reading.min_faces` images are left out.

    Returns:
        Images uint8 (count, 1, 62, 47) and the people's numbers, divided by `split`.

    Raises:
        DataError: if an image is damaged, or nobody has enough images.
    """
    listed = names(path, is_image)
    counts = Counter(PurePosixPath(name).parent.name for name in listed)
    people = {person for person, count in counts.items() if count >= reading.min_faces}
    if not people:
        raise DataError(path, f"nobody in it has {reading.min_faces} images: expected NAME/NAME_NNNN.jpg")
    pictures = [
        Picture("", person.replace("_", " "), name, _face(path / name, content))
        for name, content in walk(
            path,
            lambda name: is_image(name) and PurePosixPath(name).parent.name in people,
            what="decoding lfw",
            progress=reading.progress,
        )
        for person in (PurePosixPath(name).parent.name,)
    ]
    return _arrays(path, pictures, reading)


def count_faces(path: Path, min_faces: int) -> int:
    """How many images `read_faces` would give, of a folder."""
    counts = Counter(PurePosixPath(name).parent.name for name in names(path, is_image))
    return sum(count for count in counts.values() if count >= min_faces)


def is_image(name: str) -> bool:
    """Whether a file's name says that it is an image, not hidden, to be read."""
    parts = PurePosixPath(name).parts
    return PurePosixPath(name).suffix.lower() in SUFFIXES and not any(
        part.startswith((".", "__MACOSX")) for part in parts
    )


def decode(path: Path, content: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Decodes one image file.

    Args:
        path: named in the error.
        content: of the file.
        size: height and width to resize to, bilinearly; None keeps the image's own.

    Returns:
        uint8 (1, height, width) for a grey image, else (3, height, width); transparency is dropped.

    Raises:
        DataError: if it is no image, damaged, or has more than 8 bits a channel.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(path, "more than 8 bits a channel: expected an image with 8")
            mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
            plain = image if image.mode == mode else image.convert(mode)
            if size is not None:
                plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8)
    except _DAMAGE as error:
        raise DataError(path, f"damaged or not an image: {_reason(error)}") from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _face(path: Path, content: bytes) -> NDArray[np.uint8]:
    left, top, right, bottom = FACE_BOX
    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB").crop(FACE_BOX).resize(((right - left) // 2, (bottom - top) // 2))
            colours = np.asarray(small, dtype=np.float32)
    except _DAMAGE as error:
        raise DataError(path, f"damaged or not an image: {_reason(error)}") from error
    grey: NDArray[np.uint8] = np.rint(colours.mean(axis=2)).astype(np.uint8)
    return grey[None]


def _reason(error: BaseException) -> str:
    # Pillow's text holds the address of the buffer, which says nothing to a reader.
    return "its format is not recognised" if "BytesIO" in str(error) else str(error) or type(error).__name__


def _top(name: str) -> tuple[str, ...]:
    """The folders above a file's class (or above its train or test)."""
    above = PurePosixPath(name).parts[:-2]
    return above[:-1] if above[-1:] in (("train",), ("test",)) else above


def _place(path: Path, name: str, top: tuple[str, ...]) -> tuple[str, str]:
    """The split ("" if there is none) and class of a file."""
    parts = PurePosixPath(name).parts
    below = parts[len(top) : -1]
    if parts[: len(top)] == top:
        if len(below) == 1:
            return "", below[0]
        if len(below) == 2 and below[0] in ("train", "test"):
            return below[0], below[1]
    raise DataError(path / name, "not where the others are: expected CLASS/FILE or {train,test}/CLASS/FILE")


def _arrays(path: Path, pictures: Sequence[Picture], reading: Reading) -> Arrays:
    ordered = sorted(pictures, key=lambda picture: (picture.label, picture.name))
    halves = {picture.split for picture in ordered}
    classes = tuple(sorted({picture.label for picture in ordered if picture.split != "test"}))
    if len(classes) < 2:
        raise DataError(path, f"images of {len(classes)} classes to train on: expected at least 2")
    if halves not in ({""}, {"train", "test"}):
        raise DataError(path, "expected images in both train and test, or in folders by class alone")
    numbers = {label: number for number, label in enumerate(classes)}
    channels = max(picture.pixels.shape[0] for picture in ordered)

    def half(chosen: Sequence[Picture]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = np.empty((len(chosen), channels, *ordered[0].pixels.shape[1:]), np.uint8)
        for row, picture in enumerate(chosen):
            if picture.label not in numbers:
                raise DataError(path / picture.name, f"class {picture.label!r} has no images to train on")
            images[row] = picture.pixels
        return images, np.array([numbers[picture.label] for picture in chosen], dtype=np.int64)

    if halves == {""}:
        everything: tuple[NDArray[Any], NDArray[Any]] = half(ordered)
        images, labels = everything
        train, test = split(path, labels, reading.test_fraction, reading.seed)
        return Arrays(images[train], labels[train], images[test], labels[test], classes)
    return Arrays(
        *half([picture for picture in ordered if picture.split == "train"]),
        *half([picture for picture in ordered if picture.split == "test"]),
        classes,
    )
