"""The turns of a rebase in a job's folder: stand at a conflict, keep its resolution, finish, put everything back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dspatch import apply, series, worktree
from dspatch.carry.editing import formfile
from dspatch.carry.rebase import rebase, rebasestate, stoppedtree
from dspatch.carry.rebase.carried import Carried
from dspatch.carry.rebase.rebasestate import Stand, State, Wanted
from dspatch.carry.rebase.stoppedtree import Sides
from dspatch.checkout import cache_of
from dspatch.errors import EditedTreeError, RebaseStoppedError
from dspatch.files import disk_full_explained, write_atomically
from dspatch.git import Repo
from dspatch.job import Job
from dspatch.stages import apply as apply_stage
from dspatch.stages import rebasework
from dspatch.stages.apply import Applied
from dspatch.stages.rebasework import Work


def stop(job: Job, state: State, work: Work, at: Carried) -> None:
    """Stand at a conflict; `working` is written first, so that a kill in between is gone over again."""
    _only_ours(job, state)
    good = rebase.results(_before(work.carried, at))
    ids = apply.write(work.new.checkout, good)
    head = ids[-1] if ids else work.new.checkout.commit
    marked = at.textual.marked
    touched = {*state.touched, *marked, *dirty(job.tree)}
    state = replace(
        state, phase="working", patch=at.patch.name, base=head, touched=tuple(sorted(touched))
    )
    rebasestate.save(job, state)
    _move(job, work.new.checkout.repo, Stand(pristine=work.new.checkout.commit, commit=head))
    with disk_full_explained(job.folder):
        stoppedtree.lay(job.tree, marked, _sides(work, at, head))
    rebasestate.save(job, replace(state, phase="stopped", touched=tuple(sorted(marked))))


def _before(carried: Sequence[Carried], stop: Carried) -> list[Carried]:
    at = next(n for n, one in enumerate(carried) if one.patch.name == stop.patch.name)
    return list(carried[:at])


def finish(job: Job, state: State, work: Work) -> tuple[Applied, tuple[Path, ...]]:
    """Record what apply could not come to by itself, and put the whole series into the job's tree."""
    _only_ours(job, state)
    state = replace(
        state, phase="working", touched=tuple(sorted({*state.touched, *dirty(job.tree)}))
    )
    rebasestate.save(job, state)
    forms = _forms_to_record(work)
    for path in forms:
        state = state.with_recorded(path)
    rebasestate.save(job, state)
    formfile.write(forms)
    left_out = {
        one.patch.name for one in work.carried if one.status in ("skipped", "waits", "conflict")
    }
    patches = series.layered(work.wanted.engine)
    kept = tuple(patch for patch in patches.patches if patch.name not in left_out)
    tree = apply.apply_series(
        replace(patches, patches=kept),
        work.new.checkout,
        target=work.wanted.target,
        variants=work.resolved.variants,
    )
    applied = apply_stage.put(work.resolved, tree, discard_edits=True)
    rebasestate.clear(job)
    return applied, tuple(Path(each.path) for each in state.recorded)


def _forms_to_record(work: Work) -> dict[Path, bytes]:
    """The forms without which apply would not come to the same; empty ones for what upstream made."""
    needed = [one for one in work.carried if one.record]
    if not needed:
        return {}
    results = rebase.results(work.carried)
    ids = apply.write(work.new.checkout, results)
    texts = dict(zip((result.patch.name for result in results), ids, strict=True))
    repo = work.new.checkout.repo
    return {
        formfile.path(one.patch, work.wanted.engine, work.made_on): (
            repo.diff(f"{texts[one.patch.name]}^", texts[one.patch.name])
            if one.patch.name in texts
            else ""
        ).encode("utf-8", "surrogateescape")
        for one in needed
    }


def record(job: Job, state: State) -> State:
    """Keep the resolution as a form: noted in the state first, so that it can be taken back."""
    assert state.base is not None
    wanted = state.wanted
    labels = (wanted.engine, state.patch or "")
    diff = stoppedtree.resolution(job.tree, state.base, labels)
    if not diff:
        raise RebaseStoppedError(
            f"nothing is left of {state.patch} in {job.tree}.",
            why="no change is staged over the patches before it",
            next="stage the change with `git add`, or leave the patch out: dspatch patch rebase --skip",
        )
    patch = series.layered(wanted.engine).patch(state.patch or "")
    path = formfile.path(patch, wanted.engine, _made_on(job, wanted))
    state = replace(state.with_recorded(path), touched=tuple(sorted(dirty(job.tree))))
    rebasestate.save(job, state)
    formfile.write({path: diff.encode("utf-8", "surrogateescape")})
    state = replace(state, phase="working")
    rebasestate.save(job, state)
    return state


def _made_on(job: Job, wanted: Wanted) -> str:
    found = rebasework.resolved(wanted, wanted.onto)
    if found.revision is None:
        return found.pin.rev
    return Repo(job.tree).resolve(worktree.PRISTINE) or found.revision


# -- the job's tree -------------------------------------------------------------------------------


def _sides(work: Work, stop: Carried, head: str) -> list[Sides]:
    """The three sides of each file in conflict, for git's index."""
    if not stop.textual.unresolved:
        return []
    repo = work.new.checkout.repo
    applied = work.old.applied(stop.patch.name)
    assert applied is not None, stop.patch.name
    commit = applied.commit
    base, theirs, ours = (repo.entries(rev) for rev in (f"{commit}^", commit, head))
    return [
        Sides(path=path, base=base.get(path), ours=ours.get(path), theirs=theirs.get(path))
        for path in stop.textual.unresolved
    ]


def _move(job: Job, objects: Repo, to: Stand) -> None:
    worktree.move(job.tree, objects, pristine=to.pristine, commit=to.commit, discard=True)


def undo(job: Job, state: State) -> None:
    """Put patch folders, tree and receipt back; done again from anywhere it was cut off."""
    formfile.restore({Path(each.path): each.data for each in state.recorded})
    if state.before is not None:
        with cache_of(state.wanted.engine) as objects:
            _move(job, objects, state.before)
    else:
        _remove(job.tree)
    if state.receipt is not None:
        write_atomically(job.receipt("apply"), state.receipt.encode())
    else:
        job.receipt("apply").unlink(missing_ok=True)
    rebasestate.clear(job)


def _remove(tree: Path) -> None:
    """Take a tree away in one step, and what an earlier try left of it."""
    gone = tree.with_name(".tree.aborted")
    shutil.rmtree(gone, ignore_errors=True)
    if tree.exists():
        tree.rename(gone)
        shutil.rmtree(gone)


def dirty(tree: Path) -> set[str]:
    """The paths of a tree that are not as its commit has them."""
    return set(Repo(tree).status()) if (tree / ".git" / "HEAD").exists() else set()


def _only_ours(job: Job, state: State) -> None:
    """Nobody may have edited the tree since a rebase that was cut off left it."""
    if state.touched or state.base:
        stoppedtree.own_paths_only(job.tree, state.touched)


def refuse_edited(job: Job) -> None:
    """Raise `EditedTreeError` when somebody edited the job's tree."""
    stand = stoppedtree.stand(job.tree)
    if stand is not None:
        worktree.move(job.tree, Repo(job.tree), pristine=stand[0], commit=stand[1])


def refuse_untracked(job: Job, state: State) -> None:
    """Raise `EditedTreeError` for new files in the job's tree that would be lost."""
    if not (job.tree / ".git" / "HEAD").exists():
        return
    states = Repo(job.tree).status()
    found = sorted(p for p, word in states.items() if word == "??" and p not in state.touched)
    if found:
        raise EditedTreeError(
            f"{job.tree} holds files that the rebase did not put there.",
            why="\n        ".join(found[:8]),
            next="move them away, or `git add` those that belong to the patch and --continue",
        )
