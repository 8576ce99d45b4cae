"""What becomes of each patch on one release: a verdict a patch and target, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dspatch import batch
from dspatch.carry.matrix.watched import WatchedTraits
from dspatch.carry.uses import guard
from dspatch.carry.uses.names import Names
from dspatch.errors import (
    DiffFormatError,
    DspatchError,
    EditError,
    PatchConflictError,
    TemplateError,
)
from dspatch.onto import Place
from dspatch.patchfile import holds
from dspatch.threeway import How, MergeConflictError
from dspatch.traits import Traits

if TYPE_CHECKING:
    from dspatch.patchfile import Patch
    from dspatch.series import Planned, Series
    from dspatch.treefiles import Files
    from dspatch.variants import Variant

Verdict = Literal[
    "strict", "merged", "semantic", "fuzzy", "upstreamed", "not needed", "conflict",
    "signature drift", "missing", "not measured",
]  # fmt: skip
APPLIES: tuple[Verdict, ...] = ("strict", "merged", "semantic", "fuzzy")
FAILS: tuple[Verdict, ...] = ("conflict", "signature drift", "missing")

_VERDICTS: dict[How, Verdict] = {
    "rendered": "semantic", "strict": "strict", "merged": "merged", "fuzzy": "fuzzy",
    "upstream": "upstreamed",
}  # fmt: skip
# What says that a patch does not apply; any other error says that it could not be tried.
_OF_THE_PATCH = (PatchConflictError, EditError, TemplateError, DiffFormatError)
_NATIVE = "it rests on {}, which no wheel holds"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What becomes of a patch on a release, for a target; `native` names files beyond the wheel it rests on."""

    patch: str
    target: str
    verdict: Verdict
    why: str = ""
    native: tuple[str, ...] = ()


def measure(
    series: Series, files: Files, place: Place, *, target: str, variants: Sequence[Variant]
) -> Iterator[Cell]:
    """A cell for each patch that is for the target and one of the variants, in order.

    Each is tried on the tree as those before it left it; one that fails changes nothing, also one that
    `apply` would refuse for what it uses. The traits in `place.context` must be `WatchedTraits`.
    """
    facts = place.context.traits
    assert isinstance(facts, WatchedTraits)
    families = [variant.families for variant in variants]
    for patch in series.patches:
        facts.start()
        planned = series.planned(patch, facts, target, families)
        if planned.status in ("other target", "other variant", "left out"):
            continue
        if not planned.applies:
            cell = Cell(patch=patch.name, target=target, verdict="not needed", why=planned.why)
        else:
            (result,) = batch.changes_of([planned.patch], files, place)
            cell = _cell(planned, result, files, place, target)
            after = batch.after(files, [result])
            cell = _held(cell, planned.patch, after, facts)
            files = files if cell.verdict in FAILS else after
        yield replace(cell, native=tuple(sorted(facts.since_then)))


def without_native(cell: Cell, *, sdist: bool) -> Cell:
    """The cell as it must be told when the files beyond the wheel were not read.

    sdist: whether the release has one, in which they could be read.
    """
    if not cell.native:
        return cell
    how = ": --native reads the sdist" if sdist else ", and there is no sdist"
    return replace(cell, verdict="not measured", why=_NATIVE.format(", ".join(cell.native)) + how)


def _cell(planned: Planned, result: batch.Result, files: Files, place: Place, target: str) -> Cell:
    name = planned.patch.name
    if result.outcome is not None:
        verdict = _VERDICTS[result.outcome.how]
        told = [f"{old} is now {new}" for old, new in result.outcome.moved.items()]
        told += [result.outcome.note] if result.outcome.note else []
        return Cell(patch=name, target=target, verdict=verdict, why="; ".join(told))
    assert result.error is not None
    if not isinstance(result.error, _OF_THE_PATCH):
        raise result.error
    verdict, why = _failure(planned.patch, result.error, files, place)
    return Cell(patch=name, target=target, verdict=verdict, why=why)


def _held(cell: Cell, patch: Patch, files: Files, facts: Traits) -> Cell:
    """The cell of a patch that applies, held against the upstream symbols that its code uses."""
    if cell.verdict not in APPLIES:
        return cell
    found = guard.drifts(patch, Names(files.read), facts)
    if not found:
        return cell
    why = "; ".join(drift.line for drift in found)
    return replace(cell, verdict="signature drift", why=why)


def _failure(patch: Patch, error: DspatchError, files: Files, place: Place) -> tuple[Verdict, str]:
    gone = _gone(patch, error, files, place)
    if gone:
        return "missing", f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} not there"
    why = f"{error.what} {error.why}" if not isinstance(error, MergeConflictError) else error.why
    return "conflict", " ".join(why.split())


def _gone(patch: Patch, error: DspatchError, files: Files, place: Place) -> list[str]:
    """The files that a patch changes and that the release lacks."""
    if isinstance(error, MergeConflictError):
        return sorted({each.path for each in error.conflicts if not files.has(each.path)})
    wanted = [edit.file for edit in patch.edits if holds(edit.when, place.context.traits) is None]
    made = {new.path for new in patch.files}
    return sorted({path for path in wanted if path not in made and not files.has(path)})
