"""The matrix as a table of ranges, a few lines for one release, Markdown, and the object that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.carry.matrix import claims, spans
from dspatch.carry.matrix.matrix import APPLIES, FAILS, Cell
from dspatch.stages.show import relative, whether_written

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.stages.matrix import Measured
    from dspatch.stages.support import Checked


def matrix(done: Measured, console: Console) -> None:
    """Every patch with its verdicts, consecutive releases as one range."""
    rows = [
        (row.patch, row.target, str(span), span.verdict, claims.told(span.whys))
        for row in done.rows
        for span in spans.of_cells(row.cells)
    ]
    console.table(("PATCH", "TARGET", "RELEASES", "VERDICT", ""), rows)
    if not rows:
        console.say(f"{done.engine}: no patch to try on {len(done.releases)} releases")
    _notes(done, console)
    console.result(as_dict(done))


def markdown(done: Measured, console: Console) -> None:
    """The block that documents hold."""
    console.say(claims.written("", done.engine, done.releases, done.rows).rstrip("\n"))
    _notes(done, console)
    console.result(as_dict(done))


def summary(done: Measured, console: Console) -> None:
    """What applies to one release, what does not, and why."""
    (release,) = done.releases
    cells = [row.cells[release] for row in done.rows]
    for target in dict.fromkeys(cell.target for cell in cells):
        mine = [cell.verdict in APPLIES for cell in cells if cell.target == target]
        counts = f"{sum(mine)} of {len(mine)} patches apply"
        console.say(f"{done.engine} {release}, {target}: {counts}")
    rows: list[tuple[str, str, str, str]] = [
        (cell.patch, cell.target, cell.verdict, claims.told([cell.why] if cell.why else []))
        for cell in sorted(cells, key=_importance)
    ]
    rows += [(name, "", "not for it", why) for name, why in done.outside.items()]
    console.table(("PATCH", "TARGET", "VERDICT", ""), rows)
    if not rows:
        console.say(f"{done.engine} {release}: there are no patches")
    _notes(done, console)
    console.result(as_dict(done))


def _importance(cell: Cell) -> int:
    order = [*APPLIES, *FAILS, "not measured", "upstreamed", "not needed"]
    return order.index(cell.verdict)


def _notes(done: Measured, console: Console) -> None:
    for note in done.notes:
        console.note(f"note: {note}")
    console.note(
        f"{done.fresh} cells measured, {done.kept} as measured before; "
        f"{done.bytes / 1e6:.1f} MB in {done.requests} requests, {done.seconds:.1f} s"
    )


def as_dict(done: Measured) -> dict[str, Any]:
    """The matrix as an object."""
    rows = [
        {
            "patch": row.patch,
            "target": row.target,
            "cells": {
                version: {"verdict": cell.verdict, "why": cell.why, "native": list(cell.native)}
                for version, cell in row.cells.items()
            },
        }
        for row in done.rows
    ]
    return {
        **asdict(done),
        "releases": list(done.releases),
        "rows": rows,
        "notes": list(done.notes),
    }


def wrote(changed: bool, path: Path, done: Measured, console: Console) -> None:
    """Whether the document had to be changed."""
    console.say(whether_written(path, changed))
    _notes(done, console)
    console.result({"path": path, "changed": changed, "matrix": as_dict(done)})


def checked(held: Checked, path: Path, done: Measured, console: Console) -> None:
    """That a document claims nothing but what was measured."""
    unread = f"; {held.open_cells} cells not compared, --native measures them"
    console.say(f"{relative(path)}: holds" + (unread if held.open_cells else ""))
    _notes(done, console)
    console.result({"path": path, "holds": True, "open": held.open_cells, "matrix": as_dict(done)})
