"""Results of `patch rebase` as a table, as sentences about each conflict, and as the object of --json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dspatch.carry.rebase.carried import Carried
from dspatch.carry.rebase.rebasestate import State
from dspatch.console import Console
from dspatch.errors import PatchConflictError, RebaseStoppedError
from dspatch.job import Job
from dspatch.stages.rebase import Rebased
from dspatch.stages.show import relative

_CONTINUE = "dspatch patch rebase --continue"


def rebased(done: Rebased, console: Console) -> None:
    """The whole result, then the error that a stop amounts to."""
    table(done, console)
    if done.stopped is not None:
        raise _stopped(done, done.stopped)
    assert done.applied is not None
    for path in done.recorded:
        console.say(f"recorded {relative(path)}")
    where = relative(done.job.tree)
    console.say(f"{done.job.id}: rebased; tree {done.applied.tree.tree[:12]} in {where}")
    _say_left_out(done, console)
    console.result(as_dict(done))


def dry_run(done: Rebased, console: Console) -> None:
    """What a rebase would come to, then the error that its conflicts amount to."""
    table(done, console)
    if not done.conflicts:
        console.result(as_dict(done))
        return
    names = ", ".join(one.patch.name for one in done.conflicts)
    error = PatchConflictError(
        f"{names} cannot be taken to {done.wanted.onto} without your help.",
        why="\n        ".join(line for one in done.conflicts for line in _reasons(one)),
        next=f"dspatch patch rebase --rev {done.wanted.rev} --onto {done.wanted.onto}, and resolve it",
    )
    error.details = as_dict(done)
    raise error


def aborted(job: Job, state: State, console: Console) -> None:
    """That everything is as it was."""
    was = f"at {state.before.commit[:12]}" if state.before else "not there"
    console.say(f"{job.id}: the rebase is undone; its tree is {was} again")
    console.result({"job": str(job.id), "aborted": True})


def table(done: Rebased, console: Console) -> None:
    """One line a patch: what becomes of it, by its text and by its edits."""
    rows = [
        (one.patch.name, one.status, one.textual.word or "–", one.semantic.word or "–", _said(one))
        for one in done.carried
    ]
    console.table(("PATCH", "STATUS", "TEXT", "EDITS", ""), rows)
    for one in done.carried:
        if one.difference:
            console.say(f"\n{one.patch.name}: by its text and by its edits it is not the same")
            console.say(one.difference.rstrip("\n"))
    if done.drift:
        console.note(f"apply will refuse it, though it fits: {done.drift}")


def _said(one: Carried) -> str:
    words = [one.why] if one.why else []
    if one.agree is not None:
        words.append("agree" if one.agree else "differ")
    if one.agree and one.only_here:
        words.append(f"only here: {', '.join(one.only_here)}")
    if one.record:
        words.append("apply needs it recorded as a form")
    return "; ".join(words)


def _stopped(done: Rebased, stop: Carried) -> RebaseStoppedError:
    tree = relative(done.job.tree)
    error = RebaseStoppedError(
        f"{stop.patch.name} conflicts on {done.wanted.engine} {done.wanted.onto}; the rebase waits.",
        why="\n        ".join([*_reasons(stop), *_rest(done, stop)]),
        next=f"resolve it in {tree} ({_what_is_there(stop)}), `git add` the files, then"
        f" {_CONTINUE}; or --skip, or --abort",
    )
    error.details = as_dict(done)
    return error


def _what_is_there(stop: Carried) -> str:
    files = stop.textual.unresolved
    return f"markers in {', '.join(files)}" if files else "make the patch's change there by hand"


def _reasons(one: Carried) -> list[str]:
    """Why a patch does not fit, in the order in which it helps."""
    found = [str(reason) for reason in one.reasons]
    ways = [one.semantic, *([] if found and not _partly(one) else [one.textual])]
    errors = [way.error for way in ways if way.error is not None]
    found += [f"{error.what} {error.why}".strip() for error in errors]
    found += [f"rests on it: {each}" for each in one.dependents]
    return [f"{one.patch.name}: {line}" for line in found]


def _partly(one: Carried) -> bool:
    """Whether the merge has more to tell than that it failed: what of the patch is upstream."""
    return one.textual.error is not None and "upstream: " in one.textual.error.why


def _rest(done: Rebased, stop: Carried) -> list[str]:
    """That the independent rest still applies."""
    fine = [one.patch.name for one in done.carried if one.status in ("applies", "upstream")]
    waits = {each.name for each in stop.dependents}
    lines = [f"independent of it, and fine: {', '.join(fine)}"] if fine else []
    others = [one for one in done.conflicts if one is not stop and one.patch.name not in waits]
    return lines + [f"in conflict, too: {one.patch.name}" for one in others]


def _say_left_out(done: Rebased, console: Console) -> None:
    out = [one for one in done.carried if one.status in ("skipped", "waits", "conflict")]
    for one in out:
        console.say(f"left out: {one.patch.name} ({one.why})")
    if out:
        console.say(
            f"`dspatch apply --rev {done.wanted.onto}` stops at them until they are resolved,"
            " or left out by a line `!NAME` in your own series"
        )


def as_dict(done: Rebased) -> dict[str, Any]:
    """The result as `--json` prints it."""
    return {
        "job": str(done.job.id),
        "wanted": asdict(done.wanted),
        "patches": [_row(one) for one in done.carried],
        "stopped": done.stopped.patch.name if done.stopped else None,
        "path": str(done.job.tree),
        "tree": done.applied.tree.tree if done.applied else None,
        "recorded": [str(path) for path in done.recorded],
        "drift": done.drift,
    }


def _row(one: Carried) -> dict[str, Any]:
    return {
        "patch": one.patch.name,
        "status": one.status,
        "how": one.how,
        "why": one.why,
        "textual": one.textual.word,
        "semantic": one.semantic.word,
        "agree": one.agree,
        "difference": one.difference,
        "only_here": list(one.only_here),
        "needs_form": one.record,
        "conflicts": list(one.textual.unresolved),
        "reasons": [{**asdict(reason), "text": str(reason)} for reason in one.reasons],
        "dependents": [asdict(each) for each in one.dependents],
    }
