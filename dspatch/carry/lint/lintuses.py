"""Lint rules on the upstream symbols that patches use: recorded as they are, unchanged or waived, there at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dspatch.carry.lint import goldens
from dspatch.carry.lint.lint import Fault, in_patch
from dspatch.carry.lint.released import Released
from dspatch.carry.lint.tried import Tried
from dspatch.carry.uses import guard, usesfile
from dspatch.carry.uses.drift import Drift
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.usesfile import Recorded
from dspatch.patchfile import Patch
from dspatch.pins.lookup import same
from dspatch.pins.store import version_key
from dspatch.traits import Trait

Places = Sequence[Tried | Released]


def record(patch: Patch, tried: Places, known: Mapping[str, Trait]) -> Recorded | None:
    """What a patch uses on the revisions that it was written for; `None` when it uses nothing.

    Also when the first of them is not among the trees, or the patch does not apply there.
    """
    first, *others = [
        _recorded(patch, rev, tried, known) for rev in (patch.written_for, *patch.also_written_for)
    ]
    return replace(first, others=tuple(o for o in others if o is not None)) if first else None


def _recorded(
    patch: Patch, rev: str | None, tried: Places, known: Mapping[str, Trait]
) -> Recorded | None:
    place = _place(patch, rev, tried)
    uses = () if place is None else place.used(patch).uses
    if place is None or rev is None or not uses:
        return None
    facts = place.facts(known)
    asked = patch.asks(known) if patch.also_written_for else ()
    answers = tuple(guard.answer(name, facts) for name in asked)
    return Recorded(written_for=rev, uses=uses, answers=answers)


def written_place(patch: Patch, tried: Places) -> Tried | Released | None:
    """The tree of the revision that a patch was written for, `None` when it is not applied there.

    Also `None` when one that it was also written for is not among the trees.
    """
    if any(_place(patch, rev, tried) is None for rev in patch.also_written_for):
        return None
    return _place(patch, patch.written_for, tried)


def _place(patch: Patch, rev: str | None, tried: Places) -> Tried | Released | None:
    at = [one for one in tried if rev and same(one.rev, rev)]
    return next((one for one in at if one.applied(patch) is not None), None)


def records(patch: Patch, here: Places, known: Mapping[str, Trait]) -> Iterator[Fault]:
    """The record of a patch is what its code uses on the release that it was written for."""
    kept = usesfile.read(patch.folder)
    if patch.written_for is None:
        if any(one.used(patch).uses for one in here[:1]):
            yield in_patch(
                "written-for", patch, "its code uses upstream symbols, and `written-for` names no pin",
                "name the pin that it was written for",
            )  # fmt: skip
        return
    places = {rev: _place(patch, rev, here) for rev in (patch.written_for, *patch.also_written_for)}
    for rev, place in places.items():
        if here and place is None:
            yield in_patch(
                "written-for", patch, f"it does not apply to {rev}, which it was written for",
                "name a pin that it applies to",
            )  # fmt: skip
    if None in places.values():
        return
    now = record(patch, here, known)
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
    for place in (one for one in places.values() if one is not None):
        for path, name in place.used(patch).missing:
            yield in_patch(
                "import", patch, f"{path} imports {name}, which {place.rev} does not have",
                "import what is there",
            )  # fmt: skip


def drifts(
    patch: Patch, here: Places, known: Mapping[str, Trait], *, all_tried: bool
) -> Iterator[Fault]:
    """No symbol has changed on any pin unless that is waived, and no waiver is idle."""
    recorded = usesfile.read(patch.folder)
    if recorded is None:
        return
    found: dict[str, tuple[Drift, ...]] = {}
    for one in here:
        with one.reading():
            names = Names(one.files.read)
            found[one.rev] = guard.seen(patch, recorded, names, one.facts(known))
    revs = sorted(found, key=version_key)
    for each, seen in _together(found, revs).items():
        if not any(guard.waives(waived, each) for waived in patch.waived):
            where = _where(seen, revs)
            yield in_patch(
                "drift",
                patch,
                f"{where}, {each.words}",
                "mend the patch, or waive it with a reason",
            )
    every = [each for drifts in found.values() for each in drifts]
    for waived in patch.waived if all_tried else ():
        if not any(guard.waives(waived, each) for each in every):
            yield in_patch(
                "waive",
                patch,
                f"nothing on any pin needs the waiver of `{waived.symbol}`",
                "remove it",
            )


def _together(found: Mapping[str, Sequence[Drift]], revs: Sequence[str]) -> dict[Drift, list[str]]:
    """Each drift once, with the revisions that have it."""
    seen: dict[Drift, list[str]] = {}
    for rev in revs:
        for each in found[rev]:
            seen.setdefault(each, []).append(rev)
    return seen


def _where(seen: Sequence[str], revs: Sequence[str]) -> str:
    """Some of the revisions looked at, oldest first, in words."""
    lasting = list(revs[revs.index(seen[0]) :]) == list(seen)
    return f"from {seen[0]} on" if lasting else f"on {', '.join(seen)}"
