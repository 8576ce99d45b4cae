"""The files of a release without its archives: Python from its wheel by range, the rest from its sdist when asked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dspatch import archive, fetch, git, paths
from dspatch.carry.remote import memberstore, remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Release

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.index import IndexFile

MAX_KEPT = 4 << 20  # bytes; no source that a patch changes is larger


class ReleaseFiles:
    """A `Source` of `treefiles.Files` that fetches only what is read.

    A path whose top folder no wheel holds (`csrc/`, `CMakeLists.txt`) is `beyond` it, and then seen
    only when `native` is set: the sdist is read for the first of them. Raises as `RemoteWheel` does.
    """

    def __init__(
        self,
        project: str,
        release: Release,
        client: PyPIClient,
        traffic: Traffic,
        *,
        native: bool = False,
    ) -> None:
        self.release = release
        self.native = native and release.sdist is not None
        self._project = project
        self._client = client
        self._traffic = traffic
        self._sdist: dict[str, tuple[str, str]] | None = None
        self._wheel = (
            remote.open_wheel(project, release.wheel, client, traffic) if release.wheel else None
        )
        self._tops = {path.partition("/")[0] for path in self._wheel.paths()} if self._wheel else ()

    def beyond(self, path: str) -> bool:
        """Whether no wheel could hold a path."""
        return path.partition("/")[0] not in self._tops

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        if self._wheel is not None and not self.beyond(path):
            return self._wheel.read(path)
        member = self._native().get(path)
        if member is None:
            return None
        data = memberstore.read(member[0])
        if data is None:  # the cache lost it
            self._sdist = self._unpacked()
            data = memberstore.read(member[0])
        return data

    def mode(self, path: str) -> str:
        """The mode of a path, as git writes it."""
        if self._wheel is not None and not self.beyond(path):
            return self._wheel.mode(path)
        return self._native().get(path, ("", "100644"))[1]

    def paths(self) -> Collection[str]:
        """The paths of the wheel's sources; of the sdist, too, once it was read."""
        held = self._wheel.paths() if self._wheel is not None else ()
        return {*held, *self._sdist} if self._sdist else held

    def known_blob(self, path: str) -> str | None:
        """`None`: no repository holds a file before it was read."""
        return None

    def _native(self) -> dict[str, tuple[str, str]]:
        if not self.native or self.release.sdist is None:
            return {}
        if self._sdist is None:
            kept = memberstore.read_directory(self.release.sdist.sha256 or "-")
            self._sdist = {p: (m[0], m[1]) for p, m in kept.items()} if kept else self._unpacked()
        return self._sdist

    def _unpacked(self) -> dict[str, tuple[str, str]]:
        """The members beyond the wheel, kept by sha256; the sdist itself is not."""
        sdist = self.release.sdist
        assert sdist is not None
        with TemporaryDirectory(dir=_staging()) as folder:
            path = self._fetched(sdist, Path(folder))
            found = {}
            for member in archive.sdist_members(path):
                if self.beyond(member.path) and len(member.data) <= MAX_KEPT and not member.link:
                    sha256 = hashlib.sha256(member.data).hexdigest()
                    memberstore.write(sha256, member.data)
                    found[member.path] = (sha256, git.FILE_MODES[member.mode])
        if sdist.sha256:
            memberstore.write_directory(sdist.sha256, found)
        return found

    def _fetched(self, sdist: IndexFile, folder: Path) -> Path:
        cached = paths.cache() / "downloads" / (sdist.sha256 or "-") / sdist.filename
        if cached.is_file():
            return cached
        path = folder / sdist.filename
        fetch.fetch(self._client, sdist.url, path, sha256=sdist.sha256, size=sdist.size)
        self._traffic.count(path.stat().st_size)
        return path


def _staging() -> Path:
    folder = paths.cache() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
