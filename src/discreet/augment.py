"""Augmentation of images on the fly: what is drawn, and what it does to a batch, kept apart.

`FlipCrop.draw` takes random numbers and gives small arrays; `FlipCrop.apply` takes those arrays and a batch and
gives the changed batch. No changed copy of a data set is ever stored: a batch is changed when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discreet.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Augmentation:
    """What was drawn for some images.

    Attributes:
        flips: bool, any shape: whether the image is mirrored.
        offsets: int64, that shape + (2,): the top and left edge of the crop in the padded image, each from 0 to
            2 * pad; at (pad, pad) the crop is the image itself.
    """

    flips: NDArray[np.bool_]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class FlipCrop:
    """Mirror left and right with probability 1/2, pad with zeros, crop to the old size at a uniform offset.

    Source: the usual augmentation of CIFAR (He et al. 2016, arXiv 1512.03385, section 4.2).

    Args:
        flip: whether images are mirrored at all.
        pad: zeros added on each of the four sides before the crop, in pixels; 0 leaves the position alone.
    """

    flip: bool = True
    pad: int = 4

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ConfigError("data.augment", self, "a pad of at least 0 pixels")

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse what is no image, before anything is trained.

        Args:
            shape: the shape of one example.

        Raises:
            ConfigError: the shape is not (channels, height, width), or a side is no longer than `pad`, so that
                a crop could hold nothing of the image.
        """
        if len(shape) != 3:
            raise ConfigError(
                "data.augment",
                self,
                f"images of shape (channels, height, width), but an example has shape {tuple(shape)}: "
                'set data.augment = "none", or give the inputs that shape',
            )
        if self.pad >= min(shape[1:]):
            raise ConfigError(
                "data.augment", self, f"a pad smaller than the sides of the image, {shape[1]} x {shape[2]}"
            )

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Augmentation:
        """Draw for `shape` images, for example (steps, batch).

        Flips and offsets are independent and uniform; what is switched off takes no random numbers.
        """
        flips = rng.integers(0, 2, shape, dtype=np.bool_) if self.flip else np.zeros(shape, np.bool_)
        whole = (*shape, 2)
        offsets = rng.integers(0, 2 * self.pad + 1, whole) if self.pad else np.zeros(whole, np.int64)
        return Augmentation(flips, offsets)

    def apply(
        self, images: Tensor, flips: Tensor | NDArray[np.bool_], offsets: Tensor | NDArray[np.int64]
    ) -> Tensor:
        """The images, mirrored where `flips` says so and then shifted; a new tensor, the input is left alone.

        Pixels are copied and never computed with, so any dtype keeps its exact values. Values of `flips` and
        `offsets` are taken as `draw` gives them and not checked.

        Args:
            images: shape (N, channels, height, width), any dtype, on any device.
            flips: bool, shape (N,).
            offsets: int64, shape (N, 2), each from 0 to 2 * pad.

        Raises:
            ConfigError: `images` are no images, as `check` says.
            ValueError: `flips` or `offsets` are not for N images.
        """
        self.check(tuple(images.shape[1:]))
        n, channels, height, width = images.shape
        flips = torch.as_tensor(flips, device=images.device)
        offsets = torch.as_tensor(offsets, device=images.device)
        if flips.shape != (n,) or offsets.shape != (n, 2):
            raise ValueError(
                f"{n} images need flips of shape ({n},) and offsets of shape ({n}, 2), "
                f"not {tuple(flips.shape)} and {tuple(offsets.shape)}"
            )
        padded = F.pad(images, (self.pad,) * 4)
        padded_width = width + 2 * self.pad
        rows = offsets[:, :1] + torch.arange(height, device=images.device)
        columns = offsets[:, 1:] + torch.arange(width, device=images.device)
        # Padding is the same on both sides, so mirroring the padded image mirrors the image inside it.
        columns = torch.where(flips[:, None], padded_width - 1 - columns, columns)
        pixels = (rows[:, :, None] * padded_width + columns[:, None, :]).reshape(n, 1, height * width)
        # reshape(n, channels, -1) would be ambiguous for an empty batch.
        flat = padded.reshape(n, channels, (height + 2 * self.pad) * padded_width)
        return flat.gather(2, pixels.expand(n, channels, height * width)).reshape(images.shape)


AUGMENTATIONS: dict[str, FlipCrop | None] = {
    "none": None,
    "flip-crop": FlipCrop(),
    "flip": FlipCrop(pad=0),
    "crop": FlipCrop(flip=False),
}
"""The augmentations by the names that `data.augment` takes."""
