"""Files of a git tree with changes laid over them, read as bytes by path."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspatch.git import Change, Entry, Repo


@dataclass(kw_only=True)
class TreeFiles:
    """A tree being patched: `read` sees the changes made so far, the repository does not."""

    repo: Repo
    entries: dict[str, Entry]
    changes: dict[str, Change] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""
        if path in self.changes:
            return self.changes[path].data
        entry = self.entries.get(path)
        return self.repo.blob(entry.blob) if entry is not None else None

    def mode(self, path: str) -> str:
        """The mode of a path, as git writes it."""
        if path in self.changes:
            return self.changes[path].mode
        entry = self.entries.get(path)
        return entry.mode if entry is not None else "100644"

    def with_changes(self, changes: dict[str, Change]) -> TreeFiles:
        """The same tree with more changes on top."""
        return TreeFiles(repo=self.repo, entries=self.entries, changes={**self.changes, **changes})


def of_tree(repo: Repo, tree: str) -> TreeFiles:
    """The files of a tree."""
    return TreeFiles(repo=repo, entries=repo.entries(tree))
