"""`dspatch patch lint`: every fault of a series at once, and its generated files brought up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply, checkout, outputformat, pins, series
from dspatch.carry.editing import folder
from dspatch.carry.lint import goldens, lint, lintsizes, linttrees
from dspatch.carry.lint.lint import Fault
from dspatch.carry.lint.lintsizes import Sizes
from dspatch.carry.lint.linttrees import Released, Tried
from dspatch.carry.remote.openreleases import OpenReleases
from dspatch.carry.uses import usesfile
from dspatch.console import Console
from dspatch.errors import (
    DownloadError,
    DspatchError,
    HashMismatchError,
    OfflineError,
    PatchLintError,
)
from dspatch.patchfile import Patch
from dspatch.pins import Pin
from dspatch.series import Series
from dspatch.stages import releasedseries
from dspatch.stages.request import known

# Why the tree of a pin may not be at hand; that is no fault of a patch.
_NOT_AT_HAND = (OfflineError, DownloadError, HashMismatchError)


@dataclass(frozen=True, kw_only=True)
class Linted:
    """What was found: the faults, the revisions they were sought on, and the files that were written."""

    engine: str
    patches: tuple[str, ...]
    faults: tuple[Fault, ...]
    tried: tuple[str, ...]
    not_tried: tuple[str, ...]
    written: tuple[Path, ...]
    sizes: Sizes | None = None


def run(
    engine: str,
    names: Sequence[str],
    console: Console,
    *,
    quick: bool = False,
    write: bool = False,
) -> Linted:
    """Lint the patches of an engine, or those named.

    quick: look at the folders only, at no tree. write: bring the generated files up to date first.
    Raises `PatchFormatError` for a name that is no patch's.
    """
    with ExitStack() as opened:
        return _linted(engine, names, console, opened, quick=quick, write=write)


def _linted(
    engine: str,
    names: Sequence[str],
    console: Console,
    opened: ExitStack,
    *,
    quick: bool,
    write: bool,
) -> Linted:
    whole = series.layered(engine).asking(outputformat.NONE, [series.EVERY])
    chosen = [whole.patch(name) for name in names] or list(whole.patches)
    tried, missing, failed = ([], [], []) if quick else _trees(whole, console)
    released = [] if quick else _released(whole, chosen, missing, console, opened)
    written = _write(whole, chosen, tried, released) if write and not quick else ()
    faults = [*lint.of_folders(whole), *failed]
    if not quick:
        part = replace(whole, patches=tuple(patch for patch in whole.patches if patch in chosen))
        faults += linttrees.of_trees(
            part,
            tried,
            released=released,
            all_tried=bool(tried) and not missing and not failed,
        )
    wanted = {patch.name for patch in chosen}
    return Linted(
        engine=engine,
        patches=tuple(patch.name for patch in chosen),
        faults=tuple(f for f in faults if f.patch in wanted or (not names and not f.patch)),
        tried=tuple(dict.fromkeys(one.rev for one in tried)),
        not_tried=tuple(missing),
        written=written,
        sizes=lintsizes.sizes(whole, tried) if tried else None,
    )


def check(linted: Linted) -> None:
    """Raise `PatchLintError` when there are faults; they have been shown."""
    if not linted.faults:
        return
    count = len(linted.faults)
    rules = ", ".join(sorted({fault.rule for fault in linted.faults}))
    raise PatchLintError(
        f"{count} fault{'s' if count > 1 else ''} in the patches of {linted.engine}.",
        why=f"rules broken: {rules}",
        next=f"dspatch patch lint --engine {linted.engine} --write"
        if {f.rule for f in linted.faults} <= {"golden", "uses"}
        else "mend what is named above",
    )


def _trees(whole: Series, console: Console) -> tuple[list[Tried], list[str], list[Fault]]:
    """The series on every pin; the pins that are not at hand; the faults of those it does not apply to."""
    tried: list[Tried] = []
    missing: list[str] = []
    failed: list[Fault] = []
    targets = sorted({patch.targets[0] for patch in whole.patches})
    with console.working(f"linting the patches of {whole.engine}") as step:
        for pin in pins.pinned(whole.engine):
            step(pin.rev)
            try:
                tried.extend(_tried(whole, pin, targets))
            except _NOT_AT_HAND as error:
                missing.append(pin.rev)
                console.note(f"{pin.rev} is not looked at: {error.what}")
            except DspatchError as error:
                failed.append(_fault(pin, error))
    return tried, missing, failed


def _tried(whole: Series, pin: Pin, targets: Sequence[str]) -> Iterator[Tried]:
    pristine = checkout.checkout(pin)
    for target in targets:
        tree = apply.apply_series(whole, pristine, target=target, variants=known(()), guarded=False)
        yield Tried(rev=pin.rev, target=target, tree=tree)


def _released(
    whole: Series,
    chosen: Sequence[Patch],
    missing: list[str],
    console: Console,
    opened: ExitStack,
) -> list[Released]:
    """The series on every release that a patch was also written for and that is no pin."""
    pinned = {pin.rev for pin in pins.pinned(whole.engine)}
    wanted = {
        (rev, target)
        for patch in chosen
        for rev in patch.also_written_for
        if rev not in pinned
        for target in patch.targets[:1]
    }
    if not wanted:
        return []
    found: list[Released] = []
    at: OpenReleases | None = None
    with console.working("reading releases that are no pins") as step:
        for rev, target in sorted(wanted):
            step(rev)
            try:
                at = at or opened.enter_context(releasedseries.opened(whole, known(())))
                found.append(releasedseries.released(at, rev, target))
            except _NOT_AT_HAND as error:
                missing.append(rev)
                console.note(f"{rev} is not looked at: {error.what}")
    return found


def _fault(pin: Pin, error: DspatchError) -> Fault:
    return Fault(
        rule="applies",
        patch="",
        where=pin.rev,
        what=f"{error.what} {error.why}".strip(),
        next=error.next,
    )


# -- generated files ---------------------------------------------------------------------------


def _write(
    whole: Series, chosen: Sequence[Patch], tried: Sequence[Tried], released: Sequence[Released]
) -> tuple[Path, ...]:
    """Bring the records and goldens of patches up to date, a layer at a time: all of it or nothing."""
    written: list[Path] = []
    for layer in whole.layers:
        changes: dict[Path, bytes | None] = {}
        for patch in chosen:
            if patch.folder.parent == layer.folder:
                changes |= _changes(whole, patch, tried, released)
        if changes:
            with folder.editing(layer.folder):
                folder.change(layer.folder, changes)
        written += changes
    return tuple(written)


def _changes(
    whole: Series, patch: Patch, tried: Sequence[Tried], released: Sequence[Released]
) -> dict[Path, bytes | None]:
    wanted: dict[Path, bytes | None] = {}
    places: list[Tried | Released] = [*tried, *released]
    if linttrees.written_place(patch, places) is not None:
        recorded = linttrees.record(patch, places, whole.traits)
        wanted[patch.folder / usesfile.NAME] = (
            usesfile.write(recorded).encode() if recorded is not None else None
        )
    if patch.shipped or goldens.revisions(patch):
        for rev, data in linttrees.golden_files(whole, patch, tried).items():
            wanted[goldens.path(patch, rev)] = data
        for rev in linttrees.stale_goldens(patch, tried):
            wanted[goldens.path(patch, rev)] = None
    return {path: data for path, data in wanted.items() if data != _held(path)}


def _held(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
