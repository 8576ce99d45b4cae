"""Binary search over releases of which some cannot be run: what is known at the end, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "fail", "skip"]
Ask = Callable[[str], Verdict]


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The check changes between two releases, `before` and `after`.

    `starts` says that it passes from `after` on, else it stops there. `unknown` lie between the two
    and could not be run, so that the change may be in any of them, or in `after`.
    """

    before: str
    after: str
    starts: bool
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """Both ends that could be run say the same; with no `verdict`, nothing could be run."""

    verdict: Verdict | None
    first: str = ""
    last: str = ""


def search(releases: Sequence[str], ask: Ask) -> Boundary | Unchanged:
    """Find one change of verdict among releases, oldest first.

    The ends are asked first; where one cannot be run, the nearest that can is looked for in steps
    that double. Between two releases with different verdicts the middle is asked, and where that
    cannot be run, the nearest to it. With several changes it is one of them.
    """
    told: dict[int, Verdict] = {}

    def verdict(place: int) -> Verdict:
        if place not in told:
            told[place] = ask(releases[place])
        return told[place]

    count = len(releases)
    low = next((i for i in _strides(count) if verdict(i) != "skip"), None)
    if low is None:
        return Unchanged(verdict=None)
    high = next(j for j in (count - 1 - i for i in _strides(count)) if verdict(j) != "skip")
    low, high = min(low, high), max(low, high)
    if verdict(low) == verdict(high):
        return Unchanged(verdict=verdict(low), first=releases[low], last=releases[high])
    while (middle := _middle(low, high, told)) is not None:
        if (found := verdict(middle)) != "skip":
            low, high = (middle, high) if found == told[low] else (low, middle)
    return Boundary(
        before=releases[low],
        after=releases[high],
        starts=told[high] == "pass",
        unknown=tuple(releases[low + 1 : high]),
    )


def _strides(count: int) -> Iterator[int]:
    """Places from one end, in steps that double; then all that were passed over."""
    doubling = [2**n - 1 for n in range(count.bit_length() + 1) if 2**n - 1 < count]
    yield from doubling
    yield from (place for place in range(count) if place not in doubling)


def _middle(low: int, high: int, told: dict[int, Verdict]) -> int | None:
    """The place between two that is nearest to their middle and was not asked yet."""
    inner = (place for place in range(low + 1, high) if place not in told)
    return min(inner, key=lambda place: abs(2 * place - low - high), default=None)
