"""What a document says of patches and releases, held against the matrix: every difference by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from packaging.version import Version

from dspatch.carry.matrix import spans
from dspatch.carry.matrix.claims import HEAD, Block, Kind, Row, told
from dspatch.carry.matrix.matrix import APPLIES, Cell

_SCOPE = re.compile(r"^(\d+) releases, (\S+) to (\S+)\.$", re.M)
_Key = tuple[str, str, str]  # patch, target, release


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


def differences(
    block: Block, releases: Sequence[str], rows: Sequence[Row]
) -> tuple[list[Difference], int]:
    """Where a block and the measurement disagree, and how many cells could not be compared.

    Only releases up to the newest that the block speaks of are compared. A cell that either side
    did not measure cannot be. Raises `ValueError` for a block that cannot be read.
    """
    spoken_of, claimed, measured = _sides(block, releases, rows)
    open_cells = {key for key in measured if _is_open(claimed.get(key), measured[key])}
    keys = [key for key in dict.fromkeys([*measured, *claimed]) if key not in open_cells]
    found = [
        (key, said, seen)
        for key in keys
        if (said := claimed.get(key, "nothing")) != (seen := _seen(block.kind, measured.get(key)))
    ]
    return list(_grouped(found, measured, spoken_of)), len(open_cells)


def lost(block: Block, releases: Sequence[str], rows: Sequence[Row]) -> int:
    """How many cells a block says something of that were not read now: written anew, it would not.

    Raises `ValueError` for a block that cannot be read.
    """
    _, claimed, measured = _sides(block, releases, rows)
    silent = (None, "not measured", "does not apply")  # the last is what a brief block leaves out
    return sum(_unread(cell) and claimed.get(key) not in silent for key, cell in measured.items())


def _sides(
    block: Block, releases: Sequence[str], rows: Sequence[Row]
) -> tuple[list[str], dict[_Key, str], dict[_Key, Cell]]:
    """The releases that a block speaks of, what it claims of each cell, and what was measured."""
    scope = _SCOPE.search(block.text)
    if scope is None:
        raise ValueError("it does not say which releases it speaks of")
    spoken_of = [v for v in releases if Version(scope[2]) <= Version(v) <= Version(scope[3])]
    measured = {
        (row.patch, row.target, version): row.cells[version]
        for row in rows
        for version in spoken_of
        if version in row.cells
    }
    return spoken_of, claimed_of(block, spoken_of), measured


def claimed_of(block: Block, releases: Sequence[str]) -> dict[_Key, str]:
    """What is claimed of each cell; a cell that is spoken of twice has both claims."""
    found: dict[_Key, str] = {}
    for key, said in _lines_read(block, releases):
        before = found.get(key, said)
        found[key] = said if before == said else f"{before} and {said}"
    return found


def _lines_read(block: Block, releases: Sequence[str]) -> Iterator[tuple[_Key, str]]:
    for line in block.text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != len(HEAD[block.kind]) or cells[0] in ("patch", "---"):
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
    return _unread(cell) or (claimed == "not measured" and cell.verdict != "not measured")


def _unread(cell: Cell) -> bool:
    return cell.verdict == "not measured" and bool(cell.native)


def _grouped(
    found: Sequence[tuple[_Key, str, str]],
    measured: Mapping[_Key, Cell],
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
