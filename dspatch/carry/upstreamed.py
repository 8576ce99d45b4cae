"""Whether a change is already in a tree, in tiers: reverse-applies, hunk by hunk, equal symbols."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol

from dspatch import diffs
from dspatch.carry import hunkfind, units
from dspatch.carry.hunkfind import State
from dspatch.carry.units import Unit, Units
from dspatch.diffs import FileDiff, Hunk
from dspatch.threeway import blob_id

Tier = Literal["patch-id", "reverse-applies", "hunks", "symbols"]
Search = Callable[[str], Iterable[str]]


class Readable(Protocol):
    """The files of a tree by path."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""

    def paths(self) -> Collection[str]:
        """Every path."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One hunk of a change, or what it does to a file as a whole, and whether a tree has it already.

    `number` counts the hunks of a file from 1; 0 is the file as a whole.
    """

    path: str
    number: int
    title: str
    state: State
    where: str = ""
    by_symbol: bool = False

    def __str__(self) -> str:
        what = f"hunk {self.number}" if self.number else "the file"
        at = f" at {self.where}" if self.where else ""
        return f"{what} of {self.path}{f' ({self.title})' if self.title else ''}{at}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How much of a change a tree has already, and by which tier that was seen."""

    tier: Tier | None
    parts: tuple[Part, ...]
    detail: str = ""

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
            "patch-id": self.detail,
            "reverse-applies": f"it reverse-applies, {count}",
            "hunks": count,
            "symbols": f"equal code, {count}",
        }[self.tier]
        return head if self.tier == "patch-id" else f"{head}: {seen}{more}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to look for: its diff, and the files on both sides of it as far as they are known."""

    diff: str
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None]


def of_diff(diff: str) -> Change:
    """A change of which nothing but the diff is known."""
    return Change(diff=diff, before={}, after={})


def judge(change: Change, target: Readable, *, search: Search | None = None) -> Verdict:
    """How much of a change a tree has already.

    `search` gives the paths of files that hold a word, for symbols that moved; without it only files
    of the same name are looked at. Raises `DiffFormatError`.
    """
    found: list[Part] = []
    homes = _Homes(target, search)
    for file in diffs.read(change.diff):
        found += _by_symbol(change, file, _by_text(file, target), homes)
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


# -- by their text --------------------------------------------------------------------------------


def _by_text(file: FileDiff, target: Readable) -> list[Part]:
    if file.old_path is None or file.new_path is None or file.binary or not file.hunks:
        return [_whole(file, target)]
    data = target.read(file.path)
    if data is None or (file.old_path != file.new_path and target.read(file.old_path) is not None):
        return [_part(file, n, hunk, "conflicts") for n, hunk in enumerate(file.hunks, 1)]
    found = hunkfind.states(file.hunks, hunkfind.lines_of(data))
    return [
        _part(file, n, hunk, one.state, f"line {one.line}" if one.line else "")
        for n, (hunk, one) in enumerate(zip(file.hunks, found, strict=True), 1)
    ]


def _part(file: FileDiff, number: int, hunk: Hunk, state: State, where: str = "") -> Part:
    return Part(path=file.path, number=number, title=hunk.section.strip(), state=state, where=where)


def _whole(file: FileDiff, target: Readable) -> Part:
    """A file that the change adds, deletes, renames, replaces whole, or whose mode it changes."""
    return Part(path=file.path, number=0, title=_doing(file), state=_whole_state(file, target))


def _doing(file: FileDiff) -> str:
    if file.old_path is None:
        return "new"
    if file.new_path is None:
        return "deleted"
    return "renamed" if file.old_path != file.new_path else "mode" if not file.binary else "binary"


def _whole_state(file: FileDiff, target: Readable) -> State:
    data = target.read(file.path)
    if file.new_path is None:
        return "upstream" if data is None and not _moved(file, target) else "applies"
    if data is None:
        return "applies" if file.old_path is None else "conflicts"
    if file.old_path is None and not file.binary:
        wanted = "".join(line for hunk in file.hunks for line in hunk.after)
        same = data == wanted.encode("utf-8", "surrogateescape")
        return "upstream" if same else "conflicts"
    return _blob_state(file, data, target)


def _blob_state(file: FileDiff, data: bytes, target: Readable) -> State:
    """A whole file by the id of its blob, where the diff states one; and by its mode."""
    mode = getattr(target, "mode", lambda path: file.old_mode)(file.path)
    oid = blob_id(data)
    if file.new_blob and not oid.startswith(file.new_blob):
        return "applies" if file.old_blob and oid.startswith(file.old_blob) else "conflicts"
    if file.old_path != file.new_path and target.read(file.old_path or "") is not None:
        return "applies"
    changes = file.new_blob or file.old_path != file.new_path or file.old_mode != file.new_mode
    return "upstream" if changes and mode == (file.new_mode or mode) else "applies"


def _moved(file: FileDiff, target: Readable) -> bool:
    """Whether a file that is gone was only given another place."""
    name = PurePosixPath(file.path).name
    wanted = "".join(line for hunk in file.hunks for line in hunk.before)
    data = wanted.encode("utf-8", "surrogateescape")
    return bool(data) and any(
        target.read(path) == data for path in target.paths() if PurePosixPath(path).name == name
    )


# -- by what they mean ----------------------------------------------------------------------------


class _Homes:
    """The units of a tree's Python files: those of a path, and those of a symbol that moved."""

    def __init__(self, target: Readable, search: Search | None) -> None:
        self._target = target
        self._search = search
        self._known: dict[str, Units] = {}

    def of(self, path: str) -> Units:
        """The units of a file; none when it is not there or no Python."""
        if path not in self._known:
            self._known[path] = units.of(self._target.read(path)) or {}
        return self._known[path]

    def elsewhere(self, unit: Unit, path: str) -> str | None:
        """Another file that holds an equal definition of that name."""
        for other in self._candidates(unit, path):
            found = self.of(other).get(unit.name)
            if other != path and found is not None and found.meaning == unit.meaning:
                return other
        return None

    def _candidates(self, unit: Unit, path: str) -> Iterable[str]:
        if self._search is not None:
            return self._search(unit.symbol.rsplit(".", 1)[-1])
        name = PurePosixPath(path).name
        return [each for each in self._target.paths() if PurePosixPath(each).name == name]


def _by_symbol(change: Change, file: FileDiff, parts: list[Part], homes: _Homes) -> list[Part]:
    """The parts of a Python file, those in doubt judged once more by the code they leave behind."""
    doubtful = [part for part in parts if _doubtful(part, file)]
    sides = _sides(change, file) if doubtful and file.path.endswith(".py") else None
    if sides is None:
        return parts
    before, after = sides
    effect = units.changed(before, after)
    places = {unit.name: _place(unit, file.path, homes) for unit in effect.set}
    moved = {place for place in places.values() if place}
    gone = {u.name: _is_gone(u, file.path, moved, homes) for u in effect.removed}
    return [
        _judged(part, file, effect, places, gone) if part in doubtful else part for part in parts
    ]


def _doubtful(part: Part, file: FileDiff) -> bool:
    """Whether a part's lines do not settle it: they find no place, or only insert, perhaps again."""
    if part.state == "upstream":
        return False
    return part.state == "conflicts" or (
        part.number > 0 and not file.hunks[part.number - 1].removed
    )


def _sides(change: Change, file: FileDiff) -> tuple[Units, Units] | None:
    old, new = file.old_path, file.new_path
    if (old and old not in change.before) or (new and new not in change.after):
        return None
    before = units.of(change.before.get(old) if old else None)
    after = units.of(change.after.get(new) if new else None)
    return (before, after) if before is not None and after is not None else None


def _place(unit: Unit, path: str, homes: _Homes) -> str | None:
    """The file that holds an equal unit: the same one, or another that a definition moved to."""
    here = homes.of(path).get(unit.name)
    if here is not None:
        return path if here.meaning == unit.meaning else None
    return homes.elsewhere(unit, path) if unit.is_definition else None


def _is_gone(unit: Unit, path: str, moved: set[str], homes: _Homes) -> bool:
    """Whether a unit is there no more, while what it stood in still is."""
    for home in moved or {path}:
        if unit.name in homes.of(home):
            return False
    scope = unit.scope.removesuffix(".")
    found = [homes.of(home) for home in moved or {path}]
    return any(f"class {scope}" in there if scope else bool(there) for there in found)


def _judged(
    part: Part,
    file: FileDiff,
    effect: units.Changed,
    places: Mapping[str, str | None],
    gone: Mapping[str, bool],
) -> Part:
    hunks = file.hunks if part.number == 0 else (file.hunks[part.number - 1],)
    there = [u for u in effect.set if any(_touches(u, h.new_start, h.new_count) for h in hunks)]
    away = [u for u in effect.removed if any(_touches(u, h.old_start, h.old_count) for h in hunks)]
    if not there and not away:
        return part
    if not all(places[unit.name] for unit in there) or not all(gone[unit.name] for unit in away):
        return part
    names = ", ".join(_named(unit, places.get(unit.name), file.path) for unit in (*there, *away))
    return Part(
        path=part.path, number=part.number, title=part.title, state="upstream",
        where=names, by_symbol=True,
    )  # fmt: skip


def _touches(unit: Unit, start: int, count: int) -> bool:
    return unit.first < start + max(count, 1) and start <= unit.last


def _named(unit: Unit, place: str | None, path: str) -> str:
    return f"`{unit.symbol}`" + (f" in {place}" if place and place != path else "")


def _chunks(file: FileDiff) -> tuple[str, list[str]]:
    """The header of a file's part of a diff, and its hunks."""
    lines = file.text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if line.startswith("@@ -")]
    ends = [*starts[1:], len(lines)]
    head = "".join(lines[: starts[0]] if starts else lines)
    return head, ["".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]
