"""A perturbed model in the hands of a participant, and what is left of it once the noise on its outputs is guessed.

With the notation of `discreet.schemes.lossless`: a participant computes ``yhat = y + alpha * r`` and ``alpha`` itself,
with ``r_i = gamma_s r^a_i`` for the outputs of group s. All that is hidden of the noise on the outputs is m numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.evaluation import PIECE
from discreet.network import Network
from discreet.schemes.lossless.noise import Perturbed, Secret, last_layer, preimage
from discreet.schemes.lossless.probing import true_hidden
from discreet.schemes.lossless.structure import Structure
from discreet.view import View


@dataclass(frozen=True, eq=False)
class Disguised:
    """What a participant can compute with what it was sent.

    Attributes:
        network: the model's layers, which are public.
        structure: which scales it has, which follows from them.
        payload: of a round.
    """

    network: Network
    structure: Structure
    payload: Perturbed

    @classmethod
    def of(cls, view: View, network: Network, structure: Structure) -> tuple[Disguised, ...]:
        """The models that a party was sent, in order.

        Args:
            view: the party's.
            network: the model's layers.
            structure: their scales, as `discreet.schemes.lossless.reading.read` tells them.
        """
        sent = view.payloads().values()
        return tuple(cls(network, structure, one) for one in sent if isinstance(one, Perturbed))

    @property
    def vector(self) -> Tensor:
        """The parameters that were sent, float64, shape (n,)."""
        return self.payload.vector.double()

    @property
    def ratios(self) -> Tensor:
        """r^a, float64, shape (n_L,)."""
        return self.payload.ratios.double()

    def run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The perturbed outputs, and alpha.

        Args:
            inputs: shape (B, ...).

        Returns:
            Float64, shapes (B, n_L) and (B,).
        """
        weight, bias = last_layer(self.structure, self.vector)
        outputs, alphas = [weight.new_empty(0, len(weight))], [weight.new_empty(0)]
        for some in torch.split(inputs, PIECE):
            hidden = true_hidden(self.network, self.structure, self.vector, some.double())
            outputs.append(hidden @ weight.T if bias is None else hidden @ weight.T + bias)
            alphas.append(hidden.sum(1) + float(self.structure.bias))
        return torch.cat(outputs), torch.cat(alphas)

    def as_it_comes(self, inputs: Tensor) -> Tensor:
        """The perturbed outputs, float64, shape (B, n_L)."""
        return self.run(inputs)[0]

    def by_group(self, values: Tensor) -> Tensor:
        """Sums of values, shape (n_L,), over the outputs of each group: shape (m,)."""
        found = values.new_zeros(self.payload.m)
        return found.index_add(0, self.payload.groups, values)


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an attack found of a round's noise.

    Attributes:
        disguised: the model that it is about.
        gamma: float64, shape (m,).
    """

    disguised: Disguised
    gamma: Tensor

    @property
    def shift(self) -> Tensor:
        """r, by which outputs are moved for each unit of alpha: float64, shape (n_L,)."""
        payload = self.disguised.payload
        if not payload.m:
            return self.gamma.new_zeros(self.disguised.structure.outputs)
        return self.gamma[payload.groups] * self.disguised.ratios

    def outputs(self, inputs: Tensor) -> Tensor:
        """Predictions without the noise, of any inputs, shape (B, ...): float64, shape (B, n_L)."""
        noisy, alpha = self.disguised.run(inputs)
        return noisy - torch.outer(alpha, self.shift)

    def vector(self) -> Tensor:
        """The model without the noise, its scales guessed too, see `guessed_scales`: float64, shape (n,)."""
        structure = self.disguised.structure
        secret = Secret(guessed_scales(structure, self.disguised.vector), self.gamma.cpu())
        return preimage(structure, self.disguised.payload, secret)


def guessed_scales(structure: Structure, vector: Tensor) -> Tensor:
    """The scales of hidden neurons or channels, from the sizes of their weights alone.

    In a layer, all have weights of like size before they are scaled; scales are 1 in the geometric mean.

    Args:
        structure: of the network.
        vector: the perturbed model's parameters, float64, shape (n,).

    Returns:
        Float64, shape (scales,); number 0 is 1.
    """

    def of_layer(place: slice, into: Tensor, out: Tensor, new: Tensor) -> Tensor:
        weights = vector[place].cpu() * into
        sizes = torch.zeros(structure.scales, dtype=torch.float64).index_add(0, out, weights.square())
        logarithms = sizes[new].clamp(min=1e-300).log() / 2
        return (logarithms - logarithms.mean()).exp()

    return _layer_by_layer(structure, of_layer)


def rescaling(structure: Structure, before: Tensor, after: Tensor) -> Tensor:
    """By what factors scales have changed between two rounds, if the true weights have hardly changed.

    Args:
        structure: of the network.
        before: parameters that were sent in one round, float64, shape (n,).
        after: in a later one.

    Returns:
        ``r' / r``, float64, shape (scales,); number 0 is 1.
    """
    nothing = torch.zeros(structure.scales, dtype=torch.float64)

    def of_layer(place: slice, into: Tensor, out: Tensor, new: Tensor) -> Tensor:
        first, second = before[place].cpu(), after[place].cpu() * into
        along = nothing.index_add(0, out, first * second)[new]
        sizes = nothing.index_add(0, out, first.square())[new]
        usable = (along > 0) & (sizes > 0)
        return torch.where(usable, along / torch.where(usable, sizes, 1.0), 1.0)

    return _layer_by_layer(structure, of_layer)


def _layer_by_layer(
    structure: Structure, of_layer: Callable[[slice, Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Scales, float64, shape (scales,), found from the first parameter to the last; number 0 is 1.

    `of_layer` is asked about a parameter's place in the vector, the scales that its elements' inputs have, the numbers
    of those of their outputs, and which of the latter are still to be found; it gives these.
    """
    found = torch.ones(structure.scales, dtype=torch.float64)
    known = torch.zeros(structure.scales, dtype=torch.bool)
    known[0] = True
    for rule, shape in zip(structure.rules, structure.slots, strict=True):
        out = rule.out.expand(shape).reshape(-1)
        reached = torch.zeros_like(known)
        reached[out] = True
        new = (reached & ~known).nonzero().flatten()
        if len(new):
            into = found[rule.into].expand(shape).reshape(-1)
            found[new] = of_layer(structure.places[rule.name], into, out, new)
            known[new] = True
    return found
