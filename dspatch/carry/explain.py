"""Why a change does not fit a newer tree: which lines changed, in which release, and where the code went."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from dspatch import astfind, diffs
from dspatch.carry import hunkfind
from dspatch.carry.history import Commit, Span, first_touching
from dspatch.carry.upstreamed import Readable, Search
from dspatch.diffs import FileDiff, Hunk

Read = Callable[[str], bytes | None]
RENAMED_FROM = 0.5  # as much of a file as git asks for to call it renamed


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release between two pins: its files, read when asked for, of those that can be read at all."""

    rev: str
    read: Read
    sees: Callable[[str], bool] = lambda path: True


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one hunk, or one file, does not fit.

    `lines` are those that changed under it; `since` the first release without them and `until` the
    last with them; `stuck` the first one that git cannot merge it onto; `symbol` the function, class
    or table that they stood in, `moved` where it is now.
    """

    path: str
    number: int
    symbol: str | None = None
    lines: tuple[str, ...] = ()
    until: str | None = None
    since: str | None = None
    stuck: str | None = None
    commit: Commit | None = None
    renamed: str | None = None
    moved: str | None = None
    gone: bool = False

    def __str__(self) -> str:
        return "; ".join(_words(self))


@dataclass(kw_only=True)
class Context:
    """What a conflict is explained from: both trees, the releases between them, upstream's history.

    `old` and `new` are the trees as the patches before left them, `pristine` the old one without
    patches. `releases` come oldest first, neither end included, and are read no further than needed.
    `merges` says whether git merges a file's diff onto what a release has.
    """

    old: Readable
    pristine: Readable
    new: Readable
    old_rev: str
    new_rev: str
    releases: Iterable[Release] = ()
    history: Span | None = None
    search: Search | None = None
    merges: Callable[[FileDiff, Read], bool] | None = None
    _walked: list[Release] = field(default_factory=list)
    _rest: Iterator[Release] | None = None

    def walk(self, path: str) -> Iterator[Release]:
        """The releases that show a path, kept from one question to the next; then the new tree itself."""
        yield from (release for release in self._walked if release.sees(path))
        if self._rest is None:
            self._rest = iter(self.releases)
        for release in self._rest:
            self._walked.append(release)
            if release.sees(path):
                yield release
        yield Release(rev=self.new_rev, read=self.new.read)


def explain(diff: str, context: Context) -> tuple[Reason, ...]:
    """Why each hunk of a diff made on the old tree finds no place in the new one; none for those that do."""
    found: list[Reason] = []
    for file in diffs.read(diff):
        found += _file(file, context)
    return tuple(found)


def _file(file: FileDiff, context: Context) -> list[Reason]:
    if file.old_path is None:
        return _already_there(file, context)
    data = context.new.read(file.old_path)
    if data is None:
        return [_missing(file, file.old_path, context)]
    lines = hunkfind.lines_of(data)
    states = hunkfind.states(file.hunks, lines)
    if all(found.state != "conflicts" for found in states):
        return []
    stuck = _stuck(file, file.old_path, context)
    return [
        replace(_hunk(file.old_path, number, hunk, lines, context), stuck=stuck)
        for number, (hunk, found) in enumerate(zip(file.hunks, states, strict=True), 1)
        if found.state == "conflicts"
    ]


def _stuck(file: FileDiff, path: str, context: Context) -> str | None:
    """The first release that a file's diff does not merge onto, sought by halves: a merge takes a while."""
    if context.merges is None or context.merges(file, context.new.read):
        return None
    found = list(context.walk(path))
    at = bisect_left(found[:-1], True, key=lambda release: not _merges(file, release, context))
    return found[at].rev


def _merges(file: FileDiff, release: Release, context: Context) -> bool:
    return context.merges is not None and context.merges(file, release.read)


def _already_there(file: FileDiff, context: Context) -> list[Reason]:
    if context.new.read(file.path) is None:
        return []
    since = next((r.rev for r in context.walk(file.path) if r.read(file.path) is not None), None)
    return [Reason(path=file.path, number=0, since=since)]


def _missing(file: FileDiff, path: str, context: Context) -> Reason:
    until, since = _boundary(path, context, lambda data: data is not None)
    symbol = next((s for h in file.hunks if (s := symbol_at(context.old.read(path), h))), None)
    renamed = renamed_to(path, context)
    return Reason(
        path=path,
        number=0,
        gone=True,
        until=until,
        since=since,
        renamed=renamed,
        symbol=symbol,
        moved=None if renamed else _moved(symbol, path, context),
        commit=_commit_of([line for h in file.hunks for line in h.before], path, context),
    )


def _hunk(path: str, number: int, hunk: Hunk, lines: Sequence[str], context: Context) -> Reason:
    changed = changed_lines(hunk.before, lines)
    until, since = _boundary(path, context, _stands(hunk, changed, context.pristine.read(path)))
    symbol = symbol_at(context.old.read(path), hunk)
    return Reason(
        path=path,
        number=number,
        symbol=symbol,
        lines=tuple(line.strip() for line in changed),
        until=until,
        since=since,
        commit=_commit_of(changed, path, context),
        moved=_moved(symbol, path, context),
    )


def _stands(
    hunk: Hunk, changed: Sequence[str], pristine: bytes | None
) -> Callable[[bytes | None], bool]:
    """Whether a release still has the lines that a hunk expects.

    Where patches before it put some of them there, those that upstream changed are looked for.
    """
    whole = pristine is not None and hunkfind.places(hunk.before, hunkfind.lines_of(pristine))
    wanted = {line.strip() for line in changed}

    def stands(data: bytes | None) -> bool:
        if data is None:
            return False
        lines = hunkfind.lines_of(data)
        if whole:
            return bool(hunkfind.places(hunk.before, lines))
        return wanted <= {line.strip() for line in lines}

    return stands


def _boundary(
    path: str, context: Context, stands: Callable[[bytes | None], bool]
) -> tuple[str | None, str | None]:
    """The last release for which something holds of a file, and the first for which it no longer does."""
    until = context.old_rev
    for release in context.walk(path):
        if not stands(release.read(path)):
            return until, release.rev
        until = release.rev
    return None, None


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
        tree = ast.parse(data or b"")
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


def _moved(symbol: str | None, path: str, context: Context) -> str | None:
    """The file that a symbol stands in now, when its own no longer has it."""
    if symbol is None or _has(context.new.read(path), symbol):
        return None
    for candidate in _candidates(symbol, path, context):
        if candidate != path and _has(context.new.read(candidate), symbol):
            return candidate
    return None


def _candidates(symbol: str, path: str, context: Context) -> Iterable[str]:
    if context.search is not None:
        return context.search(symbol.rpartition(".")[2])
    name = PurePosixPath(path).name
    return [each for each in context.new.paths() if PurePosixPath(each).name == name]


def _has(data: bytes | None, symbol: str) -> bool:
    try:
        return astfind.symbol(ast.parse(data or b""), symbol) is not None
    except (SyntaxError, ValueError):
        return False


def renamed_to(path: str, context: Context) -> str | None:
    """The new file that is most like one that is gone, when it is as like as git asks for."""
    old = context.old.read(path)
    if old is None:
        return None
    fresh = set(context.new.paths()) - set(context.old.paths())
    same_name = [
        each for each in sorted(fresh) if PurePosixPath(each).name == PurePosixPath(path).name
    ]
    near = [
        each for each in sorted(fresh) if PurePosixPath(each).suffix == PurePosixPath(path).suffix
    ]
    best = max(
        ((_likeness(old, context.new.read(each) or b""), each) for each in same_name or near[:50]),
        default=(0.0, path),
    )
    return best[1] if best[0] >= RENAMED_FROM else None


def _likeness(one: bytes, other: bytes) -> float:
    return SequenceMatcher(None, one.split(b"\n"), other.split(b"\n")).ratio()


def _commit_of(lines: Sequence[str], path: str, context: Context) -> Commit | None:
    return first_touching(context.history, lines, path) if context.history else None


def _words(reason: Reason) -> Iterator[str]:
    where = f"hunk {reason.number} of {reason.path}" if reason.number else reason.path
    where += f", in `{reason.symbol}`" if reason.symbol else ""
    if reason.gone:
        since = f" since {reason.since}" if reason.since else ""
        yield f"{where}: the file is gone{since}"
    elif not reason.number:
        yield f"{where}: upstream has a file of that name" + (
            f" since {reason.since}" if reason.since else ""
        )
    else:
        line = f": `{reason.lines[0]}`" if reason.lines else ""
        more = f" and {len(reason.lines) - 1} more" if len(reason.lines) > 1 else ""
        when = f" changed in {reason.since}" if reason.since else " differ"
        last = f" ({reason.until} still has them)" if reason.since and reason.until else ""
        yield f"{where}: its lines{when}{last}{line}{more}"
    if reason.stuck and reason.stuck != reason.since:
        yield f"git merges it onto releases before {reason.stuck}, not onto that"
    if reason.renamed:
        yield f"the file is now {reason.renamed}"
    if reason.moved:
        yield f"`{reason.symbol}` is now in {reason.moved}"
    if reason.commit:
        yield f"by commit {reason.commit}"
