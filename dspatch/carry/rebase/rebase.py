"""A series taken to another revision: each patch by its text, then by its edits, and both compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from functools import cache

from dspatch import diffs, onto, threeway, treefiles
from dspatch.apply import PatchedTree
from dspatch.batch import Result
from dspatch.carry.rebase.carried import Carried, Side, Tried
from dspatch.carry.rebase.depends import Dependent
from dspatch.carry.rebase.history import Commit, Span, same_change
from dspatch.carry.rebase.steps import Steps
from dspatch.carry.upstreamed import already
from dspatch.carry.upstreamed.upstreamed import Verdict
from dspatch.checkout import Checkout
from dspatch.errors import DspatchError
from dspatch.onto import Place
from dspatch.patchfile import Patch, holds
from dspatch.series import Planned
from dspatch.threeway import Labels, MergeConflictError, Outcome
from dspatch.traits import Traits
from dspatch.treefiles import Files


def carry(
    old: PatchedTree, new: Side, *, skipped: Collection[str] = (), span: Span | None = None
) -> list[Carried]:
    """What becomes of every patch of a series, each on the tree that those before it leave.

    One that fails is left out, and those that rest on it wait; the rest goes on. One that a commit
    of `span` made in upstream leaves the series.
    """
    files, done, failed = new.files, [], set()
    before = treefiles.of_tree(old.checkout.repo, old.checkout.tree)
    was = Traits(new.place.context.traits.definitions, before.read)
    waiting: dict[str, Dependent] = {}
    steps = Steps(old)
    for item in new.plan:
        one = _carried(item, old, was, new, files, skipped, waiting, span)
        if one.status in ("conflict", "skipped"):
            failed.add(one.patch.name)
            found = steps.dependents(one.patch.name)
            waiting = {each.name: each for each in found} | waiting
            one = replace(one, dependents=found)
        elif one.outcome is not None and one.status == "applies":
            files = files.with_changes(one.outcome.changes)
        done.append(one)
    return done


def results(carried: Sequence[Carried]) -> list[Result]:
    """Those that change the tree, as `apply` takes them."""
    return [
        Result(patch=one.patch, outcome=one.outcome) for one in carried if one.status == "applies"
    ]


def _carried(
    item: Planned,
    old: PatchedTree,
    was: Traits,
    new: Side,
    files: Files,
    skipped: Collection[str],
    waiting: Mapping[str, Dependent],
    span: Span | None,
) -> Carried:
    patch = item.patch
    if not item.applies:
        seen = _seen_upstream(patch, old, files) if item.status == "not needed" else ""
        why = f"{item.why}; {seen}" if seen else item.why
        return Carried(patch=patch, status=item.status, why=why)
    if patch.name in skipped:
        return Carried(patch=patch, status="skipped", why="skipped in this rebase")
    if patch.name in waiting:
        why = f"rests on {waiting[patch.name].on}: {waiting[patch.name].detail}"
        return Carried(patch=patch, status="waits", why=why)
    diff = _diff(patch, old)
    textual = _textual(patch, diff, old, new, files)
    semantic = _semantic(patch, files, new.place)
    applied = _as_applied(patch, diff, textual, semantic, files, new)
    commit = _made_upstream(diff, span)
    if commit is not None:
        return Carried(
            patch=patch,
            status="upstream",
            why=f"upstream made the same change (patch-id), commit {commit}",
            textual=textual,
            semantic=semantic,
            outcome=Outcome(how="upstream", changes={}),
            record=applied.word != "upstream",
        )
    return _chosen(patch, textual, semantic, applied, files, new, was)


def _made_upstream(diff: str | None, span: Span | None) -> Commit | None:
    if span is None or diff is None:
        return None
    paths = sorted({path for file in diffs.read(diff) for path in file.paths})
    return same_change(span, diff, paths)


def _diff(patch: Patch, old: PatchedTree) -> str | None:
    """The patch's diff as it was on the old revision, `None` where it was not applied."""
    applied = old.applied(patch.name)
    return old.diff(applied) if applied else None


def _seen_upstream(patch: Patch, old: PatchedTree, files: Files) -> str:
    """How much of a patch that is needed no more upstream has made itself."""
    diff = _diff(patch, old)
    return already.judge(old.checkout.repo, diff, files).why if diff else ""


def _textual(patch: Patch, diff: str | None, old: PatchedTree, new: Side, files: Files) -> Tried:
    """The patch's diff as it was on the old revision, onto the new one by git's own merge."""
    if diff is None:
        return Tried()
    repo = new.place.repo

    @cache
    def verdict() -> Verdict:
        return already.judge(repo, diff, files, new.place.search)

    try:
        outcome = threeway.apply_diff(
            repo,
            diff,
            files,
            base_paths=lambda: repo.entries(old.checkout.tree).keys(),
            labels=_labels(patch, old.checkout, new),
            settle=lambda: already.settled(repo, diff, files, verdict()),
        )
    except DspatchError as error:
        if isinstance(error, MergeConflictError):
            error = already.told(error, verdict())
        return Tried(error=error)
    return Tried(outcome=outcome)


def _labels(patch: Patch, old: Checkout, new: Side) -> Labels:
    """What conflict markers call the sides of a patch."""
    return Labels(base=f"{old.engine} {old.rev}", ours=f"{old.engine} {new.rev}", theirs=patch.name)


def _semantic(patch: Patch, files: Files, place: Place) -> Tried:
    if not patch.renders:
        return Tried()
    try:
        return Tried(outcome=onto.render_onto(patch, files, place.context))
    except DspatchError as error:
        return Tried(error=error)


def _as_applied(
    patch: Patch, diff: str | None, textual: Tried, semantic: Tried, files: Files, new: Side
) -> Tried:
    """What `apply` comes to: the form of this very revision, else the edits, else the nearest form."""
    recorded = onto.recorded_form(patch, new.place) is not None
    if not recorded and (semantic.outcome or not patch.forms):
        return semantic
    if not recorded and not patch.renders and _nearest(patch, new) == diff:
        return textual
    try:
        return Tried(outcome=onto.change_of(patch, files, new.place))
    except DspatchError as error:
        return Tried(error=error)


def _nearest(patch: Patch, new: Side) -> str:
    """The form that apply would try first."""
    return onto.by_nearness(patch.forms, new.place.rev)[0].diff


def _chosen(
    patch: Patch,
    textual: Tried,
    semantic: Tried,
    applied: Tried,
    files: Files,
    new: Side,
    was: Traits,
) -> Carried:
    outcome = applied.outcome or textual.outcome
    if outcome is None:
        error = textual.error or applied.error
        assert error is not None, patch.name
        return Carried(
            patch=patch, status="conflict", why=str(error.what), error=error,
            textual=textual, semantic=semantic, before=files,
        )  # fmt: skip
    only_here = _only_here(patch, new, was)
    # An edit that only the new revision has is no difference: no text of the old one could have it.
    shared = semantic
    if only_here and semantic.outcome is not None:
        shared = _semantic(_as_it_was(patch, was), files, new.place)
    return Carried(
        patch=patch,
        status="upstream" if outcome.how == "upstream" else "applies",
        why=outcome.note,
        textual=textual,
        semantic=semantic,
        difference=_difference(textual, shared if shared.outcome else semantic, files),
        only_here=only_here,
        outcome=outcome,
        record=applied.outcome is None,
        before=files,
    )


# -- both ways compared ---------------------------------------------------------------------------


def _only_here(patch: Patch, new: Side, was: Traits) -> tuple[str, ...]:
    """The files and edits that the patch has on the new revision, and by its traits not on the old."""
    here = new.place.context.traits
    parts: list[tuple[str, tuple[str, ...]]] = [
        *((file.path, file.when) for file in patch.files),
        *((f"{edit.file}: {edit.symbol or 'module'}", edit.when) for edit in patch.edits),
    ]
    return tuple(name for name, when in parts if holds(when, here) is None and holds(when, was))


def _as_it_was(patch: Patch, was: Traits) -> Patch:
    """The patch with the files and edits alone that it had on the old revision."""
    return replace(
        patch,
        files=tuple(file for file in patch.files if holds(file.when, was) is None),
        edits=tuple(edit for edit in patch.edits if holds(edit.when, was) is None),
    )


def _difference(textual: Tried, semantic: Tried, files: Files) -> str:
    """What the edits give beside the merged text, file by file."""
    if textual.outcome is None or semantic.outcome is None:
        return ""
    text, edited = (
        files.with_changes(way.outcome.changes) for way in (textual, semantic) if way.outcome
    )
    paths = sorted({*textual.outcome.changes, *semantic.outcome.changes})
    return "".join(
        line
        for path in paths
        for line in _file_difference(path, text.read(path), edited.read(path))
    )


def _file_difference(path: str, one: bytes | None, other: bytes | None) -> Iterator[str]:
    if one == other:
        return
    old, new = (
        (data or b"").decode("utf-8", "replace").splitlines(keepends=True) for data in (one, other)
    )
    for line in unified_diff(old, new, f"{path} by its text", f"{path} by its edits", n=2):
        yield line if line.endswith("\n") else f"{line}\n"
