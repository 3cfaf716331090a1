"""Who masks with whom, and how many neighbours that takes.

Clients stand on a circle in an order that a public nonce decides; a client's neighbours are the degree / 2 before
it and the degree / 2 after it (a Harary graph). With degree = clients - 1 everybody is everybody's neighbour. The
*holders* of a client's secrets are its neighbours and itself: degree + 1, of which `threshold` recover them.

**What can go wrong**, and the exact bounds that `failures` computes. K clients, degree k < K - 1, threshold t; at
most C are corrupt (they tell the server all they see) and at most D drop out, both chosen without regard to the
order on the circle; Hyp(N, M, k) is the number of marked ones among k drawn from N of which M are marked.

* *Corruption*: t corrupt neighbours hold enough shares of an honest client's mask key. For one of K - C honest
  clients: (K - C) P[Hyp(K-1, C, k) >= t].
* *Separation*: the honest survivors fall apart into groups without a common edge, and the server would learn the
  sum of each group. On the circle this takes two disjoint gaps of k / 2 neighbouring clients, each corrupt or
  dropped: at most K (K-1) / 2 pairs of gaps, each with probability prod_{i<k} (C+D-i) / (K-i).
* *Reconstruction*: too few holders are left. A survivor is one of its own holders:
  (K - D) P[Hyp(K-1, D, k) >= k+2-t] + D P[Hyp(K-1, D-1, k) >= k+1-t].

The first two are failures of security and add up, the third makes the round abort. In the complete graph none of it
is left to chance: C < t <= K - D is all that is needed.

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure single-server aggregation with (poly)logarithmic overhead",
CCS 2020, whose conditions on the graph these are; the bound on separation counts pairs of gaps instead of single
ones and so lets the degree be smaller.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from discreet.errors import ConfigError


def arrange(cohort: Sequence[int], nonce: bytes) -> tuple[int, ...]:
    """The cohort in the order that a public nonce decides: sorted by BLAKE2b of the client under that key.

    Args:
        cohort: distinct clients, 0 to 2^32 - 1.
        nonce: 1 to 64 bytes, chosen without regard to who is corrupt.
    """

    def place(client: int) -> bytes:
        return hashlib.blake2b(struct.pack("<I", client), key=nonce, digest_size=16).digest()

    return tuple(sorted(cohort, key=place))


def neighbours(circle: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Every client's neighbours in ascending order.

    Args:
        circle: the cohort as `arrange` returns it.
        degree: an even number below len(circle), or len(circle) - 1.

    Raises:
        ConfigError: there is no such graph.
    """
    size = len(circle)
    check_degree(size, degree)
    reach = degree // 2 + degree % 2
    return {
        client: tuple(sorted({circle[(at + step) % size] for step in range(-reach, reach + 1)} - {client}))
        for at, client in enumerate(circle)
    }


def check_degree(clients: int, degree: int) -> None:
    """Refuse a degree that a cohort of this size has no graph for, by ConfigError."""
    if not (2 <= degree <= clients - 1 and (degree % 2 == 0 or degree == clients - 1)):
        raise ConfigError("degree", degree, f"an even number from 2 to {clients - 1}, or {clients - 1}")


@dataclass(frozen=True)
class Failures:
    """Bounds on the probability that one round fails; see the module for the formulas.

    Args:
        corruption: an honest client's mask key is known to corrupt clients.
        separation: the honest survivors are not connected.
        reconstruction: the round aborts although no more clients dropped out than expected.
    """

    corruption: float
    separation: float
    reconstruction: float

    @property
    def security(self) -> float:
        """Of corruption or separation."""
        return min(1.0, self.corruption + self.separation)


@dataclass(frozen=True)
class GraphPlan:
    """A graph and what it is good for.

    Args:
        clients: size of the cohort.
        degree: neighbours of a client.
        threshold: shares that recover a secret, of degree + 1.
        dropped: clients that may drop out.
        corrupt: clients that may collude with the server.
        failures: bounds for these numbers.
    """

    clients: int
    degree: int
    threshold: int
    dropped: int
    corrupt: int
    failures: Failures

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.degree == self.clients - 1

    def completed(self) -> GraphPlan:
        """The same cohort with everybody as everybody's neighbour: against a server that lies about who is there.

        Every client then sees the whole cohort, and can itself demand enough survivors. The threshold lies above half of
        all clients and of those that may collude, so that no two answers of a server get at both secrets of a client:
        where more than nearly half may drop out, the sum may so fail for fewer dropouts than that.
        """
        threshold = max(self.clients - self.dropped, (self.clients + self.corrupt) // 2 + 1)
        found = failures(
            self.clients, self.clients - 1, threshold, dropped=self.dropped, corrupt=self.corrupt
        )
        return replace(self, degree=self.clients - 1, threshold=threshold, failures=found)


def failures(clients: int, degree: int, threshold: int, *, dropped: int, corrupt: int) -> Failures:
    """Bounds on the failure probabilities of one round.

    Args:
        clients: size of the cohort, K.
        degree: neighbours of a client, k.
        threshold: shares that recover a secret, t: 1 to k + 1.
        dropped: clients that drop out at most, D.
        corrupt: clients that collude with the server at most, C.
    """
    check_degree(clients, degree)
    if degree == clients - 1:
        return Failures(float(corrupt >= threshold), 0.0, float(threshold > clients - dropped))
    return Failures(
        min(1.0, (clients - corrupt) * hypergeometric_tail(clients - 1, corrupt, degree, threshold)),
        _separation(clients, degree, min(clients, corrupt + dropped)),
        _reconstruction(clients, degree, threshold, dropped),
    )


def plan_graph(
    clients: int, *, dropout: float, corrupt: float, security: float = 2.0**-40, correctness: float = 2.0**-20
) -> GraphPlan:
    """The sparsest graph, and a threshold, that keep both failure probabilities of a round below what is wanted.

    Searches degrees by doubling and bisection: the next smaller one does not do. Of the thresholds that do, the largest
    is taken: what correctness leaves over goes to security.

    Args:
        clients: size of the cohort, at least 3.
        dropout: the largest fraction of clients that drops out in a round, over all its stages: [0, 1).
        corrupt: the largest fraction of clients that colludes with the server: [0, 1).
        security: wanted bound for `Failures.security`.
        correctness: wanted bound for `Failures.reconstruction`.

    Raises:
        ConfigError: a value out of range, or a cohort too small for these fractions.
    """
    if clients < 3:
        raise ConfigError("clients", clients, "a cohort of at least 3")
    for name, fraction in (("dropout", dropout), ("corrupt", corrupt)):
        if not 0 <= fraction < 1:
            raise ConfigError(name, fraction, "a fraction from 0 up to, not including, 1")
    for name, wanted in (("security", security), ("correctness", correctness)):
        if not 0 < wanted < 1:
            raise ConfigError(name, wanted, "a probability between 0 and 1")
    gone, bad = (math.ceil(fraction * clients - 1e-9) for fraction in (dropout, corrupt))
    if clients - gone - bad < 2:
        raise ConfigError(
            "clients",
            clients,
            f"a cohort in which at least 2 clients are neither corrupt (up to {bad}) nor dropped (up to {gone})",
        )

    def threshold_for(degree: int) -> int | None:
        return _threshold(clients, degree, gone, bad, security, correctness)

    # in halves of the degree; doubling first, since tails at large degrees take long
    low, high, most = 0, 1, (clients - 1) // 2
    while high < most and threshold_for(2 * high) is None:
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if threshold_for(2 * middle) is not None else (middle, high)
    degree, threshold = 2 * high, threshold_for(2 * high)
    if threshold is None:
        # the complete graph always does: corrupt clients are fewer than those that remain
        degree, threshold = clients - 1, clients - gone
    found = failures(clients, degree, threshold, dropped=gone, corrupt=bad)
    return GraphPlan(clients, degree, threshold, gone, bad, found)


def dropouts_at_most(clients: int, rate: float, probability: float) -> int:
    """The number of dropouts that is passed with at most this probability if each client drops out at random.

    The smallest D with P[Binomial(clients, rate) > D] <= probability.

    Args:
        clients: size of the cohort.
        rate: of dropping out, each client independently: [0, 1].
        probability: of more than D dropouts, in (0, 1).
    """
    if not (0 <= rate <= 1 and 0 < probability < 1):
        raise ConfigError("rate", rate, "a rate from 0 to 1 and a probability between 0 and 1")
    if rate in (0, 1):
        return round(rate * clients)
    beyond, bound = 0.0, clients
    while bound > 0:
        ways = math.lgamma(clients + 1) - math.lgamma(bound + 1) - math.lgamma(clients - bound + 1)
        beyond += math.exp(ways + bound * math.log(rate) + (clients - bound) * math.log1p(-rate))
        if beyond > probability:
            break
        bound -= 1
    return bound


def hypergeometric_tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """P[Hyp(population, marked, drawn) >= at_least], from whole numbers and rounded once."""
    return _tails(population, max(0, marked), drawn)[min(max(at_least, 0), drawn + 1)]


def _tails(population: int, marked: int, drawn: int) -> list[float]:
    """P[Hyp >= x] for x = 0 to drawn + 1."""
    counts = [0] * (drawn + 2)
    first = max(0, drawn - (population - marked))
    count = math.comb(marked, first) * math.comb(population - marked, drawn - first)
    for x in range(first, min(marked, drawn) + 1):
        counts[x] = count
        # the next count from this one; both are whole, so the division leaves nothing over
        count = count * (marked - x) * (drawn - x) // ((x + 1) * (population - marked - drawn + x + 1))
    for x in range(drawn, -1, -1):
        counts[x] += counts[x + 1]
    return [count / counts[0] for count in counts]


def _separation(clients: int, degree: int, removed: int) -> float:
    if removed < degree:
        return 0.0
    pairs = clients * (clients - 1) // 2
    return min(1.0, pairs * math.perm(removed, degree) / math.perm(clients, degree))


def _reconstruction(clients: int, degree: int, threshold: int, dropped: int) -> float:
    if dropped == 0:
        return float(threshold > degree + 1)
    for_survivor = hypergeometric_tail(clients - 1, dropped, degree, degree + 2 - threshold)
    for_dropout = hypergeometric_tail(clients - 1, dropped - 1, degree, degree + 1 - threshold)
    return min(1.0, (clients - dropped) * for_survivor + dropped * for_dropout)


def _threshold(
    clients: int, degree: int, dropped: int, corrupt: int, security: float, correctness: float
) -> int | None:
    """The largest threshold from 2 on that meets both bounds, if any does."""

    def found(threshold: int) -> Failures:
        return failures(clients, degree, threshold, dropped=dropped, corrupt=corrupt)

    # a larger threshold aborts more often and reveals less often
    low, high = 1, degree + 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if found(middle).reconstruction <= correctness else (low, middle)
    return low if low >= 2 and found(low).security <= security else None
