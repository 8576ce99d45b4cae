"""Releases in a row with one verdict as one range, and ranges read back as releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from packaging.version import InvalidVersion, Version

from dspatch.carry.matrix.matrix import Cell, Verdict

DASH = "–"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive releases on which a patch has one verdict, and the reasons given."""

    releases: tuple[str, ...]
    verdict: Verdict
    whys: tuple[str, ...]

    def __str__(self) -> str:
        return between(self.releases)


def of_cells(cells: Mapping[str, Cell]) -> list[Span]:
    """The spans of one row, whose cells come oldest release first."""
    found = []
    for verdict, group in groupby(cells.items(), key=lambda item: item[1].verdict):
        items = list(group)
        whys = dict.fromkeys(cell.why for _, cell in items if cell.why)
        span = Span(releases=tuple(v for v, _ in items), verdict=verdict, whys=tuple(whys))
        found.append(span)
    return found


def between(releases: Sequence[str]) -> str:
    """Releases in a row as text: the first and the last."""
    return releases[0] if len(releases) == 1 else f"{releases[0]}{DASH}{releases[-1]}"


def runs(chosen: Iterable[str], releases: Sequence[str]) -> str:
    """Some of all releases as text: each run of neighbours as a range."""
    wanted = set(chosen)
    groups = groupby(releases, key=lambda version: version in wanted)
    return ", ".join(between(list(group)) for inside, group in groups if inside)


def expand(text: str, releases: Sequence[str]) -> Iterator[str]:
    """The releases that a text of ranges names; raises `ValueError` for a text that names none."""
    for part in text.split(","):
        first, _, last = (word.strip() for word in part.partition(DASH))
        try:
            low, high = Version(first), Version(last or first)
        except InvalidVersion as error:
            raise ValueError(f"{part.strip()!r} is no range of releases") from error
        yield from (version for version in releases if low <= Version(version) <= high)


@lru_cache(maxsize=4096)
def expanded(text: str, releases: tuple[str, ...]) -> tuple[str, ...]:
    """The releases that a recorded text names, none where it is empty: kept, as records are asked often."""
    return tuple(expand(text, releases)) if text else ()


def parsed(version: str | None) -> Version | None:
    """A release as a version that can be compared, `None` where it is none."""
    try:
        return Version(version) if version is not None else None
    except InvalidVersion:
        return None
