"""`dspatch patch rebase`: a series taken to another revision, stopped at a conflict, gone on with, or undone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply, series, worktree
from dspatch.carry import formfile, rebase, rebasestate, stoppedtree
from dspatch.carry.rebase import Carried
from dspatch.carry.rebasestate import Stand, State, Wanted
from dspatch.carry.stoppedtree import Sides
from dspatch.checkout import cache_of
from dspatch.console import Console
from dspatch.errors import (
    EditedTreeError,
    RebaseStoppedError,
)
from dspatch.files import write_atomically
from dspatch.git import Repo
from dspatch.job import Job
from dspatch.stages import apply as apply_stage
from dspatch.stages import explaining, rebasework
from dspatch.stages.apply import Applied
from dspatch.stages.rebasework import Work


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """How far a rebase came: every patch's row, and the stop, or the tree that it ended with."""

    wanted: Wanted
    job: Job
    carried: tuple[Carried, ...]
    stopped: Carried | None = None
    applied: Applied | None = None
    recorded: tuple[Path, ...] = ()

    @property
    def conflicts(self) -> tuple[Carried, ...]:
        """The patches that do not go on."""
        return tuple(one for one in self.carried if one.status == "conflict")


def tried(wanted: Wanted, console: Console) -> Rebased:
    """What a rebase would come to; nothing is written but the cache."""
    work = rebasework.work(wanted, (), console)
    carried = explaining.explained(work.carried, work.old, work.new, work.span, console)
    return Rebased(wanted=wanted, job=work.resolved.job, carried=carried)


def start(wanted: Wanted, console: Console) -> Rebased:
    """Rebase a series; stops at the first conflict with its markers in the job's tree.

    Raises `RebaseStoppedError` when a rebase is under way there, `EditedTreeError` when the job's
    tree was edited, and the errors of fetching and of the series.
    """
    job = rebasework.resolved(wanted, wanted.onto).job
    with job.locked():
        state = rebasestate.load(job)
        if state is not None and state.phase == "working" and state.wanted == wanted:
            return _go_on(job, state, console)  # it was cut off
        if state is not None:
            raise _under_way(job, state)
        _refuse_edited(job)
        stand = stoppedtree.stand(job.tree)
        before = Stand(pristine=stand[0], commit=stand[1]) if stand else None
        receipt = job.receipt("apply")
        state = State(
            wanted=wanted,
            phase="working",
            before=before,
            receipt=receipt.read_text() if receipt.exists() else None,
        )
        return _go_on(job, state, console)


def resume(job: Job, console: Console) -> Rebased:
    """Record what was staged as the patch's form for this revision, and go on.

    Raises `RebaseStoppedError` while the conflict is not resolved.
    """
    with job.locked():
        state = _required(job)
        if state.phase == "stopped":
            state = _record(job, state)
        return _go_on(job, state, console)


def skip(job: Job, console: Console) -> Rebased:
    """Go on without the patch that stopped the rebase."""
    with job.locked():
        state = _required(job)
        if state.phase == "stopped" and state.patch:
            _refuse_untracked(job, state)
            touched = _dirty(job.tree)
            state = replace(
                state,
                phase="working",
                skipped=(*state.skipped, state.patch),
                touched=tuple(sorted(touched | {*state.touched})),
            )
            rebasestate.save(job, state)
        return _go_on(job, state, console)


def abort(job: Job) -> State:
    """Put the job's tree and the patch folders back to where they were before the rebase."""
    with job.locked():
        state = rebasestate.load(job)
        if state is None:
            raise _none_under_way(job.folder)
        if state.phase == "stopped":
            _refuse_untracked(job, state)
        rebasestate.save(job, replace(state, phase="aborting"))
        _undo(job, state)
    return state


def job_under_way(onto: Job | None, work: Path) -> Job:
    """The job whose rebase is meant: the one named, or the only one under way. Raises `RebaseStoppedError`."""
    from dspatch.job import JobId

    if onto is not None:
        return onto
    found = rebasestate.under_way(work)
    if len(found) != 1:
        if not found:
            raise _none_under_way(work)
        raise RebaseStoppedError(
            "more than one rebase is under way.",
            why=", ".join(folder.name for folder in found),
            next="say which with --onto, --target and --variant",
        )
    folder = found[0]
    placeholder = Job(id=JobId(engine="", rev="", target=""), folder=folder)
    state = rebasestate.load(placeholder)
    assert state is not None
    return Job(id=rebasework.resolved(state.wanted, state.wanted.onto).job.id, folder=folder)


# -- one round: compute, then stop or finish ------------------------------------------------------


def _go_on(job: Job, state: State, console: Console) -> Rebased:
    if state.phase == "aborting":
        raise RebaseStoppedError(
            f"the rebase of {job.id} was being aborted when it was cut off.",
            next="dspatch patch rebase --abort",
        )
    work = rebasework.work(state.wanted, state.skipped, console)
    stop = work.first_conflict()
    carried = work.carried
    if any(one.status == "conflict" for one in carried):
        carried = explaining.explained(carried, work.old, work.new, work.span, console)
    if stop is not None:
        _stop(job, state, work, stop)
        stop = next(one for one in carried if one.patch.name == stop.patch.name)
        return Rebased(wanted=state.wanted, job=job, carried=carried, stopped=stop)
    applied, recorded = _finish(job, state, work)
    return Rebased(
        wanted=state.wanted, job=job, carried=carried, applied=applied, recorded=recorded
    )


def _stop(job: Job, state: State, work: Work, stop: Carried) -> None:
    """Stand at a conflict; `working` is written first, so that a kill in between is gone over again."""
    _only_ours(job, state)
    good = rebase.results(_before(work.carried, stop))
    ids = apply.write(work.new.checkout, good)
    head = ids[-1] if ids else work.new.checkout.commit
    marked = stop.textual.marked
    touched = {*state.touched, *marked, *_dirty(job.tree)}
    state = replace(
        state, phase="working", patch=stop.patch.name, base=head, touched=tuple(sorted(touched))
    )
    rebasestate.save(job, state)
    _move(job, work.new.checkout.repo, Stand(pristine=work.new.checkout.commit, commit=head))
    stoppedtree.lay(job.tree, marked, _sides(work, stop, head))
    rebasestate.save(job, replace(state, phase="stopped", touched=tuple(sorted(marked))))


def _before(carried: Sequence[Carried], stop: Carried) -> list[Carried]:
    at = next(n for n, one in enumerate(carried) if one.patch.name == stop.patch.name)
    return list(carried[:at])


def _finish(job: Job, state: State, work: Work) -> tuple[Applied, tuple[Path, ...]]:
    """Record what apply could not come to by itself, and put the whole series into the job's tree."""
    _only_ours(job, state)
    state = replace(
        state, phase="working", touched=tuple(sorted({*state.touched, *_dirty(job.tree)}))
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


def _record(job: Job, state: State) -> State:
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
    state = replace(state.with_recorded(path), touched=tuple(sorted(_dirty(job.tree))))
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
    repo = work.new.checkout.repo
    commit = next(each.commit for each in work.old.patches if each.name == stop.patch.name)
    base, theirs, ours = (repo.entries(rev) for rev in (f"{commit}^", commit, head))
    return [
        Sides(path=path, base=base.get(path), ours=ours.get(path), theirs=theirs.get(path))
        for path in stop.textual.unresolved
    ]


def _move(job: Job, objects: Repo, to: Stand) -> None:
    worktree.move(job.tree, objects, pristine=to.pristine, commit=to.commit, discard=True)


def _undo(job: Job, state: State) -> None:
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


def _dirty(tree: Path) -> set[str]:
    return set(Repo(tree).status()) if (tree / ".git" / "HEAD").exists() else set()


def _only_ours(job: Job, state: State) -> None:
    """Nobody may have edited the tree since a rebase that was cut off left it."""
    if state.touched or state.base:
        stoppedtree.own_paths_only(job.tree, state.touched)


def _refuse_edited(job: Job) -> None:
    stand = stoppedtree.stand(job.tree)
    if stand is not None:
        worktree.move(job.tree, Repo(job.tree), pristine=stand[0], commit=stand[1])


def _refuse_untracked(job: Job, state: State) -> None:
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


# -- state ----------------------------------------------------------------------------------------


def _required(job: Job) -> State:
    state = rebasestate.load(job)
    if state is None:
        raise _none_under_way(job.folder)
    return state


def _none_under_way(where: Path) -> RebaseStoppedError:
    return RebaseStoppedError(
        f"no rebase is under way in {where}.",
        next="dspatch patch rebase --engine vllm --rev v0.27.1 --onto v0.32.0",
    )


def _under_way(job: Job, state: State) -> RebaseStoppedError:
    at = f"; it stopped at {state.patch}" if state.patch else ""
    return RebaseStoppedError(
        f"a rebase onto {state.wanted.onto} is under way in {job.folder}.",
        why=f"it was started from {state.wanted.rev}{at}",
        next="dspatch patch rebase --continue, --skip or --abort",
    )
