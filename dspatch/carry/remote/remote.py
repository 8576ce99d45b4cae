"""A wheel read where it lies: single members by range, each held to the sha256 that RECORD gives it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dspatch import index, paths
from dspatch.carry.remote import memberstore, wheeldir
from dspatch.carry.remote.ranges import FileRanges, HttpRanges, NoRangesError, Ranges, Traffic
from dspatch.carry.remote.wheeldir import Member
from dspatch.errors import HashMismatchError

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.index import IndexFile

T = TypeVar("T")


class RemoteWheel:
    """The sources in a wheel that lies elsewhere; a `Source` of `treefiles.Files`.

    A member is fetched when it is first read and kept in the cache under its sha256, so that equal
    members of different releases are fetched once. `read` raises `HashMismatchError` for a member
    that is not the one that RECORD names, and the errors of the network.
    """

    def __init__(self, filename: str, members: Mapping[str, Member], ranges: Ranges) -> None:
        self.filename = filename
        self.members = members
        self._ranges = ranges

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        member = self.members.get(path)
        if member is None:
            return None
        data = memberstore.read(member.sha256)
        if data is None:
            raw = self._ranges.read(member.start, member.end)
            data = self._checked(path, member, wheeldir.unpack(raw, member.size))
            memberstore.write(member.sha256, data)
        return data

    def mode(self, path: str) -> str:
        """The mode of a path, as git writes it."""
        member = self.members.get(path)
        return member.mode if member is not None else "100644"

    def paths(self) -> Collection[str]:
        """The paths of all sources: no compiled objects, nothing of `.dist-info` and `.data`."""
        return self.members.keys()

    def known_blob(self, path: str) -> str | None:
        """`None`: no repository holds a member before it was read."""
        return None

    def _checked(self, path: str, member: Member, data: bytes | None) -> bytes:
        found = "no member" if data is None else hashlib.sha256(data).hexdigest()
        if data is None or found != member.sha256:
            raise HashMismatchError(
                f"{path} of {self.filename} is not what the wheel's RECORD names.",
                why=f"expected {member.sha256}, found {found}",
                next="use an index that serves the published wheel",
            )
        return data


def open_wheel(project: str, file: IndexFile, client: PyPIClient, traffic: Traffic) -> RemoteWheel:
    """The wheel that an index lists; of it no more is fetched than its directory and RECORD.

    The directory is kept, too, where the index states the wheel's sha256. A whole copy in the cache
    is used where there is one, and made, verified, where the server sends no parts. Raises
    `WheelError` for a file that is no wheel, `UnsafeArchiveError`, and the errors of
    `index.download`.
    """
    ranges = _Served(project, file, client, traffic)
    kept = memberstore.read_directory(file.sha256) if file.sha256 else None
    if kept is not None:
        members = {path: Member(*fields) for path, fields in kept.items()}
        return RemoteWheel(file.filename, members, ranges)
    members = wheeldir.read(file.filename, ranges)
    if file.sha256:
        content = {path: astuple(member) for path, member in members.items()}
        memberstore.write_directory(file.sha256, content)
    return RemoteWheel(file.filename, members, ranges)


class _Served:
    """A file of an index: read in parts, or fetched whole where its server sends no parts."""

    def __init__(self, project: str, file: IndexFile, client: PyPIClient, traffic: Traffic) -> None:
        self._project = project
        self._file = file
        self._traffic = traffic
        here = _here(file)
        self._ranges: Ranges = (
            FileRanges(here) if here is not None else HttpRanges(client, file.url, traffic)
        )

    def size(self) -> int:
        return self._ask(lambda ranges: ranges.size())

    def read(self, start: int, end: int) -> bytes:
        return self._ask(lambda ranges: ranges.read(start, end))

    def _ask(self, question: Callable[[Ranges], T]) -> T:
        try:
            return question(self._ranges)
        except NoRangesError:
            whole = index.download_listed(self._project, self._file)
            self._traffic.count(whole.stat().st_size)
            self._ranges = FileRanges(whole)
            return question(self._ranges)


def _here(file: IndexFile) -> Path | None:
    """Where on this disk the file is whole: at its own address, or in the cache."""
    if file.url.startswith("file:"):
        return Path(url2pathname(urlsplit(file.url).path))
    cached = paths.cache() / "downloads" / (file.sha256 or "-") / file.filename
    return cached if cached.is_file() else None
