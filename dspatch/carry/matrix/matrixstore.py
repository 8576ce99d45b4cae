"""Measured cells of the matrix, kept in the cache: a file a release, a few keys a patch and target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.carry.matrix.matrix import Cell
from dspatch.carry.remote.releases import Release
from dspatch.files import write_atomically

KEPT = 8  # a patch that is edited to and fro is not measured anew each time

Content = dict[str, dict[str, dict[str, Any]]]


def read(engine: str, release: Release) -> Content:
    """What is kept of a release, by patch and target and then by key; empty when nothing is, or it was spoilt."""
    try:
        digest, _, body = _path(engine, release).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
        return {}
    content: Content = json.loads(body)
    return content


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
    body = json.dumps(content).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    write_atomically(_path(engine, release), digest + b"\n" + body)


def _path(engine: str, release: Release) -> Path:
    name = hashlib.sha256(release.inputs.encode()).hexdigest()[:32]
    return paths.cache() / "matrix" / engine / f"{release.version}-{name}.json"
