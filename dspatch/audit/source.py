"""The Python of an engine, wherever it lies, as something that questions are asked of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dspatch import pins, treefiles
from dspatch.carry.remote.releasefiles import ReleaseFiles
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.carry.remote.ranges import Traffic
    from dspatch.carry.remote.releases import Release
    from dspatch.git import Repo

READERS = 8  # members fetched at once of one wheel
Kind = Literal["pin", "release", "environment", "git", "folder", "record"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """An engine's source: `version` where it is known, `origin` in words, `kind` by how it was read.

    `read` keeps what it gave; `beyond` says which paths sources of the kind cannot hold.
    """

    engine: str
    version: str | None
    kind: Kind
    origin: str
    files: Files = field(repr=False)
    outside: Callable[[str], bool] = field(repr=False)
    _kept: dict[str, bytes | None] = field(default_factory=dict, repr=False)

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there; raises `OSError` when it cannot be read."""
        if path not in self._kept:
            self._kept[path] = self.files.read(path)
        return self._kept[path]

    def beyond(self, path: str) -> bool:
        """Whether this kind of source cannot hold a path, so that its absence says nothing."""
        return self.outside(path)

    @property
    def looked_at(self) -> tuple[str, ...]:
        """The paths that were read so far, whether there or not."""
        return tuple(sorted(self._kept))


def read_together(source: Source, paths: Iterable[str]) -> None:
    """Read files at once, so that each costs no round trip of its own. Raises what reading one raises."""
    with ThreadPoolExecutor(READERS) as pool:
        for done in [pool.submit(_read, source, path) for path in paths]:
            done.result()


def _read(source: Source, path: str) -> None:
    with suppress(OSError):  # asked again, it is told as unknown
        source.read(path)


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
        files=files,
        outside=lambda path: not whole and path.partition("/")[0] not in tops,
    )


def of_release(
    engine: str, release: Release, client: PyPIClient, traffic: Traffic, *, native: bool
) -> Source:
    """A published release, read where it lies; one without a wheel from its sdist, also where not `native`."""
    project = pins.engine(engine).sdist
    native = native or release.wheel is None
    files = ReleaseFiles(project, release, client, traffic, native=native)
    return Source(
        engine=engine,
        version=release.version,
        kind="release",
        origin=" ".join(file.filename for file in (release.wheel or release.sdist,) if file),
        files=Files(source=files),
        outside=lambda path: files.beyond(path) and not files.native,
    )


def of_folder(
    engine: str, root: Path, *, version: str | None, kind: Kind, origin: str, package: str
) -> Source:
    """A folder: a work tree, or a site-packages, which holds the engine's package and no more of it."""
    whole = kind != "environment"
    return Source(
        engine=engine,
        version=version,
        kind=kind,
        origin=origin,
        files=Files(source=_Folder(root=root, package=package)),
        outside=lambda path: not whole and path.partition("/")[0] != package,
    )


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """Files on this disk, as a `Source` of `treefiles.Files`."""

    root: Path
    package: str

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def mode(self, path: str) -> str:
        return treefiles.PLAIN

    def paths(self) -> Collection[str]:
        return self._paths

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(self._found())

    def _found(self) -> Iterator[str]:
        for place in (self.root / self.package).rglob("*.py"):
            yield place.relative_to(self.root).as_posix()

    def known_blob(self, path: str) -> str | None:
        return None


class Nothing:
    """No files at all, as a `Source` of `treefiles.Files`."""

    def read(self, path: str) -> bytes | None:
        """`None`."""
        return None

    def mode(self, path: str) -> str:
        """The mode of a plain file."""
        return treefiles.PLAIN

    def paths(self) -> Collection[str]:
        """No paths."""
        return ()

    def known_blob(self, path: str) -> str | None:
        """`None`."""
        return None
