"""The upstream symbols that new and changed patches use, recorded as they are on the pin at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dspatch import paths, treefiles
from dspatch.apply import AppliedPatch, PatchedTree
from dspatch.carry.editing.layer import Draft
from dspatch.carry.uses import usesfile
from dspatch.carry.uses.uses import of_patch
from dspatch.carry.uses.usesfile import Recorded, Use
from dspatch.git import Change, Repo
from dspatch.patchfile import Patch
from dspatch.pins.lookup import same
from dspatch.series import Series


def record_uses(draft: Draft, names: Iterable[str], series: Series, tree: PatchedTree) -> None:
    """Write into the draft what each patch uses, for those that were written for this very pin.

    `series` and `tree` are those of the draft. So a symbol that changes in a later release is told
    for the user's own patches too.
    """
    wanted = {name: series.patch(name) for name in names}
    repo = tree.checkout.repo
    first = next((n for n, patch in enumerate(tree.patches) if patch.name in wanted), None)
    if first is None:
        return
    files = treefiles.of_tree(repo, f"{tree.patches[first].commit}^")
    with repo.reading():
        for applied in tree.patches[first:]:
            before, files = files, files.with_changes(_changes(repo, applied))
            patch = wanted.get(applied.name)
            if patch is not None and _recorded_here(draft, patch, tree.checkout.rev):
                uses = of_patch(applied.paths, before.read, files.read)
                _write(draft, patch, uses)


def _recorded_here(draft: Draft, patch: Patch, rev: str) -> bool:
    """Whether a patch was written for this pin, and is the user's to change."""
    own = not paths.is_installed(draft.home(patch))
    return own and patch.written_for is not None and same(patch.written_for, rev)


def _changes(repo: Repo, applied: AppliedPatch) -> dict[str, Change]:
    blobs = repo.resolve_all(*(f"{applied.commit}:{path}" for path in applied.paths))
    return {
        path: Change(path=path, data=repo.blob(oid) if oid else None)
        for path, oid in zip(applied.paths, blobs, strict=True)
    }


def _write(draft: Draft, patch: Patch, uses: tuple[Use, ...]) -> None:
    path = draft.home(patch) / usesfile.NAME
    recorded = Recorded(written_for=patch.written_for or "", uses=uses)
    kept = usesfile.read(path.parent) if patch.also_written_for else None
    if kept is not None:  # what it is on its other releases cannot be seen in this tree
        recorded = replace(kept, written_for=recorded.written_for, uses=uses)
    text = usesfile.write(recorded).encode() if uses else None
    if draft.read(path) != text:
        draft.changes[path] = text
