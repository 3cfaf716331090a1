"""Federations in one process, for tests: sites behind a `MemoryLink`, with the state that each has stored."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from discreet.cohort import Examples
from discreet.config import Data, Engine, Experiment, Model, Privacy
from discreet.data.partition import Partition
from discreet.federation.holdings import OwnData
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.link import MemoryLink, no_fault
from discreet.federation.roster import Member, Roster
from discreet.federation.server import federate
from discreet.federation.site import Site
from discreet.federation.spending import MemorySpending
from discreet.federation.table import Deadlines
from discreet.schemes import SCHEMES, Lossless
from discreet.simulation import simulate
from federations import SMALL, dataset

ALLOWED = Limits(minimum_cohort=1, allow_rehearsal=True, report_evaluation=True)
SERVER = Identity.from_secret(bytes(32))
QUICK = Deadlines(gathering=1.0, work=5.0, keys=5.0)
SIZES = (7, 13, 20, 9)
BLOBS = dataset()


def identity(number):
    return Identity.from_secret(bytes([number + 1]) * 32)


def roster(sites=4):
    members = tuple(Member(one, f"site-{one}", identity(one).public) for one in range(sites))
    return Roster(SERVER.public, members)


def dealt(sizes=SIZES, columns=None):
    """Who holds which of the blobs: row after row, in order."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(np.arange(offsets[-1]), offsets, columns)


class Party:
    """A site, and the state that it has stored."""

    def __init__(self, number, partition=None, *, limits=ALLOWED, pinned=None, **options):
        self.number, self.options = number, {"limits": limits, "roster": pinned, **options}
        if partition is not None:
            row = partition.row_of(number)
            features = None
            if partition.columns is not None:
                features = tuple(partition.columns[partition.column_of(number)].tolist())
            self.options["data"] = OwnData(lambda: of_row(partition, row), features)
        self.options["spending"] = self.spending = MemorySpending()
        self.state, self.refusals = b"", []
        self.restart()

    def restart(self):
        """As a new process that finds the stored state."""
        self.site = Site(self.number, identity(self.number), on_step=self.heard, **self.options)

    def heard(self, step):
        self.refusals += [error for _, error in step.refused]

    def __call__(self, message):
        self.state, reply = self.site.step(self.state, message)
        return reply


def of_row(partition, row):
    """The blobs as a site holds them that has one row of them."""
    indices = torch.from_numpy(partition.indices(row))
    train = Examples(BLOBS.train.inputs[indices], BLOBS.train.targets[indices])
    return dataclasses.replace(BLOBS, train=train)


def parties(partition=None, sites=None, **options):
    partition = dealt() if partition is None and sites is None else partition
    count = sites or partition.clients
    return [Party(number, partition, **options) for number in range(count)]


def experiment(scheme, *, rounds=3, **changes):
    """A scheme, or its name, on a small network for the blobs."""
    if isinstance(scheme, str):
        kind = SCHEMES[scheme]
        known = {field.name for field in dataclasses.fields(kind)}
        scheme = kind(**{key: value for key, value in SMALL.items() if key in known})
    if scheme.private:
        changes = {"privacy": Privacy(noise_multiplier=0.5)} | changes
    loss = "squared-error" if isinstance(scheme, Lossless) and scheme.rho else "auto"
    return Experiment(
        scheme=scheme,
        rounds=rounds,
        **{
            "data": Data(clients=len(SIZES)),
            "model": Model(loss=loss, options={"widths": [5]}),
            "engine": Engine(lanes=1, workers=1),
            **changes,
        },
    )


def run(asked, members, *, fault=no_fault, link=None, **options):
    """Federate between some parties, as a rehearsal unless something else is said."""
    link = MemoryLink({one.number: one for one in members}, fault) if link is None else link
    chosen = {"data": BLOBS, "identity": SERVER, "rehearse": True, "deadlines": QUICK, "sites": len(members)}
    return federate(asked, link, **(chosen | options))


def simulated(asked, partition=None):
    return simulate(asked, data=BLOBS, partition=dealt() if partition is None else partition)


def same_state(one, other):
    """Whether two runs' servers ended with the same bits."""
    mine, its = ({k: v for k, v in each.checkpoint.tensors.items() if k != "kept"} for each in (one, other))
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
