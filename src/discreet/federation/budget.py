"""What a site has spent over all runs, and whether its owner's budget has room for more."""

from __future__ import annotations

from collections.abc import Sequence

from discreet.federation.limits import Limits
from discreet.federation.refusal import Refusal
from discreet.federation.spending import Entry, Spending
from discreet.privacy.accounting import Spent, spent
from discreet.privacy.releases import FixedSize, Ledger, Poisson, Released

EVERYONE = Poisson(1.0)


def cost(ledger: Ledger, delta: float) -> Spent:
    """What a site's releases cost together, by Rényi divergences.

    Mechanisms of all kinds add up. Sampling with a probability has a theory for one site more or less, cohorts of constant
    size for one site's data replaced; a ledger with both counts the first as if all had taken part, for which there is
    a theory of either.

    Args:
        ledger: what was released.
        delta: in (0, 1).
    """
    return spent(_comparable(ledger), delta)


def would_exceed(limits: Limits, ledger: Ledger, released: Released, count: int = 1) -> bool:
    """Whether `count` more releases would pass the owner's budget; never where there is none."""
    if limits.epsilon is None or limits.delta is None:
        return False
    return cost(ledger.add(released, count), limits.delta).epsilon > limits.epsilon


def charge(
    spending: Spending,
    limits: Limits,
    *,
    run: bytes,
    session: int,
    round: int,
    attempt: int,
    released: Released | None,
    rounds: int,
) -> Entry:
    """Write down what a site is about to give out, or refuse: to be called before it leaves.

    A site cannot check who was drawn for a round. Unless its owner trusts the server with that, each of its
    contributions counts as if all sites took part. If he does, sampling makes every round cheaper, and then all rounds
    count: those that it was not drawn for too. They are counted all at once with the run's first.

    Args:
        spending: the site's ledger.
        limits: of its owner.
        run: the run's 16 bytes.
        session: of the server in this run.
        round: for which it is.
        attempt: at this round.
        released: what the round gives out, as the scheme says; None if nothing is promised, or nothing is secret.
        rounds: how many the run plans.

    Returns:
        What was written down.

    Raises:
        Refusal: ``budget``: it would pass the owner's epsilon; nothing is written.
        DataError: the ledger cannot be written.
    """

    def make(entries: Sequence[Entry], ledger: Ledger) -> Entry:
        if released is None:
            if limits.epsilon is not None:
                raise Refusal("budget", "nothing is promised of this contribution, and epsilon is limited")
            return Entry(run, session, round, attempt, None)
        sampled = limits.trust_sampling and released.sampling.fraction < 1
        counted = released if sampled else Released(EVERYONE, released.noise)
        count = (
            _rounds_owed([entry for entry in entries if entry.run == run], round, rounds) if sampled else 1
        )
        if would_exceed(limits, ledger, counted, count):
            raise Refusal(
                "budget", f"epsilon would pass {limits.epsilon:g}: {len(entries)} entries are written already"
            )
        return Entry(run, session, round, attempt, counted, count)

    return spending.write(make)


def _rounds_owed(before: Sequence[Entry], round: int, rounds: int) -> int:
    """How many rounds a sampled contribution counts for, given the run's entries so far."""
    first: dict[int, int] = {}
    for entry in before:
        first.setdefault(entry.round, entry.count)
    if round in first:
        return 1  # the same round again, with fresh noise
    return max(0, max(rounds, round) - sum(first.values()))


def _comparable(ledger: Ledger) -> Ledger:
    """The ledger with sampling of one kind."""
    kinds = {type(released.sampling) for released, _ in ledger.entries if released.sampling.fraction < 1}
    if kinds != {Poisson, FixedSize}:
        return ledger
    alike = Ledger()
    for released, count in ledger.entries:
        poisson = isinstance(released.sampling, Poisson)
        alike = alike.add(Released(EVERYONE, released.noise) if poisson else released, count)
    return alike
