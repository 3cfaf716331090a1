"""What one party of a federation needs to play: the task, with its own data and everybody's public facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.config import Experiment
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.dealing import load_data
from discreet.errors import ConfigError, LocalProtocolError, UserError
from discreet.federation.requests import MOST_EXAMPLES
from discreet.preparation import Federation, prepare
from discreet.randomness import Keyed, Seeded, SystemRandom
from discreet.schemes.base import Scheme
from discreet.schemes.traits import Narrowed


@dataclass(frozen=True)
class Facts:
    """Who holds how much of what: public.

    Attributes:
        sizes: examples of each row, or see `told_under`.
        columns: features of each column; empty where everybody has all.
    """

    sizes: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, partition: Partition) -> Facts:
        """Those of a partition."""
        columns = () if partition.columns is None else tuple(tuple(own.tolist()) for own in partition.columns)
        return cls(tuple(partition.sizes.tolist()), columns)

    @property
    def sites(self) -> int:
        """How many there are."""
        return len(self.sizes) * max(1, len(self.columns))

    def of_site(self, number: int) -> tuple[int, tuple[int, ...]]:
        """How many examples a site holds, and which features; none where everybody has all."""
        columns = max(1, len(self.columns))
        return self.sizes[number // columns], self.columns[number % columns] if self.columns else ()

    def told_under(self, scheme: Scheme[Any, Any]) -> Facts:
        """What of them is told: of a scheme that does not go by numbers of examples, 1 for who has any."""
        if scheme.counts_examples:
            return self
        return replace(self, sizes=tuple(min(size, 1) for size in self.sizes))

    def known_to(self, number: int, examples: int) -> Facts:
        """The same for a site that knows how many examples it has itself."""
        sizes = list(self.sizes)
        sizes[number // max(1, len(self.columns))] = examples
        return replace(self, sizes=tuple(sizes))

    @property
    def is_dealt_once(self) -> bool:
        """Whether every column has features, and each feature is in one."""
        dealt = sorted(place for own in self.columns for place in own)
        return all(self.columns) and dealt == list(range(len(dealt)))

    def partition(self, held: int) -> Partition:
        """A partition with these facts for a party that holds `held` examples: of its own row, the right ones.

        Raises:
            UserError: there are more than `MOST_EXAMPLES`; it names the site that says it has most.
        """
        if sum(self.sizes) > MOST_EXAMPLES:
            most = int(np.argmax(self.sizes))
            raise UserError(
                f"site {most * max(1, len(self.columns))} says it holds {self.sizes[most]} examples: "
                f"expected at most {MOST_EXAMPLES} of all sites together"
            )
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        # memory that is not written to is never taken: a site's word for what it holds costs others nothing
        order = np.zeros(offsets[-1], dtype=np.int32)
        for row in np.flatnonzero(np.array(self.sizes) == held).tolist():
            order[offsets[row] : offsets[row + 1]] = np.arange(held)
        columns = tuple(np.array(own, dtype=np.int64) for own in self.columns) or None
        return Partition(order, offsets, columns)


def check_playable(experiment: Experiment) -> None:
    """Refuse what makes no sense between real sites.

    Raises:
        ConfigError: it names the key.
    """
    if experiment.scheme.pooled:
        raise ConfigError(
            "scheme.name", experiment.scheme_name, "a scheme whose sites keep their data: this one pools it"
        )
    if experiment.dropouts.silent:
        raise ConfigError(
            "dropouts", experiment.dropouts, "to be left out: real sites drop out by themselves"
        )
    if experiment.adversary is not None:
        raise ConfigError("adversary", experiment.adversary.attack, "to be left out: attacks are simulated")
    for name in ("model", "loss", "partition"):
        if name in experiment.given:
            raise ConfigError("given", experiment.given, "a model and a loss that sites can import by name")


def deployed(experiment: Experiment) -> Experiment:
    """The experiment as sites play it: each alone, so that nothing is stacked unless it is asked for."""
    engine = experiment.engine
    lanes = 1 if engine.lanes == "auto" else engine.lanes
    return replace(experiment, engine=replace(engine, lanes=lanes, workers=1), given=[])


def prepared(
    experiment: Experiment,
    facts: Facts | None,
    data: Dataset | None,
    data_dir: Path | str | None,
) -> Federation:
    """A party's federation.

    Args:
        experiment: resolved, or not.
        facts: of the sites; None to take those of the experiment's own partition.
        data: the party's own; None for the data set that the experiment names.
        data_dir: where that is looked for first.

    Raises:
        UserError: something cannot be done.
    """
    folder, own = None if data_dir is None else Path(data_dir), data is not None
    if data is None:
        found = prepare(experiment, data_dir=folder)
        if facts is None or Facts.of(found.partition).told_under(experiment.scheme) == facts:
            return found
        data = load_data(experiment, folder)
    if (
        facts is None
    ):  # nobody has said yet who holds what: as many sites as are expected, each with all of it
        expected = experiment.data
        count = expected.rows * expected.columns if expected.partition == "grid" else expected.clients
        facts = Facts((min(len(data.train), MOST_EXAMPLES // count),) * count)
    partition = facts.partition(len(data.train))
    found = prepare(experiment, data=data, partition=partition, keep=not own)
    return replace(found, experiment=replace(found.experiment, given=[]))


def with_streams(
    federation: Federation,
    randomness: Seeded | Keyed,
    secrets: Seeded | SystemRandom | None,
) -> Federation:
    """The same for a party whose random numbers come from elsewhere; what all draw alike is from the seed."""
    coins = Seeded(federation.experiment.seed)
    task = replace(federation.task, randomness=randomness, secrets=secrets, coins=coins)
    return replace(federation, task=task)


def template(federation: Federation, participant: int) -> Any:
    """A payload such as a participant is sent at the beginning of a round: of the shapes and types of all others."""
    scheme, task = federation.scheme, federation.task
    payload = scheme.broadcast(task, scheme.init(task), 1)
    return scheme.sent_to(task, payload, participant) if isinstance(scheme, Narrowed) else payload


def written(payload: Any) -> bytes:
    """The tensors of a payload as they are sent: one after another, each as it lies in memory."""
    return b"".join(_bytes_of(tensor) for _, tensor in _tensors(payload))


def read(data: bytes, like: Any, round: int) -> Any:
    """The payload in `data`.

    Args:
        data: what was received.
        like: a payload of its shapes and types.
        round: that it is of.

    Raises:
        LocalProtocolError: it has another length, or numbers that are not finite.
    """
    tensors = dict(_tensors(like))
    if len(data) != sum(tensor.nbytes for tensor in tensors.values()):
        raise LocalProtocolError("payload: of another length")
    found: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        found[name] = as_tensor(data[at : at + tensor.nbytes], tensor.dtype).view(tensor.shape)
        found[name] = found[name].to(tensor.device)
        at += tensor.nbytes
    if "round" in {field.name for field in fields(like)}:
        found["round"] = round
    return replace(like, **found)


def as_tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    """Numbers as they lie in memory, shape (count,).

    Raises:
        LocalProtocolError: the bytes do not come out even, or a number is not finite.
    """
    if len(data) % dtype.itemsize:
        raise LocalProtocolError("numbers: cut off")
    if not data:
        return torch.empty(0, dtype=dtype)
    found = torch.frombuffer(bytearray(data), dtype=dtype)
    if dtype.is_floating_point and not found.isfinite().all():
        raise LocalProtocolError("numbers: not finite")
    return found


def as_bytes(tensor: Tensor) -> bytes:
    """The inverse of `as_tensor`."""
    return _bytes_of(tensor)


def facts_of(sizes: Sequence[int], columns: Sequence[Sequence[int]]) -> Facts:
    """Facts from what was received."""
    return Facts(tuple(sizes), tuple(tuple(own) for own in columns))


def _tensors(payload: Any) -> list[tuple[str, Tensor]]:
    values = [(field.name, getattr(payload, field.name)) for field in fields(payload)]
    return [(name, value) for name, value in values if isinstance(value, Tensor)]


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
