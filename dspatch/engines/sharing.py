"""Environments share the bytes of equal files by hard links: gigabytes of one torch are on the disk once."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

# Below this a link saves less than looking for it costs.
WORTH = 1 << 20  # bytes


def share(folder: Path, others: Iterable[Path]) -> int:
    """Make the large files of a folder links to equal ones at the same place of others; bytes saved.

    Files are compared byte by byte, and nothing may write into them afterwards: pip replaces files,
    it never changes them. Where a disk has no links, files stay as they are.
    """
    saved = 0
    folders = [other for other in others if other != folder]
    for path, size in _large(folder):
        for other in folders:
            twin = other / path.relative_to(folder)
            if _equal(path, size, twin):
                with suppress(OSError):
                    _link(twin, path)
                    saved += size
                break
    return saved


def _large(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink() and path.is_file() and (size := path.stat().st_size) >= WORTH:
            yield path, size


def _equal(path: Path, size: int, twin: Path) -> bool:
    """Whether a twin has the same bytes and mode, and is not the same file already."""
    with suppress(OSError):
        there = twin.lstat()
        here = path.lstat()
        return (
            (there.st_size, there.st_mode, there.st_dev) == (size, here.st_mode, here.st_dev)
            and there.st_ino != here.st_ino
            and filecmp.cmp(path, twin, shallow=False)
        )
    return False


def _link(twin: Path, path: Path) -> None:
    """Put a link to `twin` where `path` is, in one step, so that no reader ever misses it."""
    fresh = path.with_name(f".{path.name}.link")
    fresh.unlink(missing_ok=True)
    os.link(twin, fresh)
    fresh.replace(path)
