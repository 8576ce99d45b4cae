"""Decide, member by member, what an overlay holds: the base's bytes, the source's, the series'."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Never

from dspatch.errors import WheelError
from dspatch.wheel.base import OpenWheel
from dspatch.wheel.difference import same_as
from dspatch.wheel.identity import identity_members
from dspatch.wheel.names import stem
from dspatch.wheel.native import diff_paths
from dspatch.wheel.plan import Change, Difference, MemberChange, OverlayPlan, Rewrite

_WRITTEN: tuple[Change, ...] = ("patched", "added", "source", "extension")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into an overlay.

    `kept` maps names in the overlay to the base's members that are copied raw, in the base's order;
    `written` maps names to new bytes; `unpackaged` are changed files that lie outside the package.
    """

    dist_info: str
    kept: Mapping[str, str]
    written: Mapping[str, bytes]
    changes: tuple[MemberChange, ...]
    differences: tuple[Difference, ...]
    rewrites: tuple[Rewrite, ...]
    unpackaged: tuple[str, ...]


def decide(plan: OverlayPlan, base: OpenWheel, differences: tuple[Difference, ...]) -> Contents:
    """What each member of the overlay is, and the reason for all that are not the base's."""
    packaged, unpackaged = _packaged(plan, base)
    _check_pedigree(plan, base, packaged)
    kinds = _kinds(plan, base, packaged, differences)
    written = {path: _bytes(plan, path) for path, kind in kinds.items() if kind in _WRITTEN}
    identity, rewrites = identity_members(plan, base, written)
    written |= identity
    kinds |= dict.fromkeys(identity, "identity")
    own = stem(plan.name, plan.version)
    names = {base.renamed(path, own): path for path in base.infos}
    removed = {path for path, kind in kinds.items() if kind == "removed"}
    kept = {
        new: old
        for new, old in names.items()
        if new not in written and old not in removed and old != f"{base.dist_info}/RECORD"
    }
    return Contents(
        dist_info=f"{own}.dist-info",
        kept=kept,
        written=written,
        changes=tuple(_described(plan, base, kinds, written)),
        differences=differences,
        rewrites=rewrites,
        unpackaged=unpackaged,
    )


def _packaged(
    plan: OverlayPlan, base: OpenWheel
) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
    roots = base.roots
    inside = {path: data for path, data in plan.changes.items() if path.partition("/")[0] in roots}
    return inside, tuple(sorted(plan.changes.keys() - inside))


def _check_pedigree(
    plan: OverlayPlan, base: OpenWheel, packaged: Mapping[str, bytes | None]
) -> None:
    explained = frozenset[str]().union(*(diff_paths(patch.diff) for patch in plan.patches))
    roots = base.roots
    told = {path for path in explained if path.partition("/")[0] in roots}
    if odd := sorted(told.symmetric_difference(packaged)):
        _refuse(f"the patches' diffs and the changed files do not agree on {', '.join(odd)}")
    for path in plan.extensions:
        if path in base.infos or path in plan.source or path in plan.changes:
            _refuse(f"the extension {path} would replace a file of the engine")
        if path.partition("/")[0] not in roots:
            _refuse(f"the extension {path} lies outside {', '.join(sorted(roots))}")


def _kinds(
    plan: OverlayPlan,
    base: OpenWheel,
    packaged: Mapping[str, bytes | None],
    differences: Iterable[Difference],
) -> dict[str, Change]:
    kinds: dict[str, Change] = {}
    for difference in differences:
        if difference.kind == "differs":
            kinds[difference.path] = "source"
        elif difference.drop:
            kinds[difference.path] = "removed"
    for path, data in packaged.items():
        if data is None:
            kinds.pop(path, None)
            kinds |= {path: "removed"} if path in base.infos else {}
        elif path not in base.infos:
            kinds[path] = "added"
        else:
            kinds[path] = "same" if same_as(base, path, data) else "patched"
    return kinds | dict.fromkeys(plan.extensions, "extension")


def _bytes(plan: OverlayPlan, path: str) -> bytes:
    if path in plan.extensions:
        return plan.extensions[path].read_bytes()
    changed = plan.changes.get(path)
    return plan.source[path] if changed is None else changed


def _described(
    plan: OverlayPlan, base: OpenWheel, kinds: Mapping[str, Change], written: Mapping[str, bytes]
) -> Iterable[MemberChange]:
    touched = {patch.name: diff_paths(patch.diff) for patch in plan.patches}
    for path in sorted(kinds):
        by = tuple(name for name, paths in touched.items() if path in paths)
        sha256 = ""
        if path in written:
            sha256 = hashlib.sha256(written[path]).hexdigest()
        elif kinds[path] == "same":
            sha256 = base.entry(path).sha256
        yield MemberChange(path=path, change=kinds[path], sha256=sha256, patches=by)


def _refuse(why: str) -> Never:
    raise WheelError(
        "The overlay wheel cannot be built.",
        why=why,
        next="mend the plan: changes, patches and extensions must tell the same story",
    )
