"""`dspatch patch refresh`: what was edited in a job's tree with ordinary git, taken into the patch folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch import receipt, worktree
from dspatch import series as series_module
from dspatch.apply import PatchedTree
from dspatch.carry.editing import editedtree, layer, renewal
from dspatch.carry.editing.chain import Part
from dspatch.carry.editing.editedtree import EditedTree
from dspatch.carry.editing.recording import record_uses
from dspatch.carry.editing.renewal import Ask, Renewed
from dspatch.carry.lint import goldens
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import PatchConflictError
from dspatch.job import Job
from dspatch.stages import apply as apply_stage
from dspatch.stages.exchange import revision_of
from dspatch.stages.request import Resolved, request_of


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What a refresh did; `moved` says that the tree stands at the new series.

    `saved` is the commit that keeps what somebody made, as it was; `lint` that the goldens of a
    changed patch are to be made anew.
    """

    job: Job
    patches: tuple[Renewed, ...]
    moved: bool
    saved: str
    lint: bool


def refresh(job: Job, console: Console, ask: Ask, *, into: str | None = None) -> Refreshed:
    """Take what was edited in a job's tree into the patch folders: all of it or nothing.

    Edits that are not committed go `into` the named patch, or the one whose code they change.
    Raises `EditedTreeError` when it cannot be told what belongs where.
    """
    request = request_of(receipt.require(job, "apply"))
    resolved, found = apply_stage.pristine(request, console)
    with (
        console.working("reading the tree") as say,
        layer.editing(request.engine) as draft,
        job.locked(),
    ):
        series = apply_stage.series_of(request)
        patched = apply_stage.computed(series, resolved, found)
        tree = editedtree.read(job.tree, series, patched, revision_of(resolved, found))
        saved = editedtree.save(tree)
        say("comparing the patches")
        parts = editedtree.parts(tree, into)
        renewed = renewal.take_in(
            tree, draft, parts, ask, target=request.target, variants=resolved.variants
        )
        if draft.changes:
            say("applying the new series")
            with draft.tried() as changed:
                after = apply_stage.computed(changed, resolved, found)
                _check(tree, after, parts)
                record_uses(draft, [one.name for one in renewed], changed, after)
            draft.write()
    moved = _settle(tree, resolved, found)
    golden = [draft.home(series.patch(one.name)) / goldens.FOLDER for one in renewed if not one.new]
    lint = any(folder.is_dir() for folder in golden)
    return Refreshed(job=job, patches=renewed, moved=moved, saved=saved, lint=lint)


def _check(tree: EditedTree, after: PatchedTree, parts: Sequence[Part]) -> None:
    """Raise unless the new series gives the tree that stands there, patch by patch."""
    trees = editedtree.trees_of(after)
    wrong = [part.name for part in parts if part.name in trees and trees[part.name] != part.after]
    if wrong or (not tree.at and after.tree != tree.work):
        raise PatchConflictError(
            "the patches, refreshed, would not give the tree that stands there, so nothing was changed.",
            why=f"different after {wrong[0]}" if wrong else f"{after.tree} is not {tree.work}",
            next="save the edits as a diff and report this as a fault of dspatch",
        )


def _settle(tree: EditedTree, resolved: Resolved, found: Checkout) -> bool:
    """Put the tree at the new series, which holds the same files; not when somebody edits meanwhile."""
    repo = tree.repo
    if repo.work_tree() != tree.work or repo.resolve("HEAD") != tree.head:
        return False
    series = series_module.layered(resolved.request.engine)
    after = apply_stage.computed(series, resolved, found)
    apply_stage.settle(resolved, after, discard_edits=True)
    repo.set_refs({worktree.EDITING: None})
    return True
