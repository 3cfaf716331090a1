"""Which layers a scale passes through: the positively homogeneous ones, and why the others are none."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from discreet.dropout import StreamDropout

SUPPORTED = (
    "Linear, Conv1d, Conv2d, ReLU, LeakyReLU, PReLU, max and average pooling, BatchNorm with stored statistics, "
    "Flatten, Dropout, Identity, and Sequential, Residual and Concatenation of these"
)

POOLINGS: Mapping[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
}
"""Poolings, and over how many dimensions: each works within a channel, and scales as its inputs do."""

CONVOLUTIONS: Mapping[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2}

BATCH_NORMS: Mapping[type[nn.Module], int] = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2}

ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.PReLU,
    StreamDropout,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
)
"""What works on each element alone and satisfies ``f(r x) = r f(x)`` for r > 0."""

_CURVED = (
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.Mish,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Softmax,
    nn.LogSoftmax,
    nn.Softsign,
    nn.Hardtanh,  # and ReLU6, which is one
    nn.Hardsigmoid,
    nn.Hardswish,
)
_NORMALISING = (nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
_ATTENDING = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def why_not(layer: nn.Module) -> str:
    """Why scales do not pass through a layer, and what would do instead."""
    if isinstance(layer, _BatchNorm):
        if layer.running_mean is None or layer.training:
            return (
                "normalises with the batch's own statistics, which depend on the scales: use stored ones "
                "(track_running_stats=True)"
            )
        return "takes inputs of three dimensions or is of a kind of its own: use BatchNorm1d or BatchNorm2d"
    if isinstance(layer, _CURVED):
        return "is not positively homogeneous, f(r x) = r f(x): use ReLU, LeakyReLU or PReLU"
    if isinstance(layer, _NORMALISING):
        return "divides by the size of its own input, which takes the scales away: use BatchNorm with stored statistics"
    if isinstance(layer, _ATTENDING):
        return "multiplies its inputs with each other, and so their scales: attention cannot be perturbed"
    return f"is none of the layers that scales are known to pass through: {SUPPORTED}"
