"""Refuse a patched tree on which upstream symbols are not what the patches were written for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dspatch.carry.uses import drift, usesfile, verdicts
from dspatch.carry.uses.drift import Drift
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.usesfile import Recorded, Use
from dspatch.errors import SignatureDriftError
from dspatch.patchfile import Patch, Waived, holds
from dspatch.series import digest_of
from dspatch.traits import Trait, Traits
from dspatch.treefiles import Files

# The code that decides what counts as a drift.
CODE = Path(__file__).parent


def drifts(patch: Patch, names: Names, facts: Traits) -> tuple[Drift, ...]:
    """What has drifted under a patch and is not waived; nothing where it has recorded no uses.

    facts: the traits of the tree, which say which of several records is held against it.
    """
    return unwaived(patch, seen(patch, usesfile.read(patch.folder), names, facts))


def seen(patch: Patch, recorded: Recorded | None, names: Names, facts: Traits) -> tuple[Drift, ...]:
    """What has drifted under a patch, also where that is waived.

    Records on which the patch was the same code are as good as one another: the first counts of which
    all is waived, else the one that has least to tell.
    """
    told: list[tuple[Drift, ...]] = []
    for record in nearest(patch, recorded, facts) if recorded is not None else ():
        found = drift.check(_rendered(patch, record.uses, facts), names)
        told.append(tuple(replace(one, written_for=record.written_for) for one in found))
        if not unwaived(patch, told[-1]):
            return told[-1]
    return min(told, key=len, default=())


def unwaived(patch: Patch, found: Sequence[Drift]) -> tuple[Drift, ...]:
    """The drifts that no waiver of the patch is about."""
    return tuple(one for one in found if not any(waives(waived, one) for waived in patch.waived))


def answer(name: str, facts: Traits) -> str:
    """What a tree answers to a trait, as records have it: `name`, `!name`, or `name=value`."""
    value = facts.get_or_none(name)
    if not value:
        return f"!{name}"
    return name if value is True else f"{name}={value}"


def _rendered(patch: Patch, uses: Sequence[Use], facts: Traits) -> Iterator[Use]:
    """The uses without those that only files make which the patch does not render there."""
    rendered = {file.path for file in patch.files if not holds(file.when, facts)}
    missing = {file.path for file in patch.files} - rendered
    for use in uses:
        where = tuple(place for place in use.where if place.partition(":")[0] not in missing)
        if where:
            yield replace(use, where=where)


def nearest(patch: Patch, recorded: Recorded, facts: Traits) -> list[Recorded]:
    """The records of the pins on which the patch was the code most alike.

    Which files it renders counts before all else that traits decide: most of its code is there.
    """

    def alike(one: Recorded) -> tuple[int, int]:
        same = [
            set(file.when) <= set(one.answers)
            for file in patch.files
            if not holds(file.when, facts)
        ]
        asked = {each.removeprefix("!").partition("=")[0]: each for each in one.answers}
        return sum(same), sum(answer(name, facts) == each for name, each in asked.items())

    records = (recorded, *recorded.others)
    most = max(map(alike, records))
    return [one for one in records if alike(one) == most]


def waives(waived: Waived, found: Drift) -> bool:
    """Whether a waiver is about a drift: its symbol, and its shape unless it leaves that open."""
    return waived.symbol == found.symbol and waived.shape in (None, found.now)


def check(
    where: str,
    patches: Sequence[Patch],
    files: Files,
    known: Mapping[str, Trait],
    dated: Callable[[Drift], Drift] = lambda drift: drift,
) -> None:
    """Raise `SignatureDriftError` that tells every drift under the patches of a tree.

    where: the engine and revision, as the error names them. files: those of the patched tree.
    known: the traits that the patches may name. dated: adds since which release a drift is there.
    """
    with verdicts.kept(_key(where, patches, known), files) as read:
        if read is None:
            return
        names, facts = Names(read), Traits(known, read)
        found = {patch: drifts(patch, names, facts) for patch in patches}
        failed = {patch: tuple(map(dated, some)) for patch, some in found.items() if some}
        if failed:
            raise _error(where, failed)


def _key(where: str, patches: Sequence[Patch], known: Mapping[str, Trait]) -> str:
    """A hash of all that the verdict on a tree depends on, but for the tree's files."""
    code = digest_of([CODE])
    recorded = usesfile.digest(patch.folder for patch in patches)
    waived = [(patch.name, repr(patch.waived)) for patch in patches]
    traits = sorted(repr(trait) for trait in known.values())
    return hashlib.sha256(json.dumps([where, code, recorded, waived, traits]).encode()).hexdigest()


def _error(where: str, failed: Mapping[Patch, tuple[Drift, ...]]) -> SignatureDriftError:
    names = ", ".join(patch.name for patch in failed)
    first = next(iter(failed.values()))[0]
    total = sum(map(len, failed.values()))
    symbols = "1 upstream symbol" if total == 1 else f"{total} upstream symbols"
    details = [
        f"{patch.name}, written for {one.written_for}: {one.words}"
        for patch, some in failed.items()
        for one in some
    ]
    return SignatureDriftError(
        f"{where}: {names} would apply, but {symbols} used there changed; nothing was applied.",
        why="\n".join(details).replace("\n", "\n        "),
        next="mend the patch; if the change does not matter to it, say why in its patch.toml:\n"
        f'        [[waive]] symbol = "{first.symbol}", shape = "{first.now}", reason = "..."',
    )
