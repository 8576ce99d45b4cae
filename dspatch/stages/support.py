"""Documents of what is supported: written from the matrix, and held against it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch.audit import backends, proofs, recorded, served
from dspatch.audit import finding as findings
from dspatch.carry.matrix import claimcheck, claims
from dspatch.errors import ClaimError
from dspatch.files import write_atomically
from dspatch.series import layered

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


def write(done: Measured, path: Path, *, native: bool) -> bool:
    """Write the matrix into a document between its marks; whether anything changed.

    native: whether native sources were read. Without them, raises `ClaimError` for a document that
    says what only they show, which would be lost.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if not native:
        _refuse_loss(done, before, path)
    after = claims.written(before or _TITLE, done.engine, done.releases, done.rows)
    after = with_served(after, done.engine, path.parent)
    if after != before:
        write_atomically(path, after.encode())
    return after != before


def _refuse_loss(done: Measured, before: str, path: Path) -> None:
    count = 0
    for block in claims.blocks(before, done.engine):
        with suppress(ValueError):  # what cannot be read is written anew
            count += claimcheck.lost(block, done.releases, done.rows)
    if count:
        raise ClaimError(
            f"{path} would lose what it says of {count} cells.",
            why="they rest on native sources, which were not read now",
            next=f"dspatch patch matrix --engine {done.engine} --native --write {path}",
        )


def check(done: Measured, path: Path) -> Checked:
    """Hold a document's claims against the matrix; raises `ClaimError` that names each difference."""
    found: list[str] = []
    open_cells = 0
    text = path.read_text(encoding="utf-8")
    blocks = claims.blocks(text, done.engine)
    if not blocks:
        found.append(f"it has no part between marks that is about {done.engine}")
    readable = True
    for block in blocks:
        try:
            differing, unread = claimcheck.differences(block, done.releases, done.rows)
        except ValueError as error:
            readable = False
            found.append(f"a part of it cannot be read: {error}")
            continue
        found += map(str, differing)
        open_cells += unread
    # The table of models is made from those parts.
    if readable and with_served(text, done.engine, path.parent) != text:
        found.append("its table of models is not what findings, patches and proofs make of it")
    if found:
        raise ClaimError(
            f"{path} claims what was not measured, in {len(found)} places.",
            why="\n        ".join(found),
            next=f"mend the patches, or dspatch patch matrix --engine {done.engine} --native --write {path}",
        )
    return Checked(blocks=len(blocks), open_cells=open_cells)


def with_served(document: str, engine: str, folder: Path) -> str:
    """The document with its table of models written anew, where it has one: from what it says of patches.

    folder: that of the document; the proofs lie in its `proofs`. Raises `ClaimError` for one that
    cannot be read.
    """
    if not served.asked(document, engine):
        return document
    noted = recorded.load(engine)
    whole = [block for block in claims.blocks(document, engine) if not block.kind]
    known = served.Known(
        engine=engine,
        findings=findings.load_all(engine, layered(engine).traits),
        recorded=noted,
        verdicts=claimcheck.claimed_of(whole[0], noted.releases) if whole else {},
        proofs=tuple(each for each in proofs.load(folder / "proofs") if each.engine == engine),
        stock=proofs.stock(folder / "proofs" / "audit-truth.json") if engine == "vllm" else {},
        backends=backends.load(engine, folder / "proofs"),
    )
    return served.written(document, known)
