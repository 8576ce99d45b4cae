"""A straight line through a quantity in time, and how far its slope can be trusted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.645  # one-sided 95 %
DROPPED = 0.2  # of the samples, at the beginning: caches fill, arenas grow


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Units a second, with one-sided 95 % bounds; `start` is the value of the line at its first moment."""

    slope: float
    low: float
    high: float
    start: float
    first: float
    last: float
    samples: int

    def at(self, moment: float) -> float:
        """The line's value."""
        return self.start + self.slope * (moment - self.first)


def settled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without the first fifth."""
    return list(points[math.ceil(len(points) * DROPPED) :])


def fit(points: Sequence[tuple[float, float]]) -> Slope | None:
    """Least squares through (seconds, value); `None` for fewer than four points, or one moment.

    The bound counts only as many samples as are independent: residuals that follow each other, as
    those of memory do, say less than their number. Source: first-order autocorrelation, as in
    Bartlett's effective sample size n (1 - r) / (1 + r); Student's quantile by its expansion.
    """
    count = len(points)
    times, values = [t for t, _ in points], [v for _, v in points]
    if count < 4 or max(times) == min(times):
        return None
    middle, level = math.fsum(times) / count, math.fsum(values) / count
    width = math.fsum((t - middle) ** 2 for t in times)
    slope = math.fsum((t - middle) * (v - level) for t, v in points) / width
    rest = [v - level - slope * (t - middle) for t, v in points]
    free = _free(rest)
    deviation = math.fsum(one * one for one in rest) / max(free - 2, 1.0)
    # Fewer independent samples spread over the same time.
    error = math.sqrt(deviation / (width * free / count))
    margin = _student(max(free - 2, 1.0)) * error
    return Slope(
        slope=slope,
        low=slope - margin,
        high=slope + margin,
        start=level + slope * (times[0] - middle),
        first=times[0],
        last=times[-1],
        samples=count,
    )


def _free(rest: Sequence[float]) -> float:
    """How many of the residuals are independent: at least three, at most all."""
    total = math.fsum(one * one for one in rest)
    if total == 0:
        return float(len(rest))
    next_to = math.fsum(a * b for a, b in itertools.pairwise(rest))
    along = min(max(next_to / total, 0.0), 0.99)
    return max(len(rest) * (1 - along) / (1 + along), 3.0)


def _student(freedom: float) -> float:
    """The one-sided 95 % quantile of Student's t, exact for one degree, else within 2 %."""
    if freedom < 1.5:
        return 6.314
    if freedom < 2.5:
        return 2.92
    fifth = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    return Z + (Z**3 + Z) / (4 * freedom) + fifth / freedom**2
