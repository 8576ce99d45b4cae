"""Lint rules that need trees: patches nobody needs, names left undefined, lines changed twice, and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspatch.carry.lint import lintgoldens, lintuses, overlap
from dspatch.carry.lint.lint import Fault, in_patch
from dspatch.carry.lint.lintgoldens import golden_files, stale_goldens
from dspatch.carry.lint.lintuses import record, written_place
from dspatch.carry.lint.released import Released
from dspatch.carry.lint.tried import Tried
from dspatch.carry.uses.undefined import left_undefined
from dspatch.patchfile import Patch
from dspatch.series import Series
from dspatch.wheel.native import diff_paths, is_native

__all__ = [
    "Released",
    "Tried",
    "golden_files",
    "of_trees",
    "record",
    "stale_goldens",
    "written_place",
]


def of_trees(
    series: Series,
    tried: Sequence[Tried],
    *,
    released: Sequence[Released] = (),
    all_tried: bool = True,
) -> Iterator[Fault]:
    """The faults of every patch, as the trees of the pinned revisions show them.

    released: releases that patches were also written for and that are no pins. all_tried: whether the
    trees are those of every pin, so that what none of them needs is idle.
    """
    for patch in series.patches:
        if patch.name in series.left_out:
            continue
        here = [one for one in tried if one.applied(patch) is not None]
        if all_tried and not here and not _unseen(patch, tried):
            yield in_patch(
                "not-needed", patch, f"no pin needs it ({', '.join(sorted({t.rev for t in tried}))})",
                "drop it: dspatch patch drop " + patch.name,
            )  # fmt: skip
        everywhere: list[Tried | Released] = list(here)
        everywhere += [one for one in released if one.applied(patch) is not None]
        yield from lintuses.records(patch, everywhere, series.traits)
        for one in here:
            yield from _undefined(patch, one)
        yield from lintgoldens.rule(series, patch, tried)
        yield from lintuses.drifts(patch, everywhere, series.traits, all_tried=all_tried)
    for one in tried:
        yield from _overlaps(one)


def _unseen(patch: Patch, tried: Sequence[Tried]) -> bool:
    """Whether no tree could show that a patch is needed: it changes native sources, and wheels have none."""
    paths = [path for form in patch.forms for path in diff_paths(form.path.read_text())]
    return any(map(is_native, paths)) and all(t.tree.checkout.source == "wheel" for t in tried)


def _undefined(patch: Patch, one: Tried) -> Iterator[Fault]:
    """Names that the patch took the definition of, while upstream's code there still uses them."""
    with one.around(patch, whole=False) as (paths, before, after):
        for path in paths:
            data = after.read(path) if path.endswith(".py") else None
            for name, where in left_undefined(before.read(path), data) if data else ():
                yield in_patch(
                    "undefined",
                    patch,
                    f"on {one.rev} it leaves `{name}` undefined, which {path} uses"
                    + (f" in {where}" if where else ""),
                    "define it, or leave its definition in",
                )


def _overlaps(one: Tried) -> Iterator[Fault]:
    names = {applied.commit: applied.name for applied in one.tree.patches}
    for later, earlier, path, line in overlap.found(one.tree.checkout.repo, list(names)):
        yield Fault(
            rule="overlap", patch=names[later], where=f"{names[later]}/patch.toml",
            what=f"on {one.rev} it changes what {names[earlier]} wrote: {path}, line {line}",
            next="let one of the two make the whole change",
        )  # fmt: skip
