"""What an overlay wheel is made from, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

# Where PEP 770 has a wheel keep its bills of materials, below `.dist-info`.
SBOM_NAME = "sboms/dspatch.cdx.json"

# What became of a member, as the wheel's pedigree says it:
#   patched    the series changed it      added      the series, and the base has no such file
#   same       the series changed it into what the base wheel already has
#   source     the base wheel's build had edited it, the pinned source's bytes won
#   identity   name, version, record and pedigree: rewritten in every overlay
#   extension  a compiled object of our own    removed    by the series, or a dropped base-only file
Change = Literal["patched", "added", "same", "source", "identity", "extension", "removed"]
DifferenceKind = Literal["differs", "base-only", "source-only"]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A difference between base wheel and pinned source that is known, and why it is harmless.

    `path` is a path or a glob whose `*` also crosses folders. `drop` leaves a base-only file out of
    the overlay instead of keeping it.
    """

    path: str
    reason: str
    drop: bool = False

    def covers(self, path: str) -> bool:
        """Whether a path of the wheel is meant."""
        return fnmatchcase(path, self.path)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A file that is not the same in base wheel and pinned source; `rule` is what accepted it."""

    path: str
    kind: DifferenceKind
    rule: str = ""
    reason: str = ""
    drop: bool = False


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """One patch for the pedigree: `diff` is git's text of it, `sha256` the hash of its folder."""

    name: str
    subject: str
    reason: str
    upstream: str
    sha256: str
    diff: str


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """What an overlay descends from: its base wheel, the sdist or the git commit of the source."""

    project: str
    version: str
    filename: str
    sha256: str = ""
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class OverlayPlan:
    """Everything an overlay wheel is a function of.

    `source` maps the pinned source's paths to their bytes, read one by one and never kept.
    `changes` maps every path that the series changed to its new bytes, or to None if deleted.
    `extensions` maps paths in the wheel to compiled objects of our own, `extension_sources` are the
    files of `changes` that they were compiled from. `requirements` maps
    requirements as the base states them to what shall stand there instead. `executable` maps paths
    to whether they shall be so, where the series changed that or added them. `epoch` is
    SOURCE_DATE_EPOCH in seconds. `compiled` says that the base was built here, from the patched
    tree: then the series may change native sources too.
    """

    base: Path
    source: Mapping[str, bytes]
    changes: Mapping[str, bytes | None]
    name: str
    version: str
    accepted: tuple[Accepted, ...] = ()
    patches: tuple[PatchRecord, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()
    extensions: Mapping[str, Path] = field(default_factory=dict)
    extension_sources: frozenset[str] = frozenset()
    requirements: Mapping[str, str] = field(default_factory=dict)
    executable: Mapping[str, bool] = field(default_factory=dict)
    version_file: str = "vllm/_version.py"
    epoch: int
    compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class MemberChange:
    """A member that is not the base wheel's: what became of it, by which patches, and its hash."""

    path: str
    change: Change
    sha256: str = ""
    patches: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A line of METADATA, WHEEL or the version file that was replaced, or dropped (`new` empty)."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """A built overlay wheel: the file, and everything in which it is not its base wheel."""

    path: Path
    sha256: str
    size: int
    name: str
    version: str
    differences: tuple[Difference, ...]
    changes: tuple[MemberChange, ...]
    rewrites: tuple[Rewrite, ...]
    unpackaged: tuple[str, ...]
    raw_members: int
    raw_bytes: int

    def as_dict(self) -> dict[str, object]:
        """The overlay as a receipt states it, with the file's name in place of its path."""
        return {**asdict(self), "path": self.path.name}
