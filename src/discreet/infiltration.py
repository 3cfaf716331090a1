"""From what an experiment says of its adversary to who is malicious, what they hold, and what they are measured by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from discreet.adversaries.malice import Malice
from discreet.adversaries.poisoned import aimed, poisoned
from discreet.adversaries.settings import Adversary, enlisted
from discreet.adversaries.success import Yardstick, yardstick
from discreet.config import Experiment
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.errors import ConfigError
from discreet.randomness import Seeded


@dataclass(frozen=True, eq=False)
class Infiltration:
    """Malicious clients in a federation.

    Attributes:
        adversary: the settings.
        clients: the malicious clients' numbers, in rising order.
        yardstick: what the attack is measured by.
    """

    adversary: Adversary
    clients: NDArray[np.int64]
    yardstick: Yardstick

    @property
    def malice(self) -> Malice | None:
        """What malicious clients do in a round; None where they run the protocol, on whatever data they hold."""
        return Malice(self.adversary, self.clients) if self.adversary.in_training else None

    def to(self, device: torch.device) -> Infiltration:
        """The same with test examples on a device."""
        return replace(self, yardstick=self.yardstick.to(device))


def infiltrated(
    experiment: Experiment, data: Dataset, partition: Partition, streams: Seeded
) -> tuple[Dataset, Partition, Infiltration | None]:
    """The data with forged examples, who then holds what, and who is malicious.

    Args:
        experiment: what was asked.
        data: the data set.
        partition: who holds what before anybody is malicious.
        streams: of the run.

    Raises:
        ConfigError: there is nobody, or nothing, to do the attack with.
    """
    adversary = experiment.adversary
    if adversary is None:
        return data, partition, None
    if partition.column_count > 1:
        raise ConfigError(
            "data.columns", partition.column_count, "1 with an adversary: malicious clients hold whole rows"
        )
    clients = enlisted(adversary, partition.clients, streams)
    if adversary.attack == "little-is-enough" and len(clients) < 2:
        raise ConfigError(
            "adversary.attack", adversary.attack, "at least 2 malicious clients, whose updates have a spread"
        )
    aim = aimed(adversary, data.classes)
    measured_by = yardstick(adversary, aim, data.train, data.test)
    holdings = [partition.indices(row) for row in range(partition.rows)]
    train, held = poisoned(adversary, aim, data.train, holdings, clients.tolist(), streams)
    if train is not data.train:
        offsets = np.concatenate([[0], np.cumsum([len(own) for own in held])]).astype(np.int64)
        partition = Partition(np.concatenate(held).astype(np.int64), offsets)
        data = replace(data, train=train)
    return data, partition, Infiltration(adversary, clients, measured_by)
