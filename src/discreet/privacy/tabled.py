"""Exact draws from integer laws that are symmetric about 0 and log-concave, many at a time.

The law is cut into blocks of 2^j neighbouring integers, about 128 blocks to a standard deviation (single integers,
j = 0, for deviations up to 128). Written as a mixture,

    p(x) = c_h / (2^16 2^j) + rest(x)     for x in block h,   c_h = floor(2^16 2^j min p in the block),

its first part is drawn from a table of 2^16 columns, of which block h owns c_h: 16 bits choose the column, j more the
place in the block. This is exact, since every c_h is an integer. The columns that nobody owns, one or two in a hundred,
stand for the rest. It is drawn by rejection: a block with probability proportional to w_h, an integer that is at
least (max p - c_h / (2^16 2^j)) in suitable units, by search among cumulative 64-bit thresholds; a place in the block;
and the place is kept with the exact probability (p(x) - c_h / (2^16 2^j)) / w_h. That comparison is made in floating
point, against 53 bits of a uniform number, wherever those decide it beyond the error that `Law.density` admits
to; in the few cases left it is made in 80-digit arithmetic against 256 bits.

**Guarantees.** The total variation distance between the law and what is drawn, given uniform independent words, is at
most 2^-120: the tails beyond the last block, left out, have less than 2^-128 (`Table.left_out` is a bound for
each law, derived from log-concavity: block sums beyond decrease at least as fast as a geometric series), and masses
carry 80 digits, thresholds of the last comparison 2^-256. Nothing is rounded to a grid. The time a draw takes
depends on the values drawn (the rest takes longer): do not let an attacker measure it.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.privacy.words import Words

COLUMNS = 1 << 16
RESOLUTION = 128
"""Blocks to a standard deviation, at most."""
PRECISION = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)
"""The arithmetic that masses are computed in."""

_ALLOWED_ERROR = 2.0**-40
_NEGLIGIBLE = Decimal(2) ** -128
_ENVELOPE = 2**64 - 2**32
"""Sum of the envelope's weights before each is rounded up."""
_PIECE = 1 << 15


class Law(Protocol):
    """A symmetric, log-concave law on the integers."""

    @property
    def sigma(self) -> float:
        """About the standard deviation."""
        ...

    def mass(self, place: int) -> Decimal:
        """The probability of `place`, to a relative error below 2^-130 where it exceeds 2^-160."""
        ...

    def density(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of many places; to a relative error below 2^-41 wherever they exceed 2^-160."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """What draws from one law need; made by `tabulate`.

    Args:
        law: the law.
        shift: j; blocks are 2^j integers wide.
        starts: first integer of each block, in ascending order.
        owned: c_h, columns of each block.
        weights: w_h, of the envelope.
        unit: what a probability of a place is multiplied by to compare with w_h.
        left_out: bound on the probability beyond the last block.
        columns: first integer of the block that owns each column; those beyond `filled` stand for the rest.
        filled: how many columns are owned.
        thresholds: cumulated weights.
    """

    law: Law
    shift: int
    starts: NDArray[np.int64]
    owned: tuple[int, ...]
    weights: tuple[int, ...]
    unit: Decimal
    left_out: float
    columns: NDArray[np.int32]
    filled: int
    thresholds: NDArray[np.uint64]
    # what the comparison in floating point needs of each block
    floor: NDArray[np.float64]
    slope: NDArray[np.float64]
    margin: NDArray[np.float64]

    def draw(self, source: Words, count: int) -> NDArray[np.int32]:
        """`count` independent draws."""
        values = np.empty(count, np.int32)
        self.fill(source, values)
        return values

    def fill(self, source: Words, values: NDArray[np.int32] | NDArray[np.int64]) -> None:
        """Independent draws in every place of an array of one dimension."""
        count = len(values)
        lane = np.dtype(np.uint16 if self.shift == 0 else np.uint32)
        lanes = source.words(-(-count * lane.itemsize // 8)).view(lane)[:count]
        room = np.empty(min(count, _PIECE), np.int32)
        rest = []
        for start in range(0, count, _PIECE):
            piece = lanes[start : start + _PIECE]
            part = room[: len(piece)]
            column = piece if self.shift == 0 else piece >> 16
            # every 16-bit number is a column; clipping spares the check
            np.take(self.columns, column, out=part, mode="clip")
            if self.shift:
                part += (piece & ((1 << self.shift) - 1)).view(np.int32)
            values[start : start + len(piece)] = part
            rest.append(np.flatnonzero(column >= self.filled) + start)
        if rest:
            places = np.concatenate(rest)
            values[places] = self._draw_rest(source, len(places))

    def _draw_rest(self, source: Words, count: int) -> NDArray[np.int64]:
        kept: list[NDArray[np.int64]] = []
        missing = count
        while missing > 0:
            which, where, bar = source.words(3 * (2 * missing + 8)).reshape(3, -1)
            block = np.searchsorted(self.thresholds, which, side="right")
            inside = block < len(self.starts)
            block, bar = block[inside], bar[inside]
            # in two steps, since a shift by all 64 bits at once is not defined
            place = self.starts[block] + (where[inside] >> 32 >> (32 - self.shift)).astype(np.int64)
            found = place[self._accept(source, block, place, bar)][:missing]
            kept.append(found)
            missing -= len(found)
        return np.concatenate(kept) if kept else np.empty(0, np.int64)

    def _accept(
        self, source: Words, block: NDArray[np.intp], place: NDArray[np.int64], bar: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        chance = (self.law.density(place) - self.floor[block]) * self.slope[block]
        distance = chance - (bar >> 11) * 2.0**-53
        margin = self.margin[block]
        accepted = distance > 0
        for index in np.flatnonzero(np.abs(distance) <= margin):
            accepted[index] = self._accept_exactly(
                source, int(block[index]), int(place[index]), int(bar[index])
            )
        return accepted

    def _accept_exactly(self, source: Words, block: int, place: int, bar: int) -> bool:
        for word in source.words(3):
            bar = bar << 64 | int(word)
        with decimal.localcontext(PRECISION):
            floor = Decimal(self.owned[block]) / Decimal(COLUMNS << self.shift)
            chance = (self.law.mass(place) - floor) * self.unit / self.weights[block]
            return bar < int(chance * 2**256)


def tabulate(law: Law) -> Table:
    """The table that draws from a law use; takes a tenth of a second or so."""
    shift = 0
    while law.sigma > RESOLUTION * 2**shift:
        shift += 1
    with decimal.localcontext(PRECISION):
        return _tabulate(law, shift)


def _tabulate(law: Law, shift: int) -> Table:
    width = 1 << shift
    edges, left_out = _edges(law, width)
    count = len(edges) - 1
    # Blocks h and -h-1 mirror each other but for an end; the edges bound both. Single integers need no bounds.
    magnitudes = [-1 - h if h < 0 else h for h in range(-count, count)]
    if shift == 0:
        low = high = [edges[abs(h)] for h in range(-count, count)]
    else:
        low, high = [edges[h + 1] for h in magnitudes], [edges[h] for h in magnitudes]
    owned = [int(mass * (COLUMNS << shift)) for mass in low]
    floor = [Decimal(columns) / (COLUMNS << shift) for columns in owned]
    excess = [(most - base) * width for most, base in zip(high, floor, strict=True)]
    unit = _ENVELOPE / sum(excess, start=Decimal(0)) * width
    weights = [int((most * unit / width).to_integral_value(decimal.ROUND_CEILING)) or 1 for most in excess]
    slope = np.array([float(unit / weight) for weight in weights])
    starts = np.arange(-count, count, dtype=np.int64) * width
    columns = np.zeros(COLUMNS, np.int32)
    columns[: sum(owned)] = np.repeat(starts, owned)
    return Table(
        law=law,
        shift=shift,
        starts=starts,
        owned=tuple(owned),
        weights=tuple(weights),
        unit=unit,
        left_out=float(left_out),
        columns=columns,
        filled=sum(owned),
        thresholds=np.cumsum(np.array(weights, np.uint64), dtype=np.uint64),
        floor=np.array([float(base) for base in floor]),
        slope=slope,
        margin=_ALLOWED_ERROR * (1 + slope * np.array([float(most) for most in high])),
    )


def _edges(law: Law, width: int) -> tuple[list[Decimal], Decimal]:
    """Masses at 0, width, 2 width and so on to the last block's end, and a bound on what lies beyond on both sides."""
    edges = [law.mass(0)]
    while True:
        edges.append(law.mass(len(edges) * width))
        before, last = edges[-2:]
        # by log-concavity each block beyond has at most last / before of the one nearer to 0
        left_out = 2 * width * last / (1 - last / before)
        if left_out < _NEGLIGIBLE:
            return edges, left_out
