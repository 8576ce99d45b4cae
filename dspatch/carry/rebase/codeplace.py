"""Where code of an old tree went in a newer one: lines that changed, a symbol that moved, a file that was renamed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from dspatch import astfind
from dspatch.carry.upstreamed import hunkfind
from dspatch.carry.upstreamed.parts import Readable, Search
from dspatch.diffs import Hunk

RENAMED_FROM = 0.5  # as much of a file as git asks for to call it renamed


@dataclass(frozen=True, kw_only=True)
class Trees:
    """An old tree and a newer one; `search` gives the files of the new one that hold a word."""

    old: Readable
    new: Readable
    search: Search | None = None


def changed_lines(before: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Of the lines that a hunk expects those that are gone, or else those now standing between them."""
    matcher = SequenceMatcher(None, list(lines), list(before), autojunk=False)
    longest = matcher.find_longest_match()
    start = max(longest.a - longest.b - len(before), 0)
    window = list(lines[start : longest.a + 2 * len(before) + longest.size])
    gone: list[str] = []
    between: list[str] = []
    codes = SequenceMatcher(None, list(before), window, autojunk=False).get_opcodes()
    for tag, a, b, c, d in codes:
        if tag in ("replace", "delete"):
            gone += before[a:b]
        elif tag == "insert" and 0 < a < len(before):
            between += window[c:d]
    return [line for line in gone or between if line.strip()]


def symbol_at(data: bytes | None, hunk: Hunk) -> str | None:
    """The innermost class, function or table around a hunk's first change."""
    try:
        tree = astfind.parsed(data or b"")
    except (SyntaxError, ValueError):
        return None
    line = hunk.old_start + min(hunkfind.leading(hunk), max(hunk.old_count - 1, 0))
    found = None
    for name in astfind.qualified_names(tree):
        node = astfind.symbol(tree, name)
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Dict)
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0):
            found = name
    return found


def moved_to(symbol: str | None, path: str, trees: Trees) -> str | None:
    """The file that a symbol stands in now, when its own no longer has it."""
    if symbol is None or _has(trees.new.read(path), symbol):
        return None
    for candidate in _candidates(symbol, path, trees):
        if candidate != path and _has(trees.new.read(candidate), symbol):
            return candidate
    return None


def _candidates(symbol: str, path: str, trees: Trees) -> Iterable[str]:
    if trees.search is not None:
        return trees.search(symbol.rpartition(".")[2])
    name = PurePosixPath(path).name
    return [each for each in trees.new.paths() if PurePosixPath(each).name == name]


def _has(data: bytes | None, symbol: str) -> bool:
    try:
        return astfind.symbol(astfind.parsed(data or b""), symbol) is not None
    except (SyntaxError, ValueError):
        return False


def renamed_to(path: str, trees: Trees) -> str | None:
    """The new file that is most like one that is gone, when it is as like as git asks for."""
    old = trees.old.read(path)
    if old is None:
        return None
    fresh = set(trees.new.paths()) - set(trees.old.paths())
    same_name = [
        each for each in sorted(fresh) if PurePosixPath(each).name == PurePosixPath(path).name
    ]
    near = [
        each for each in sorted(fresh) if PurePosixPath(each).suffix == PurePosixPath(path).suffix
    ]
    best = max(
        ((_likeness(old, trees.new.read(each) or b""), each) for each in same_name or near[:50]),
        default=(0.0, path),
    )
    return best[1] if best[0] >= RENAMED_FROM else None


def _likeness(one: bytes, other: bytes) -> float:
    return SequenceMatcher(None, one.split(b"\n"), other.split(b"\n")).ratio()
