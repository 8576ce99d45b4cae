"""`dspatch patch matrix`: every patch tried on every published release, each release once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import pins, pipconfig, render
from dspatch.bases import Bases
from dspatch.carry import claims, matrixstore, releases
from dspatch.carry.matrix import Cell, measure, without_native
from dspatch.carry.matrixkeys import Keys
from dspatch.carry.ranges import Traffic
from dspatch.carry.releasefiles import ReleaseFiles
from dspatch.carry.releases import Published, Release
from dspatch.carry.watched import WatchedTraits
from dspatch.carry.wheelbases import WheelBases
from dspatch.checkout import cache_of
from dspatch.errors import (
    ClaimError,
    DownloadError,
    HashMismatchError,
    UnknownRevisionError,
    UnsafeArchiveError,
    WheelError,
)
from dspatch.files import write_atomically
from dspatch.git import Repo
from dspatch.onto import Place
from dspatch.series import TARGETS, Series, layered
from dspatch.stages.request import served
from dspatch.traits import Traits
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.console import Console
    from dspatch.patchfile import Patch
    from dspatch.variants import Variant

JOBS = 6  # releases at once; one index serves them all
_TITLE = """\
# Which patch applies to which release

Measured by `dspatch patch matrix`, which writes this page and fails when it is no longer true.

* *semantic*, *strict*, *merged*: the patch applies, by its edits, as a diff, as a diff merged three-way.
* *not needed*: a trait that it needs does not hold. *upstreamed*: the release has the change already.
* *conflict*: it does not apply. *missing*: a file that it changes is not there.
* *signature drift*: it applies, but upstream code that it uses is not what it was written for.
* *not measured*: it rests on native sources, which wheels do not hold, and sdists were not asked for.
"""
# One release's files that cannot be had say nothing of the others.
_OF_THE_RELEASE = (DownloadError, HashMismatchError, UnsafeArchiveError, WheelError)


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


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What all releases have in common."""

    wanted: Wanted
    series: Series
    keys: Keys
    variants: Sequence[Variant]
    published: Published
    project: str
    client: PyPIClient
    traffic: Traffic
    repo: Repo

    def patches(self, target: str) -> list[Patch]:
        """The patches that have a cell for a target."""
        families = [variant.families for variant in self.variants]
        return [
            patch
            for patch in self.series.patches
            if target in patch.targets
            and patch.name not in self.series.left_out
            and (not patch.families or any(set(patch.families) <= have for have in families))
        ]


@dataclass(kw_only=True)
class _Done:
    """The cells of one release, and how many of them were measured now."""

    cells: list[Cell] = field(default_factory=list)
    fresh: int = 0
    note: str = ""


def run(wanted: Wanted, console: Console) -> Measured:
    """Measure, or recall what did not change since it was measured.

    Raises `UnknownEngineError`, `UnknownRevisionError` for a release that nobody published, the
    errors of reading patches, and `OfflineError` or `DownloadError` when no index can be asked. A
    single release that cannot be read is told as not measured.
    """
    start = time.monotonic()
    with _opened(wanted) as work:
        asked = _asked_for(work)
        with console.working(f"trying {len(work.series.patches)} patches") as step:
            done = _measure_all(work, asked, step)
    return Measured(
        engine=wanted.engine,
        releases=tuple(release.version for release in asked),
        rows=tuple(_rows(work, asked, done)),
        outside=_outside(work),
        bytes=work.traffic.bytes,
        requests=work.traffic.requests,
        seconds=time.monotonic() - start,
        fresh=sum(each.fresh for each in done.values()),
        kept=sum(len(each.cells) - each.fresh for each in done.values()),
        notes=(*work.published.problems, *(each.note for each in done.values() if each.note)),
    )


@contextmanager
def _opened(wanted: Wanted) -> Iterator[_Work]:
    facts = pins.engine(wanted.engine)
    series = layered(wanted.engine)
    variants = served(wanted.variants)
    published = releases.published(
        wanted.engine, prereleases=wanted.prereleases, yanked=wanted.yanked
    )
    with cache_of(wanted.engine) as repo:  # made under its lock, then only added to
        pass
    with pipconfig.client(pipconfig.load()) as client:
        yield _Work(
            wanted=wanted,
            series=series,
            keys=Keys(series, variants),
            variants=variants,
            published=published,
            project=facts.sdist,
            client=client,
            traffic=Traffic(),
            repo=repo,
        )


def _asked_for(work: _Work) -> tuple[Release, ...]:
    rev = work.wanted.rev
    if rev is None:
        return work.published.releases
    found = work.published.release(rev)
    if found is not None:
        return (found,)
    newest = work.published.releases[-1].rev if work.published.releases else "none"
    raise UnknownRevisionError(
        f"no index has a release {rev} of {work.wanted.engine} to try patches on.",
        why=f"{len(work.published.releases)} are of interest, the newest is {newest}",
        next="name a release, or add --pre or --yanked when it is one of those",
    )


def _measure_all(
    work: _Work, asked: Sequence[Release], step: Callable[[str], None]
) -> dict[str, _Done]:
    done: dict[str, _Done] = {}
    with ThreadPoolExecutor(JOBS) as pool:
        futures: dict[Future[_Done], Release] = {
            pool.submit(_release, work, release): release for release in asked
        }
        try:
            for future in as_completed(futures):
                done[futures[future].version] = future.result()
                step(f"{len(done)} of {len(asked)} releases, {work.traffic.bytes / 1e6:.0f} MB")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done


def _release(work: _Work, release: Release) -> _Done:
    """All cells of one release, those measured that are not kept."""
    native = work.wanted.native and release.sdist is not None
    content = matrixstore.read(work.wanted.engine, release)
    keys = {patch.name: work.keys.key(patch) for patch in work.series.patches}
    done = _Done()
    missing: dict[str, list[str]] = {}
    for target in work.wanted.targets or TARGETS:
        missing[target] = []
        for patch in work.patches(target):
            kept = matrixstore.cell(content, patch.name, target, keys[patch.name], native=native)
            if kept is None:
                missing[target].append(patch.name)
            else:
                done.cells.append(kept)
    try:
        fresh = list(_measured(work, release, missing, native)) if any(missing.values()) else []
    except _OF_THE_RELEASE as error:
        done.note = f"{release.version} could not be read: {error.what} {error.why}"
        fresh = []
        done.cells += [
            Cell(patch=name, target=target, verdict="not measured", why=error.what)
            for target, names in missing.items()
            for name in names
        ]
    if fresh:
        matrixstore.write(work.wanted.engine, release, content, fresh, keys, native=native)
    done.cells += fresh
    done.fresh = len(fresh)
    if not native:
        done.cells = [without_native(cell) for cell in done.cells]
    return done


def _measured(
    work: _Work, release: Release, missing: Mapping[str, Sequence[str]], native: bool
) -> Iterator[Cell]:
    source = ReleaseFiles(work.project, release, work.client, work.traffic, native=native)
    facts = WatchedTraits(work.series.traits, source.read, source.beyond)
    for target, names in missing.items():
        if not names:
            continue
        series = work.keys.only(names)
        place = _place(work, release, facts, target)
        for cell in measure(
            series, Files(source=source), place, target=target, variants=work.variants
        ):
            if cell.patch in names:
                yield cell


def _place(work: _Work, release: Release, facts: WatchedTraits, target: str) -> Place:
    repo = Repo(work.repo.path)  # each thread has git processes of its own
    behind = Bases(series=work.series, target=target, variants=work.variants)
    bases = WheelBases(work.project, work.published, work.client, work.traffic, behind)
    return Place(
        engine=work.wanted.engine,
        rev=release.rev,
        commit="",
        repo=repo,
        context=render.Context(traits=facts, variants=work.variants),
        provide=lambda patch, form: bases.provide(patch, form, repo),
        base_paths=lambda patch, form: bases.paths(form),
    )


def _outside(work: _Work) -> dict[str, str]:
    """The patches that are for none of the targets and variants asked for, and why."""
    nothing = Traits(work.series.traits, lambda path: None)
    families = [variant.families for variant in work.variants]
    found: dict[str, str] = {}
    for target in work.wanted.targets or TARGETS:
        for item in work.series.plan(nothing, target, families):
            if item.status in ("other variant", "left out"):
                found[item.patch.name] = item.why
            elif item.status == "other target":
                found.setdefault(item.patch.name, item.why)
    inside = {patch.name for t in work.wanted.targets or TARGETS for patch in work.patches(t)}
    return {name: why for name, why in found.items() if name not in inside}


def _rows(work: _Work, asked: Sequence[Release], done: Mapping[str, _Done]) -> Iterator[Row]:
    cells = {
        (cell.patch, cell.target, version): cell
        for version, each in done.items()
        for cell in each.cells
    }
    for patch in work.series.patches:
        for target in work.wanted.targets or TARGETS:
            found = {
                release.version: cells[patch.name, target, release.version]
                for release in asked
                if (patch.name, target, release.version) in cells
            }
            if found:
                yield Row(patch=patch.name, target=target, cells=found)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """How a document that holds was held: blocks compared, and cells that one side did not measure."""

    blocks: int
    open_cells: int


def write(done: Measured, path: Path) -> bool:
    """Write the matrix into a document between its marks; whether anything changed."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = claims.written(before or _TITLE, done.engine, done.releases, done.rows)
    if after != before:
        write_atomically(path, after.encode())
    return after != before


def check(done: Measured, path: Path) -> Checked:
    """Hold a document's claims against the matrix; raises `ClaimError` that names each difference."""
    found: list[str] = []
    open_cells = 0
    blocks = claims.blocks(path.read_text(encoding="utf-8"), done.engine)
    if not blocks:
        found.append(f"it has no part between marks that is about {done.engine}")
    for block in blocks:
        try:
            differing, unread = claims.differences(block, done.releases, done.rows)
        except ValueError as error:
            differing, unread = [], 0
            found.append(f"a part of it cannot be read: {error}")
        found += map(str, differing)
        open_cells += unread
    if found:
        raise ClaimError(
            f"{path} claims what was not measured, in {len(found)} places.",
            why="\n        ".join(found),
            next=f"mend the patches, or dspatch patch matrix --engine {done.engine} --write {path}",
        )
    return Checked(blocks=len(blocks), open_cells=open_cells)
