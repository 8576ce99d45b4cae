"""The sources of a build on the disk: only what changed is written, so that a second build compiles little."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dspatch.errors import SourceBuildError
from dspatch.files import disk_full_explained, write_atomically
from dspatch.git import EXECUTABLE, LINK, Entry

# By path: mode, blob, and the time in ns at which the file was written here.
Manifest = dict[str, tuple[str, str, int]]


def put(
    folder: Path, entries: Mapping[str, Entry], read: Callable[[str], bytes]
) -> tuple[str, ...]:
    """Make the files of a folder those of a tree; returns the paths that were written or removed.

    Files that a build made beside them stay. A file that something else has changed is written anew.
    """
    record = folder.with_name(f"{folder.name}.json")
    known = _known(record)
    changed = []
    # A killed run must not take a half-written file for a good one.
    record.unlink(missing_ok=True)
    with disk_full_explained(folder.parent):
        for path in sorted(known.keys() - entries.keys()):
            _inside(folder, path).unlink(missing_ok=True)
            changed.append(path)
        now: Manifest = {}
        for path, entry in entries.items():
            place = _inside(folder, path)
            mode, blob, written = known.get(path, ("", "", -1))
            if (mode, blob, written) != (entry.mode, entry.blob, _time(place)):
                _write(place, entry, read(entry.blob))
                changed.append(path)
            now[path] = (entry.mode, entry.blob, _time(place))
        write_atomically(record, json.dumps(now).encode())
    return tuple(changed)


def _known(record: Path) -> Manifest:
    try:
        return {
            path: (row[0], row[1], row[2]) for path, row in json.loads(record.read_text()).items()
        }
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _inside(folder: Path, path: str) -> Path:
    place = folder / path
    # A link that an earlier tree put there could lead a later file outside.
    if not place.parent.resolve().is_relative_to(folder.resolve()):
        raise SourceBuildError(
            f"{path} would be written outside the build's folder.",
            why="a link in the tree leads there",
            next="leave the patch out that adds the link",
        )
    return place


def _write(place: Path, entry: Entry, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or (place.exists() and entry.mode == LINK):
        place.unlink()
    if entry.mode == LINK:
        place.symlink_to(os.fsdecode(data))
        return
    place.write_bytes(data)
    place.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)


def _time(place: Path) -> int:
    return place.lstat().st_mtime_ns if place.is_symlink() or place.exists() else -1
