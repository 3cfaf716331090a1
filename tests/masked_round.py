"""A masked sum between real clients and a real server over a link that a test can tamper with."""

from dataclasses import dataclass, field, replace

import numpy as np

from discreet.randomness import Seeded
from discreet.secure.masking import MaskingClient, MaskingServer, MaskingTerms, Stage


def terms(clients=5, **changes):
    """Terms for a small sum: 4 elements of 8 bits among clients 10, 11, ..., everybody with everybody."""
    settings = {
        "run": b"test",
        "round": 3,
        "cohort": tuple(range(10, 10 + clients)),
        "bits": 8,
        "length": 4,
        "degree": clients - 1,
        "threshold": 3,
    }
    return MaskingTerms(**(settings | changes))


def vectors(about, seed=0):
    """A random vector for every client."""
    generator = np.random.default_rng(seed)
    draw = generator.integers(0, 2**64, (len(about.cohort), about.length), dtype=np.uint64)
    return dict(zip(about.cohort, about.ring.reduce(draw), strict=True))


def plain_sum(about, inputs, survivors):
    """The sum by Python's own integers."""
    columns = zip(*(inputs[client].tolist() for client in survivors), strict=True)
    return [sum(column) % 2**about.bits for column in columns]


@dataclass
class MaskedRound:
    """Plays stage after stage; `silent` clients send nothing from the stage on in which they are added."""

    about: MaskingTerms
    seed: int = 1
    roster: dict | None = None
    identities: dict = field(default_factory=dict)
    silent: set = field(default_factory=set)

    def __post_init__(self):
        self.inputs = vectors(self.about)
        self.server = MaskingServer(self.about, self.roster)
        self.clients = {
            client: MaskingClient.start(
                self.about,
                client,
                Seeded(self.seed),
                identity=self.identities.get(client),
                roster=self.roster,
            )
            for client in self.about.cohort
        }
        self.inbox = dict.fromkeys(self.about.cohort, b"")
        self.sent = {stage: {} for stage in Stage}
        self.received = {stage: {} for stage in Stage}

    def answer(self, client, stage, data, using=None):
        """What a client sends in a stage in answer to `data`."""
        party = using or self.clients[client]
        match stage:
            case Stage.ADVERTISE:
                return party.advertise()
            case Stage.SHARE:
                return party.share_keys(data)
            case Stage.MASK:
                return party.mask(data, self.inputs[client])
            case Stage.CONSENT:
                return party.consent(data, self.identities[client])
            case Stage.UNMASK:
                return party.unmask(data)

    def send(self):
        """Every client that is there answers what it has received."""
        stage = self.server.stage
        for client in sorted(self.inbox.keys() - self.silent):
            self.sent[stage][client] = self.answer(client, stage, self.inbox[client])

    def deliver(self):
        """The server takes what was sent and closes the stage."""
        stage = self.server.stage
        for client, data in self.sent[stage].items():
            self.server.collect(client, data)
        self.close()

    def close(self):
        """The server closes the stage."""
        stage = self.server.stage
        self.inbox = self.received[stage] = self.server.close_stage()

    def play(self, until=None, silent=()):
        """Whole stages up to, not including, `until`; to the total if None."""
        self.silent |= set(silent)
        while self.server.stage != until:
            self.send()
            self.deliver()
        return self.server.total() if until is None else self


def at(stage, **changes):
    """A round in which the clients have what the server sent them for a stage, and have not answered."""
    return MaskedRound(terms(**changes)).play(until=stage)


def other_sum(about, **changes):
    """Terms that differ."""
    return replace(about, **changes)
