"""That upstream symbols were found unchanged, kept by the files that this was read from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dspatch import paths
from dspatch.carry.uses.modules import Read
from dspatch.errors import DspatchError
from dspatch.files import write_atomically
from dspatch.threeway import blob_id
from dspatch.treefiles import Files


class Watched:
    """The files of a tree that are read, each noted by the id of its content."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.seen: dict[str, str] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        self.seen[path] = identity(self._files, path)
        return self._files.read(path)


def identity(files: Files, path: str) -> str:
    """The id of a path's content, the same in every tree; empty when it is not there."""
    known = files.known_blob(path)
    if known is not None:
        return known
    data = files.read(path) if files.has(path) else None
    if data is None:
        return ""
    return blob_id(data)


@contextmanager
def kept(key: str, files: Files) -> Iterator[Read | None]:
    """A reader to judge a tree with, or `None` when the same files were found good before.

    The block must raise when they are not good; otherwise they are noted as good.
    """
    path = paths.cache() / "unchanged" / f"{key}.json"
    if _still(path, files):
        yield None
        return
    watched = Watched(files)
    yield watched.read
    # A note saves time only: a cache that cannot be written to costs that time again.
    with suppress(OSError, DspatchError):
        write_atomically(path, json.dumps(watched.seen).encode())


def _still(path: Path, files: Files) -> bool:
    try:
        noted = json.loads(path.read_bytes())
        return all(identity(files, name) == content for name, content in noted.items())
    except (OSError, ValueError, AttributeError):
        return False
