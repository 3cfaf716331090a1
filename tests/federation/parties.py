"""Federations in one process, for tests: sites behind a `MemoryLink`, with the state that each has stored."""

from __future__ import annotations

from dataclasses import replace

from discreet.config import Data, Engine, Experiment, Model, Privacy
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.link import MemoryLink
from discreet.federation.playing import Deadlines
from discreet.federation.roster import Member, Roster
from discreet.federation.server import federate
from discreet.federation.site import Site
from discreet.federation.spending import MemorySpending
from discreet.schemes import SCHEMES

ALLOWED = Limits(minimum_cohort=1, allow_rehearsal=True, report_evaluation=True)
SERVER = Identity.from_secret(bytes(32))
QUICK = Deadlines(gathering=5.0, work=5.0, keys=5.0)


def identity(number):
    return Identity.from_secret(bytes([number + 1]) * 32)


def roster(sites):
    return Roster(SERVER.public, tuple(Member(one, f"site-{one}", identity(one).public) for one in range(sites)))


class Party:
    """A site, and the state that it has stored."""

    def __init__(self, number, *, limits=ALLOWED, pinned=None, data=None):
        self.number, self.limits, self.pinned, self.data = number, limits, pinned, data
        self.spending = MemorySpending()
        self.state, self.refusals = b"", []
        self.restart()

    def restart(self):
        """As a new process that finds the stored state."""
        self.site = Site(
            self.number,
            identity(self.number),
            self.limits,
            self.spending,
            roster=self.pinned,
            data=self.data,
            on_refusal=self.refusals.append,
        )

    def __call__(self, message):
        self.state, reply = self.site.step(self.state, message)
        return reply


def parties(sites, *, pinned=None, **options):
    return [Party(number, pinned=pinned, **options) for number in range(sites)]


def experiment(scheme, *, sites=4, rounds=3, data=None, lanes=1, model=None, **changes):
    """A scheme, or its name, on digits with a small network."""
    chosen = SCHEMES[scheme]() if isinstance(scheme, str) else scheme
    if chosen.private:
        changes = {"privacy": Privacy(noise_multiplier=0.5)} | changes
    return Experiment(
        data=data or Data(clients=sites),
        model=model or Model(options={"widths": [8]}),
        scheme=chosen,
        rounds=rounds,
        engine=Engine(lanes=lanes, workers=1),
        **changes,
    )


def run(asked, members, *, fault=None, link=None, **options):
    """Federate between some parties, as a rehearsal unless something else is said."""
    if link is None:
        calls = {one.number: one for one in members}
        link = MemoryLink(calls) if fault is None else MemoryLink(calls, fault)
    chosen = {"identity": SERVER, "rehearse": True, "deadlines": QUICK, "sites": len(members)} | options
    return federate(asked, link, **chosen)


def other(asked, **changes):
    return replace(asked, **changes)
