"""Dropout whose mask is a pure function of a key, so that it does not matter which clients are stacked together.

torch's own dropout draws from one global generator: a client's mask would depend on which other clients were
worked on before it, or beside it. `StreamDropout` hashes (key, layer, call, index of the element) instead. The
key is a buffer, so `torch.func.functional_call` gives every lane its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_CALLS = 1 << 20

_DROPOUTS: Mapping[type[nn.Module], int | None] = {
    nn.Dropout: None,
    nn.Dropout1d: 2,
    nn.Dropout2d: 0,  # torch reads three dimensions as (batch, channels, length)
    nn.Dropout3d: 4,
}


def signed64(value: int) -> int:
    """`value` modulo 2^64, as the int64 with the same bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def mix(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, **in place**: a bijection of 64-bit words in which every bit sways every other.

    Args:
        words: int64, any shape; read as unsigned, products modulo 2^64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's
    constants (variant 13).
    """
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words.bitwise_xor_(_shifted(words, shift)).mul_(signed64(factor))
    return words.bitwise_xor_(_shifted(words, 31))


def _shifted(words: Tensor, shift: int) -> Tensor:
    # int64 shifts copy the sign in; the mask makes the shift a logical one
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def random_words(state: Tensor, count: int) -> Tensor:
    """The first `count` words of the SplitMix64 generator started at `state` (a scalar int64)."""
    steps = torch.arange(1, count + 1, dtype=torch.int64, device=state.device)
    return mix(steps.mul_(signed64(_GOLDEN)) + state)


class StreamDropout(nn.Module):
    """Dropout with probability `p`, the mask a function of the buffer `key` and the element's place.

    The mask does not depend on the size of the batch: row i is treated alike in a batch of 5 and of 50.

    Args:
        p: probability of a zero, in [0, 1]; what is kept is multiplied by 1 / (1 - p).
        layer: this layer's number, so that two layers under one key have different masks.
        inplace: change the input itself, as the layer replaced did.
        unbatched: what is dropped: None for single elements; otherwise whole channels, the first dimension of
            inputs with `unbatched` dimensions and the second of all others.
    """

    key: Tensor

    def __init__(
        self, p: float, layer: int = 0, *, inplace: bool = False, unbatched: int | None = None
    ) -> None:
        super().__init__()
        self.p, self.layer, self.inplace, self.unbatched = p, layer, inplace, unbatched
        self.calls = 0
        self.register_buffer("key", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        """The settings, for the module's printed form."""
        return f"p={self.p}, layer={self.layer}, inplace={self.inplace}, unbatched={self.unbatched}"

    def forward(self, values: Tensor) -> Tensor:
        """`values`, dropped out in training; unchanged otherwise."""
        if not self.training or self.p == 0:
            return values
        kept = self._kept(values).to(values.dtype)
        factor = kept if self.p == 1 else kept * (1 / (1 - self.p))
        return values.mul_(factor) if self.inplace else values * factor

    def _kept(self, values: Tensor) -> Tensor:
        shape = list(values.shape)
        if self.unbatched is not None:
            whole = 1 if values.dim() == self.unbatched else 2
            shape[whole:] = [1] * (values.dim() - whole)
        # a layer used twice in one forward pass has two masks
        place = random_words(torch.tensor(self.layer * _CALLS + self.calls), 1).item()
        self.calls += 1
        uniform = _shifted(random_words(mix(self.key ^ place), math.prod(shape)), 11)
        return (uniform >= round(self.p * 2**53)).view(shape)


def replace_dropout(module: nn.Module) -> nn.Module:
    """Replace, in `module` itself, every torch dropout layer by a `StreamDropout`; return the module.

    A layer that is registered in several places stays one layer.
    """
    replaced: dict[int, StreamDropout] = {}
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        # subclasses may do anything in their forward: only the four layers themselves are understood
        if not path or type(layer) not in _DROPOUTS:
            continue
        if id(layer) not in replaced:
            replaced[id(layer)] = StreamDropout(
                float(layer.p), len(replaced), inplace=bool(layer.inplace), unbatched=_DROPOUTS[type(layer)]
            )
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, replaced[id(layer)])
    if replaced:
        module.register_forward_pre_hook(_restart_calls)
    return module


def _restart_calls(module: nn.Module, _inputs: object) -> None:
    for layer in module.modules():
        if isinstance(layer, StreamDropout):
            layer.calls = 0
