"""The Python of an engine, wherever it lies, as something that questions are asked of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dspatch import treefiles

if TYPE_CHECKING:
    from dspatch.carry.releasefiles import ReleaseFiles
    from dspatch.git import Repo

Kind = Literal["pin", "release", "environment", "git", "folder"]
Read = Callable[[str], bytes | None]


@dataclass(frozen=True, kw_only=True)
class Source:
    """An engine's source: `version` where it is known, `origin` in words, `kind` by how it was read.

    `read` keeps what it gave; `beyond` says which paths sources of the kind cannot hold.
    """

    engine: str
    version: str | None
    kind: Kind
    origin: str
    reader: Read = field(repr=False)
    outside: Callable[[str], bool] = field(repr=False)
    _kept: dict[str, bytes | None] = field(default_factory=dict, repr=False)

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        if path not in self._kept:
            self._kept[path] = self.reader(path)
        return self._kept[path]

    def beyond(self, path: str) -> bool:
        """Whether this kind of source cannot hold a path, so that its absence says nothing."""
        return self.outside(path)

    @property
    def looked_at(self) -> tuple[str, ...]:
        """The paths that were asked for so far."""
        return tuple(sorted(self._kept))


def of_tree(
    engine: str, repo: Repo, tree: str, *, version: str | None, kind: Kind, origin: str, whole: bool
) -> Source:
    """A git tree; `whole` when it holds all sources, not those of a wheel only."""
    files = treefiles.of_tree(repo, tree)
    tops = {path.partition("/")[0] for path in files.paths()}
    return Source(
        engine=engine,
        version=version,
        kind=kind,
        origin=origin,
        reader=files.read,
        outside=lambda path: not whole and path.partition("/")[0] not in tops,
    )


def of_release(engine: str, files: ReleaseFiles) -> Source:
    """A published release, read where it lies."""
    return Source(
        engine=engine,
        version=files.release.version,
        kind="release",
        origin=(files.release.wheel or files.release.sdist or _NO_FILE).filename,
        reader=files.read,
        outside=lambda path: files.beyond(path) and not files.native,
    )


class _NoFile:
    filename = "no file"


_NO_FILE = _NoFile()


def of_folder(
    engine: str, root: Path, *, version: str | None, kind: Kind, origin: str, package: str
) -> Source:
    """A folder: a work tree, or a site-packages, which holds the engine's package and no more of it."""
    whole = kind != "environment"

    def read(path: str) -> bytes | None:
        place = root / path
        try:
            return place.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    return Source(
        engine=engine,
        version=version,
        kind=kind,
        origin=origin,
        reader=read,
        outside=lambda path: not whole and path.partition("/")[0] != package,
    )
