"""Documents of what is supported: written from the matrix, and held against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch.carry.matrix import claimcheck, claims
from dspatch.errors import ClaimError
from dspatch.files import write_atomically

if TYPE_CHECKING:
    from dspatch.stages.matrix import Measured

_TITLE = """\
# Which patch applies to which release

Measured by `dspatch patch matrix`, which writes this page and fails when it is no longer true.

* *semantic*, *strict*, *merged*: the patch applies, by its edits, as a diff, as a diff merged three-way.
* *not needed*: a trait that it needs does not hold. *upstreamed*: the release has the change already.
* *conflict*: it does not apply. *missing*: a file that it changes is not there.
* *signature drift*: it applies, but upstream code that it uses is not what it was written for.
* *not measured*: it rests on native sources, which wheels do not hold, and sdists were not asked for.
"""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """How a document that holds was held: blocks compared, and cells that one side did not measure."""

    blocks: int
    open_cells: int


def write(done: Measured, path: Path) -> bool:
    """Write the matrix into a document between its marks; whether anything changed."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = claims.written(before or _TITLE, done.engine, done.releases, done.rows)
    if after != before:
        write_atomically(path, after.encode())
    return after != before


def check(done: Measured, path: Path) -> Checked:
    """Hold a document's claims against the matrix; raises `ClaimError` that names each difference."""
    found: list[str] = []
    open_cells = 0
    blocks = claims.blocks(path.read_text(encoding="utf-8"), done.engine)
    if not blocks:
        found.append(f"it has no part between marks that is about {done.engine}")
    for block in blocks:
        try:
            differing, unread = claimcheck.differences(block, done.releases, done.rows)
        except ValueError as error:
            differing, unread = [], 0
            found.append(f"a part of it cannot be read: {error}")
        found += map(str, differing)
        open_cells += unread
    if found:
        raise ClaimError(
            f"{path} claims what was not measured, in {len(found)} places.",
            why="\n        ".join(found),
            next=f"mend the patches, or dspatch patch matrix --engine {done.engine} --write {path}",
        )
    return Checked(blocks=len(blocks), open_cells=open_cells)
