"""In which releases each option, variable and metric was there, as `--write-ranges` wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from packaging.version import Version

from dspatch import tomlfile
from dspatch.carry.matrix import spans, spansfile
from dspatch.errors import PatchFormatError
from dspatch.serve.engines import DATA

Kind = Literal["commands", "options", "environment", "metrics", "hidden"]
KINDS: tuple[Kind, ...] = ("commands", "options", "environment", "metrics", "hidden")
_HEAD = """\
# Written by `dspatch serve flags --engine {engine} --write-ranges`; not for the hand.
# The releases whose source has each name. `hidden` metrics are exported only when asked for.
"""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The releases that were read, oldest first, and by kind each name's releases as text."""

    releases: tuple[str, ...] = ()
    names: Mapping[Kind, Mapping[str, str]] = field(default_factory=dict)

    def ranges(self, kind: Kind, name: str) -> str:
        """The releases that have a name, as text; empty when none has."""
        return self.names.get(kind, {}).get(name, "")

    def releases_of(self, kind: Kind, name: str) -> tuple[str, ...]:
        """The releases that have a name."""
        return spans.expanded(self.ranges(kind, name), self.releases)

    def told(self, kind: Kind, name: str, version: str | None) -> str:
        """Since or until when a name was there, seen from a release, in words; empty when never."""
        having = self.releases_of(kind, name)
        if not having:
            return ""
        at = spans.parsed(version)
        if at is not None and at < Version(having[0]):
            return f"comes with {having[0]}"
        if having[-1] != self.releases[-1] or not self._unbroken(having):
            return f"in {self.ranges(kind, name)}"
        return f"since {having[0]}" + (" or earlier" if having[0] == self.releases[0] else "")

    def _unbroken(self, having: Sequence[str]) -> bool:
        return spans.between(having) == spans.runs(having, self.releases)


def path_of(engine: str) -> Path:
    """The file of an engine."""
    return DATA / f"known-{engine}.toml"


def load(engine: str, path: Path | None = None) -> Known:
    """What was recorded of an engine; empty where nothing was. Raises `PatchFormatError`."""
    place = path or path_of(engine)
    if not place.is_file():
        return Known()
    source = tomlfile.load(place, PatchFormatError)
    source.check_keys(source.data, ("releases", *KINDS))
    return Known(
        releases=source.strings(source.data, "releases"),
        names={kind: source.get(source.data, kind, dict, default={}) for kind in KINDS},
    )


def of_names(found: Mapping[str, Mapping[Kind, Iterable[str]]]) -> Known:
    """What was read of releases, oldest first, by kind and name, as it is recorded."""
    releases = tuple(found)
    names: dict[Kind, dict[str, str]] = {}
    for kind in KINDS:
        having: dict[str, list[str]] = {}
        for version, one in found.items():
            for name in set(one[kind]):
                having.setdefault(name, []).append(version)
        names[kind] = {name: spans.runs(having[name], releases) for name in sorted(having)}
    return Known(releases=releases, names=names)


def written(engine: str, known: Known) -> str:
    """The text of an engine's file."""
    tables: dict[str, dict[str, str]] = {
        kind: {json.dumps(name): text for name, text in known.names.get(kind, {}).items()}
        for kind in KINDS
    }
    return spansfile.text(_HEAD.format(engine=engine), known.releases, tables)
