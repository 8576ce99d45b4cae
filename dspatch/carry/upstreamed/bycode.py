"""Which parts of a Python file's diff a tree has already, by the code that they leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from dspatch.carry.upstreamed import units
from dspatch.carry.upstreamed.parts import Change, Part, Readable, Search
from dspatch.carry.upstreamed.units import Unit, Units
from dspatch.diffs import FileDiff


class Homes:
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


def by_code(change: Change, file: FileDiff, parts: list[Part], homes: Homes) -> list[Part]:
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


def _place(unit: Unit, path: str, homes: Homes) -> str | None:
    """The file that holds an equal unit: the same one, or another that a definition moved to."""
    here = homes.of(path).get(unit.name)
    if here is not None:
        return path if here.meaning == unit.meaning else None
    return homes.elsewhere(unit, path) if unit.is_definition else None


def _is_gone(unit: Unit, path: str, moved: set[str], homes: Homes) -> bool:
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
