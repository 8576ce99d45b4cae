"""Whether an installation is what a delta starts from: the very files, by RECORD and by their bytes."""

from __future__ import annotations

import os
from pathlib import Path

from . import record
from .manifest import File, hash_of
from .misfit import Misfit
from .site import target
from .way import Way

SHOWN = 8


def before(way: Way) -> dict[str, bytes | None]:
    """Each changed file's bytes now, None where there is none; raises `Misfit` with all that are wrong."""
    rows = way.site.record.by_path
    if not way.other_build:
        _check_build(way, rows)
    found: dict[str, bytes | None] = {}
    odd: list[str] = []
    for file in way.delta.files:
        path = way.path_here(file)
        found[file.path] = _read(target(way.site.root, path))
        odd += _odd(way, file, found[file.path], rows.get(path, ("", "", ""))[1])
    if odd:
        more = [f"and {len(odd) - SHOWN} more"] if len(odd) > SHOWN else []
        raise Misfit(
            f"{way.site} in {way.site.root} has {len(odd)} files that are not as {way.here.wheel}"
            " has them.",
            "\n        ".join(odd[:SHOWN] + more),
            "install that wheel anew (`pip install --force-reinstall --no-deps`), then run this again",
        )
    return found


def _check_build(way: Way, rows: dict[str, record.Row]) -> None:
    if record.members_hash(rows) != way.here.members:
        raise Misfit(
            f"{way.site} in {way.site.root} is another build than the one this delta was made for.",
            f"its RECORD does not list the files of {way.here.wheel}",
            f"install {way.here.wheel}; or use --other-build, which asks only that the files to be "
            "changed are the same (a container image has a build of its own)",
        )


def _odd(way: Way, file: File, data: bytes | None, recorded: str) -> list[str]:
    expected, found = way.hash_here(file), None if data is None else hash_of(data)
    if way.free(file) and found is not None:
        expected = found
    path = way.path_here(file)
    if found != expected:
        return [f"{path}: {_told(found)} instead of {_told(expected)}"]
    if expected is not None and recorded != record.row_hash(expected):
        return [f"{path}: RECORD has another hash for it"]
    return []


def _read(place: Path) -> bytes | None:
    try:
        return place.read_bytes()
    except FileNotFoundError:
        return b"" if os.path.lexists(str(place)) else None
    except OSError as error:
        raise Misfit(f"{place} cannot be read.", str(error)) from None


def _told(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}…" if sha256 else "no such file"
