"""A diff onto a tree: strictly where every hunk has one place, otherwise merged three-way by git."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from dspatch import diffs
from dspatch.diffs import FileDiff, Hunk
from dspatch.errors import GitError, PatchConflictError
from dspatch.git import Change, Entry, Index, Merge, Repo
from dspatch.strictly import difference, entries, through
from dspatch.treefiles import PLAIN, Files

# Fewer digits of a blob's id than git ever writes would prove nothing.
SHORTEST_ID = 7

How = Literal["rendered", "strict", "merged", "fuzzy", "upstream"]
Kind = Literal["missing", "no place", "many places", "exists", "no base", "merge"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a diff does to a tree, and how it got there; `moved` maps paths to their new names.

    `note` says what of it upstream has already.
    """

    how: How
    changes: Mapping[str, Change]
    moved: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Why one file of a diff does not apply."""

    path: str
    kind: Kind
    detail: str


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What conflict markers call the three sides."""

    base: str = "base"
    ours: str = "upstream"
    theirs: str = "patch"


class MergeConflictError(PatchConflictError):
    """A diff does not apply; `marked` are the files as git left them, with conflict markers."""

    def __init__(self, conflicts: Sequence[Conflict], marked: Mapping[str, Change]) -> None:
        self.conflicts = tuple(conflicts)
        self.marked = dict(marked)
        paths = ", ".join(dict.fromkeys(conflict.path for conflict in conflicts))
        super().__init__(
            f"it conflicts in {paths}.",
            why="; ".join(f"{each.path}: {each.detail}" for each in conflicts),
        )


def apply_diff(
    repo: Repo,
    diff: str,
    files: Files,
    *,
    context: int | None = None,
    provide: Callable[[], bool] | None = None,
    base_paths: Callable[[], Collection[str]] = lambda: (),
    labels: Labels | None = None,
    settle: Callable[[], Outcome | None] = lambda: None,
) -> Outcome:
    """What `diff` does to `files`; nothing but objects of `repo` is written.

    Strictly, when every hunk's lines stand in exactly one place; else three-way from the blobs
    that the diff was made on, which `provide` may fetch (it says whether it did); else, only when
    `context` is given, with so few lines around each hunk. `base_paths` gives the paths of the
    tree that the diff was made on: with them a file that got another name since is found. `settle`
    is asked before a merge: it gives the outcome of a diff that is there already.

    Raises `MergeConflictError` and `DiffFormatError`.
    """
    parts = diffs.read(diff)
    found = obstacles(parts, files)
    if not found:
        try:
            return Outcome(how="strict", changes=apply_strictly(repo, parts, files))
        except GitError as error:
            found = [_refused(parts, error)]
    settled = settle()
    if settled is not None:
        return settled
    if _bases_known(repo, parts) or (provide and provide() and _bases_known(repo, parts)):
        try:
            return _merged(repo, parts, files, base_paths, labels or Labels())
        except MergeConflictError:
            if context is None:
                raise
    if context is not None:
        return _fuzzy(repo, parts, files, context, found)
    raise MergeConflictError([*found, *_lacking(repo, parts)], {})


def apply_strictly(repo: Repo, parts: Sequence[FileDiff], files: Files) -> dict[str, Change]:
    """Apply diffs without `obstacles`, through git; raises `GitError`."""
    with through(repo) as index:
        return index.apply(parts, files)


# -- strict ------------------------------------------------------------------------------------


def obstacles(parts: Sequence[FileDiff], files: Files) -> list[Conflict]:
    """Why a diff cannot be applied strictly: each hunk's lines must have one place."""
    # A file that becomes a link is deleted and made again; two files may swap their names.
    leaving = {part.old_path for part in parts if part.old_path != part.new_path}
    found = (_obstacle(part, files, taken=part.new_path not in leaving) for part in parts)
    return [conflict for conflict in found if conflict]


def _obstacle(part: FileDiff, files: Files, *, taken: bool) -> Conflict | None:
    if part.new_path not in (None, part.old_path) and taken and files.has(part.path):
        return _conflict(part, "exists", "is there already")
    if part.old_path is None:
        return None
    data = files.read(part.old_path)
    if data is None:
        return _conflict(part, "missing", "does not exist")
    if len(part.old_blob or "") >= SHORTEST_ID and blob_id(data).startswith(part.old_blob or ""):
        return None
    if part.binary:
        return _conflict(part, "no place", "is binary, and not the file that was changed")
    for number, hunk in enumerate(part.hunks, 1):
        count = places(hunk, data)
        if count != 1:
            where = f"hunk {number} of {len(part.hunks)} ({_spot(hunk)})"
            kind: Kind = "many places" if count else "no place"
            word = f"fits {count} places" if count else "finds no place"
            return _conflict(part, kind, f"{where} {word}")
    return None


def places(hunk: Hunk, data: bytes, *, side: Literal["before", "after"] = "before") -> int:
    """How often the lines of a hunk's side stand in a file, as whole lines."""
    wanted = "".join(getattr(hunk, side)).encode("utf-8", "surrogateescape")
    if not wanted:
        return 1 if not data else 0
    count, start = 0, data.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        at_line = start == 0 or data[start - 1 : start] == b"\n"
        count += at_line and (wanted.endswith(b"\n") or end == len(data))
        start = data.find(wanted, start + 1)
    return count


def blob_id(data: bytes) -> str:
    """The id that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _spot(hunk: Hunk) -> str:
    return hunk.section.strip() or f"line {hunk.old_start}"


def _conflict(part: FileDiff, kind: Kind, detail: str) -> Conflict:
    return Conflict(path=part.old_path or part.path, kind=kind, detail=detail)


def _refused(parts: Sequence[FileDiff], error: GitError) -> Conflict:
    return _conflict(parts[0], "no place", error.why.splitlines()[0])


def _fuzzy(
    repo: Repo,
    parts: Sequence[FileDiff],
    files: Files,
    context: int,
    obstacles: Sequence[Conflict],
) -> Outcome:
    try:
        with through(repo) as index:
            return Outcome(how="fuzzy", changes=index.apply(parts, files, context=context))
    except GitError as error:
        raise MergeConflictError([*obstacles, _refused(parts, error)], {}) from None


# -- three-way ---------------------------------------------------------------------------------


def _bases(parts: Sequence[FileDiff]) -> list[str]:
    return [part.old_blob or "" for part in parts if part.old_path]


def _bases_known(repo: Repo, parts: Sequence[FileDiff]) -> bool:
    ids = _bases(parts)
    return all(ids) and repo.has_all(ids)


def _lacking(repo: Repo, parts: Sequence[FileDiff]) -> list[Conflict]:
    """The files whose old bytes nobody has, so that no merge could be tried."""
    return [
        _conflict(part, "no base", "the file that the diff was made on is not at hand")
        for part in parts
        if part.old_path and not (part.old_blob and _bases_known(repo, [part]))
    ]


def _merged(
    repo: Repo,
    parts: Sequence[FileDiff],
    files: Files,
    base_paths: Callable[[], Collection[str]],
    labels: Labels,
) -> Outcome:
    with repo.scratch_index() as index:
        base, theirs = _base_and_theirs(repo, index, parts)
    ours = _ours(repo, parts, files, base_paths)
    with repo.scratch_index() as index:
        index.add(ours.values())
        merge = repo.merge(base, index.tree(), theirs)
    changes = difference(repo, ours, repo.entries(merge.tree))
    if not merge.clean:
        marked = {path: _labelled(change, merge, labels) for path, change in changes.items()}
        raise MergeConflictError(_merge_conflicts(merge, labels), marked)
    if not changes:
        return Outcome(how="upstream", changes={})
    return Outcome(how="merged", changes=changes, moved=_moved(parts, ours, changes))


def _base_and_theirs(repo: Repo, index: Index, parts: Sequence[FileDiff]) -> tuple[str, str]:
    ids = repo.resolve_all(*_bases(parts)) if _bases(parts) else []
    old = [part for part in parts if part.old_path]
    index.add(
        Entry(path=part.old_path or "", mode=part.old_mode or PLAIN, blob=oid or "")
        for part, oid in zip(old, ids, strict=True)
    )
    base = index.tree()
    try:
        index.apply("".join(part.text for part in parts))
    except GitError as error:
        raise MergeConflictError([_refused(parts, error)], {}) from None
    return base, index.tree()


def _ours(
    repo: Repo,
    parts: Sequence[FileDiff],
    files: Files,
    base_paths: Callable[[], Collection[str]],
) -> dict[str, Entry]:
    paths = [path for part in parts for path in sorted(part.paths)]
    gone = [part.old_path for part in parts if part.old_path and not files.has(part.old_path)]
    candidates = _rename_candidates(gone, files, set(base_paths())) if gone else []
    return entries(repo, files, [*paths, *candidates])


def _rename_candidates(gone: Sequence[str], files: Files, base_paths: set[str]) -> list[str]:
    """Where files that are gone may have been renamed to; git then judges by their content.

    Files of the same name; and, where the base's paths are known, every new file of that kind.
    """
    names = {PurePosixPath(path).name for path in gone} - {"__init__.py"}
    kinds = {PurePosixPath(path).suffix for path in gone}
    fresh = set(files.paths()) - base_paths
    return sorted(
        path
        for path in fresh
        if PurePosixPath(path).name in names
        or (base_paths and PurePosixPath(path).suffix in kinds and files.known_blob(path))
    )


def _moved(
    parts: Sequence[FileDiff], ours: Mapping[str, Entry], changes: Mapping[str, Change]
) -> dict[str, str]:
    gone = [part.old_path for part in parts if part.old_path and part.old_path not in ours]
    own = {path for part in parts for path in part.paths}
    landed = [path for path in changes if path in ours and path not in own]
    return dict(zip(gone, landed, strict=True)) if len(gone) == len(landed) else {}


def _merge_conflicts(merge: Merge, labels: Labels) -> list[Conflict]:
    told = [
        Conflict(path=paths[0], kind="merge", detail=_words(text, merge, labels))
        for kind, text, paths in merge.messages
        if kind.startswith("CONFLICT") and paths
    ]
    silent = set(merge.conflicts) - {conflict.path for conflict in told}
    return told + [Conflict(path=path, kind="merge", detail="conflicts") for path in sorted(silent)]


def _words(text: str, merge: Merge, labels: Labels) -> str:
    for commit, label in zip(merge.commits, (labels.base, labels.ours, labels.theirs), strict=True):
        text = text.replace(commit, label)
    return text


def _labelled(change: Change, merge: Merge, labels: Labels) -> Change:
    """A file with its conflict markers naming the sides by their labels."""
    if change.data is None:
        return change
    data = change.data
    base, ours, theirs = merge.commits
    marks = (
        (rb"<{7}", ours, labels.ours),
        (rb"\|{7}", base, labels.base),
        (rb">{7}", theirs, labels.theirs),
    )
    for mark, commit, label in marks:
        # git shortens the base's id.
        name = b"(?:%s|%s[0-9a-f]{0,33})" % (commit.encode(), commit[:7].encode())
        data = re.sub(b"^(%s) %s" % (mark, name), rb"\1 " + label.encode(), data, flags=re.M)
    return Change(path=change.path, data=data, mode=change.mode)
