"""A wheel opened for reading: its members by role, its RECORD, its metadata."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never, Protocol

from packaging.version import Version

from dspatch.archive import check_zip
from dspatch.errors import WheelError
from dspatch.wheel.names import WheelName
from dspatch.wheel.rawzip import CHUNK
from dspatch.wheel.record import Entry, read_record

# Signatures of a RECORD that an overlay replaces.
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


class Named(Protocol):
    """The project and the version of a wheel."""

    @property
    def project(self) -> str: ...
    @property
    def version(self) -> Version: ...


class Members(Protocol):
    """A wheel's members, packed or installed.

    `infos` has a key for each that is there; `generated` are those that an installer wrote.
    """

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> Named: ...
    @property
    def dist_info(self) -> str: ...
    @property
    def record(self) -> Mapping[str, Entry | None]: ...
    @property
    def infos(self) -> Mapping[str, Any]: ...
    @property
    def roots(self) -> frozenset[str]: ...
    @property
    def generated(self) -> frozenset[str]: ...
    def importable(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def read_info(self, filename: str) -> bytes: ...
    def entry(self, path: str) -> Entry: ...


@dataclass(frozen=True, kw_only=True)
class OpenWheel:
    """An open wheel; `dist_info` is the folder's name, `record` the hash and size by member."""

    path: Path
    archive: zipfile.ZipFile
    name: WheelName
    dist_info: str
    record: dict[str, Entry | None]
    infos: dict[str, zipfile.ZipInfo] = field(repr=False)

    @property
    def roots(self) -> frozenset[str]:
        """The top-level folders and files that an installation puts on the import path."""
        return frozenset(path.partition("/")[0] for path in self.infos if self.importable(path))

    @property
    def generated(self) -> frozenset[str]:
        """What an installer adds: nothing yet."""
        return frozenset()

    def importable(self, path: str) -> bool:
        """Whether a member lies outside the `.dist-info` and `.data` folders."""
        return path.partition("/")[0] != self.dist_info and not in_data(path)

    def renamed(self, path: str, own: str) -> str:
        """A member's name in a wheel whose `.dist-info` and `.data` begin with `own`, as `mini-1.0`."""
        top, slash, rest = path.partition("/")
        if self.importable(path):
            return path
        return f"{own}.{top.rpartition('.')[2]}{slash}{rest}"

    def read_info(self, filename: str) -> bytes:
        """The bytes of a file in `.dist-info`; raises `WheelError` when it is missing."""
        info = self.infos.get(f"{self.dist_info}/{filename}")
        if info is None:
            _malformed(self.path, f"{self.dist_info}/{filename} is missing")
        return self.archive.read(info)

    def read(self, path: str) -> bytes:
        """A member's bytes."""
        return self.archive.read(self.infos[path])

    def entry(self, path: str) -> Entry:
        """A member's hash and size: RECORD's, or measured where RECORD has none."""
        return self.record.get(path) or measure(self.archive, self.infos[path])


@contextmanager
def open_wheel(path: Path) -> Iterator[OpenWheel]:
    """Open a wheel whose member names are safe; raises `WheelError` or `UnsafeArchiveError`."""
    name = WheelName.parse(path.name)
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip(path, archive)
            infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            dist_info = _dist_info(path, infos)
            rows = read_record(_record_text(path, archive, f"{dist_info}/RECORD"))
            yield OpenWheel(
                path=path,
                archive=archive,
                name=name,
                dist_info=dist_info,
                record=rows,
                infos={key: info for key, info in infos.items() if not key.endswith(_SIGNATURES)},
            )
    except (zipfile.BadZipFile, EOFError) as error:
        _malformed(path, str(error))


def in_data(path: str) -> bool:
    """Whether a member lies in the `.data` folder, which an installer puts outside of site-packages."""
    return path.partition("/")[0].endswith(".data")


def measure(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Entry:
    """The sha256 and size of a member's contents, read as a stream that also checks its CRC."""
    digest, size = hashlib.sha256(), 0
    with archive.open(info) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Entry(sha256=digest.hexdigest(), size=size)


def _dist_info(path: Path, infos: dict[str, zipfile.ZipInfo]) -> str:
    tops = {name.partition("/")[0] for name in infos if "/" in name}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        _malformed(path, f"it has {len(found)} .dist-info folders: {found}")
    return found[0]


def _record_text(path: Path, archive: zipfile.ZipFile, name: str) -> str:
    try:
        return archive.read(name).decode()
    except KeyError:
        _malformed(path, f"{name} is missing")
    except UnicodeDecodeError as error:
        _malformed(path, f"{name}: {error}")


def _malformed(path: Path, why: str) -> Never:
    raise WheelError(
        f"{path.name} is not a readable wheel.",
        why=why,
        next="delete it and fetch or build it again",
    ) from None
