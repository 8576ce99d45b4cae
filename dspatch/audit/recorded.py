"""In which releases each finding was seen, as `audit --write-ranges` wrote it: read, written, asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from dspatch import tomlfile
from dspatch.audit.answer import State
from dspatch.carry.matrix import spans, spansfile
from dspatch.errors import PatchFormatError
from dspatch.paths import PACKAGE

_HEAD = """\
# Written by `dspatch audit --engine {engine} --write-ranges`; not for the hand.
# The releases on which a finding's probe says yes, and those on which it cannot tell; on all others it says no.
"""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The releases that were read, oldest first, and each finding's state on those that are not no."""

    releases: tuple[str, ...] = ()
    has: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def knows(self, finding: str) -> bool:
        """Whether a finding was held against the releases."""
        return finding in self.has

    def state(self, finding: str, version: str) -> State | None:
        """What was seen of a finding on a release, `None` when that was not read."""
        if not self.knows(finding) or version not in self.releases:
            return None
        if version in self._in(self.has, finding):
            return "yes"
        return "unknown" if version in self._in(self.unknown, finding) else "no"

    def ranges(self, finding: str) -> str:
        """The releases that have it, as text; empty when none has."""
        return self.has.get(finding, "")

    def first_good(self, finding: str, version: str | None) -> str | None:
        """The first release that has not got it any more: after a release, or after the last that has it."""
        if not self.knows(finding):
            return None
        having = self._in(self.has, finding)
        after = spans.parsed(version) or max((Version(each) for each in having), default=None)
        if after is None:
            return None
        later = [each for each in self.releases if Version(each) > after]
        return next((each for each in later if self.state(finding, each) == "no"), None)

    def _in(self, table: Mapping[str, str], finding: str) -> tuple[str, ...]:
        return spans.expanded(table.get(finding, ""), self.releases)


def path_of(engine: str) -> Path:
    """The file of an engine's ranges."""
    return PACKAGE / "audit" / "data" / f"ranges-{engine}.toml"


def load(engine: str, path: Path | None = None) -> Recorded:
    """What was recorded of an engine; empty where nothing was. Raises `PatchFormatError`."""
    place = path or path_of(engine)
    if not place.is_file():
        return Recorded()
    source = tomlfile.load(place, PatchFormatError)
    source.check_keys(source.data, ("releases", "has", "unknown"))
    return Recorded(
        releases=source.strings(source.data, "releases"),
        has=source.get(source.data, "has", dict, default={}),
        unknown=source.get(source.data, "unknown", dict, default={}),
    )


def of_states(releases: Sequence[str], states: Mapping[str, Mapping[str, State]]) -> Recorded:
    """What was seen, state by finding and release, as it is recorded."""

    def table(state: State) -> dict[str, str]:
        return {
            finding: spans.runs([v for v, got in row.items() if got == state], releases)
            for finding, row in sorted(states.items())
        }

    undecided = {finding: text for finding, text in table("unknown").items() if text}
    return Recorded(releases=tuple(releases), has=table("yes"), unknown=undecided)


def written(engine: str, recorded: Recorded) -> str:
    """The text of an engine's file."""
    tables = {"has": recorded.has}
    if recorded.unknown:
        tables["unknown"] = recorded.unknown
    return spansfile.text(_HEAD.format(engine=engine), recorded.releases, tables)
