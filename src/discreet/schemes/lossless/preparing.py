"""What follows from a task before anything is trained: how its network is read, and whether its loss will do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discreet.errors import ConfigError, ModelError
from discreet.losses import called
from discreet.schemes.lossless.layout import Layout
from discreet.schemes.lossless.quadratic import curvature
from discreet.schemes.lossless.reading import read
from discreet.schemes.lossless.structure import Structure
from discreet.training import Learner


@dataclass(frozen=True, eq=False)
class Prepared:
    """What follows from a task.

    Attributes:
        layout: of the contributions.
        curvature: Q, of the loss, shape (n_L, n_L); empty without additive noise.
        learner: the task's, with its network in the type of the computation.
    """

    layout: Layout
    curvature: Tensor
    learner: Learner

    @property
    def structure(self) -> Structure:
        """How the network is read."""
        return self.layout.structure


def prepared(learner: Learner, m: int, dtype: torch.dtype) -> Prepared:
    """Read a network, and check that it can be perturbed.

    Args:
        learner: model and loss.
        m: groups of outputs with additive noise; 0 for none.
        dtype: of what is computed and sent.

    Raises:
        ModelError: the network has a layer that cannot be perturbed, or there is additive noise and the loss is not
            quadratic in the outputs.
        ConfigError: there are more groups than outputs.
    """
    structure = read(learner.network, learner.shape)
    curved = curvature(learner.loss, structure.outputs) if m else torch.empty(0)
    if curved is None:
        name = called(learner.loss)
        raise ModelError(
            "lossless perturbation takes additive noise off the gradients of losses that are quadratic in the outputs, "
            f"and {name} is not: set model.loss = 'squared-error', or scheme.rho = 0 for no additive noise"
        )
    if m > structure.outputs:
        raise ConfigError("scheme.m", m, f"1 to {structure.outputs}, the model's outputs")
    network = replace(learner.network, module=learner.network.replica().to(dtype))
    return Prepared(Layout(structure, m), curved, replace(learner, network=network))
