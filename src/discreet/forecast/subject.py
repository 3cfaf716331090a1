"""What is learnt and by how many, as far as a plan needs it: without reading the data where that can be avoided."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from discreet import losses, models
from discreet.cohort import Grid
from discreet.config import Experiment
from discreet.data.dataset import Dataset
from discreet.data.shapes import Shape, shape_of
from discreet.dealing import deal, load_data
from discreet.errors import LocalProtocolError
from discreet.network import Network, Slot
from discreet.randomness import Seeded
from discreet.schemes.base import Task
from discreet.training import Learner


def subject(
    experiment: Experiment, data_dir: Path | None, *, parameters: int | None, clients: int | None
) -> tuple[Task, int]:
    """A task that is fit for counting messages, and how many clients there are.

    Args:
        experiment: what is going to run.
        data_dir: where data sets are looked for first, where one must be read.
        parameters: of the model; None for those of the experiment's.
        clients: how many there are; None for those of the experiment.

    Raises:
        UserError: the model cannot be made, or data that must be read cannot be.
    """
    chosen = experiment.data
    shape = shape_of(
        chosen.name,
        max_tokens=chosen.max_tokens,
        vocabulary=chosen.vocabulary,
        image_size=chosen.image_size,
        features=chosen.features,
    )
    natural = chosen.partition == "column" and clients is None
    data = load_data(experiment, data_dir) if natural or (shape is None and parameters is None) else None
    counted = clients or _clients(experiment, data)
    if parameters is not None:
        return _task(_of_size(parameters), (), experiment, counted), counted
    classes = True
    if data is not None:
        shape, classes = Shape(data.shape, data.outputs, data.vocabulary), data.classes is not None
        probe = data.train.gather(torch.arange(2) % len(data.train))[0]
    elif shape is not None:
        classes = shape.classes
        probe = _any_inputs(shape)
    else:
        raise LocalProtocolError(f"the inputs of {chosen.name} are not known")
    if chosen.task == "reconstruct":
        shape, classes = replace(shape, outputs=prod(shape.inputs)), False
    network = models.build(
        experiment.model.name,
        shape=shape.inputs,
        outputs=shape.outputs,
        vocabulary=shape.vocabulary,
        options=experiment.model.options,
        randomness=Seeded(experiment.seed),
        probe=probe,
        classes=classes,
    )
    return _task(network, shape.inputs, experiment, counted), counted


def _task(network: Network, shape: tuple[int, ...], experiment: Experiment, clients: int) -> Task:
    cpu = torch.device("cpu")
    # which loss it is does not matter to messages, but to whether there can be any: this one fits all schemes
    loss = losses.squared_error
    learner = Learner(network, loss, "autograd", 1, cpu, dimensions=max(1, len(shape)), shape=shape)
    return Task(learner, Seeded(experiment.seed), grid=Grid(np.ones(clients, np.int64)))


def _clients(experiment: Experiment, data: Dataset | None) -> int:
    chosen = experiment.data
    if chosen.partition == "column" and data is not None:
        return deal(experiment, data, None, Seeded(experiment.seed)).clients
    return chosen.rows * chosen.columns if chosen.partition == "grid" else chosen.clients


def _any_inputs(shape: Shape) -> Tensor:
    """Two inputs to try a model on."""
    size, draws = (2, *shape.inputs), torch.Generator().manual_seed(0)
    if shape.vocabulary is not None:
        return torch.randint(shape.vocabulary, size, generator=draws)
    return torch.rand(size, generator=draws)


def _of_size(parameters: int) -> Network:
    """A model of which nothing is known but its size."""
    nothing = nn.Module()
    return Network(nothing, nothing, None, (Slot("parameters", (parameters,), 0, parameters),), ())
