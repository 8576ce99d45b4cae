"""`dspatch apply` and `unapply`: a job's tree with the series on top, or without."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dspatch import apply, checkout, receipt, series, worktree
from dspatch.apply import PatchedTree
from dspatch.carry.rebase import rebasestate
from dspatch.checkout import Checkout, cache_of
from dspatch.console import Console
from dspatch.errors import NoJobError, OutputFormatError
from dspatch.job import Job, remember
from dspatch.pins import Pin
from dspatch.stages.request import Request, Resolved, resolve
from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A job whose tree is patched; `changed` says whether the tree had to be touched."""

    job: Job
    pin: Pin
    variants: tuple[Variant, ...]
    tree: PatchedTree
    changed: bool


def pristine(request: Request, console: Console) -> tuple[Resolved, Checkout]:
    """Fetch a revision, unless the cache holds it; no job folder is touched."""
    resolved = resolve(request)
    with console.progress(f"fetching {request.engine} {request.rev}") as progress:
        found = checkout.checkout(
            resolved.pin,
            source=request.source,
            repo=request.repo,
            revision=resolved.revision,
            progress=progress,
        )
    console.note(f"source: {found.source}, {found.origin}")
    return resolved, found


def series_of(request: Request) -> series.Series:
    """The patches of a request's engine, with those among them that it asks for."""
    return series.layered(request.engine).asking(request.output_format, request.extra)


def compute(
    request: Request,
    console: Console,
    *,
    patches: series.Series | None = None,
    guarded: bool = True,
) -> tuple[Resolved, PatchedTree]:
    """Fetch, render and apply in git objects only; no job folder is touched.

    Not `guarded`, the tree is for looking at, though upstream symbols may have changed under it.
    """
    resolved, found = pristine(request, console)
    patches = patches or series.layered(request.engine)
    return resolved, computed(patches, resolved, found, guarded=guarded)


def computed(
    patches: series.Series, resolved: Resolved, found: Checkout, *, guarded: bool = True
) -> PatchedTree:
    """A checkout with a series on top, for the target and the variants that a request asks for."""
    format = resolved.request.output_format
    tree = apply.apply_series(
        patches.asking(format, resolved.request.extra),
        found,
        target=resolved.request.target,
        variants=resolved.variants,
        guarded=guarded,
    )
    if format is not None:
        _check_format(resolved, tree)
    return tree


def _check_format(resolved: Resolved, tree: PatchedTree) -> None:
    """Refuse to go on without the format that was asked for."""
    wanted = [item for item in tree.plan if item.patch.option == "output-format"]
    if any(item.applies for item in wanted):
        return
    request = resolved.request
    raise OutputFormatError(
        f"{request.engine} {request.rev} cannot be given an output format.",
        why="; ".join(f"{item.patch.name}: {item.why or item.status}" for item in wanted)
        or f"no patch for {request.engine} takes one",
        next="leave --output-format out, or name another release",
    )


def run(request: Request, console: Console, *, discard_edits: bool = False) -> Applied:
    """Apply the series in a job's own tree, all or nothing."""
    resolved, tree = compute(request, console)
    return settle(resolved, tree, discard_edits=discard_edits)


def settle(resolved: Resolved, tree: PatchedTree, *, discard_edits: bool = False) -> Applied:
    """Move a job's tree to a patched one; not while a rebase is under way there."""
    with resolved.job.locked():
        rebasestate.refuse(resolved.job)
        return put(resolved, tree, discard_edits=discard_edits)


def put(resolved: Resolved, tree: PatchedTree, *, discard_edits: bool = False) -> Applied:
    """Move a job's tree to a patched one and write the receipt; the caller has the job locked."""
    job = resolved.job
    changed = worktree.move(
        job.tree,
        tree.checkout.repo,
        pristine=tree.checkout.commit,
        commit=tree.commit,
        discard=discard_edits,
    )
    receipt.write(job, "apply", _receipt(resolved, tree))
    remember(job)
    return Applied(
        job=job, pin=resolved.pin, variants=resolved.variants, tree=tree, changed=changed
    )


def undo(job: Job, *, discard_edits: bool = False) -> bool:
    """Take the series off a job's tree; returns whether anything had to change."""
    content = receipt.require(job, "apply")
    with job.locked(), cache_of(job.id.engine) as repo:
        pristine = content["checkout"]["commit"]
        if repo.resolve(f"{pristine}^{{commit}}") is None:
            raise NoJobError(
                f"the cache no longer holds the pristine tree of {job.id}.",
                next=f"dspatch apply --engine {job.id.engine} --rev {job.id.rev}",
            )
        changed = worktree.move(
            job.tree, repo, pristine=pristine, commit=pristine, discard=discard_edits
        )
        job.receipt("apply").unlink(missing_ok=True)
    return changed


def _receipt(resolved: Resolved, tree: PatchedTree) -> dict[str, Any]:
    return {
        "request": asdict(resolved.request),
        "checkout": checkout_facts(tree.checkout),
        "patched": {"commit": tree.commit, "tree": tree.tree},
        "series": [
            {"patch": item.patch.name, "status": item.status, "why": item.why} for item in tree.plan
        ],
        "patches": [asdict(patch) for patch in tree.patches],
        "variants": [variant.name for variant in resolved.variants],
    }


def checkout_facts(pristine: Checkout) -> dict[str, str]:
    """A checkout as receipts and `--json` tell it."""
    return {
        "source": pristine.source,
        "origin": pristine.origin,
        "commit": pristine.commit,
        "tree": pristine.tree,
    }


def statistics(tree: PatchedTree) -> list[dict[str, Any]]:
    """What each patch did: files, lines added and removed, and every hunk's place."""
    return [
        {"patch": patch.name, "subject": patch.subject, **patch.statistics}
        for patch in tree.patches
    ]
