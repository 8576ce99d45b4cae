"""Rounds of load on two servers in turns: what each measured, and whether they differ beyond the spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")

# What a round measures: its unit, and whether less is better.
METRICS: Mapping[str, tuple[str, bool]] = {
    "ttft p50": ("ms", True),
    "ttft p99": ("ms", True),
    "itl p50": ("ms", True),
    "itl p99": ("ms", True),
    "latency p50": ("s", True),
    "output tokens": ("/s", False),
}
Verdict = Literal["better", "worse", "no difference seen"]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: requests that ended well and that did not, and a number of each metric."""

    completed: int
    errors: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A metric over the rounds of one server: median, least and most."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A metric of a subject beside its peer's.

    `ratio` is the median over pairs of rounds of subject over peer, from `low` to `high`. `same` is
    most over least of the peer's own rounds: how far two rounds of one and the same server are apart.
    """

    metric: str
    subject: Spread
    peer: Spread
    ratio: float
    low: float
    high: float
    same: float
    verdict: Verdict


def spread(rounds: Sequence[Round], metric: str) -> Spread:
    """A metric over rounds, of which there must be one."""
    values = [one.values[metric] for one in rounds]
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def compare(subject: Sequence[Round], peer: Sequence[Round], metric: str) -> Compared:
    """A metric of two servers that took turns, as many rounds each.

    They differ only where every pair of rounds says so, and by more than the wider spread of either
    server with itself.
    """
    pairs = zip(subject, peer, strict=True)
    ratios = [_over(one.values[metric], other.values[metric]) for one, other in pairs]
    ours, theirs = spread(subject, metric), spread(peer, metric)
    same = max(_over(theirs.high, theirs.low), _over(ours.high, ours.low))
    ratio = statistics.median(ratios)
    return Compared(
        metric=metric,
        subject=ours,
        peer=theirs,
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        same=same,
        verdict=_verdict(ratios, ratio, same, METRICS[metric][1]),
    )


def _verdict(ratios: Sequence[float], ratio: float, same: float, less: bool) -> Verdict:
    if min(ratios) > 1 and ratio > same:
        return "worse" if less else "better"
    if max(ratios) < 1 and ratio < 1 / same:
        return "better" if less else "worse"
    return "no difference seen"


def turns(rounds: int, of: Sequence[T]) -> list[T]:
    """Whose turn it is: each once a round, the order turned round each time."""
    found: list[T] = []
    for number in range(rounds):
        found += of if number % 2 == 0 else reversed(of)
    return found


def _over(value: float, by: float) -> float:
    if by == 0:
        return 1.0 if value == 0 else float("inf")
    return value / by
