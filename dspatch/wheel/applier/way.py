"""The way a delta is to go with an installation: from which side to which, and how strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import record
from .manifest import INFO, Delta, File, Side
from .site import Installed, canonical

if TYPE_CHECKING:
    from .manifest import Recipe

# What an installation that is not the pinned base wheel had in files that every build writes itself.
KEPT = "dspatch-base"
ORIGIN = "origin.json"
BILL = f"{INFO}/sboms/dspatch.cdx.json"


@dataclass(frozen=True)
class Way:
    """From `here` to `there`; `other_build` lets the files differ that every build writes itself."""

    delta: Delta
    site: Installed
    here: Side
    there: Side
    undo: bool = False
    other_build: bool = False

    def hash_here(self, file: File) -> str | None:
        """A file's sha256 before; None where it must not be there."""
        return file.overlay if self.undo else file.base

    def hash_there(self, file: File) -> str | None:
        """A file's sha256 afterwards; None where it goes."""
        return file.base if self.undo else file.overlay

    def path_here(self, file: File) -> str:
        """Where a file lies before."""
        return _below(file.path, self.site.info)

    def path_there(self, file: File) -> str:
        """Where a file lies afterwards."""
        return _below(file.path, self.there.info)

    def free(self, file: File) -> bool:
        """Whether a file may have other bytes than the pinned base wheel or its overlay has."""
        return self.other_build and (file.identity or file.path == BILL)

    def made(self, file: File, before: bytes | None) -> bytes:
        """A file's bytes afterwards, from those before; raises `Misfit` when the delta is damaged."""
        recipe: Recipe | None = file.to_base if self.undo else file.to_overlay
        sha256 = self.hash_there(file)
        assert recipe is not None
        assert sha256 is not None
        return self.delta.made(recipe, before or b"", sha256, file.path)


def of(delta: Delta, site: Installed, *, undo: bool, other_build: bool) -> Way:
    """The way for an installation that was found; one that came from another build goes back to that."""
    here, there = (delta.overlay, delta.base) if undo else (delta.base, delta.overlay)
    differs = other_build and record.members_hash(site.record.by_path) != here.members
    way = Way(
        delta=delta,
        site=site,
        here=here,
        there=there,
        undo=undo,
        other_build=differs or is_other(site),
    )
    if not (undo and is_other(site)):
        return way
    origin = json.loads((site.root / site.info / KEPT / ORIGIN).read_text(encoding="utf-8"))
    return replace(way, there=replace(way.there, **origin))


def is_other(site: Installed) -> bool:
    """Whether an overlay was made of another build than the pinned base wheel."""
    return (site.root / site.info / KEPT / ORIGIN).is_file()


def matches(found: Installed, side: Side, *, other_build: bool) -> bool:
    """Whether an installation is of the project and version of a side."""
    if canonical(found.project) != canonical(side.project):
        return False
    if found.version == side.version:
        return True
    public, _, local = found.version.partition("+")
    return other_build and public == side.version and "dspatch" not in local


def _below(path: str, info: str) -> str:
    return info + path[len(INFO) :] if path.startswith(f"{INFO}/") else path
