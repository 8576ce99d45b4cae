"""Why a change does not fit a newer tree: which lines changed, in which release, and where the code went."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dspatch import diffs
from dspatch.carry.rebase import codeplace
from dspatch.carry.rebase.codeplace import Trees
from dspatch.carry.rebase.history import Commit, Span, first_touching
from dspatch.carry.upstreamed import hunkfind
from dspatch.carry.upstreamed.parts import Readable
from dspatch.diffs import FileDiff, Hunk

Read = Callable[[str], bytes | None]


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

    `trees` are both as the patches before left them, `pristine` the old one without patches.
    `releases` come oldest first, neither end included, and are read no further than needed.
    `merges` says whether git merges a file's diff onto what a release has.
    """

    trees: Trees
    pristine: Readable
    old_rev: str
    new_rev: str
    releases: Iterable[Release] = ()
    history: Span | None = None
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
        yield Release(rev=self.new_rev, read=self.trees.new.read)


def explain(diff: str, context: Context) -> tuple[Reason, ...]:
    """Why each hunk of a diff made on the old tree finds no place in the new one; none for those that do."""
    found: list[Reason] = []
    for file in diffs.read(diff):
        found += _file(file, context)
    return tuple(found)


def _file(file: FileDiff, context: Context) -> list[Reason]:
    if file.old_path is None:
        return _already_there(file, context)
    data = context.trees.new.read(file.old_path)
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
    if context.merges is None or context.merges(file, context.trees.new.read):
        return None
    found = list(context.walk(path))
    at = bisect_left(found[:-1], True, key=lambda release: not _merges(file, release, context))
    return found[at].rev


def _merges(file: FileDiff, release: Release, context: Context) -> bool:
    return context.merges is not None and context.merges(file, release.read)


def _already_there(file: FileDiff, context: Context) -> list[Reason]:
    if context.trees.new.read(file.path) is None:
        return []
    since = next((r.rev for r in context.walk(file.path) if r.read(file.path) is not None), None)
    return [Reason(path=file.path, number=0, since=since)]


def _missing(file: FileDiff, path: str, context: Context) -> Reason:
    until, since = _boundary(path, context, lambda data: data is not None)
    symbol = next(
        (s for h in file.hunks if (s := codeplace.symbol_at(context.trees.old.read(path), h))), None
    )
    renamed = codeplace.renamed_to(path, context.trees)
    return Reason(
        path=path,
        number=0,
        gone=True,
        until=until,
        since=since,
        renamed=renamed,
        symbol=symbol,
        moved=None if renamed else codeplace.moved_to(symbol, path, context.trees),
        commit=_commit_of([line for h in file.hunks for line in h.before], path, context),
    )


def _hunk(path: str, number: int, hunk: Hunk, lines: Sequence[str], context: Context) -> Reason:
    changed = codeplace.changed_lines(hunk.before, lines)
    until, since = _boundary(path, context, _stands(hunk, changed, context.pristine.read(path)))
    symbol = codeplace.symbol_at(context.trees.old.read(path), hunk)
    return Reason(
        path=path,
        number=number,
        symbol=symbol,
        lines=tuple(line.strip() for line in changed),
        until=until,
        since=since,
        commit=_commit_of(changed, path, context),
        moved=codeplace.moved_to(symbol, path, context.trees),
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
