"""`dspatch patch export --upstream`: what a pull request needs, made on upstream's newest form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply, onto, treefiles
from dspatch.carry.exchange import exportfolder, pullrequest
from dspatch.checkout import Checkout, cache_of
from dspatch.console import Console
from dspatch.errors import EditError, OutputFormatError, PatchConflictError
from dspatch.git import Change, NewCommit
from dspatch.patchfile import Patch, holds
from dspatch.series import Series
from dspatch.stages.apply import pristine, series_of
from dspatch.stages.exchange import revision_of
from dspatch.stages.request import Request, Resolved
from dspatch.traits import Traits


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What was written for a pull request: how its test is shown to fail and pass, what it lacks."""

    folder: Path
    files: tuple[str, ...]
    made_on: str
    test: tuple[str, ...]
    lacks: tuple[str, ...]
    changed: bool


def offer(request: Request, name: str, folder: Path, console: Console) -> Offered:
    """Write one patch as a pull request: its diff on pristine upstream, its test, its numbers.

    Raises `PatchConflictError` when upstream does not need the patch, or cannot have it alone, and
    `OutputFormatError` for one that is made of an output format when none is given.
    """
    series = series_of(request)
    patch = series.patch(name)
    if patch.option == "output-format" and series.format is None:
        raise OutputFormatError(
            f"{name} is made of an output format, and none is given.",
            next="name the file that describes it: --output-format FILE",
        )
    resolved, found = pristine(replace(request, target=patch.targets[0]), console)
    changes = _changes(series, patch, resolved, found)
    made_on = f"{found.engine} {revision_of(resolved, found)}"
    written = pullrequest.files(patch, _diff(patch, found, changes), made_on, tuple(changes))
    return Offered(
        folder=folder,
        files=tuple(sorted(written)),
        made_on=made_on,
        test=pullrequest.test_commands(patch),
        lacks=pullrequest.lacks(patch),
        changed=exportfolder.write(folder, written),
    )


def _changes(
    series: Series, patch: Patch, resolved: Resolved, found: Checkout
) -> dict[str, Change]:
    """What the patch alone does to the pristine tree, its test included."""
    files = treefiles.of_tree(found.repo, found.tree)
    facts = Traits(series.traits, files.read)
    missing = holds(patch.needs, facts)
    if missing is not None:
        what = facts.definitions[missing.removeprefix("!")].what
        raise _not_needed(patch, found, f"{'so' if missing[0] == '!' else 'not so'} there: {what}")
    place = apply.place_of(
        series, found, facts, target=resolved.request.target, variants=resolved.variants
    )
    try:
        outcome = onto.change_of(patch, files, place)
    except (PatchConflictError, EditError) as error:
        raise PatchConflictError(
            f"{patch.name} cannot be put on the pristine {found.engine} {found.rev} alone.",
            why=error.what + (f" ({error.why})" if error.why else ""),
            next="offer the patch that it rests on first, or name a revision that has that: --rev",
        ) from None
    if outcome.how == "upstream":
        raise _not_needed(patch, found, outcome.note)
    changes = dict(outcome.changes)
    if patch.upstream_test is not None:
        test = patch.upstream_test
        changes[test.path] = Change(path=test.path, data=test.file.read_bytes())
    return {path: changes[path] for path in sorted(changes)}


def _not_needed(patch: Patch, found: Checkout, why: str) -> PatchConflictError:
    return PatchConflictError(
        f"{found.engine} {found.rev} does not need {patch.name}, so there is nothing to offer.",
        why=why,
        next="name an older form of upstream with --rev, or drop the patch when no pin needs it",
    )


def _diff(patch: Patch, found: Checkout, changes: dict[str, Change]) -> str:
    new = NewCommit(message=patch.subject, changes=changes.values())
    with cache_of(found.engine) as repo:
        commit = repo.write_commits("refs/offering", found.commit, [new])[0]
        return repo.diff(found.commit, commit)
