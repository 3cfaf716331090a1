"""What the inputs of a data set with a name look like, known without reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from discreet.data.scattering import feature_count


@dataclass(frozen=True)
class Shape:
    """What a model has to fit.

    Attributes:
        inputs: the shape of one input.
        outputs: how many classes there are, or targets of a regression.
        vocabulary: how many token numbers there are, where inputs are texts; None elsewhere.
        classes: whether the targets are classes.
    """

    inputs: tuple[int, ...]
    outputs: int
    vocabulary: int | None = None
    classes: bool = True


IMAGES: Mapping[str, Shape] = {
    "digits": Shape((1, 8, 8), 10),
    "mnist": Shape((1, 28, 28), 10),
    "fashion-mnist": Shape((1, 28, 28), 10),
    "cifar10": Shape((3, 32, 32), 10),
    "cifar100": Shape((3, 32, 32), 100),
}

TABLES: Mapping[str, Shape] = {
    "diabetes": Shape((10,), 1, classes=False),
    "breast-cancer": Shape((30,), 2),
}


def shape_of(
    name: str, *, max_tokens: int, vocabulary: int, image_size: int = 0, features: str = "none"
) -> Shape | None:
    """The shape of a data set; None where it takes reading the data to tell.

    Args:
        name: as in `discreet.data.sources.SOURCES`.
        max_tokens: to which texts are cut or padded.
        vocabulary: of texts.
        image_size: to which images are scaled; 0 for as they are.
        features: in the place of images: ``none`` or ``scattering``.
    """
    if name == "imdb":
        return Shape((max_tokens,), 2, vocabulary)
    if name in TABLES:
        return TABLES[name]
    images = None if image_size else IMAGES.get(name)
    if images is None or features == "none":
        return images
    return replace(images, inputs=(feature_count(images.inputs),))
