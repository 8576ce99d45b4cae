"""What of a diff a tree has already, as an outcome: it leaves the series, or only its rest is applied."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch import diffs, threeway
from dspatch.carry.upstreamed import hunkfind, upstreamed
from dspatch.carry.upstreamed.parts import Change, Search
from dspatch.carry.upstreamed.upstreamed import Verdict
from dspatch.diffs import FileDiff
from dspatch.errors import GitError
from dspatch.git import Entry, Repo
from dspatch.threeway import MergeConflictError, Outcome
from dspatch.treefiles import PLAIN, Files


def outcome(repo: Repo, diff: str, files: Files, search: Search | None = None) -> Outcome | None:
    """The outcome of a diff that a tree has in whole or in part; `None` leaves it to be merged.

    Of one that is there in part the rest must apply strictly.
    """
    return settled(repo, diff, files, judge(repo, diff, files, search))


def settled(repo: Repo, diff: str, files: Files, verdict: Verdict) -> Outcome | None:
    """The outcome that a verdict on a diff comes to, as `outcome` gives it."""
    if verdict.whole:
        return Outcome(how="upstream", changes={}, note=verdict.why)
    if not verdict.partly:
        return None
    rest = diffs.read(upstreamed.remainder(diff, verdict))
    if threeway.obstacles(rest, files):
        return None
    try:
        changes = threeway.apply_strictly(repo, rest, files)
    except GitError:
        return None
    return Outcome(how="strict", changes=changes, note=verdict.why)


def judge(repo: Repo, diff: str, files: Files, search: Search | None = None) -> Verdict:
    """How much of a diff a tree has, by its code too where git holds the files it was made on."""
    return upstreamed.judge(_change(repo, diff), files, search=search)


def told(error: MergeConflictError, verdict: Verdict) -> MergeConflictError:
    """A conflict that says how much of the diff is upstream."""
    if verdict.partly:
        error.why = f"{verdict.why}; the rest: {error.why}"
    return error


def inserts_again(parts: Sequence[FileDiff], files: Files) -> bool:
    """Whether lines that a diff only inserts stand in the file already, so that it is worth a look."""
    return any(
        _stands(hunkfind.added(hunk), files.read(part.path))
        for part in parts
        if part.old_path is not None and part.path.endswith(".py")
        for hunk in part.hunks
        if not hunk.removed
    )


def _stands(lines: Sequence[str], data: bytes | None) -> bool:
    text = "".join(lines).strip()
    return bool(text) and data is not None and text.encode("utf-8", "surrogateescape") in data


def _change(repo: Repo, diff: str) -> Change:
    parts = [part for part in diffs.read(diff) if _told_by_code(part)]
    old = [part for part in parts if part.old_path]
    ids = repo.resolve_all(*(part.old_blob or "" for part in old)) if old else []
    known = {part.old_path: oid for part, oid in zip(old, ids, strict=True) if oid}
    usable = [part for part in parts if part.old_path is None or part.old_path in known]
    if not usable:
        return upstreamed.of_diff(diff)
    before = {
        path: Entry(path=path, mode=part.old_mode or PLAIN, blob=known[path])
        for part in usable
        if (path := part.old_path)
    }
    with repo.scratch_index() as index:
        index.add(before.values())
        try:
            index.apply("".join(part.text for part in usable))
        except GitError:
            return upstreamed.of_diff(diff)
        after = index.entries()
    with repo.reading() as read:
        return Change(
            diff=diff,
            before={path: read(entry.blob) for path, entry in before.items()},
            after={path: read(entry.blob) for path, entry in after.items()},
        )


def _told_by_code(part: FileDiff) -> bool:
    return part.path.endswith(".py") and (part.old_path is None or bool(part.old_blob))
