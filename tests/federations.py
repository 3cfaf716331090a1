"""Small federations that tests share, and a driver written apart from `discreet.simulation`."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from discreet import preparation
from discreet.cohort import Examples
from discreet.config import Data, Engine, Experiment, Model, Privacy
from discreet.data.dataset import Dataset
from discreet.data.partition import Partition
from discreet.rounds import play_round
from discreet.schemes import SCHEMES, Lossless
from discreet.schemes.base import Total
from discreet.secure.groups import Reals
from discreet.secure.ring import Ring

SIZES = (7, 13, 0, 4, 20, 1, 9, 5)
"""Examples of each client: unequal, one client with none, one with a single one."""

LANES = 3
TIMES = ("seconds", "evaluation_seconds")
NOISY = Privacy(noise_multiplier=0.5)
SMALL = {"steps": 3, "batch_size": 4, "lot_size": 8, "learning_rate": 0.1}


def dataset(train=90, test=30, features=6, classes=3, seed=0):
    """Gaussian blobs; with `classes` 0, a noisy linear regression on two outputs."""
    rng = np.random.default_rng(seed)
    count = train + test
    if classes:
        targets = rng.integers(0, classes, count)
        inputs = rng.normal(size=(classes, features))[targets] + rng.normal(size=(count, features))
    else:
        inputs = rng.normal(size=(count, features))
        targets = (inputs @ rng.normal(size=(features, 2)) + 0.1 * rng.normal(size=(count, 2))).astype(
            np.float32
        )
    inputs, targets = torch.from_numpy(inputs).float(), torch.from_numpy(targets)
    return Dataset(
        "blobs",
        "table",
        Examples(inputs[:train], targets[:train]),
        Examples(inputs[train:], targets[train:]),
        tuple(map(str, range(classes))) if classes else None,
    )


def with_inputs(data, inputs):
    """The data set with other training inputs."""
    return dataclasses.replace(data, train=Examples(inputs, data.train.targets))


def deal(sizes=SIZES, first=2):
    """Clients that hold so many examples each, in order, from example `first` on."""
    order = np.arange(first, first + sum(sizes))
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def scheme(name, **changes):
    """A scheme with small settings, of those that it has."""
    kind = SCHEMES[name]
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in (SMALL | changes).items() if key in known})


def experiment(chosen, *, rounds=3, lanes=LANES, gradients="auto", workers=1, widths=(5,), **changes):
    """`chosen`, a scheme or its name, on a small network; `widths` None where a test brings its own.

    Differentially private schemes get noise, and are summed in the clear, unless a test says otherwise.
    """
    chosen = scheme(chosen) if isinstance(chosen, str) else chosen
    if chosen.private:
        changes = {"privacy": NOISY, "secure": "none"} | changes
    return Experiment(
        data=Data(clients=len(SIZES)),
        model=Model(
            loss="squared-error" if isinstance(chosen, Lossless) and chosen.rho else "auto",
            options={} if widths is None else {"widths": list(widths)},
        ),
        scheme=chosen,
        rounds=rounds,
        engine=Engine(lanes=lanes, workers=workers, gradients=gradients),
        **changes,
    )


def federation(chosen, data, *, sizes=SIZES, partition=None, model=None, loss=None, **changes):
    """What a driver needs to play `chosen`, a scheme or its name."""
    partition = deal(sizes) if partition is None else partition
    return preparation.prepare(experiment(chosen, **changes), data, partition, model, loss)


def same_bits(one, other):
    """Whether two tensors have the same shape, type and bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()


@dataclasses.dataclass
class Played:
    """One round, by hand: the state after it, each client's contributions, what clients keep, the totals."""

    state: object
    given: list
    kept: dict
    totals: list


def play(fed, pieces, *, round=1, state=None, kept=None):
    """Play a round over the clients in `pieces` (lists of client numbers), added up in the clients' order.

    Contributions are kept as (elements, accepted, loss, kept), a dict by client for each phase.
    """
    chosen, task = fed.scheme, fed.task
    state = chosen.init(task) if state is None else state
    kept = dict(kept or {})
    everyone, totals, participants = [], [], sum(map(len, pieces))
    playing = play_round(chosen, task, state, round)
    try:
        ask = next(playing)
        while True:
            by_client = {}
            for piece in pieces:
                cohort = fed.cohort(np.array(piece, dtype=np.int64), round, kept, participants)
                given = chosen.contribute(task, ask.phase, ask.payload, ask.received, cohort)
                for lane, client in enumerate(piece):
                    own = None if given.kept is None else given.kept[lane]
                    by_client[client] = (
                        given.elements[lane],
                        bool(given.accepted[lane]),
                        given.losses[lane],
                        own,
                    )
            kept |= {client: own for client, (_, _, _, own) in by_client.items() if own is not None}
            everyone.append(by_client)
            totals.append(_add_up(fed.partition, ask.phase, by_client))
            ask = playing.send(totals[-1])
    except StopIteration as end:
        return Played(end.value, everyone, kept, totals)


def _add_up(partition, phase, by_client):
    groups = {"all": 1, "row": partition.rows, "column": partition.column_count}[phase.scope]
    if phase.gathered:
        rows = [one[0] for _, one in sorted(by_client.items()) if one[1]]
        return Total(torch.stack(rows) if rows else torch.zeros(1, phase.length), len(rows))
    ring = isinstance(phase.group, Ring)
    dtype = torch.float64 if isinstance(phase.group, Reals) else torch.int64 if ring else torch.int32
    values, count = torch.zeros(groups, phase.length, dtype=dtype), 0
    for client in sorted(by_client):
        elements, accepted, _, _ = by_client[client]
        if accepted:
            place = {"all": 0, "row": partition.row_of(client), "column": partition.column_of(client)}[
                phase.scope
            ]
            values[place] += elements.to(dtype)
            count += 1
    if ring:
        half = 2 ** (phase.group.bits - 1)
        values = (values + half) % (2 * half) - half
    return Total(values[0] if phase.scope == "all" else values, count)


def without_times(metrics):
    """Metrics without what a clock says."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in metrics]


def assert_same_run(one, other):
    """Equal bit for bit: the model, everything the next round starts from, and all metrics but times."""
    assert without_times(one.metrics) == without_times(other.metrics)
    assert one.checkpoint.round == other.checkpoint.round
    assert dict(one.checkpoint.facts) == dict(other.checkpoint.facts)
    assert one.checkpoint.tensors.keys() == other.checkpoint.tensors.keys()
    for name, tensor in one.checkpoint.tensors.items():
        assert same_bits(tensor, other.checkpoint.tensors[name]), name
    for mine, theirs in ((one.vector, other.vector), (one.best_vector, other.best_vector)):
        assert (mine is None) == (theirs is None)
        assert mine is None or same_bits(mine, theirs)
