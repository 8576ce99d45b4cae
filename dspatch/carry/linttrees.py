"""Lint rules that need trees: patches nobody needs, records and goldens behind the rendering, idle waivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dspatch.apply import AppliedPatch, PatchedTree
from dspatch.carry import drift, goldens, guard, overlap, usesfile
from dspatch.carry.drift import Drift
from dspatch.carry.lint import Fault
from dspatch.carry.names import Names
from dspatch.carry.undefined import left_undefined
from dspatch.carry.uses import Use, of_patch, unresolved_imports
from dspatch.carry.usesfile import Recorded
from dspatch.patchfile import Patch
from dspatch.pins.lookup import same
from dspatch.series import Series
from dspatch.treefiles import of_tree


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A series on one pinned revision, for one target."""

    rev: str
    target: str
    tree: PatchedTree

    def applied(self, patch: Patch) -> AppliedPatch | None:
        """How a patch was applied there, `None` when it was not."""
        return next((a for a in self.tree.patches if a.name == patch.name), None)


def of_trees(series: Series, tried: Sequence[Tried], *, all_tried: bool = True) -> Iterator[Fault]:
    """The faults of every patch, as the trees of the pinned revisions show them.

    all_tried: whether the trees are those of every pin, so that what none of them needs is idle.
    """
    for patch in series.patches:
        if patch.name in series.left_out:
            continue
        here = [one for one in tried if one.applied(patch) is not None]
        if all_tried and not here:
            yield _fault(
                "not-needed", patch, f"no pin needs it ({', '.join(sorted({t.rev for t in tried}))})",
                "drop it: dspatch patch drop " + patch.name,
            )  # fmt: skip
        yield from _records(patch, here)
        for one in here:
            yield from _undefined(patch, one)
        yield from _goldens(series, patch, tried)
        yield from _drifts(patch, here, all_tried=all_tried)
    for one in tried:
        yield from _overlaps(one)


# -- records -----------------------------------------------------------------------------------


def record(patch: Patch, tried: Sequence[Tried]) -> Recorded | None:
    """What a patch uses on the revision that it was written for; `None` when it uses nothing.

    Also when that revision is not among the trees, or the patch does not apply there.
    """
    place = written_place(patch, tried)
    uses = () if place is None else _uses(patch, place)
    return (
        Recorded(written_for=patch.written_for, uses=uses) if uses and patch.written_for else None
    )


def written_place(patch: Patch, tried: Sequence[Tried]) -> Tried | None:
    """The tree of the revision that a patch was written for, `None` when it is not applied there."""
    at = [one for one in tried if patch.written_for and same(one.rev, patch.written_for)]
    return next((one for one in at if one.applied(patch) is not None), None)


def _uses(patch: Patch, place: Tried) -> tuple[Use, ...]:
    applied = place.applied(patch)
    assert applied is not None
    repo = place.tree.checkout.repo
    with repo.reading():
        before, after = of_tree(repo, f"{applied.commit}^"), of_tree(repo, applied.commit)
        return of_patch(applied.paths, before.read, after.read)


def _records(patch: Patch, here: Sequence[Tried]) -> Iterator[Fault]:
    kept = usesfile.read(patch.folder)
    if patch.written_for is None:
        if any(_uses(patch, one) for one in here[:1]):
            yield _fault(
                "written-for", patch, "its code uses upstream symbols, and `written-for` names no pin",
                "name the pin that it was written for",
            )  # fmt: skip
        return
    place = written_place(patch, here)
    if place is None:
        if here:
            yield _fault(
                "written-for", patch, f"it does not apply to {patch.written_for}, which it was written for",
                "name a pin that it applies to",
            )  # fmt: skip
        return
    now = record(patch, [place])
    if now != kept:
        before = usesfile.write(kept).encode() if kept else b""
        after = usesfile.write(now).encode() if now else b""
        yield Fault(
            rule="uses", patch=patch.name, where=f"{patch.name}/{usesfile.NAME}",
            what=("it is not what the code uses" if now else "the code uses nothing of upstream")
            if kept
            else "it is not there",
            next="dspatch patch lint --write",
            diff=goldens.difference(before, after, usesfile.NAME),
        )  # fmt: skip
    yield from _unresolved(patch, place)


def _undefined(patch: Patch, one: Tried) -> Iterator[Fault]:
    """Names that the patch took the definition of, while upstream's code there still uses them."""
    applied = one.applied(patch)
    assert applied is not None
    repo = one.tree.checkout.repo
    with repo.reading():
        before, after = of_tree(repo, f"{applied.commit}^"), of_tree(repo, applied.commit)
        for path in applied.paths:
            data = after.read(path) if path.endswith(".py") else None
            for name, where in left_undefined(before.read(path), data) if data else ():
                yield _fault(
                    "undefined",
                    patch,
                    f"on {one.rev} it leaves `{name}` undefined, which {path} uses"
                    + (f" in {where}" if where else ""),
                    "define it, or leave its definition in",
                )


def _unresolved(patch: Patch, place: Tried) -> Iterator[Fault]:
    applied = place.applied(patch)
    assert applied is not None
    repo = place.tree.checkout.repo
    with repo.reading():
        files = of_tree(repo, applied.commit)
        before = of_tree(repo, f"{applied.commit}^")
        for path, name in unresolved_imports(applied.paths, before.read, files.read):
            yield _fault(
                "import", patch, f"{path} imports {name}, which {place.rev} does not have",
                "import what is there",
            )  # fmt: skip


# -- goldens -----------------------------------------------------------------------------------


def golden_files(series: Series, patch: Patch, tried: Sequence[Tried]) -> Mapping[str, bytes]:
    """The goldens of a patch as it is rendered now, by revision: for the first target it names."""
    found = {}
    for one in tried:
        applied = one.applied(patch)
        if applied is not None and one.target == patch.targets[0]:
            diff = one.tree.diff(applied)
            found[one.rev] = goldens.text(patch, diff, engine=series.engine, rev=one.rev)
    return found


def stale_goldens(patch: Patch, tried: Sequence[Tried]) -> tuple[str, ...]:
    """The revisions of goldens of a patch that is not applied there."""
    revs = {one.rev for one in tried}
    applied = {one.rev for one in tried if one.applied(patch) is not None}
    return tuple(rev for rev in goldens.revisions(patch) if rev in revs - applied)


def _goldens(series: Series, patch: Patch, tried: Sequence[Tried]) -> Iterator[Fault]:
    if not patch.shipped and not goldens.revisions(patch):
        return
    for rev in stale_goldens(patch, tried):
        yield Fault(
            rule="golden", patch=patch.name, where=f"{patch.name}/{goldens.FOLDER}/{rev}.patch",
            what=f"the patch is not applied to {rev}", next="dspatch patch lint --write",
        )  # fmt: skip
    rendered = golden_files(series, patch, tried)
    for rev, data in rendered.items():
        path = goldens.path(patch, rev)
        kept = path.read_bytes() if path.is_file() else None
        if kept != data:
            yield Fault(
                rule="golden", patch=patch.name, where=f"{patch.name}/{goldens.FOLDER}/{path.name}",
                what="it is not there" if kept is None else "it is not what is rendered",
                next="read the difference; if it is meant: dspatch patch lint --write",
                diff=goldens.difference(kept or b"", data, path.name),
            )  # fmt: skip


# -- drift -------------------------------------------------------------------------------------


def _drifts(patch: Patch, here: Sequence[Tried], *, all_tried: bool) -> Iterator[Fault]:
    recorded = usesfile.read(patch.folder)
    if recorded is None:
        return
    found: dict[str, tuple[Drift, ...]] = {}
    for one in here:
        repo = one.tree.checkout.repo
        with repo.reading():
            found[one.rev] = drift.check(recorded.uses, Names(of_tree(repo, one.tree.commit).read))
    for rev, drifts in found.items():
        for each in drifts:
            if not any(guard.waives(waived, each) for waived in patch.waived):
                yield _fault(
                    "drift",
                    patch,
                    f"on {rev}, {each.words}",
                    "mend the patch, or waive it with a reason",
                )
    every = [each for drifts in found.values() for each in drifts]
    for waived in patch.waived if all_tried else ():
        if not any(guard.waives(waived, each) for each in every):
            yield _fault(
                "waive",
                patch,
                f"nothing on any pin needs the waiver of `{waived.symbol}`",
                "remove it",
            )


def _overlaps(one: Tried) -> Iterator[Fault]:
    commits = [applied.commit for applied in one.tree.patches]
    for later, earlier, path, line in overlap.found(one.tree.checkout.repo, commits):
        names = {applied.commit: applied.name for applied in one.tree.patches}
        yield Fault(
            rule="overlap", patch=names[later], where=f"{names[later]}/patch.toml",
            what=f"on {one.rev} it changes what {names[earlier]} wrote: {path}, line {line}",
            next="let one of the two make the whole change",
        )  # fmt: skip


def _fault(rule: str, patch: Patch, what: str, next: str) -> Fault:
    return Fault(
        rule=rule, patch=patch.name, where=f"{patch.name}/patch.toml", what=what, next=next
    )
