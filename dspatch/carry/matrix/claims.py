"""What a document says of patches and releases, written from the matrix between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dspatch import markdown
from dspatch.carry.matrix import spans
from dspatch.carry.matrix.matrix import APPLIES, Cell

Kind = Literal["", "brief"]
WHY = 160  # characters; the whole reason is in --json

HEAD: dict[Kind, tuple[str, ...]] = {
    "": ("patch", "target", "releases", "verdict", "why"),
    "brief": ("patch", "target", "applies to"),
}


class Row(Protocol):
    """A patch and target with its cells by release, oldest first."""

    @property
    def patch(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def cells(self) -> Mapping[str, Cell]: ...


@dataclass(frozen=True, kw_only=True)
class Block:
    """The part of a document that is written from the matrix: where it lies and what it holds."""

    kind: Kind
    start: int
    end: int
    text: str


def written(document: str, engine: str, releases: Sequence[str], rows: Sequence[Row]) -> str:
    """The document with its blocks of an engine written anew; without any, with one at its end."""
    found = blocks(document, engine)
    for block in reversed(found):
        document = (
            document[: block.start] + _body(block.kind, releases, rows) + document[block.end :]
        )
    if found:
        return document
    opening, closing = _marks(engine, "")
    gap = "\n" if document and not document.endswith("\n\n") else ""
    body = _body("", releases, rows)
    return f"{document}{gap}## {engine}\n\n{opening}{body}{closing}\n"


def blocks(document: str, engine: str) -> list[Block]:
    """The blocks of an engine, in order; one whose end mark is missing is none."""
    found = []
    for kind in HEAD:
        opening, closing = map(re.escape, _marks(engine, kind))
        for match in re.finditer(f"{opening}(.*?){closing}", document, re.S):
            start, end = match.span(1)
            found.append(Block(kind=kind, start=start, end=end, text=match[1]))
    return sorted(found, key=lambda block: block.start)


def _marks(engine: str, kind: Kind) -> tuple[str, str]:
    name = f"dspatch matrix {engine}" + (f" {kind}" if kind else "")
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def _body(kind: Kind, releases: Sequence[str], rows: Sequence[Row]) -> str:
    if not releases:
        return "\nNo release is of interest.\n"
    scope = f"{len(releases)} releases, {releases[0]} to {releases[-1]}."
    if not rows:
        return f"\n{scope}\n\nThere are no patches.\n"
    lines = [[cell.replace("<", "&lt;") for cell in line] for line in _lines(kind, releases, rows)]
    table = "\n".join(markdown.table(HEAD[kind], lines))
    return f"\n{scope}\n\n{table}\n"


def _lines(kind: Kind, releases: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for joined in _joined(rows):
        one, targets = joined[0], ", ".join(row.target for row in joined)
        if kind == "brief":
            on = [version for version, cell in one.cells.items() if cell.verdict in APPLIES]
            yield f"`{one.patch}`", targets, spans.runs(on, releases) or "no release"
            continue
        for span in spans.of_cells(one.cells):
            yield f"`{one.patch}`", targets, str(span), span.verdict, told(span.whys)


def _joined(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one patch whose verdicts are the same on every release, as one."""
    found: list[list[Row]] = []
    for row in rows:
        same = next((group for group in found if _same(group[0], row)), None)
        if same is None:
            found.append([row])
        else:
            same.append(row)
    return found


def _same(one: Row, other: Row) -> bool:
    verdicts = [{v: cell.verdict for v, cell in row.cells.items()} for row in (one, other)]
    return one.patch == other.patch and verdicts[0] == verdicts[1]


def told(whys: Sequence[str]) -> str:
    """The first reason, cut to what a table holds, and how many others there are."""
    if not whys:
        return ""
    first = whys[0] if len(whys[0]) <= WHY else whys[0][: WHY - 1].rstrip() + "…"
    return first + (f" (and {len(whys) - 1} more)" if len(whys) > 1 else "")
