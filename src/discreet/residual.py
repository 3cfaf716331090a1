"""Residual networks for small images, without normalisation.

Batch normalisation takes its statistics from the examples of a batch, so that an example's output depends on the
others and participants' statistics differ. Here there is none, and what it is needed for at the start, that blocks
do not make the numbers larger and larger, is done by the first weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from discreet.blocks import Residual
from discreet.errors import ConfigError, ModelError
from discreet.options import positive


def resnet(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    blocks: int = 3,
    widths: Sequence[int] = (16, 32, 64),
) -> nn.Module:
    """The residual network for CIFAR-10 of 6 * `blocks` + 2 layers: by default ResNet-20.

    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2: a 3 x 3 convolution;
    three stages of blocks of two 3 x 3 convolutions, of which the second and the third stage begin by halving height
    and width; the average over all pixels; a linear layer. On 3 x 32 x 32 and 10 classes it has 271,690 parameters.

    What differs from the source:

    * No normalisation: convolutions have biases instead. The last convolution of each block starts at 1 / sqrt(number
      of blocks) times He's weights, so that all blocks together make the outputs larger by a constant and not by a
      power of their number (Hayou et al., "Stable ResNet", AISTATS 2021, with constant scaling).
    * Where a stage changes width, the shortcut is a 1 x 1 convolution (option B of the source) and not zero padding.

    All layers but the additions are linear or ReLU, so that the network is positively homogeneous: if the two branches
    of each addition are scaled alike, its outputs are.

    Args:
        input_shape: (channels, height, width), at least one pixel for each stage's halving: 4 each way.
        outputs: how many.
        blocks: in each stage, at least 1; 3, 5, 7, 9 give ResNet-20, -32, -44, -56.
        widths: channels of the stages, each at least 1.

    Raises:
        ModelError: the inputs are not such images.
        ConfigError: an option's value cannot be.
    """
    widths = positive("widths", widths)
    if not widths:
        raise ConfigError("model.widths", list(widths), "one number or more, one for each stage")
    if type(blocks) is not int or blocks < 1:
        raise ConfigError("model.blocks", blocks, "a whole number of at least 1")
    least = 2 ** (len(widths) - 1)
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ModelError(
            f"model resnet: inputs have shape {input_shape}: expected images of shape (channels, height, width), "
            f"at least {least} x {least} pixels"
        )
    share = (blocks * len(widths)) ** -0.5
    layers: list[nn.Module] = [_convolution(input_shape[0], widths[0]), nn.ReLU()]
    for stage, (inward, outward) in enumerate(pairwise((widths[0], *widths))):
        for place in range(blocks):
            first = place == 0
            layers += [
                _block(inward if first else outward, outward, 2 if first and stage else 1, share),
                nn.ReLU(),
            ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], outputs))


def _block(inward: int, outward: int, stride: int, share: float) -> Residual:
    last = _convolution(outward, outward)
    with torch.no_grad():
        last.weight.mul_(share)
    body = nn.Sequential(_convolution(inward, outward, stride=stride), nn.ReLU(), last)
    if inward == outward and stride == 1:
        return Residual(body)
    return Residual(body, _convolution(inward, outward, side=1, stride=stride))


def _convolution(inward: int, outward: int, side: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size but for its stride, with He's first weights and no bias to begin with."""
    layer = nn.Conv2d(inward, outward, side, stride=stride, padding=side // 2)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
