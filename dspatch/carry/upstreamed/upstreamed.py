"""Whether a change is already in a tree, in tiers: reverse-applies, hunk by hunk, equal code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dspatch import diffs
from dspatch.carry.upstreamed.bycode import Homes, by_code
from dspatch.carry.upstreamed.bytext import by_text
from dspatch.carry.upstreamed.parts import Change, Part, Readable, Search
from dspatch.diffs import FileDiff

Tier = Literal["reverse-applies", "hunks", "symbols"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How much of a change a tree has already, and by which tier that was seen."""

    tier: Tier | None
    parts: tuple[Part, ...]

    @property
    def there(self) -> tuple[Part, ...]:
        """The parts that the tree has."""
        return tuple(part for part in self.parts if part.state == "upstream")

    @property
    def rest(self) -> tuple[Part, ...]:
        """The parts that it lacks."""
        return tuple(part for part in self.parts if part.state != "upstream")

    @property
    def whole(self) -> bool:
        """Whether nothing is left to apply."""
        return self.tier is not None and not self.rest

    @property
    def partly(self) -> bool:
        """Whether some of it is there and some is not."""
        return bool(self.there) and bool(self.rest)

    @property
    def why(self) -> str:
        """Which tier saw it, and where; empty when nothing of the change is there."""
        if self.tier is None:
            return ""
        seen = "; ".join(str(part) for part in self.there[:4])
        more = f"; and {len(self.there) - 4} more" if len(self.there) > 4 else ""
        count = f"{len(self.there)} of {len(self.parts)} hunks upstream"
        head = {
            "reverse-applies": f"it reverse-applies, {count}",
            "hunks": count,
            "symbols": f"equal code, {count}",
        }[self.tier]
        return f"{head}: {seen}{more}"


def of_diff(diff: str) -> Change:
    """A change of which nothing but the diff is known."""
    return Change(diff=diff, before={}, after={})


def judge(change: Change, target: Readable, *, search: Search | None = None) -> Verdict:
    """How much of a change a tree has already.

    `search` gives the paths of files that hold a word, for symbols that moved; without it only files
    of the same name are looked at. Raises `DiffFormatError`.
    """
    found: list[Part] = []
    homes = Homes(target, search)
    for file in diffs.read(change.diff):
        found += by_code(change, file, by_text(file, target), homes)
    return Verdict(tier=_tier(found), parts=tuple(found))


def remainder(diff: str, verdict: Verdict) -> str:
    """The diff without the hunks that are upstream; `""` when none is left."""
    there = {(part.path, part.number) for part in verdict.there}
    kept: list[str] = []
    for file in diffs.read(diff):
        if (file.path, 0) in there:
            continue
        head, hunks = _chunks(file)
        left = [text for n, text in enumerate(hunks, 1) if (file.path, n) not in there]
        if left or not hunks:
            kept.append(head + "".join(left))
    return "".join(kept)


def _tier(parts: Sequence[Part]) -> Tier | None:
    there = [part for part in parts if part.state == "upstream"]
    if not there:
        return None
    if any(part.by_symbol for part in there):
        return "symbols"
    return "reverse-applies" if len(there) == len(parts) else "hunks"


def _chunks(file: FileDiff) -> tuple[str, list[str]]:
    """The header of a file's part of a diff, and its hunks."""
    lines = file.text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if line.startswith("@@ -")]
    ends = [*starts[1:], len(lines)]
    head = "".join(lines[: starts[0]] if starts else lines)
    return head, ["".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]
