"""From a delta and an installation to what is to be written and removed, with everything checked first."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import record
from .manifest import INFO, Delta, File, Side, hash_of
from .misfit import Misfit
from .site import Installed, target

if TYPE_CHECKING:
    from .record import Record, Row

# pip and uv would take the patched distribution for the file that the unpatched one came from.
ORIGINS = {
    name: f"{name[: -len('.json')]}.base.json" for name in ("direct_url.json", "uv_cache.json")
}
SHOWN = 8


@dataclass(frozen=True)
class Write:
    """A file to be written; `like` is the file whose mode it takes over, None for a new one."""

    path: str
    data: bytes
    like: str | None
    executable: bool = False


@dataclass(frozen=True)
class Plan:
    """Files to write, then files to remove; compiled files of `sources` are out of date by then."""

    site: Installed
    writes: tuple[Write, ...]
    removals: tuple[str, ...]
    sources: tuple[str, ...]


def make(delta: Delta, site: Installed, here: Side, there: Side) -> Plan:
    """What takes an installation from one side of the delta to the other; raises `Misfit`."""
    installed = site.record
    _check_members(site, installed, here)
    before = dict(_before(delta, site, here))
    writes = [
        Write(
            path=_path(file, there.info),
            data=_made(delta, file, before[file.path], here),
            like=_path(file, site.info) if before[file.path] is not None else None,
            executable=file.executable,
        )
        for file in delta.files
        if _hash(delta, file, there) is not None
    ]
    gone = [_path(file, site.info) for file in delta.files if _hash(delta, file, there) is None]
    moved = dict(_moved(delta, site, there))
    writes += [
        Write(path=new, data=target(site.root, old).read_bytes(), like=old)
        for old, new in moved.items()
    ]
    changed = {write.path: write for write in writes}
    own = f"{there.info}/RECORD"
    rows = _rows(site, installed, {**moved, **_renamed(delta, site, there)}, changed, set(gone))
    text = installed.replaced([*rows, (own, "", "")]).text()
    writes.append(Write(path=own, data=text, like=f"{site.info}/RECORD"))
    left = [*gone, *moved, *_renamed(delta, site, there), f"{site.info}/RECORD"]
    return Plan(
        site=site,
        writes=tuple(writes),
        removals=tuple(path for path in dict.fromkeys(left) if path not in {*changed, own}),
        sources=tuple(f.path for f in delta.files if f.path.endswith(".py")),
    )


def check(delta: Delta, site: Installed, here: Side) -> None:
    """Raise `Misfit` unless an installation is this side of the delta, as far as the delta goes."""
    _check_members(site, site.record, here)
    dict(_before(delta, site, here))


def _check_members(site: Installed, installed: Record, here: Side) -> None:
    if record.members_hash(installed.by_path) != here.members:
        raise Misfit(
            f"{site} in {site.root} is another build than the one this delta was made for.",
            f"its RECORD does not list the files of {here.wheel}",
            f"install {here.wheel} first",
        )


def _before(delta: Delta, site: Installed, here: Side) -> Iterator[tuple[str, bytes | None]]:
    """Each file's bytes now, None where it has none; raises `Misfit` with all that are not as expected."""
    odd: list[str] = []
    rows = site.record.by_path
    for file in delta.files:
        path = _path(file, site.info)
        expected = _hash(delta, file, here)
        data = _read(target(site.root, path))
        found = None if data is None else hash_of(data)
        if found != expected:
            odd.append(f"{path}: {_told(found)} instead of {_told(expected)}")
        elif expected is not None and rows.get(path, ("", "", ""))[1] != record.row_hash(expected):
            odd.append(f"{path}: RECORD has another hash for it")
        yield file.path, data
    if odd:
        more = [f"and {len(odd) - SHOWN} more"] if len(odd) > SHOWN else []
        raise Misfit(
            f"{site} in {site.root} has {len(odd)} files that are not as {here.wheel} has them.",
            "\n        ".join(odd[:SHOWN] + more),
            "install that wheel anew (`pip install --force-reinstall --no-deps`), then run this again",
        )


def _made(delta: Delta, file: File, before: bytes | None, here: Side) -> bytes:
    forth = here is delta.base
    recipe, sha256 = (file.to_overlay, file.overlay) if forth else (file.to_base, file.base)
    assert recipe is not None
    assert sha256 is not None
    return delta.made(recipe, before or b"", sha256, file.path)


def _hash(delta: Delta, file: File, side: Side) -> str | None:
    return file.base if side is delta.base else file.overlay


def _path(file: File, info: str) -> str:
    return info + file.path[len(INFO) :] if file.path.startswith(f"{INFO}/") else file.path


def _renamed(delta: Delta, site: Installed, there: Side) -> dict[str, str]:
    """Files of the `.dist-info` folder that the delta changes, old name to new."""
    return {
        _path(file, site.info): _path(file, there.info)
        for file in delta.files
        if file.path.startswith(f"{INFO}/")
    }


def _moved(delta: Delta, site: Installed, there: Side) -> Iterator[tuple[str, str]]:
    """All other files of that folder, as its name changes with the version."""
    touched = {*_renamed(delta, site, there), f"{site.info}/RECORD"}
    back = {kept: name for name, kept in ORIGINS.items()}
    origin = ORIGINS if there is delta.overlay else back
    folder = site.root / site.info
    for place in sorted(folder.rglob("*")):
        inner = place.relative_to(folder).as_posix()
        if place.is_file() and f"{site.info}/{inner}" not in touched:
            yield f"{site.info}/{inner}", f"{there.info}/{origin.get(inner, inner)}"


def _rows(
    site: Installed,
    installed: Record,
    renamed: dict[str, str],
    changed: dict[str, Write],
    gone: set[str],
) -> Iterator[Row]:
    """The rows of the new RECORD but its own; a path in none of the arguments keeps its row."""
    tags = _tags(installed)
    lost = {_compiled(path, tag) for path in gone for tag in tags if path.endswith(".py")}
    known = set()
    for path, sha256, size in installed.rows:
        new = renamed.get(path, path)
        known.add(new)
        if path in gone or path in lost or path == f"{site.info}/RECORD":
            continue
        if new in changed and sha256:
            yield record.row_of(new, changed[new].data)
        else:
            yield new, sha256, size
    for path in changed.keys() - known:
        yield record.row_of(path, changed[path].data)
        if path.endswith(".py") and sys.implementation.cache_tag in tags:
            yield _compiled(path, str(sys.implementation.cache_tag)), "", ""


def _tags(installed: Record) -> set[str]:
    """Which Pythons the installer compiled the package for."""
    found = (re.search(r"__pycache__/[^/]+\.([^./]+)\.pyc$", row[0]) for row in installed.rows)
    return {match.group(1) for match in found if match}


def _compiled(path: str, tag: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name[: -len('.py')]}.{tag}.pyc"


def _read(place: Path) -> bytes | None:
    try:
        return place.read_bytes()
    except FileNotFoundError:
        return b"" if os.path.lexists(place) else None
    except OSError as error:
        raise Misfit(f"{place} cannot be read.", str(error)) from None


def _told(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}…" if sha256 else "no such file"
