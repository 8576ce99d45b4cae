"""How the patches of a series differ between two revisions of an engine, patch by patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dspatch.apply import AppliedPatch, PatchedTree

Verdict = Literal["same", "changed", "only on the first", "only on the second", "on neither"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One patch on two revisions: git's diff of its two diffs where they differ, or why one lacks it."""

    patch: str
    verdict: Verdict
    diff: str = ""
    why: str = ""


def pairs(old: PatchedTree, new: PatchedTree) -> tuple[Pair, ...]:
    """Every patch of a series, in its order, as it is on two revisions."""
    before, after = _by_name(old), _by_name(new)
    names = dict.fromkeys(item.patch.name for item in (*old.plan, *new.plan))
    return tuple(_pair(name, before, after, old, new) for name in names)


def _by_name(tree: PatchedTree) -> dict[str, AppliedPatch]:
    return {patch.name: patch for patch in tree.patches}


def _pair(
    name: str,
    before: Mapping[str, AppliedPatch],
    after: Mapping[str, AppliedPatch],
    old: PatchedTree,
    new: PatchedTree,
) -> Pair:
    if name in before and name in after:
        text = old.checkout.repo.range_diff(before[name].commit, after[name].commit)
        return Pair(patch=name, verdict="changed" if text else "same", diff=text)
    if name in before:
        return Pair(patch=name, verdict="only on the first", why=_why(name, new))
    if name in after:
        return Pair(patch=name, verdict="only on the second", why=_why(name, old))
    return Pair(patch=name, verdict="on neither", why=_why(name, new))


def _why(name: str, tree: PatchedTree) -> str:
    found = next((item for item in tree.plan if item.patch.name == name), None)
    if found is None:
        return "the series has no such patch there"
    return f"{found.status}: {found.why}" if found.why else found.status
