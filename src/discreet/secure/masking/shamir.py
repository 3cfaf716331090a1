"""Shamir's secret sharing of 32-byte secrets over the integers modulo `PRIME`.

A secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are uniform; a holder's
share is its value at the holder's point. Any `threshold` shares determine the secret. Fewer say nothing about it:
for every secret exactly one polynomial passes through it and threshold - 1 given shares.

Source: A. Shamir, "How to share a secret", CACM 22 (1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297
"""The smallest prime above 2^256: every 32-byte secret is an element of the field, and a share takes 33 bytes."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def split(
    secret: int, points: Sequence[int], coefficients: Sequence[int], prime: int = PRIME
) -> tuple[int, ...]:
    """Shares of a secret.

    Args:
        secret: 0 to `prime` - 1.
        points: one for each holder: distinct, from 1 to `prime` - 1.
        coefficients: threshold - 1 elements of the field, uniform and used for this secret alone.
        prime: size of the field.

    Returns:
        One share for each point, in the same order.

    Raises:
        ValueError: fewer points than the threshold, or a value outside its range.
    """
    _check_points(points, prime)
    if len(points) <= len(coefficients):
        raise ValueError(f"{len(points)} holders cannot reach a threshold of {len(coefficients) + 1}")
    if not all(0 <= value < prime for value in (secret, *coefficients)):
        raise ValueError("the secret and the coefficients must be elements of the field")
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * point % prime
        shares.append((value + secret) % prime)
    return tuple(shares)


def recover(shares: Mapping[int, int], threshold: int, prime: int = PRIME) -> int:
    """The secret behind shares.

    With more shares than the threshold two different sets of them are used: a wrong share then shows, except with
    a chance of about 1 / `prime`. With exactly the threshold a wrong share gives a wrong secret.

    Args:
        shares: by the holder's point; at least `threshold` of them.
        threshold: how many shares determine the secret, at least 1.
        prime: size of the field.

    Raises:
        ValueError: too few shares, a value out of range, or shares that are not of one secret.
    """
    if not 1 <= threshold <= len(shares):
        raise ValueError(f"{len(shares)} shares, the threshold is {threshold}")
    points = tuple(sorted(shares))
    _check_points(points, prime)
    if not all(0 <= share < prime for share in shares.values()):
        raise ValueError("a share must be an element of the field")
    secrets = {
        sum(
            weight * shares[point]
            for point, weight in zip(chosen, weights_at_zero(chosen, prime), strict=True)
        )
        % prime
        for chosen in (points[:threshold], points[-threshold:])
    }
    if len(secrets) > 1:
        raise ValueError("the shares are not of one secret")
    return secrets.pop()


@lru_cache(maxsize=1024)
def weights_at_zero(points: tuple[int, ...], prime: int = PRIME) -> tuple[int, ...]:
    """Lagrange's weights: the polynomial's value at 0 is the sum of weight times share.

    Args:
        points: distinct and not 0.
        prime: size of the field.
    """
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % prime
                below = below * (other - point) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return tuple(weights)


def _check_points(points: Sequence[int], prime: int) -> None:
    if len(set(points)) != len(points) or not all(0 < point < prime for point in points):
        raise ValueError("points must be distinct elements of the field other than 0")
