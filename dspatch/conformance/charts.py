"""Where the marks of a chart stand: the error by depth, and log-probabilities by their error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 340.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 34.0
DECADES = (-18, 0)  # of the relative difference; equal values stand at the foot
FIRST_ERROR = -9.5  # the decade at which the first bin of log-probabilities begins


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point, or the top of a bar, in the chart's own units; `right` is whether it is in the band."""

    x: float
    y: float
    label: str
    value: str
    right: bool


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Marks from left to right, ticks of both axes, and where the band ends and the noise lies."""

    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    band: float
    noise: float | None = None
    step: float = 0.0

    @property
    def line(self) -> str:
        """The marks as the points of a polyline."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


def depth(errors: Sequence[tuple[str, float]], band: float, noise: float) -> Chart:
    """The relative difference at each depth of the model, on a scale of decades."""
    step = (WIDTH - LEFT - RIGHT) / max(len(errors), 1)
    places = [LEFT + step * (number + 0.5) for number in range(len(errors))]
    marks = [
        Mark(x=x, y=_up(value), label=name, value=_number(value), right=value <= band)
        for x, (name, value) in zip(places, errors, strict=True)
    ]
    return Chart(
        marks=tuple(marks),
        across=tuple(Tick(at=mark.x, label=mark.label.replace("layer.", "L")) for mark in marks),
        up=tuple(Tick(at=_up(10.0**n), label=f"1e{n}") for n in range(*DECADES, 4)),
        band=_up(band),
        noise=_up(noise),
        step=step,
    )


def histogram(counts: Sequence[int], limit: float, *, of_all: bool = True) -> Chart:
    """How many log-probabilities are off by how much: half decades across, decades of counts up.

    Where the limit is not `of_all`, but of a typical one, some beyond it are right.
    """
    step = (WIDTH - LEFT - RIGHT) / max(len(counts), 1)
    most = max(math.ceil(math.log10(max([*counts, 1]) + 1)), 1)
    room = HEIGHT - TOP - BOTTOM
    # One is drawn, too: a single log-probability far off must not vanish.
    tall = [math.log10(count * 9 / 10 + 1) / most if count else 0.0 for count in counts]
    marks = [
        Mark(
            x=LEFT + step * number,
            y=HEIGHT - BOTTOM - room * part,
            label=_bin(number, len(counts)),
            value=f"{count:,}",
            right=not of_all or FIRST_ERROR + (number + 1) / 2 <= math.log10(limit) + 1e-9,
        )
        for number, (count, part) in enumerate(zip(counts, tall, strict=True))
    ]
    tens = range(0, most + 1, max(most // 3, 1))
    return Chart(
        marks=tuple(marks),
        across=tuple(
            Tick(at=LEFT + step * number, label=f"1e{FIRST_ERROR + number / 2:.0f}")
            for number in range(1, len(counts), 4)
        ),
        up=tuple(
            Tick(at=HEIGHT - BOTTOM - room * n / most, label=f"1e{n}" if n else "1") for n in tens
        ),
        band=LEFT + step * 2 * (math.log10(limit) - FIRST_ERROR),
        step=step,
    )


def _up(value: float) -> float:
    low, high = DECADES
    decade = high if not math.isfinite(value) else math.log10(max(value, 10.0**low))
    part = (min(decade, high) - low) / (high - low)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def _bin(number: int, of: int) -> str:
    low = FIRST_ERROR + number / 2
    if number == 0:
        return "below 1e-9 nats"
    if number == of - 1:
        return f"{10**low:.2g} nats and more"
    return f"{10**low:.2g} to {10 ** (low + 0.5):.2g} nats"


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "not finite"
