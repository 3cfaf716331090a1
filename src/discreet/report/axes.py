"""Scales of the page's charts, with their ticks, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Axis:
    """A scale from numbers to the plot's coordinates.

    Attributes:
        label: quantity and unit.
        low: the number at the start.
        high: the number at the end.
        log: whether the scale is logarithmic.
        percent: whether ticks are written in percent.
        whole: whether only whole numbers make sense.
        cut: whether some numbers lie below the start, out of sight.
    """

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False
    cut: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """Where ``value`` lies between the coordinates ``start`` and ``end``."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return start + (at - low) / (high - low) * (end - start)

    def ticks(self) -> list[float]:
        """Round numbers within the axis, at most eight."""
        found = (
            self._log_ticks()
            if self.log
            else MaxNLocator(
                nbins=6, steps=[1, 2, 2.5, 5, 10], integer=self.whole, min_n_ticks=1
            ).tick_values(self.low, self.high)
        )
        slack = 1e-9 * (self.high - self.low)
        return [float(tick) for tick in found if self.low - slack <= tick <= self.high + slack]

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        subs = (1, 2, 5) if last - first <= 3 else (1,)
        ticks = [sub * 10.0**power for power in range(first, last + 1) for sub in subs]
        inside = [tick for tick in ticks if self.low <= tick <= self.high]
        return inside[:: math.ceil(len(inside) / 8) or 1]

    def write(self, value: float) -> str:
        """A tick's text: as many digits as tell it from its neighbours."""
        if self.log:
            return group_digits(f"{value:.10g}")
        ticks = self.ticks()
        scale = 100 if self.percent else 1
        step = (ticks[1] - ticks[0]) * scale if len(ticks) > 1 else 1.0
        digits = next((d for d in range(9) if abs(step - round(step, d)) < 1e-6 * step), 9)
        return group_digits(f"{value * scale + 0.0:.{digits}f}") + ("\u202f%" if self.percent else "")


def linear_axis(
    label: str,
    values: Iterable[float],
    *,
    from_zero: bool = False,
    percent: bool = False,
    whole: bool = False,
) -> Axis:
    """An axis that holds all finite ``values`` with a little air; a single value gets some room around it."""
    known = [value for value in values if math.isfinite(value)]
    low, high = (0.0 if from_zero else min(known)), max(known)
    air = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    low_end = low if from_zero else low - air
    # A loss or an accuracy is never below 0: air must not suggest that it could be.
    low_end = max(low_end, 0.0) if low >= 0 else low_end
    high_end = (
        min(high + air, 1.0) if percent and high <= 1 else high + (0 if from_zero and high > low else air)
    )
    return Axis(label, low_end, high_end, percent=percent, whole=whole)


def accuracy_axis(curves: Iterable[Sequence[float]]) -> Axis:
    """An axis for accuracies on which the steep climb of the first rounds does not flatten all the rest.

    Where that climb would take more than half of the height, it is cut off below. At least 85 % of the points of
    every curve stay in sight.
    """
    known = [finite for curve in curves if (finite := [value for value in curve if math.isfinite(value)])]
    whole = linear_axis("", [value for curve in known for value in curve], percent=True)
    start = min(float(np.quantile(curve, 0.15, method="lower")) for curve in known)
    lowest, highest = min(map(min, known)), max(map(max, known))
    if start - lowest <= 0.5 * (highest - lowest):
        return whole
    low = max(start - 0.25 * (highest - start), lowest)
    return replace(whole, low=low, high=min(highest + 0.06 * (highest - low), max(1.0, highest)), cut=True)


def log_axis(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis that holds all positive ``values``."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    return Axis(f"{label}, log scale", min(known) / 1.12, max(known) * 1.12, log=True)


def group_digits(number: str) -> str:
    """``12345.5`` as ``12 345.5``, with narrow spaces that do not break; four digits stay together."""
    whole, point, rest = number.partition(".")
    if not whole.lstrip("-").isdigit() or len(whole.lstrip("-")) < 5:
        return number
    return f"{int(whole):,}".replace(",", "\u202f") + point + rest
