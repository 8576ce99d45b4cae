"""Every release of an engine that somebody can install, and the one wheel that its Python is read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.utils import BuildTag, parse_wheel_filename
from packaging.version import Version

from dspatch import index, pipconfig
from dspatch.errors import DownloadError, OfflineError
from dspatch.index import IndexFile
from dspatch.pins import lookup
from dspatch.pins.engines import Engine, engine


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release: its wheel and its sdist, `None` where there is none; `yanked` when all files are."""

    version: str
    wheel: IndexFile | None
    sdist: IndexFile | None
    yanked: bool

    @property
    def rev(self) -> str:
        """The release as the command line names it."""
        return f"v{self.version}"

    @property
    def prerelease(self) -> bool:
        """Whether it is an alpha, beta, candidate or development release."""
        return Version(self.version).is_prerelease

    @property
    def inputs(self) -> str:
        """What identifies the bytes of the release: hashes where the index states them."""
        return " ".join(_identity(file) for file in (self.wheel, self.sdist) if file)


@dataclass(frozen=True, kw_only=True)
class Published:
    """The releases of an engine, oldest first, and why some index could not be asked."""

    releases: tuple[Release, ...]
    problems: tuple[str, ...] = ()

    def release(self, rev: str) -> Release | None:
        """The release of a revision, written with or without `v`."""
        return next((each for each in self.releases if lookup.same(each.version, rev)), None)


def published(name: str, *, prereleases: bool = False, yanked: bool = False) -> Published:
    """The releases of an engine within the bounds that `engines.toml` sets.

    Yanked ones and prereleases only when asked for. Raises `UnknownEngineError`; `OfflineError` or
    `DownloadError` when no index could be asked.
    """
    facts = engine(name)
    listing = index.listing(facts.sdist)
    if not listing.files and listing.problems:
        raise (OfflineError if listing.offline else DownloadError)(
            f"The releases of {name} cannot be listed.",
            why="; ".join(listing.problems),
            next=pipconfig.CHECK_NETWORK,
        )
    found = [
        release
        for release in _releases(facts, listing.files)
        if (prereleases or not release.prerelease) and (yanked or not release.yanked)
    ]
    return Published(releases=tuple(found), problems=listing.problems)


def _releases(facts: Engine, files: Iterable[IndexFile]) -> Iterator[Release]:
    by_version: dict[Version, dict[str, IndexFile]] = {}
    for file in files:
        version = lookup.version_of(file.filename)
        if version is not None and _within(facts, Version(version)):
            # The first index that has a name wins, as for pip.
            by_version.setdefault(Version(version), {}).setdefault(file.filename, file)
    for key in sorted(by_version):
        yield _release(key, list(by_version[key].values()))


def _within(facts: Engine, version: Version) -> bool:
    """Whether a version lies between the oldest and the newest of interest."""
    oldest = facts.oldest is None or version >= Version(facts.oldest)
    return oldest and (facts.newest is None or version <= Version(facts.newest))


def _release(version: Version, files: list[IndexFile]) -> Release:
    standing = [file for file in files if not file.yanked] or files
    wheels = [file for file in standing if file.filename.endswith(".whl")]
    sdists = [file for file in standing if not file.filename.endswith(".whl")]
    return Release(
        version=str(version),
        wheel=max(wheels, key=_rank, default=None),
        sdist=min(sdists, key=lambda file: file.filename, default=None),
        yanked=all(file.yanked for file in files),
    )


def _rank(wheel: IndexFile) -> tuple[bool, BuildTag, str]:
    """Which wheel of a release stands for it, the same on every machine.

    Wheels of one build for Linux hold the same Python; those for Windows have it with other line
    ends, and a later build may have mended it, which is then what pip installs.
    """
    _, _, build, tags = parse_wheel_filename(wheel.filename)
    usual = any("linux" in tag.platform and tag.platform.endswith("x86_64") for tag in tags)
    return usual, build, wheel.filename


def _identity(file: IndexFile) -> str:
    return file.sha256 or f"{file.filename} {file.size}"
