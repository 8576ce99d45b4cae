"""A series on one pinned revision, as the rules that need trees look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from dspatch.apply import AppliedPatch, PatchedTree
from dspatch.carry.uses import uses
from dspatch.carry.uses.uses import Used
from dspatch.patchfile import Patch
from dspatch.traits import Trait, Traits
from dspatch.treefiles import Files, of_tree


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A series on one pinned revision, for one target."""

    rev: str
    target: str
    tree: PatchedTree
    _used: dict[str, Used] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def files(self) -> Files:
        """The files of the patched tree."""
        return of_tree(self.tree.checkout.repo, self.tree.commit)

    def reading(self) -> AbstractContextManager[object]:
        """Holds what reads many files at once."""
        return self.tree.checkout.repo.reading()

    def facts(self, known: Mapping[str, Trait]) -> Traits:
        """What the patched tree is, each trait read when it is first asked for."""
        return Traits(known, self.files.read)

    def used(self, patch: Patch) -> Used:
        """What the code of a patch that was applied there uses of upstream; read once."""
        if patch.name not in self._used:
            with self.around(patch) as (paths, before, after):
                self._used[patch.name] = uses.used(paths, before.read, after.read)
        return self._used[patch.name]

    @contextmanager
    def around(
        self, patch: Patch, *, whole: bool = True
    ) -> Iterator[tuple[Sequence[str], Files, Files]]:
        """The paths that a patch changed there, and the files before and after it; not whole: those paths."""
        applied = self.applied(patch)
        assert applied is not None
        repo, seen = self.tree.checkout.repo, () if whole else applied.paths
        before, after = (of_tree(repo, c, seen) for c in (f"{applied.commit}^", applied.commit))
        with repo.reading():
            yield applied.paths, before, after

    def applied(self, patch: Patch) -> AppliedPatch | None:
        """How a patch was applied there, `None` when it was not."""
        return next((a for a in self.tree.patches if a.name == patch.name), None)
