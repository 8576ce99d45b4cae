"""The upstream symbols that new and changed patches use, recorded as they are on the pin at hand."""

from __future__ import annotations

from collections.abc import Iterable

from dspatch import paths
from dspatch.apply import PatchedTree
from dspatch.carry import usesfile
from dspatch.carry.layer import Draft
from dspatch.carry.linttrees import Tried, record
from dspatch.pins.lookup import same
from dspatch.series import Series


def record_uses(draft: Draft, names: Iterable[str], series: Series, tree: PatchedTree) -> None:
    """Write into the draft what each patch uses, for those that were written for this very pin.

    `series` and `tree` are those of the draft. So a symbol that changes in a later release is told
    for the user's own patches too.
    """
    rev = tree.checkout.rev
    homes = {patch.name: patch for patch in series.patches}
    for name in names:
        patch = homes[name]
        folder = draft.home(patch)
        if patch.written_for is None or not same(patch.written_for, rev):
            continue
        if paths.is_installed(folder):
            continue
        target = next((t for t in patch.targets), "cpu")
        found = record(patch, [Tried(rev=rev, target=target, tree=tree)])
        path = folder / usesfile.NAME
        text = usesfile.write(found).encode() if found else None
        if draft.read(path) != text:
            draft.changes[path] = text
