"""What a log says of itself: engine, release, model, device, its first and its last failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dspatch import tomlfile
from dspatch.audit import linear
from dspatch.errors import PatchFormatError
from dspatch.serve.doctor.failure import Failure
from dspatch.serve.doctor.scan import Hit

PATH = Path(__file__).with_name("facts.toml")
_KEYS = ("name", "engine", "regex", "line")


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A line that states a fact, for `scan`; its group `value` is the answer."""

    name: str
    regex: re.Pattern[str]
    needle: bytes
    line: str
    engine: str = ""
    near: re.Pattern[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """What a log states: engines, facts by name, the lines they stand on, the first and the last failure."""

    engines: frozenset[str] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)
    first: Failure | None = None
    error: Failure | None = None

    @property
    def engine(self) -> str | None:
        """The engine, where there is exactly one."""
        return next(iter(self.engines)) if len(self.engines) == 1 else None

    @property
    def version(self) -> str | None:
        """The release of the engine, without what a build adds to it."""
        try:
            return Version(self.facts["version"].rstrip(".")).public
        except (KeyError, InvalidVersion):
            return None

    @property
    def target(self) -> str | None:
        """The target that the log states."""
        return self.facts.get("device")


@cache
def patterns() -> tuple[Pattern, ...]:
    """The lines that state facts; raises `PatchFormatError` for one that is malformed."""
    source = tomlfile.load(PATH, PatchFormatError)
    source.check_keys(source.data, ("fact",))
    found = []
    for row in source.tables(source.data, "fact", _KEYS):
        name, regex, line = (
            source.get(row, key, str, within="fact") for key in ("name", "regex", "line")
        )
        for fault in (*linear.faults(regex, repr(regex)), *_unfit(regex, line)):
            raise source.fail(fault, within="fact")
        found.append(
            Pattern(
                name=name, engine=source.get(row, "engine", str, within="fact", default=""),
                regex=re.compile(regex), needle=linear.needle(regex).encode(), line=line,
            )
        )  # fmt: skip
    return tuple(found)


def _unfit(regex: str, line: str) -> Iterable[str]:
    if not linear.needle(regex):
        yield f"{regex!r} needs {linear.SHORTEST} plain letters in a row"
    elif "(?P<value>" not in regex or not re.search(regex, line):
        yield f"{regex!r} does not find its `value` in its own line"


def of_hits(
    hits: Iterable[Hit[Pattern]], first: Failure | None = None, last: Failure | None = None
) -> Recognised:
    """What the matches of `patterns` say together; what comes first in the file of facts counts first."""
    rank = {id(each): number for number, each in enumerate(patterns())}
    engines: set[str] = set()
    facts: dict[str, tuple[int, str, int]] = {}
    for hit in hits:
        name, value = hit.sought.name, hit.groups.get("value", "").strip()
        if hit.sought.engine:
            engines.add(hit.sought.engine)
        here = (rank[id(hit.sought)], value, hit.number)
        if name != "engine" and value and (name not in facts or here[0] < facts[name][0]):
            facts[name] = here
    return Recognised(
        engines=frozenset(engines),
        facts={name: value for name, (_, value, _) in facts.items()},
        at={name: number for name, (_, _, number) in facts.items()},
        first=first,
        error=last,
    )
