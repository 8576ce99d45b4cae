"""Diffs that fit beyond doubt, applied by git one after the other through one index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from dspatch.diffs import FileDiff
from dspatch.git import Change, Entry, Index, Repo
from dspatch.treefiles import Files

_GONE = {"mode": "0", "blob": "0" * 40}


class Through:
    """An index that follows a tree: only what it does not hold yet is put there before a diff."""

    def __init__(self, repo: Repo, index: Index) -> None:
        self._repo = repo
        self._index = index
        self._held: dict[str, Entry] = {}

    def apply(
        self, parts: Sequence[FileDiff], files: Files, *, context: int | None = None
    ) -> dict[str, Change]:
        """What diffs do to a tree, as git applies them all or none; raises `GitError`."""
        touched = dict.fromkeys(path for part in parts for path in sorted(part.paths))
        old = entries(self._repo, files, touched)
        self._follow(old, touched)
        self._index.apply("".join(part.text for part in parts), context=context)
        self._held = self._index.entries()
        new = {path: entry for path, entry in self._held.items() if path in touched}
        return difference(self._repo, old, new)

    def _follow(self, wanted: Mapping[str, Entry], touched: Iterable[str]) -> None:
        stale = [entry for path, entry in wanted.items() if self._held.get(path) != entry]
        left = [path for path in touched if path in self._held and path not in wanted]
        stale += [Entry(path=path, **_GONE) for path in left]
        if stale:
            self._index.add(stale)
            self._held.update(wanted)


@contextmanager
def through(repo: Repo) -> Iterator[Through]:
    """An index to apply diffs through, which ends with the block."""
    with repo.scratch_index() as index:
        yield Through(repo, index)


def entries(repo: Repo, files: Files, paths: Iterable[str]) -> dict[str, Entry]:
    """The paths that exist, as entries whose blobs `repo` holds."""
    known: dict[str, str] = {}
    unknown: dict[str, bytes] = {}
    for path in dict.fromkeys(paths):
        blob = files.known_blob(path)
        if blob is not None:
            known[path] = blob
        elif (data := files.read(path)) is not None:
            unknown[path] = data
    known.update(zip(unknown, repo.write_blobs(list(unknown.values())), strict=True))
    return {
        path: Entry(path=path, mode=files.mode(path), blob=blob) for path, blob in known.items()
    }


def difference(repo: Repo, old: Mapping[str, Entry], new: Mapping[str, Entry]) -> dict[str, Change]:
    """What leads from some files to others."""
    changes = {path: Change(path=path, data=None) for path in old if path not in new}
    with repo.reading() as read:
        for path, entry in new.items():
            if old.get(path) != entry:
                data = read(entry.blob)
                changes[path] = Change(path=path, data=data, mode=entry.mode, blob=entry.blob)
    return changes
