"""A series on a release that is no pin, read where it lies: for the record of what a patch uses there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspatch import batch
from dspatch.carry.uses import uses
from dspatch.traits import Traits

if TYPE_CHECKING:
    from dspatch.carry.uses.uses import Used
    from dspatch.onto import Place
    from dspatch.patchfile import Patch
    from dspatch.series import Series
    from dspatch.traits import Trait
    from dspatch.treefiles import Files
    from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Step:
    """One patch that applied: the paths that it changed, and the files before and after it."""

    paths: tuple[str, ...]
    before: Files
    after: Files


@dataclass(frozen=True, kw_only=True)
class Released:
    """A series on a release that is no pin, for one target: as much of `Tried` as records need."""

    rev: str
    files: Files
    steps: Mapping[str, Step]
    _used: dict[str, Used] = field(default_factory=dict, init=False, repr=False, compare=False)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Nothing has to be held open for its files."""
        yield

    def facts(self, known: Mapping[str, Trait]) -> Traits:
        """What the patched release is, each trait read when it is first asked for."""
        return Traits(known, self.files.read)

    def used(self, patch: Patch) -> Used:
        """What the code of a patch that applied uses of upstream; read once."""
        if patch.name not in self._used:
            step = self.steps[patch.name]
            self._used[patch.name] = uses.used(step.paths, step.before.read, step.after.read)
        return self._used[patch.name]

    def applied(self, patch: Patch) -> Step | None:
        """How a patch was applied there, `None` when it was not."""
        return self.steps.get(patch.name)


def on_release(
    series: Series, files: Files, place: Place, *, target: str, variants: Sequence[Variant]
) -> Released:
    """The series on a release's files; a patch that does not apply there is left out."""
    facts = place.context.traits
    families = [variant.families for variant in variants]
    steps: dict[str, Step] = {}
    for patch in series.patches:
        planned = series.planned(patch, facts, target, families)
        if not planned.applies:
            continue
        (result,) = batch.changes_of([planned.patch], files, place)
        if result.outcome is not None:
            after = files.with_changes(result.outcome.changes)
            steps[patch.name] = Step(paths=tuple(result.outcome.changes), before=files, after=after)
            files = after
    return Released(rev=place.rev, files=files, steps=steps)
