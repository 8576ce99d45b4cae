"""`dspatch patch rebase`: a series taken to another revision, stopped at a conflict, gone on with, or undone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dspatch.carry.rebase import rebasestate, stoppedtree
from dspatch.carry.rebase.carried import Carried
from dspatch.carry.rebase.rebasestate import Stand, State, Wanted
from dspatch.console import Console
from dspatch.errors import (
    RebaseStoppedError,
)
from dspatch.job import Job
from dspatch.pins import lookup
from dspatch.stages import explaining, rebaseturn, rebasework
from dspatch.stages.apply import Applied


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """How far a rebase came: every patch's row, and the stop, or the tree that it ended with."""

    wanted: Wanted
    job: Job
    carried: tuple[Carried, ...]
    stopped: Carried | None = None
    applied: Applied | None = None
    recorded: tuple[Path, ...] = ()
    drift: str = ""

    @property
    def conflicts(self) -> tuple[Carried, ...]:
        """The patches that do not go on."""
        return tuple(one for one in self.carried if one.status == "conflict")


def tried(wanted: Wanted, console: Console) -> Rebased:
    """What a rebase would come to; nothing is written but the cache."""
    work = rebasework.work(wanted, (), console)
    carried = explaining.explained(work.carried, work.old, work.new, work.span, console)
    return Rebased(wanted=wanted, job=work.resolved.job, carried=carried, drift=work.drift)


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
        rebasestate.refuse(job)
        rebaseturn.refuse_edited(job)
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
            state = rebaseturn.record(job, state)
        return _go_on(job, state, console)


def skip(job: Job, console: Console) -> Rebased:
    """Go on without the patch that stopped the rebase."""
    with job.locked():
        state = _required(job)
        if state.phase == "stopped" and state.patch:
            rebaseturn.refuse_untracked(job, state)
            touched = rebaseturn.dirty(job.tree)
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
            rebaseturn.refuse_untracked(job, state)
        rebasestate.save(job, replace(state, phase="aborting"))
        rebaseturn.undo(job, state)
    return state


def job_under_way(work: Path, *, onto: str | None, target: str, variants: tuple[str, ...]) -> Job:
    """The job whose rebase is meant: the only one under way, or the one that the words name.

    Raises `RebaseStoppedError`.
    """
    found = rebasestate.under_way(work)
    if onto is not None:
        found = [each for each in found if lookup.same(each[1].wanted.onto, onto)]
    if len(found) > 1:
        words = (target, variants)
        found = [each for each in found if _words(each[1]) == words] or found
    if not found:
        raise _none_under_way(work)
    if len(found) > 1:
        raise RebaseStoppedError(
            "more than one rebase is under way.",
            why=", ".join(folder.name for folder, _ in found),
            next="say which with --onto, --target and --variant",
        )
    folder, state = found[0]
    return Job(id=rebasework.resolved(state.wanted, state.wanted.onto).job.id, folder=folder)


def _words(state: State) -> tuple[str, tuple[str, ...]]:
    return state.wanted.target, state.wanted.variants


# -- one round: compute, then stop or finish ------------------------------------------------------


def _go_on(job: Job, state: State, console: Console) -> Rebased:
    if state.phase == "aborting":
        raise RebaseStoppedError(
            f"the rebase of {job.id} was being aborted when it was cut off.",
            next="dspatch patch rebase --abort",
        )
    work = rebasework.work(state.wanted, state.skipped, console)
    stop = work.first_conflict()
    carried = explaining.explained(work.carried, work.old, work.new, work.span, console)
    if stop is not None:
        rebaseturn.stop(job, state, work, stop)
        stop = next(one for one in carried if one.patch.name == stop.patch.name)
        return Rebased(
            wanted=state.wanted, job=job, carried=carried, stopped=stop, drift=work.drift
        )
    applied, recorded = rebaseturn.finish(job, state, work)
    return Rebased(
        wanted=state.wanted, job=job, carried=carried, applied=applied, recorded=recorded
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
