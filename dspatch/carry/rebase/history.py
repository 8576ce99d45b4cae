"""What the history of an upstream clone says: which commit made the same change, which one touched a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.errors import GitError
from dspatch.git import Repo

_SHOWN = ("--full-index", "--find-renames", "--no-ext-diff", "--no-textconv", "--no-color")
_FORMAT = "--format=%H%x00%cs%x00%s"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit of upstream."""

    oid: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.oid[:12]} {self.subject} ({self.date})"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The commits of a clone between two revisions, the older left out."""

    repo: Repo
    old: str
    new: str

    @property
    def words(self) -> str:
        """The span as git takes it."""
        return f"{self.old}..{self.new}"


def span(repo: Repo, old: Sequence[str], new: Sequence[str]) -> Span | None:
    """The span between two revisions, each given by the names to try; `None` without such history."""
    first, last = _first_known(repo, old), _first_known(repo, new)
    if first is None or last is None:
        return None
    try:
        repo.run("merge-base", first, last)
    except GitError:  # a shallow clone, or no clone of this project
        return None
    return Span(repo=repo, old=first, new=last)


def same_change(span: Span, diff: str, paths: Sequence[str]) -> Commit | None:
    """The commit that has the patch-id of a diff, unless a later one took it back."""
    wanted = set(_patch_ids(span.repo, diff))
    if not wanted:
        return None
    log = span.repo.run("log", "--reverse", "-p", "--full-diff", *_SHOWN, span.words, "--", *paths)
    ids = _patch_ids(span.repo, log)
    found = [oid for patch, oid in ids.items() if patch in wanted]
    if not found or _taken_back(span.repo, found[0], ids):
        return None
    return _commits(span.repo.run("log", "-1", _FORMAT, found[0]))[0]


def first_touching(span: Span, lines: Sequence[str], path: str) -> Commit | None:
    """The first commit that added or removed one of some lines of a file, the most telling line first."""
    telling = sorted({line.strip() for line in lines if len(line.strip()) > 3}, key=len)
    for line in reversed(telling[-4:]):
        found = _commits(
            span.repo.run("log", "--reverse", f"-S{line}", _FORMAT, span.words, "--", path)
        )
        if found:
            return found[0]
    return None


def _first_known(repo: Repo, names: Sequence[str]) -> str | None:
    return next((oid for name in names if (oid := repo.resolve(f"{name}^{{commit}}"))), None)


def _taken_back(repo: Repo, oid: str, ids: dict[str, str]) -> bool:
    back = repo.run("diff-tree", "-p", *_SHOWN, oid, f"{oid}^")
    order = list(ids.values())
    return any(
        ids[patch] in order[order.index(oid) :] for patch in _patch_ids(repo, back) if patch in ids
    )


def _patch_ids(repo: Repo, text: str) -> dict[str, str]:
    """Commits by patch-id, the first that has it, in the order of the log."""
    lines = repo.run("patch-id", "--stable", stdin=f"{text}\n").splitlines()
    found: dict[str, str] = {}
    for patch, oid in (line.split(" ", 1) for line in lines):
        found.setdefault(patch, oid)
    return found


def _commits(log: str) -> list[Commit]:
    rows = [line.split("\0", 2) for line in log.splitlines() if line.count("\0") >= 2]
    return [Commit(oid=oid, date=date, subject=subject) for oid, date, subject in rows]
