"""What a scheme is: three pure functions around one sum.

::

    state --broadcast--> payload --contribute--> group elements --(sum)--> total --update--> state

A scheme is a frozen dataclass whose fields are its hyperparameters. It holds no data, no model and no randomness;
those come as arguments, so that the same object serves a simulation of a thousand clients and one real site.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.malice import Malice
from discreet.cohort import Cohort, Examples, Grid
from discreet.errors import LocalProtocolError
from discreet.evaluation import Evaluation, Map, evaluate
from discreet.optimizers import LocalTraining
from discreet.privacy.promise import Promise
from discreet.privacy.releases import Released
from discreet.randomness import Keyed, Seeded, SystemRandom
from discreet.secure.groups import Group
from discreet.training import Learner, Trained, mean_gradients, train

Scope = Literal["all", "row", "column"]
StateT = TypeVar("StateT")
PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True)
class Phase:
    """One sum of a round; of constant length, so that messages have constant shape.

    Attributes:
        name: what is summed, as ``"update"``.
        group: the group of the elements.
        length: elements in one participant's contribution; 0 where nothing leaves the participant.
        scope: summed over all participants, or separately within the rows or the columns of a grid.
        common: so many of the last elements are summed over all participants, whatever the scope.
        gathered: True if nothing is added: the sum is of multisets, and whoever adds sees every contribution. Only
            baselines that need this have it; no such sum can be secure.
        groups: the round's clients are dealt into so many groups, anew in every round, and each group has a sum of its
            own, secure where sums are. More than 1 for the scope ``"all"`` only.
    """

    name: str
    group: Group
    length: int
    scope: Scope = "all"
    common: int = 0
    gathered: bool = False
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Task:
    """What is being learnt: the same for the server and every participant.

    Attributes:
        learner: the model, the loss and how local gradients are computed.
        randomness: a party's own streams, for what it draws anew whenever it is asked for (batches, coins, rounding,
            its first confined model). In a simulation all parties have the same, and initial weights come from it.
        secrets: where noise comes from, and whatever else is drawn once and kept from everybody; None for the same.
        coins: streams that several parties draw alike, of which nothing is secret; None for the same.
        promise: the differential privacy that every round has to give, or None.
        grid: public facts of who holds what; None where a scheme needs none.
        modular: whether sums that may be of real numbers have to be of integers modulo 2^b, to be secure.
        scratch: what follows from the task and the participants' data and takes long to work out, kept from round to
            round by whoever holds it. It changes time and nothing else, and is never stored or sent.
        adversary: what malicious clients of a simulation do in a round; None where all run the protocol.
        public: some inputs that everybody may see, of the test set, shape (B, ...); None where there are none.
    """

    learner: Learner
    randomness: Seeded | Keyed
    promise: Promise | None = None
    grid: Grid | None = None
    modular: bool = False
    scratch: dict[str, Any] = field(default_factory=dict, repr=False)
    adversary: Malice | None = None
    public: Tensor | None = None
    secrets: Seeded | SystemRandom | None = None
    coins: Seeded | None = None

    @property
    def parameters(self) -> int:
        """Trainable parameters of the model (n)."""
        return self.learner.network.count

    def initial(self) -> Tensor:
        """The initial parameters, shape (n,), the same for everybody who has the seed."""
        return self.learner.network.initial(self.common).to(self.learner.device)

    @property
    def common(self) -> Seeded:
        """The streams that several parties draw alike.

        Raises:
            LocalProtocolError: the task has none.
        """
        found = self.randomness if self.coins is None else self.coins
        if isinstance(found, Keyed):
            raise LocalProtocolError("a party with streams of its own was given none in common with others")
        return found

    @property
    def hidden(self) -> Seeded | SystemRandom:
        """Where what is kept from everybody comes from.

        Raises:
            LocalProtocolError: the task has none.
        """
        found = self.randomness if self.secrets is None else self.secrets
        if isinstance(found, Keyed):
            raise LocalProtocolError("a party with streams of its own was given no source of secrets")
        return found

    def train(self, plan: LocalTraining, start: Tensor, cohort: Cohort) -> Trained:
        """What clients say that local training from `start`, shape (n,), gave."""
        if self.adversary is None:
            return train(self.learner, plan, start, cohort, self.randomness)

        def work(some: Cohort, uphill: NDArray[np.bool_]) -> Trained:
            return train(self.learner, plan, start, some, self.randomness, uphill)

        return self.adversary.pretended(work, start, cohort, self.randomness, self.scratch)

    def gradients(self, vector: Tensor, cohort: Cohort, batch_size: int) -> Trained:
        """What clients say that their mean gradients at `vector`, shape (n,), are."""
        if self.adversary is None:
            return mean_gradients(self.learner, vector, cohort, self.randomness, batch_size)

        def work(some: Cohort, uphill: NDArray[np.bool_]) -> Trained:
            found = mean_gradients(self.learner, vector, some, self.randomness, batch_size)
            found.changes[uphill] *= -1
            return found

        return self.adversary.pretended(work, vector, cohort, self.randomness, self.scratch)

    def boosted(self, trained: Trained, cohort: Cohort) -> Trained:
        """What clients send in floating point of what they say that they found."""
        return trained if self.adversary is None else self.adversary.boosted(trained, cohort)


@dataclass(frozen=True, eq=False)
class Contribution:
    """What the participants of a cohort bring to one sum.

    Attributes:
        elements: shape (K, length), group elements; rows that are not accepted are ignored.
        accepted: shape (K,), bool: False for a participant with no examples, and for one whose result is NaN or
            infinite. Neither is added, averaged in, or turned into a vote.
        losses: shape (K,), mean training loss; NaN where there is none. It never leaves a participant: a
            simulation shows it to the researcher.
        kept: shape (K, ...), private state that the participants keep for later rounds, or None.
        withheld: shape (K,), bool: True for a participant that sends its share of noise and no update, since that
            is NaN or infinite; None for nobody. Like `losses` it never leaves a participant.
        saturated: shape (K,): how many numbers each participant had to cut to fit into fixed point, or None.
    """

    elements: Tensor
    accepted: Tensor
    losses: Tensor
    kept: Tensor | None = None
    withheld: Tensor | None = None
    saturated: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of one phase.

    Attributes:
        values: shape (length,); (groups, length) for the scopes ``"row"`` and ``"column"``, where the common elements
            are the same in every group; (count, length) where contributions are gathered, in their clients' order;
            (groups, length) where clients are dealt into several groups, of those whose sums were released.
        count: how many participants are in it.
    """

    values: Tensor
    count: int


class Scheme(Protocol[StateT, PayloadT]):
    """A federated scheme. Implementations are frozen dataclasses of hyperparameters; all methods are pure.

    Class attributes:
        summary: one line for tables.
        pooled: True if one participant holds everybody's data (the centralized reference).
        everyone: True if all participants take part in every round, whatever the experiment's fraction.
        splits_columns: True if participants may hold some of the columns only.
        private: True if it is differentially private; its sums are then over a `Ring`.
        modular: True if its sums are over a `Ring`, or can be, so that they can be secure.
        counts_examples: True if participants have to know how many examples each of them has; between real sites none
            is asked for that otherwise.
    """

    summary: ClassVar[str]
    pooled: ClassVar[bool]
    everyone: ClassVar[bool]
    splits_columns: ClassVar[bool]
    private: ClassVar[bool]
    modular: ClassVar[bool]
    counts_examples: ClassVar[bool]

    def init(self, task: Task) -> StateT:
        """The server's state before round 1: a frozen dataclass of tensors."""
        ...

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The sums of a round, in order."""
        ...

    def broadcast(self, task: Task, state: StateT, round: int) -> PayloadT:
        """What every participant may see this round.

        Secrets of the server for this round are not part of it: `update` derives them again from the state.
        """
        ...

    def contribute(
        self, task: Task, phase: Phase, payload: PayloadT, received: tuple[Total, ...], cohort: Cohort
    ) -> Contribution:
        """What the cohort's participants bring to the sum of `phase`."""
        ...

    def update(self, task: Task, state: StateT, totals: tuple[Total, ...], round: int) -> StateT:
        """The server's next state, given the totals of the round's phases; every count is at least 1."""
        ...

    def vector(self, state: StateT) -> Tensor | None:
        """The global model's parameters, shape (n,); None if there is no global model."""
        ...

    def evaluate(
        self, task: Task, state: StateT, kept: dict[int, Tensor], examples: Examples, parallel: Map
    ) -> Evaluation:
        """How good the model, or every participant's model, is on `examples`."""
        ...

    def release(self, task: Task) -> Released | None:
        """What a round gives out; None if the scheme promises no differential privacy. See also `discreet.schemes.traits.RecordLevel`."""
        ...


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """The state, and the payload, of a scheme with one global model.

    Attributes:
        vector: shape (n,), the model's parameters.
    """

    vector: Tensor


class SharedModel:
    """What schemes with one global model, shown to every participant, have in common."""

    pooled: ClassVar[bool] = False
    everyone: ClassVar[bool] = False
    splits_columns: ClassVar[bool] = False
    private: ClassVar[bool] = False
    modular: ClassVar[bool] = False
    counts_examples: ClassVar[bool] = False

    def init(self, task: Task) -> GlobalModel:
        """The initial model."""
        return GlobalModel(task.initial())

    def broadcast(self, task: Task, state: GlobalModel, round: int) -> GlobalModel:
        """The global model."""
        return state

    def vector(self, state: GlobalModel) -> Tensor | None:
        """The global model's parameters, shape (n,)."""
        return state.vector

    def own_model(
        self, task: Task, payload: GlobalModel, participant: int, kept: Tensor | None
    ) -> Tensor | None:
        """The global model."""
        return payload.vector

    def evaluate(
        self, task: Task, state: GlobalModel, kept: dict[int, Tensor], examples: Examples, parallel: Map
    ) -> Evaluation:
        """How good the global model is."""
        return evaluate(task.learner, state.vector, examples, parallel)

    def release(self, task: Task) -> Released | None:
        """None: no differential privacy is promised."""
        return None
