"""Networks that can be perturbed, data for them, and gradients of the true model from autograd alone."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from discreet.blocks import Concatenation, Residual
from discreet.cohort import Examples
from discreet.data.dataset import Dataset
from federations import SIZES, deal

CLIENTS = list(range(len(SIZES)))
CLASSES = 3
IMAGE = (2, 8, 8)


def images(shape=IMAGE, targets=CLASSES, train=90, test=30, seed=0):
    """Noise as of pixels, with class numbers, or with values where `targets` is negative (so many of them)."""
    rng = np.random.default_rng(seed)
    count = train + test
    inputs = torch.from_numpy(rng.random(size=(count, *shape))).float()
    if targets > 0:
        wanted = torch.from_numpy(rng.integers(0, targets, count))
    else:
        wanted = torch.from_numpy(rng.normal(size=(count, -targets))).float()
    return Dataset(
        "noise",
        "images",
        Examples(inputs[:train], wanted[:train]),
        Examples(inputs[train:], wanted[train:]),
        tuple(map(str, range(targets))) if targets > 0 else None,
    )


def chain():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(128, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, CLASSES)
    )


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(128, CLASSES))


def without_biases():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(128, 12, bias=False), nn.ReLU(), nn.Linear(12, CLASSES, bias=False)
    )


def nested():
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(128, 12), nn.LeakyReLU(0.2)),
        nn.Identity(),
        nn.Sequential(nn.Linear(12, 7), nn.PReLU(), nn.Sequential(nn.Linear(7, CLASSES))),
    )


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, groups=2, bias=False, padding=1, padding_mode="circular"),
        nn.PReLU(8),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 8, 1, groups=8),
        nn.LeakyReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def one_dimensional():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(4, 4, 2),
        nn.AvgPool1d(2),
        nn.AdaptiveMaxPool1d(2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


def with_statistics(module, seed=3):
    """The module with some statistics in its BatchNorms, as after training elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            size = layer.running_mean.shape
            layer.running_mean = 0.3 * torch.randn(size, generator=generator)
            layer.running_var = 0.5 + torch.rand(size, generator=generator)
            if layer.affine:
                with torch.no_grad():
                    layer.weight.uniform_(0.5, 1.5, generator=generator)
                    layer.bias.normal_(std=0.3, generator=generator)
    return module


def normalised():
    return with_statistics(
        nn.Sequential(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 5, 3, bias=False),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.BatchNorm1d(20),
            nn.Linear(20, CLASSES),
        )
    )


def unscaled_norm():
    return nn.Sequential(
        nn.Conv2d(2, 5, 3),
        nn.BatchNorm2d(5, affine=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(180, CLASSES),
    )


def residual():
    def body(inward, outward):
        return nn.Sequential(
            nn.Conv2d(inward, outward, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outward, outward, 3, padding=1, bias=False),
            nn.BatchNorm2d(outward),
        )

    return with_statistics(
        nn.Sequential(
            Residual(body(2, 2)),  # around it the inputs, whose scale is 1
            nn.ReLU(),
            Residual(body(2, 4), nn.Conv2d(2, 4, 1)),
            nn.ReLU(),
            Residual(body(4, 4)),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            Residual(nn.Linear(4, 4)),
            nn.Linear(4, CLASSES),
        )
    )


def concatenation():
    return nn.Sequential(
        Concatenation(
            nn.Conv2d(2, 3, 1), nn.Identity(), nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU())
        ),
        Residual(nn.Conv2d(7, 7, 3, padding=1)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        Concatenation(nn.Linear(112, 4), nn.Linear(112, 2)),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )


NETWORKS = {
    make.__name__: make
    for make in (
        chain,
        linear,
        without_biases,
        nested,
        convolutions,
        one_dimensional,
        normalised,
        unscaled_norm,
        residual,
        concatenation,
    )
}
SHAPES = {"one_dimensional": (2, 24)}


def made(name, seed=0):
    """One of the networks, with weights from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


def true_gradient(module, examples, rows, loss):
    """The mean gradient by autograd in float64, in evaluation mode; shape (n,)."""
    module = copy.deepcopy(module).double().eval()
    rows = torch.as_tensor(rows)
    value = loss(module(examples.inputs[rows].double()), examples.targets[rows]).mean()
    found = torch.autograd.grad(value, list(module.parameters()))
    return torch.cat([one.flatten() for one in found])


def held():
    """All examples that the clients of the usual partition hold together."""
    return deal().order


def relative(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


def half_squares(outputs, targets):
    """Half squared distances, written apart from the package."""
    if not targets.is_floating_point():
        targets = nn.functional.one_hot(targets, outputs.shape[1])
    return ((outputs - targets) ** 2).sum(1) / 2
