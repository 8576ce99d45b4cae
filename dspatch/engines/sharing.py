"""Environments share the bytes of equal files by hard links: gigabytes of one torch are on the disk once."""

from __future__ import annotations

import filecmp
import os
import stat
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
    for path, here in _large(folder):
        for other in folders:
            twin = other / path.relative_to(folder)
            if _equal(path, here, twin):
                with suppress(OSError):
                    _link(twin, path)
                    saved += here.st_size
                break
    return saved


def _large(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(folder.rglob("*")):
        here = path.lstat()
        if stat.S_ISREG(here.st_mode) and here.st_size >= WORTH:
            yield path, here


def _equal(path: Path, here: os.stat_result, twin: Path) -> bool:
    """Whether a twin has the same bytes and mode, and is not the same file already."""
    with suppress(OSError):
        there = twin.lstat()
        return (
            (there.st_size, there.st_mode, there.st_dev)
            == (here.st_size, here.st_mode, here.st_dev)
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
