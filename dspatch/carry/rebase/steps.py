"""A patched tree as steps, one a patch; and what of it still applies when some are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dspatch import threeway, treefiles
from dspatch.apply import PatchedTree
from dspatch.carry.rebase import depends
from dspatch.carry.rebase.depends import Dependent, Step
from dspatch.errors import DspatchError
from dspatch.git import Change, Repo
from dspatch.treefiles import Files


class Steps:
    """The steps of the series on the old revision, read when the first patch fails."""

    def __init__(self, old: PatchedTree) -> None:
        self._old = old
        self._steps: list[Step] | None = None

    def dependents(self, name: str) -> tuple[Dependent, ...]:
        """The patches that rest on one."""
        if self._steps is None:
            self._steps = list(of_tree(self._old))
        return depends.dependents(name, self._steps, self._without)

    def _without(self, names: Collection[str]) -> dict[str, str]:
        return without(self._old, self._steps or (), names)


def of_tree(tree: PatchedTree) -> Iterator[Step]:
    """What each patch of a patched tree did to its files."""
    repo = tree.checkout.repo
    for patch in tree.patches:
        before, after = (
            _bytes(repo, rev, patch.paths) for rev in (f"{patch.commit}^", patch.commit)
        )
        yield Step(name=patch.name, before=before, after=after)


def _bytes(repo: Repo, commit: str, paths: Sequence[str]) -> dict[str, bytes | None]:
    entries = repo.entries(commit, paths) if paths else {}
    return {path: repo.blob(entries[path].blob) if path in entries else None for path in paths}


def without(tree: PatchedTree, steps: Sequence[Step], names: Collection[str]) -> dict[str, str]:
    """The patches of a patched tree that no longer apply when some are left out, each with its reason.

    Only those are tried that touch a file which one left out, or one after it, leaves otherwise.
    """
    repo = tree.checkout.repo
    files = treefiles.of_tree(repo, tree.checkout.tree)
    failed: dict[str, str] = {}
    otherwise: set[str] = set()
    for patch, step in zip(tree.patches, steps, strict=True):
        touched = set(patch.paths)
        if patch.name in names:
            otherwise |= touched
        elif otherwise & touched:
            try:
                changes = threeway.apply_diff(repo, tree.diff(patch), files).changes
            except DspatchError as error:
                failed[patch.name] = error.why or error.what
                continue
            otherwise |= touched
            files = files.with_changes(changes)
        else:
            files = files.with_changes(_changes(step, files))
    return failed


def _changes(step: Step, files: Files) -> dict[str, Change]:
    """What a step did, to be laid over a tree that has its files as the step found them."""
    return {
        path: Change(path=path, data=data, mode=files.mode(path))
        for path, data in step.after.items()
    }
