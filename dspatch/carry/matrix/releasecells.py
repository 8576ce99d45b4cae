"""All cells of one release: those that are kept, and those measured because something changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspatch.carry.matrix import matrixstore
from dspatch.carry.matrix.matrix import Cell, measure, without_native
from dspatch.carry.matrix.watched import WatchedTraits
from dspatch.carry.remote import everyrelease
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from dspatch.carry.matrix.matrixkeys import Keys
    from dspatch.carry.remote.openreleases import OpenReleases
    from dspatch.carry.remote.releases import Release
    from dspatch.patchfile import Patch
    from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all releases have in common; `hashes` is `keys.all`, made before there are threads."""

    at: OpenReleases
    keys: Keys
    hashes: Mapping[str, str]
    targets: tuple[str, ...]
    native: bool

    @property
    def series(self) -> Series:
        """The patches, all of them asked for."""
        return self.at.series

    def patches(self, target: str) -> list[Patch]:
        """The patches that have a cell for a target."""
        families = [variant.families for variant in self.at.variants]
        return [
            patch
            for patch in self.series.patches
            if self.series.outside(patch, target, families) is None
        ]


@dataclass(kw_only=True)
class Done:
    """The cells of one release, how many were measured now, and why some could not be."""

    cells: list[Cell] = field(default_factory=list)
    fresh: int = 0
    note: str = ""


def of_release(work: Work, release: Release) -> Done:
    """The cells of a release. Raises `OfflineError` and `DiskFullError`.

    One whose files cannot be read, or are not what they should be, has cells that are not measured.
    """
    native = work.native and release.sdist is not None
    content = matrixstore.read(work.series.engine, release)
    done, missing = _kept(work, content, native)
    try:
        fresh = list(_measured(work, release, missing, native)) if any(missing.values()) else []
    except everyrelease.OF_ONE as error:
        done.note = everyrelease.unread(release, error)
        done.cells += [
            Cell(patch=name, target=target, verdict="not measured", why=error.what)
            for target, names in missing.items()
            for name in names
        ]
        fresh = []
    if fresh:
        matrixstore.write(work.series.engine, release, content, fresh, work.hashes, native=native)
    done.cells += fresh
    done.fresh = len(fresh)
    if not native:
        sdist = release.sdist is not None
        done.cells = [without_native(cell, sdist=sdist) for cell in done.cells]
    return done


def _kept(
    work: Work, content: matrixstore.Content, native: bool
) -> tuple[Done, dict[str, list[str]]]:
    """The cells that are kept, and by target the patches that have none."""
    done = Done()
    missing: dict[str, list[str]] = {target: [] for target in work.targets}
    for target in work.targets:
        for patch in work.patches(target):
            key = work.hashes[patch.name]
            kept = matrixstore.cell(content, patch.name, target, key, native=native)
            if kept is None:
                missing[target].append(patch.name)
            else:
                done.cells.append(kept)
    return done, missing


def _measured(
    work: Work, release: Release, missing: Mapping[str, Sequence[str]], native: bool
) -> Iterator[Cell]:
    at, source = work.at, work.at.files(release, native=native)
    facts = WatchedTraits(work.series.traits, source.read, source.beyond)
    for target, names in missing.items():
        place, series = at.place(release, facts, target), work.keys.only(names)
        cells = measure(series, Files(source=source), place, target=target, variants=at.variants)
        yield from (cell for cell in cells if cell.patch in names)
