"""Lint rule on goldens: each is what its patch renders to, and none is left of where it does not apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dspatch.carry.lint import goldens
from dspatch.carry.lint.lint import Fault
from dspatch.carry.lint.tried import Tried
from dspatch.patchfile import Patch
from dspatch.series import Series


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


def rule(series: Series, patch: Patch, tried: Sequence[Tried]) -> Iterator[Fault]:
    """Every golden is what is rendered; a patch that ships has one of every pin it applies to."""
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
