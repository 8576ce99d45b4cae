"""A patched tree as steps, one a patch; and what of it still applies when some are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dspatch import threeway, treefiles
from dspatch.apply import PatchedTree
from dspatch.carry import depends
from dspatch.carry.depends import Dependent, Step
from dspatch.errors import DspatchError
from dspatch.git import Repo


class Steps:
    """The steps of the series on the old revision, read when the first patch fails."""

    def __init__(self, old: PatchedTree) -> None:
        self._old = old
        self._steps: list[Step] | None = None

    def dependents(self, name: str) -> tuple[Dependent, ...]:
        """The patches that rest on one."""
        if self._steps is None:
            with self._old.checkout.repo.reading():
                self._steps = list(of_tree(self._old))
        return depends.dependents(name, self._steps, lambda names: without(self._old, names))


def of_tree(tree: PatchedTree) -> Iterator[Step]:
    """What each patch of a patched tree did to its files."""
    repo = tree.checkout.repo
    for patch in tree.patches:
        before, after = (
            _bytes(repo, rev, patch.paths) for rev in (f"{patch.commit}^", patch.commit)
        )
        yield Step(name=patch.name, before=before, after=after)


def _bytes(repo: Repo, commit: str, paths: Sequence[str]) -> dict[str, bytes | None]:
    entries = repo.entries(commit)
    return {path: repo.blob(entries[path].blob) if path in entries else None for path in paths}


def without(tree: PatchedTree, names: Collection[str]) -> dict[str, str]:
    """The patches of a patched tree that no longer apply when some are left out, each with its reason."""
    repo = tree.checkout.repo
    files = treefiles.of_tree(repo, tree.checkout.tree)
    failed: dict[str, str] = {}
    for patch in tree.patches:
        if patch.name in names:
            continue
        try:
            outcome = threeway.apply_diff(repo, tree.diff(patch), files)
        except DspatchError as error:
            failed[patch.name] = error.why or error.what
            continue
        files = files.with_changes(outcome.changes)
    return failed
