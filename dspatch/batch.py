"""Many patches onto a tree, in order: those that apply strictly and touch different files go through git at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dspatch import diffs, threeway
from dspatch.carry.upstreamed import already
from dspatch.diffs import FileDiff
from dspatch.errors import DiffFormatError, DspatchError, GitError
from dspatch.onto import Place, by_nearness, change_of, recorded_form
from dspatch.patchfile import Patch
from dspatch.strictly import Through, through
from dspatch.threeway import Outcome
from dspatch.treefiles import Files


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one patch: its outcome, or the error that it failed with."""

    patch: Patch
    outcome: Outcome | None = None
    error: DspatchError | None = None


@dataclass(kw_only=True)
class _Batch:
    """Strict diffs that touch different files, waiting to be applied in one go."""

    waiting: list[tuple[Patch, tuple[FileDiff, ...]]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def fits(self, parts: Sequence[FileDiff]) -> bool:
        return not any(part.paths & self.paths for part in parts)

    def add(self, patch: Patch, parts: tuple[FileDiff, ...]) -> None:
        self.waiting.append((patch, parts))
        self.paths.update(path for part in parts for path in part.paths)


def changes_of(patches: Sequence[Patch], files: Files, place: Place) -> Iterator[Result]:
    """What each patch does to the tree as those before it left it; one that fails changes nothing."""
    with through(place.repo) as index:
        batch = _Batch()
        for patch in patches:
            parts = _diff_to_try(patch, place)
            if parts is None or not batch.fits(parts):
                done = _applied(batch, files, place, index)
                files, batch = after(files, done), _Batch()
                yield from done
            if parts and not _in_doubt(parts, files):
                batch.add(patch, parts)
                continue
            # It may need what those in waiting leave behind.
            done = _applied(batch, files, place, index)
            files, batch = after(files, done), _Batch()
            done.append(_alone(patch, files, place))
            files = after(files, done[-1:])
            yield from done
        yield from _applied(batch, files, place, index)


def _in_doubt(parts: Sequence[FileDiff], files: Files) -> bool:
    """Whether a diff needs more than git's strict apply."""
    obstructed = bool(threeway.obstacles(parts, files))
    return obstructed or already.inserts_again(parts, files)


def _diff_to_try(patch: Patch, place: Place) -> tuple[FileDiff, ...] | None:
    """The diff that would be tried first, for a patch that is not rendered."""
    form = recorded_form(patch, place)
    if form is None and (patch.renders or not patch.forms):
        return None
    try:
        return diffs.read((form or by_nearness(patch.forms, place.rev)[0]).diff)
    except DiffFormatError:
        return None  # told when the patch is applied alone


def _applied(batch: _Batch, files: Files, place: Place, index: Through) -> list[Result]:
    if not batch.waiting:
        return []
    parts = [part for _, own in batch.waiting for part in own]
    try:
        changes = index.apply(parts, files)
    except GitError:  # git refuses one of them: find out which
        return _one_by_one([patch for patch, _ in batch.waiting], files, place)
    results = []
    for patch, own in batch.waiting:
        mine = {path for part in own for path in part.paths}
        outcome = Outcome(
            how="strict", changes={path: changes[path] for path in sorted(mine & changes.keys())}
        )
        results.append(Result(patch=patch, outcome=outcome))
    return results


def _one_by_one(patches: Sequence[Patch], files: Files, place: Place) -> list[Result]:
    results = []
    for patch in patches:
        results.append(_alone(patch, files, place))
        files = after(files, results[-1:])
    return results


def _alone(patch: Patch, files: Files, place: Place) -> Result:
    try:
        return Result(patch=patch, outcome=change_of(patch, files, place))
    except DspatchError as error:
        return Result(patch=patch, error=error)


def after(files: Files, results: Iterable[Result]) -> Files:
    """The tree with what each patch that applied did to it."""
    for result in results:
        if result.outcome is not None:
            files = files.with_changes(result.outcome.changes)
    return files
