"""Inputs from gradients: what a first linear layer gives away, and what can be found by matching gradients.

Two attacks on a gradient of a few examples:

* `from_first_layer`: with ``z = W x + b``, the gradient by row i of W is the sum over examples of ``delta_i x`` and that
  by b_i the sum of ``delta_i``. Of one example every row's quotient is x itself; of several, a mixture of those that
  neuron i lets through. No model is needed, nor one that is known. Of votes, the same product tells where x is 0. (Phong
  et al. 2017, arXiv 1706.06977.)
* `by_matching`: inputs whose gradient points the same way (Zhu et al. 2019, arXiv 1906.08935), by cosine similarity with
  total variation and steps by sign (Geiping et al. 2020, arXiv 2003.14053). It needs the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.cut import cut
from discreet.losses import Loss
from discreet.network import Network
from discreet.randomness import Seeded

STEPS = 240
"""Of matching."""

VARIATION = 1e-3
"""Weight of total variation, of pixels in units of their span, beside the cosine distance."""

SAME, OUTSIDE = 0.05, 0.02
"""Shares of the span: mixtures that differ by less than the first are one, and pixels further outside than the second
are none of an image's."""


@dataclass(frozen=True)
class Picture:
    """What is public of the inputs.

    Attributes:
        shape: (channels, height, width).
        low, high: the least and the largest value of a pixel.
    """

    shape: tuple[int, ...]
    low: float
    high: float

    @property
    def span(self) -> float:
        """What lies between black and white."""
        return self.high - self.low


def from_first_layer(network: Network, gradient: Tensor, picture: Picture, most: int) -> Tensor | None:
    """Inputs by dividing the first layer's rows.

    The first one is the mixture that fits all rows best. Behind it come single rows' mixtures: those that are images, by
    falling contrast (a mixture of few has more of it), then the others by how far outside they are.

    Args:
        network: the model's layers.
        gradient: float64, shape (n,); its length does not matter.
        picture: what is known of the inputs.
        most: so many at most.

    Returns:
        Float64, shape (C, *shape), C from 1 to `most`; None if the model does not begin with a linear layer that has a
        bias, or no neuron lets anything through.
    """
    parted = cut(network, len(picture.shape))
    if parted is None or not parted.bias:
        return None
    size = parted.hidden * parted.features
    rows, scales = gradient[:size].view(parted.hidden, -1), gradient[size : size + parted.hidden]
    if not float(scales.abs().max()):
        return None
    best = (scales @ rows) / scales.square().sum()
    usable = scales.abs() > 1e-6 * scales.abs().max()
    mixtures = rows[usable] / scales[usable, None]
    outside = (mixtures - mixtures.clamp(picture.low, picture.high)).abs().amax(1)
    contrast = mixtures.std(1, correction=0)
    order = torch.where(outside > OUTSIDE * picture.span, outside, -contrast - picture.span).argsort()
    chosen = [best]
    for place in order.tolist():
        if len(chosen) == most:
            break
        if all(float((mixtures[place] - one).abs().max()) > SAME * picture.span for one in chosen):
            chosen.append(mixtures[place])
    return torch.stack(chosen).view(-1, *picture.shape).clamp(picture.low, picture.high)


def by_matching(
    network: Network,
    loss: Loss,
    point: Tensor,
    gradient: Tensor,
    picture: Picture,
    labels: Sequence[int],
    randomness: Seeded,
    *,
    steps: int = STEPS,
) -> Tensor:
    """Inputs whose mean gradient points as `gradient` does.

    Args:
        network: the model's layers.
        loss: that it is trained with.
        point: parameters at which the gradient was taken, or a guess, shape (n,).
        gradient: shape (n,).
        picture: what is known of the inputs.
        labels: of the inputs that are looked for, one each; see `labels_from`.
        randomness: of the first guess.
        steps: how many.

    Returns:
        Float64, shape (len(labels), *shape).
    """
    stream = randomness.stream(0, -1, "inversion")
    start = stream.uniform(0.3, 0.7, size=(len(labels), *picture.shape))
    scaled = torch.from_numpy(start).to(point.device, torch.float32).requires_grad_()
    targets = torch.tensor(labels, device=point.device)
    free = point.to(torch.float32).requires_grad_()
    wanted = (gradient / gradient.norm().clamp(min=1e-300)).to(torch.float32)
    optimizer = torch.optim.Adam([scaled], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [math.ceil(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)], gamma=0.3
    )
    for _ in range(steps):
        with torch.enable_grad():
            outputs = network.apply(free, picture.low + picture.span * scaled)
            (own,) = torch.autograd.grad(loss(outputs, targets).mean(), free, create_graph=True)
            distance = 1 - own @ wanted / own.norm().clamp(min=1e-30)
            (slope,) = torch.autograd.grad(distance + VARIATION * _variation(scaled), scaled)
        scaled.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            scaled.clamp_(0, 1)
    return (picture.low + picture.span * scaled.detach()).double()


def labels_from(network: Network, gradient: Tensor, count: int) -> list[int]:
    """Classes of the examples in a gradient, by the last layer's: the one of a class is lower for each example of it.

    For losses whose slope by the outputs is a prediction minus the label's one-hot vector.

    Args:
        network: the model's layers; the last parameters are those of a linear layer.
        gradient: float64, shape (n,), the mean over the examples.
        count: how many examples.
    """
    last = network.layout[-1]
    left = gradient[last.offset :].view(last.shape).clone()
    if left.dim() > 1:  # no bias; what the last layer is given has been through a ReLU: it is not negative
        left = left.flatten(1).sum(1)
    found = []
    for _ in range(count):
        label = int(left.argmin())
        found.append(label)
        left[label] += 1 / count
    return found


def _variation(images: Tensor) -> Tensor:
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down
