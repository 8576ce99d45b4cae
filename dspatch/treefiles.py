"""Files of a tree with changes laid over them, read as bytes by path; the tree may be git's or a remote wheel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dspatch.git import Change, Entry, Repo

PLAIN = "100644"


class Source(Protocol):
    """Where pristine files come from."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""

    def mode(self, path: str) -> str:
        """The mode of a path, as git writes it."""

    def paths(self) -> Collection[str]:
        """Every path."""

    def known_blob(self, path: str) -> str | None:
        """The id of a path's blob, where git holds it already."""


@dataclass(frozen=True, kw_only=True)
class TreeSource:
    """The files of a git tree."""

    repo: Repo
    entries: Mapping[str, Entry]

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        entry = self.entries.get(path)
        return self.repo.blob(entry.blob) if entry is not None else None

    def mode(self, path: str) -> str:
        """The mode of a path; that of a plain file where there is none."""
        entry = self.entries.get(path)
        return entry.mode if entry is not None else PLAIN

    def paths(self) -> Collection[str]:
        """Every path."""
        return self.entries.keys()

    def known_blob(self, path: str) -> str | None:
        """The id of a path's blob."""
        entry = self.entries.get(path)
        return entry.blob if entry is not None else None


@dataclass(kw_only=True)
class Files:
    """A tree being patched: `read` sees the changes made so far, the source does not."""

    source: Source
    changes: Mapping[str, Change] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        return self.changes[path].data if path in self.changes else self.source.read(path)

    def mode(self, path: str) -> str:
        """The mode of a path, as git writes it."""
        return self.changes[path].mode if path in self.changes else self.source.mode(path)

    def has(self, path: str) -> bool:
        """Whether a path is there."""
        if path in self.changes:
            return self.changes[path].data is not None
        return path in self.source.paths()

    def paths(self) -> Collection[str]:
        """Every path, changes included."""
        if not self.changes:
            return self.source.paths()
        gone = {path for path, change in self.changes.items() if change.data is None}
        return (set(self.source.paths()) | set(self.changes)) - gone

    def known_blob(self, path: str) -> str | None:
        """The id of a path's blob where git holds it already, which it need not for changes."""
        change = self.changes.get(path)
        return self.source.known_blob(path) if change is None else change.blob

    def with_changes(self, changes: Mapping[str, Change]) -> Files:
        """The same tree with more changes on top."""
        return Files(source=self.source, changes={**self.changes, **changes})


def of_tree(repo: Repo, tree: str, paths: Sequence[str] = ()) -> Files:
    """The files of a tree: all of them, or those of the given paths that are there."""
    return Files(source=TreeSource(repo=repo, entries=repo.entries(tree, paths)))
