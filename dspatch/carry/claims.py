"""What a document says of patches and releases: written from the matrix between two marks, held against it later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

from packaging.version import Version

from dspatch.carry import spans
from dspatch.carry.matrix import APPLIES, Cell

Kind = Literal["", "brief"]
WHY = 160  # characters; the whole reason is in --json

_HEAD: dict[Kind, tuple[str, ...]] = {
    "": ("patch", "target", "releases", "verdict", "why"),
    "brief": ("patch", "target", "applies to"),
}
_SCOPE = re.compile(r"^(\d+) releases, (\S+) to (\S+)\.$", re.M)


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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Releases on which a document and the measurement do not agree."""

    patch: str
    target: str
    releases: str
    claimed: str
    measured: str
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        where = f"{self.patch} on {self.target}, {self.releases}"
        return f"{where}: claimed {self.claimed}, measured {self.measured}{why}"


# -- written -----------------------------------------------------------------------------------


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
    for kind in _HEAD:
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
    head = _HEAD[kind]
    lines = [head, ("---",) * len(head), *_lines(kind, releases, rows)]
    table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
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


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# -- held against the measurement -----------------------------------------------------------------


def differences(
    block: Block, releases: Sequence[str], rows: Sequence[Row]
) -> tuple[list[Difference], int]:
    """Where a block and the measurement disagree, and how many cells could not be compared.

    Only releases up to the newest that the block speaks of are compared. A cell that either side
    did not measure cannot be. Raises `ValueError` for a block that cannot be read.
    """
    scope = _SCOPE.search(block.text)
    if scope is None:
        raise ValueError("it does not say which releases it speaks of")
    spoken_of = [v for v in releases if Version(scope[2]) <= Version(v) <= Version(scope[3])]
    claimed = _claims(block, spoken_of)
    measured = {
        (row.patch, row.target, version): row.cells[version]
        for row in rows
        for version in spoken_of
        if version in row.cells
    }
    open_cells = [key for key in measured if _is_open(claimed.get(key), measured[key])]
    keys = [key for key in dict.fromkeys([*measured, *claimed]) if key not in set(open_cells)]
    found = [
        (key, said, seen)
        for key in keys
        if (said := claimed.get(key, "nothing")) != (seen := _seen(block.kind, measured.get(key)))
    ]
    return list(_grouped(found, measured, spoken_of)), len(open_cells)


def _claims(block: Block, releases: Sequence[str]) -> dict[tuple[str, str, str], str]:
    """What is claimed of each cell; a cell that is spoken of twice has both claims."""
    found: dict[tuple[str, str, str], str] = {}
    for key, said in _lines_read(block, releases):
        before = found.get(key, said)
        found[key] = said if before == said else f"{before} and {said}"
    return found


def _lines_read(
    block: Block, releases: Sequence[str]
) -> Iterator[tuple[tuple[str, str, str], str]]:
    for line in block.text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != len(_HEAD[block.kind]) or cells[0] in ("patch", "---"):
            continue
        patch, targets, text = cells[0].strip("`"), cells[1].split(", "), cells[2]
        named = set(spans.expand(text, releases)) if text != "no release" else set()
        for target in targets:
            for version in releases if block.kind == "brief" else named:
                said = "applies" if version in named else "does not apply"
                yield (patch, target, version), cells[3] if block.kind == "" else said


def _seen(kind: Kind, cell: Cell | None) -> str:
    if cell is None:
        return "nothing"
    if kind == "":
        return cell.verdict
    return "applies" if cell.verdict in APPLIES else "does not apply"


def _is_open(claimed: str | None, cell: Cell) -> bool:
    unread = cell.verdict == "not measured" and bool(cell.native)
    return unread or (claimed == "not measured" and cell.verdict != "not measured")


def _grouped(
    found: Sequence[tuple[tuple[str, str, str], str, str]],
    measured: Mapping[tuple[str, str, str], Cell],
    releases: Sequence[str],
) -> Iterator[Difference]:
    order = {version: at for at, version in enumerate(releases)}
    ordered = sorted(found, key=lambda item: (item[0][:2], order[item[0][2]]))
    for (patch, target, claimed, seen), group in groupby(
        ordered, key=lambda item: (*item[0][:2], item[1], item[2])
    ):
        versions = [item[0][2] for item in group]
        cells = [measured.get((patch, target, version)) for version in versions]
        yield Difference(
            patch=patch,
            target=target,
            releases=spans.runs(versions, releases),
            claimed=claimed,
            measured=seen,
            why=told(list(dict.fromkeys(cell.why for cell in cells if cell and cell.why))),
        )
