"""An installed wheel: its files in a site-packages as members, read by its RECORD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dspatch.errors import WheelError
from dspatch.files import sha256
from dspatch.wheel.plan import SBOM_NAME
from dspatch.wheel.record import Entry, paths_of, read_record

# What pip, uv and a delta add to a wheel's own `.dist-info`.
_GENERATED = (
    "INSTALLER", "REQUESTED", "direct_url.json", "direct_url.base.json", "uv_cache.json",
    "uv_cache.base.json", "uv_build.json",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Name:
    """The project and the version that an installation's `.dist-info` is named by."""

    project: str
    version: Version


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A wheel in a site-packages (`site`); `path` is its `.dist-info`, `record` the rows by path."""

    site: Path
    path: Path
    name: Name
    record: dict[str, Entry | None] = field(repr=False)
    _measured: dict[str, Entry] = field(default_factory=dict, repr=False)

    @property
    def dist_info(self) -> str:
        """The name of its `.dist-info` folder."""
        return self.path.name

    @property
    def roots(self) -> frozenset[str]:
        """The top-level folders and files that its RECORD puts on the import path."""
        return frozenset(path.partition("/")[0] for path in self.record if self.importable(path))

    @property
    def generated(self) -> frozenset[str]:
        """What installers and deltas add: notes of theirs, and scripts outside of site-packages."""
        notes = {f"{self.dist_info}/{name}" for name in _GENERATED}
        return frozenset(notes | {path for path in self.record if path.startswith("../")})

    @cached_property
    def infos(self) -> dict[str, Path]:
        """Its files that are there, but for those that Python compiled."""
        found = {path: self.site / path for path in self.record if (self.site / path).is_file()}
        for root in sorted({*self.roots, self.dist_info}):
            found |= {place.relative_to(self.site).as_posix(): place for place in self._below(root)}
        return {path: place for path, place in found.items() if not _is_compiled(path)}

    def importable(self, path: str) -> bool:
        """Whether a file lies in the package, not in `.dist-info` nor outside."""
        return path.partition("/")[0] not in (self.dist_info, "..", "")

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        return (self.site / path).read_bytes()

    def read_info(self, filename: str) -> bytes:
        """The bytes of a file in `.dist-info`; raises `WheelError` when it is missing."""
        try:
            return (self.path / filename).read_bytes()
        except OSError as error:
            raise WheelError(f"{self.path / filename} cannot be read.", why=str(error)) from None

    def entry(self, path: str) -> Entry:
        """A file's hash and size, measured once."""
        if path not in self._measured:
            place = self.site / path
            self._measured[path] = Entry(sha256=sha256(place), size=place.stat().st_size)
        return self._measured[path]

    @property
    def patched(self) -> bool:
        """Whether dspatch made it, as its bill of materials says."""
        return (self.path / SBOM_NAME).is_file()

    def _below(self, root: str) -> Iterator[Path]:
        place = self.site / root
        yield from (each for each in place.rglob("*") if each.is_file())
        if place.is_file():
            yield place


def named(site: Path) -> Iterator[tuple[Path, Name]]:
    """Every `.dist-info` folder of a site-packages that has a RECORD, which is not read, and its name."""
    for folder in sorted(site.glob("*.dist-info")):
        name = _name(folder.name)
        if name is not None and (folder / "RECORD").is_file():
            yield folder, name


def open_installed(folder: Path, name: Name) -> Installed:
    """The installation of a `.dist-info` folder; raises `WheelError` when its RECORD is malformed."""
    record = read_record(_record(folder))
    return Installed(site=folder.parent, path=folder, name=name, record=record)


def recorded(folder: Path) -> set[str]:
    """The paths in a `.dist-info` folder's RECORD, whatever else is wrong with its rows."""
    return paths_of(_record(folder, errors="surrogateescape"))


def _record(folder: Path, errors: str = "strict") -> str:
    try:
        return (folder / "RECORD").read_text(encoding="utf-8", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        raise WheelError(f"{folder / 'RECORD'} cannot be read.", why=str(error)) from None


def _name(folder: str) -> Name | None:
    project, _, version = folder.removesuffix(".dist-info").partition("-")
    try:
        return Name(project=canonicalize_name(project), version=Version(version))
    except InvalidVersion:
        return None


def _is_compiled(path: str) -> bool:
    return path.endswith(".pyc") and "/__pycache__/" in f"/{path}"
