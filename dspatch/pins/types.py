"""What a pin is: files by hash, and the facts that decide where they can be used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dspatch.wheel.plan import Accepted

__all__ = ["Accepted", "Base", "Bound", "Build", "Pin", "Setting", "Source", "SourceKind", "Target"]

SourceKind = Literal["git", "sdist", "wheel"]
Target = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One place that holds the source: a git commit, or a file of an index (`size` in bytes)."""

    kind: SourceKind
    project: str = ""
    filename: str = ""
    sha256: str = ""
    size: int = 0
    commit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A requirement that narrows what a wheel asks for (`transformers<5`) or replaces it, and why."""

    requirement: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Base:
    """A published wheel whose compiled members an overlay takes over.

    `torch` is the requirement its METADATA states for its platform, `platform` the last part of
    its file name; `glibc` and `glibcxx` the newest symbol versions that its ELF members need.
    `bounds` narrow what it asks for where it leaves too much open, `overrides` replace what it asks
    for and cannot run with, or cannot be had beside the rest.
    """

    target: Target
    project: str
    filename: str
    sha256: str
    size: int
    requires_python: str | None = None
    torch: str | None = None
    platform: str
    glibc: str | None = None
    glibcxx: str | None = None
    accepted: tuple[Accepted, ...] = ()
    bounds: tuple[Bound, ...] = ()
    overrides: tuple[Bound, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A variable that a build is given where the user's environment has none of that name, and why."""

    variable: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a target is compiled: torch's version, what its wheel runs with, and settings of upstream's build."""

    target: Target
    torch: str
    bounds: tuple[Bound, ...] = ()
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One engine revision: tag, commit (perhaps short), sources, base wheels, and builds that stand for them."""

    engine: str
    rev: str
    commit: str | None = None
    requires_python: str | None = None
    sources: tuple[Source, ...]
    bases: tuple[Base, ...]
    builds: tuple[Build, ...] = ()

    @property
    def version(self) -> str:
        """The release's version, which is the tag without its `v`."""
        return self.rev.removeprefix("v")

    @property
    def tag(self) -> str:
        """The git tag that upstream gave the revision."""
        return self.rev

    @property
    def repository(self) -> str:
        """Upstream's git, as the table of engines names it."""
        from dspatch.pins.engines import engine

        return engine(self.engine).repository

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets for which the pin has a base wheel."""
        return tuple(dict.fromkeys(base.target for base in self.bases))

    def source(self, kind: SourceKind) -> Source | None:
        """The source of that kind, if the pin has one."""
        return next((source for source in self.sources if source.kind == kind), None)

    def build(self, target: str) -> Build | None:
        """How a target is compiled that has no base wheel; `None` where an overlay is made."""
        return next((build for build in self.builds if build.target == target), None)

    def as_dict(self) -> dict[str, Any]:
        """The pin as the object that `--json` prints."""
        return asdict(self)
