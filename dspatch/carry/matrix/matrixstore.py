"""Measured cells of the matrix, kept in the cache: a file a release, a few keys a patch and target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspatch.carry.matrix.matrix import Cell
from dspatch.carry.remote import releasestore
from dspatch.carry.remote.releases import Release

KEPT = 8  # a patch that is edited to and fro is not measured anew each time

Content = dict[str, dict[str, dict[str, Any]]]


def read(engine: str, release: Release) -> Content:
    """What is kept of a release, by patch and target and then by key; empty when nothing is, or it was spoilt."""
    return releasestore.read(_path(engine, release))


def cell(content: Content, patch: str, target: str, key: str, *, native: bool) -> Cell | None:
    """A kept cell; one that rests on native files must have been measured as now asked for."""
    rows = content.get(f"{patch} {target}", {})
    found = rows.get(f"{key} native") if native else None
    found = found or rows.get(key)
    if found is None or (native and found["native"] and f"{key} native" not in rows):
        return None
    return Cell(**{**found, "native": tuple(found["native"])})


def write(
    engine: str,
    release: Release,
    content: Content,
    cells: Iterable[Cell],
    keys: Mapping[str, str],
    *,
    native: bool,
) -> None:
    """Add cells to what is kept of a release; raises `DiskFullError`."""
    for one in cells:
        rows = content.setdefault(f"{one.patch} {one.target}", {})
        key = keys[one.patch] + (" native" if native and one.native else "")
        rows.pop(key, None)
        rows[key] = asdict(one)
        for oldest in list(rows)[:-KEPT]:
            del rows[oldest]
    releasestore.write(_path(engine, release), content)


def _path(engine: str, release: Release) -> Path:
    return releasestore.path("matrix", engine, release, release.inputs)
