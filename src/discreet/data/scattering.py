"""Images as vectors of wavelet scattering coefficients: features that are fixed, and public before any data is seen.

Scattering takes the moduli of wavelet coefficients, of an image and of those moduli once more, and averages them over
small neighbourhoods. Nothing in it is trained. A network on top of it, its *head*, is what a federation learns, in
place of a convolutional network that somebody would have to train first.

What is done to an image, of which nothing depends on another image:

1. Colours become luminance and two differences of colours, by a fixed rotation.
2. Luminance is scattered to the second order, colour differences to the first, with 2 scales and 8 angles. Each of the
   81 (17) maps has a value for every 4 x 4 pixels, and is averaged over a grid of 4 x 4 cells, or fewer.
3. Coefficients of the first and second order become logarithms, of which each map has a mean taken off and is divided by
   a deviation. Both are those of images of **noise** with the spectrum of photographs (power as one over the squared
   frequency) and contrasts of every size. Statistics of a data set would tell about its examples; these tell nothing.
4. The vector is shifted and scaled to mean 0 and variance 1 over its own entries.

A photograph of 32 x 32 pixels gives 1,840 numbers, of 15,552 that scattering of its three channels has.

Source: Mallat, "Group invariant scattering", 2012 (arXiv 1101.2286); Oyallon, Mallat, "Deep roto-translation scattering
for object classification", 2015 (arXiv 1412.8659). Computed by kymatio (Andreux et al., arXiv 1812.11214).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from discreet.data.cache import prepared
from discreet.data.dataset import Arrays, Dataset, Progress, as_dataset, no_progress
from discreet.errors import ConfigError, DataError, MissingExtra
from discreet.randomness import SERVER, Seeded

VERSION = 1
"""Raised whenever the same image gives other features than before."""

SCALES, ANGLES = 2, 8
CELLS = 4
"""A map of coefficients is averaged over at most so many cells each way."""

FLOOR = 1e-3
"""Added to a coefficient before its logarithm: a quarter of one grey level, below which there is only rounding."""

PATHS_OF_LUMINANCE = 1 + SCALES * ANGLES + SCALES * (SCALES - 1) // 2 * ANGLES**2
PATHS_OF_COLOUR = 1 + SCALES * ANGLES

_PIXELS = 1 << 16
"""Of the images that are worked on at a time: their coefficients stay small enough for a processor's cache."""

_REFERENCES = 128
_CONTRASTS = (1 / 64, 1 / 2)
"""Deviations of the noise images' luminance, from nearly flat to black and white."""
_COLOUR_CONTRAST = 1 / 4
"""Of the noise images' colour differences, as a share of their luminance's."""

_COLOURS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
"""Rows: luminance and two differences of red, green and blue; orthonormal."""


def check_scattering(name: str, kind: str) -> None:
    """Refuse features of what are no images, or without kymatio, before anything is read.

    Raises:
        ConfigError: there are no images.
        MissingExtra: kymatio is not installed.
    """
    if kind != "image":
        raise ConfigError("data.features", "scattering", f"none for data.name = {name!r}: it has no images")
    if find_spec("kymatio") is None:
        raise MissingExtra("data.features", "scattering", "scattering")


def feature_count(shape: tuple[int, ...]) -> int:
    """How many features an image of shape (channels, height, width) has."""
    channels, height, width = shape
    paths = PATHS_OF_LUMINANCE + (PATHS_OF_COLOUR * 2 if channels == 3 else 0)
    return paths * _cells(height) * _cells(width)


def scattered(data: Dataset, on_progress: Progress = no_progress, keep: bool = True) -> Dataset:
    """The data set with features in the place of its images, from the cache if they are there.

    The cache knows them by the images themselves, not by where they came from.

    Args:
        data: images, as `Dataset` describes them.
        on_progress: called as ``on_progress(done, total, what)``, in images, while features are computed.
        keep: whether to keep them in the cache.

    Returns:
        A data set of the kind ``table``, with inputs float32 (count, features).

    Raises:
        ConfigError: the data set is none of images.
        MissingExtra: kymatio is not installed.
        DataError: its images have another shape than (1 or 3, height, width), or a side shorter than 4 pixels.
    """
    check_scattering(data.name, data.kind)
    shape = data.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 1 << SCALES:
        raise DataError(
            data.name,
            f"images of shape {shape}: scattering takes 1 or 3 channels of at least {1 << SCALES} pixels each way",
        )
    settings = {"images": _digest(data), "version": VERSION, "kymatio": metadata.version("kymatio")}

    def make() -> Arrays:
        transform = Scattering.of(shape)
        parts = [data.train.inputs, data.test.inputs]
        train, test = _features(transform, parts, f"scattering {data.name}", on_progress)
        return Arrays(train, data.train.targets.numpy(), test, data.test.targets.numpy(), data.classes)

    found = prepared(f"{data.name}-scattering", [], settings, make, keep)
    wide = (part.astype(np.float32) for part in (found.train_inputs, found.test_inputs))
    # targets, classes and columns are those of the images: the cache holds them to be a whole data set
    inputs = Arrays(
        next(wide), found.train_targets, next(wide), found.test_targets, data.classes, data.columns
    )
    return as_dataset(data.name, "table", inputs)


@dataclass(frozen=True, eq=False)
class Scattering:
    """The transform for images of one shape.

    Attributes:
        channels: 1 or 3.
        luminance, colour: kymatio's transforms, to the second and to the first order.
        grid: cells over which maps are averaged, each way.
        mean, deviation: of each map's logarithms (of order 0: of its values) over noise, shape (paths, 1, 1).
    """

    channels: int
    luminance: Any
    colour: Any
    grid: tuple[int, int]
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Scattering:
        """The transform for images of shape (channels, height, width), with its statistics of noise."""
        channels, *size = shape
        luminance, colour = (_transform(size, order) for order in (2, 1))
        grid = _cells(size[0]), _cells(size[1])
        noise = adaptive_avg_pool2d(luminance(_noise(size)), grid)
        statistics = [_of_noise(noise, 1.0, np.sqrt(3) / 2, np.sqrt(3 / 12))]
        if channels == 3:
            of_colour = _of_noise(
                noise[:, :PATHS_OF_COLOUR], _COLOUR_CONTRAST, 0.0, np.sqrt(3 / 12) * _COLOUR_CONTRAST
            )
            statistics += [of_colour, of_colour]
        mean, deviation = (torch.cat(parts)[:, None, None] for parts in zip(*statistics, strict=True))
        return cls(channels, luminance, colour, grid, mean, deviation)

    def __call__(self, images: Tensor) -> Tensor:
        """Features of images.

        Args:
            images: uint8, or floats from 0 to 1; shape (count, channels, height, width).

        Returns:
            float32, shape (count, features): for luminance, then the two colour differences, map after map (order 0,
            1, 2; finer scales first), row after row. A flat image has features like any other: those of no contrast.
        """
        planes = images.to(torch.float32) / (255 if images.dtype == torch.uint8 else 1)
        if self.channels == 3:
            turn = torch.from_numpy(_COLOURS.astype(np.float32))
            planes = torch.einsum("ij,njhw->nihw", turn, planes).contiguous()
        else:
            planes = planes * math.sqrt(3)  # as grey in three channels
        maps = [_compressed(adaptive_avg_pool2d(self.luminance(planes[:, 0].contiguous()), self.grid))]
        for plane in range(1, self.channels):
            maps.append(
                _compressed(adaptive_avg_pool2d(self.colour(planes[:, plane].contiguous()), self.grid))
            )
        vectors = ((torch.cat(maps, dim=1) - self.mean) / self.deviation).flatten(1)
        centred = vectors - vectors.mean(1, keepdim=True)
        return centred / centred.square().mean(1, keepdim=True).sqrt()


def _compressed(maps: Tensor) -> Tensor:
    """Logarithms of all maps but the first, which is the smoothed image and may be negative."""
    return torch.cat([maps[:, :1], (maps[:, 1:].clamp_min(0) + FLOOR).log()], dim=1)


def _of_noise(noise: Tensor, contrast: float, brightness: float, spread: float) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each map of noise images; the first as given, since noise says nothing of brightness.

    Args:
        noise: maps of images of variance 1, shape (count, paths, rows, columns).
        contrast: that all contrasts are multiplied by.
        brightness: mean of the first map.
        spread: deviation of the first map.
    """
    contrasts = (np.geomspace(*_CONTRASTS, len(noise)) * contrast).astype(np.float32)
    # scattering a multiple of an image multiplies its maps
    maps = _compressed(noise * torch.from_numpy(contrasts)[:, None, None, None]).transpose(0, 1).flatten(1)
    mean, deviation = maps.mean(1), maps.std(1)
    mean[0], deviation[0] = brightness, spread
    return mean, deviation


def _noise(size: list[int]) -> Tensor:
    """Noise images of variance 1 whose amplitude falls as one over the frequency; always the same ones."""
    height, width = size
    white = Seeded(0).stream(0, SERVER, "scattering noise").standard_normal((_REFERENCES, height, width))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = np.inf
    images = np.fft.ifft2(np.fft.fft2(white) / frequency).real
    return torch.from_numpy((images / images.std()).astype(np.float32))


def _transform(size: list[int], order: int) -> Any:
    # kymatio.torch would import its 3-D part too, which asks SciPy for a function that newer ones lack. On import
    # kymatio changes the filters of warnings, and compiling it warns of escapes in its docstrings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", SyntaxWarning)
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    return ScatteringTorch2D(J=SCALES, shape=tuple(size), L=ANGLES, max_order=order)


def _features(
    transform: Scattering, parts: list[Tensor], what: str, on_progress: Progress
) -> list[NDArray[np.float16]]:
    """Features of all images, on all processors; in 16 bits, whose rounding is far below what images differ by."""
    batch = max(1, _PIXELS // (parts[0].shape[-2] * parts[0].shape[-1]))
    total, done = sum(map(len, parts)), 0
    on_progress(0, total, what)
    found = []
    with _pool() as pool:
        for images in parts:
            features = np.empty((len(images), feature_count(tuple(images.shape[1:]))), np.float16)
            # closing drops what is still to be done, if this is interrupted
            waiting = deque(
                pool.submit(_one_batch, transform, images[start : start + batch])
                for start in range(0, len(images), batch)
            )
            start = 0
            try:
                while waiting:
                    one = waiting.popleft().result()
                    features[start : start + len(one)] = one
                    start += len(one)
                    on_progress(done + start, total, what)
            finally:
                # after an interrupt nobody waits for the rest
                for future in waiting:
                    future.cancel()
            done += len(images)
            found.append(features)
    return found


@torch.no_grad()
def _one_batch(transform: Scattering, images: Tensor) -> NDArray[np.float16]:
    features: NDArray[np.float16] = transform(images).to(torch.float16).numpy()
    return features


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """One thread for each processor, each with one of torch's."""
    threads = torch.get_num_threads()
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with ThreadPoolExecutor(workers, "discreet", torch.set_num_threads, (1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def _cells(side: int) -> int:
    """Cells of a grid, along a side of so many pixels."""
    return min(CELLS, side >> SCALES)


def _digest(data: Dataset) -> str:
    """A hash of everything that the features and their labels depend on."""
    digest = hashlib.sha256()
    for tensor in (data.train.inputs, data.train.targets, data.test.inputs, data.test.targets):
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    digest.update(json.dumps(data.classes).encode())
    return digest.hexdigest()
