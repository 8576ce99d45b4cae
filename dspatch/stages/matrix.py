"""`dspatch patch matrix`: every patch tried on every published release, each release once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dspatch import outputformat
from dspatch.carry.matrix.matrix import Cell
from dspatch.carry.matrix.matrixkeys import Keys
from dspatch.carry.matrix.releasecells import Done, Work, of_release
from dspatch.carry.remote import everyrelease, openreleases, releases
from dspatch.carry.remote.releases import Published, Release
from dspatch.errors import UnknownRevisionError
from dspatch.series import EVERY, TARGETS, layered
from dspatch.stages.request import known

if TYPE_CHECKING:
    from dspatch.console import Console


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to measure; no target and no variant mean all of them, `rev` narrows it to one release."""

    engine: str
    targets: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    rev: str | None = None
    native: bool = False
    prereleases: bool = False
    yanked: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One patch and target: its cell on each release, oldest release first."""

    patch: str
    target: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The matrix, and what it took: bytes and requests, seconds, cells measured now and kept.

    `outside` says of each patch without a row why it has none.
    """

    engine: str
    releases: tuple[str, ...]
    rows: tuple[Row, ...]
    outside: Mapping[str, str]
    bytes: int
    requests: int
    seconds: float
    fresh: int
    kept: int
    notes: tuple[str, ...] = ()


def run(wanted: Wanted, console: Console) -> Measured:
    """Measure, or recall what did not change since it was measured.

    Raises `UnknownEngineError`, `UnknownRevisionError` for a release that nobody published, the
    errors of reading patches, and `OfflineError` or `DownloadError` when no index can be asked. A
    single release that cannot be read is told as not measured.
    """
    start = time.monotonic()
    with _opened(wanted) as work:
        published, traffic = work.at.published, work.at.traffic
        asked = _asked_for(wanted, published)
        with console.working(f"trying {len(work.series.patches)} patches") as step:
            done = _measure_all(work, asked, step)
    return Measured(
        engine=wanted.engine,
        releases=tuple(release.version for release in asked),
        rows=tuple(_rows(work, asked, done)),
        outside=_outside(work),
        bytes=traffic.bytes,
        requests=traffic.requests,
        seconds=time.monotonic() - start,
        fresh=sum(each.fresh for each in done.values()),
        kept=sum(len(each.cells) - each.fresh for each in done.values()),
        notes=(*published.problems, *(each.note for each in done.values() if each.note)),
    )


@contextmanager
def _opened(wanted: Wanted) -> Iterator[Work]:
    series = layered(wanted.engine).asking(outputformat.NONE, [EVERY])
    variants, targets = known(wanted.variants), wanted.targets or TARGETS
    published = releases.published(
        wanted.engine, prereleases=wanted.prereleases, yanked=wanted.yanked
    )
    keys = Keys(series, variants)
    with openreleases.opened(series, variants, targets, published) as at:
        yield Work(at=at, keys=keys, hashes=keys.all, targets=targets, native=wanted.native)


def _asked_for(wanted: Wanted, published: Published) -> tuple[Release, ...]:
    if wanted.rev is None:
        return published.releases
    found = published.release(wanted.rev)
    if found is not None:
        return (found,)
    newest = published.releases[-1].rev if published.releases else "none"
    raise UnknownRevisionError(
        f"no index has a release {wanted.rev} of {wanted.engine} to try patches on.",
        why=f"{len(published.releases)} are of interest, the newest is {newest}",
        next="name a release, or add --pre or --yanked when it is one of those",
    )


def _measure_all(
    work: Work, asked: Sequence[Release], step: Callable[[str], None]
) -> dict[str, Done]:
    def told(done: int) -> None:
        step(f"{done} of {len(asked)} releases, {work.at.traffic.bytes / 1e6:.0f} MB")

    return everyrelease.each(asked, partial(of_release, work), told)


def _outside(work: Work) -> dict[str, str]:
    """The patches that are for none of the targets and variants asked for, and why."""
    families = [variant.families for variant in work.at.variants]
    found: dict[str, str] = {}
    inside: set[str] = set()
    for target in work.targets:
        for patch in work.series.patches:
            item = work.series.outside(patch, target, families)
            if item is None:
                inside.add(patch.name)
            elif item.status == "other target":
                found.setdefault(patch.name, item.why)
            else:
                found[patch.name] = item.why
    return {name: why for name, why in found.items() if name not in inside}


def _rows(work: Work, asked: Sequence[Release], done: Mapping[str, Done]) -> Iterator[Row]:
    cells = {
        (cell.patch, cell.target, version): cell
        for version, each in done.items()
        for cell in each.cells
    }
    for patch in work.series.patches:
        for target in work.targets:
            found = {
                release.version: cells[patch.name, target, release.version]
                for release in asked
                if (patch.name, target, release.version) in cells
            }
            if found:
                yield Row(patch=patch.name, target=target, cells=found)
