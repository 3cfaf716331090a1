"""How many of a round's clients may be missing from its sum, and what is refused because too many would be."""

from __future__ import annotations

import math
from dataclasses import replace

from discreet.errors import ConfigError
from discreet.preparation import Federation
from discreet.privacy.promise import Promise
from discreet.privacy.releases import FixedSize
from discreet.sampling import how_sampled
from discreet.schemes.traits import groups_of
from discreet.secure.masking import GraphPlan, dropouts_at_most, plan_graph

CORRUPT = 0.1
"""Share of a cohort that may collude with the server without learning more than the sum; at least so much is planned
for, and as many clients as `privacy.assumed_dishonest` where that is more: who cheats with noise may collude too."""

SILENT = 1 / 3
"""Share of a cohort that a masked sum without noise is planned to lose where clients may fall silent at all.

Less if the cohort is small. So much tolerance has a price: a server that lies about who is gone can then get at both
secrets of a client, which it cannot where more than half of a client's neighbours must answer.
"""


def masking_graph(promise: Promise | None, clients: int, silent: float = 0.0) -> GraphPlan:
    """Who masks with whom in a cohort of this size, for the dropouts and the colluders that are allowed for.

    Args:
        promise: of noise, which says how many may be missing; None where there is none.
        clients: of the cohort.
        silent: without a promise, the chance that a client falls silent: with 0, nobody may.

    Raises:
        ConfigError: the cohort is too small for them.
    """
    if promise is None:
        share = SILENT if silent else 0.0
        gone = max(0, min(math.floor(share * clients + 1e-9), clients - math.ceil(CORRUPT * clients) - 2))
        return plan_graph(clients, dropout=gone / clients, corrupt=CORRUPT)
    corrupt = max(CORRUPT, min(promise.assumed_dishonest, clients - 1) / clients)
    return plan_graph(clients, dropout=promise.dropout_tolerance, corrupt=corrupt)


def check_releases(federation: Federation) -> None:
    """Refuse, before anything runs, settings with which most rounds' sums would not be released.

    Raises:
        ConfigError: a round's clients cannot be hidden among each other, or so many fall silent that of most rounds
            too few are left.
    """
    experiment, promise = federation.experiment, federation.task.promise
    masked = experiment.secure == "masked"
    if promise is None and not masked:
        return
    drawn = how_sampled(experiment, federation.partition.clients)
    share = 1.0 if experiment.scheme.everyone else drawn.fraction
    groups = groups_of(experiment.scheme)
    cohort = max(1, round(share * federation.partition.clients) // groups)
    if masked and (isinstance(drawn, FixedSize) or groups > 1):
        try:
            masking_graph(promise, cohort, experiment.dropouts.silent)
        except ConfigError as error:
            if groups == 1:
                raise
            raise ConfigError(
                "scheme.groups",
                groups,
                f"fewer, of more than {cohort} clients each: in so few a masked sum hides nobody ({error})",
            ) from None
    if groups > 1 and promise is not None and promise.needed(cohort) > cohort:
        raise ConfigError(
            "scheme.groups",
            groups,
            f"fewer: of {cohort} clients a sum is not released with privacy.assumed_dishonest = "
            f"{promise.assumed_dishonest}",
        )
    chance = experiment.dropouts.silent if masked else experiment.dropouts.lost
    typical = dropouts_at_most(cohort, chance, 0.5)
    tolerance = SILENT if promise is None else promise.dropout_tolerance
    if not chance or (chance <= tolerance + 1e-9 and typical <= _spare(promise, cohort, masked)):
        return
    if promise is None:
        raise ConfigError(
            "dropouts",
            f"{chance:.2%} of a round",
            f"rates at which most masked rounds of {cohort} clients lose no more than "
            f"{max(0, _spare(None, cohort, masked))} of them, or secure = none",
        )
    advice = f"lower rates, or more than {cohort} clients a round"
    for failing, often in ((0.05, "19 of 20"), (1e-3, "999 of 1,000")):
        most = dropouts_at_most(cohort, chance, failing)
        wanted = math.ceil(100 * most / cohort - 1e-9) / 100
        if wanted < 1 and most <= _spare(replace(promise, dropout_tolerance=wanted), cohort, masked):
            advice = f"{wanted:g} there would do for {often} rounds of {cohort} clients"
    raise ConfigError(
        "dropouts",
        f"{chance:.2%} of a round",
        f"at most privacy.dropout_tolerance (now {tolerance:g}), and some room for chance: {advice}",
    )


def _spare(promise: Promise | None, cohort: int, masked: bool) -> int:
    """How many of a round's clients may fall silent; below 0 if its sum is never released."""
    try:
        spare = masking_graph(promise, cohort, SILENT).dropped if masked else cohort
    except ConfigError:
        return -1
    return spare if promise is None else cohort - promise.needed(cohort)
