"""A series on one pinned revision, as the rules that need trees look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspatch.apply import AppliedPatch, PatchedTree
from dspatch.patchfile import Patch
from dspatch.traits import Trait, Traits
from dspatch.treefiles import of_tree


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A series on one pinned revision, for one target."""

    rev: str
    target: str
    tree: PatchedTree

    def facts(self, known: Mapping[str, Trait]) -> Traits:
        """What the patched tree is, each trait read when it is first asked for."""
        return Traits(known, of_tree(self.tree.checkout.repo, self.tree.commit).read)

    def applied(self, patch: Patch) -> AppliedPatch | None:
        """How a patch was applied there, `None` when it was not."""
        return next((a for a in self.tree.patches if a.name == patch.name), None)
