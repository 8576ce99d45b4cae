"""The rules that a member of an archive must keep to stay inside its folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Never

from dspatch.errors import UnsafeArchiveError

# Far above any engine's archive (vLLM's CUDA wheel unpacks to 1.1 GiB, its sdist to 0.2 GiB, with
# at most 6,000 members), far below what fills a disk or the memory.
MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 2 << 30
MAX_TOTAL_BYTES = 8 << 30

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Guard:
    """What is known so far of one archive, and the refusal of a member that does not fit it."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.leaves: set[str] = set()
        self.folders: set[str] = set()
        self.total = 0

    def refuse(self, name: str, why: str) -> Never:
        """Raise `UnsafeArchiveError` for a member."""
        raise UnsafeArchiveError(
            f"{self.archive.name}: the member {name!r} is refused.",
            why=why,
            next="delete the file and fetch it again; if it stays so, do not use this source",
        )

    def checked_path(self, name: str) -> str:
        """A member's path, relative and without a way out; refused otherwise."""
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or re.match(r"[A-Za-z]:", name):
            self.refuse(name, "its path is absolute")
        if ".." in parts:
            self.refuse(name, "its path climbs out of the folder with '..'")
        if "\\" in name or _CONTROL.search(name) or not _encodable(name):
            self.refuse(name, "its path has a backslash, a control character or no valid encoding")
        if "" in parts or "." in parts:
            self.refuse(name, "its path has an empty part or '.'")
        if ".git" in [part.lower() for part in parts]:
            self.refuse(name, "it would land in a git directory, where hooks run")
        return "/".join(parts)

    def add_dir(self, path: str) -> None:
        """Note a folder; refused where a file or link has that path."""
        if path in self.leaves:
            self.refuse(path, "it is both a folder and a file or link")
        self.folders.add(path)

    def add_file(self, path: str, size: int) -> None:
        """Note a file or link of `size` bytes; refused when it clashes or passes a limit."""
        if path in self.leaves:
            self.refuse(path, "it is there twice, and which one counts depends on the reader")
        if path in self.folders:
            self.refuse(path, "it is both a folder and a file or link")
        for parent in _parents(path):
            self.add_dir(parent)
        self.leaves.add(path)
        self.total += size
        if size > MAX_MEMBER_BYTES:
            self.refuse(path, f"{size:,} bytes are above the limit of {MAX_MEMBER_BYTES:,}")
        if self.total > MAX_TOTAL_BYTES:
            self.refuse(path, f"the archive unpacks to more than {MAX_TOTAL_BYTES:,} bytes")
        if len(self.leaves) > MAX_MEMBERS:
            self.refuse(path, f"the archive has more than {MAX_MEMBERS:,} members")

    def checked_link(self, path: str, target: str) -> str:
        """A link's target when it stays inside the archive's folder; refused otherwise."""
        parts = target.split("/")
        climb = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
        depth = path.count("/")
        # No folder on the way to a link is a link (`add_file`), so its leading '..' are what they
        # seem. A '..' further on could follow another link first, and is refused.
        if not target or target.startswith("/") or climb > depth or ".." in parts[climb:]:
            self.refuse(path, f"it links to {target!r}, outside the archive's folder")
        if "\\" in target or _CONTROL.search(target) or not _encodable(target):
            self.refuse(path, "its link has a backslash, a control character or no valid encoding")
        if ".git" in [part.lower() for part in parts]:
            self.refuse(path, f"it links to {target!r}, a git directory")
        return target


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
