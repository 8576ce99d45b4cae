"""RECORD of an installed distribution, read and written again the way its installer wrote it."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .manifest import hash_of
from .misfit import Misfit

if TYPE_CHECKING:
    Row = tuple[str, str, str]


@dataclass(frozen=True)
class Record:
    """Rows of path, hash and size as they stand, in their order, and the line end between them."""

    rows: tuple[Row, ...]
    end: str = "\n"

    @property
    def by_path(self) -> dict[str, Row]:
        """The rows by their paths."""
        return {row[0]: row for row in self.rows}

    @property
    def ordered(self) -> bool:
        """Whether its installer sorted the rows."""
        return list(self.rows) == sorted(self.rows)

    def replaced(self, rows: Iterable[Row]) -> Record:
        """The record with other rows, in the order that its installer would give them."""
        rows = list(rows)
        return Record(rows=tuple(sorted(rows) if self.ordered else rows), end=self.end)

    def text(self) -> bytes:
        """The file's bytes."""
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator=self.end).writerows(self.rows)
        return out.getvalue().encode("utf-8")


def read(data: bytes) -> Record:
    """Read a RECORD; raises `Misfit` when a row has no three columns."""
    text = data.decode("utf-8")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if any(len(row) != 3 for row in rows):
        raise Misfit("The RECORD of the installed distribution is damaged.", next="install it anew")
    end = "\r\n" if "\r\n" in text else "\n"
    return Record(rows=tuple((row[0], row[1], row[2]) for row in rows), end=end)


def row_of(path: str, data: bytes) -> Row:
    """The row of a file with these bytes."""
    return path, row_hash(hash_of(data)), str(len(data))


def row_hash(sha256: str) -> str:
    """A sha256 as RECORD writes it."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode("ascii").rstrip("=")
    return f"sha256={digest}"


def members_hash(rows: Mapping[str, Row]) -> str:
    """One hash over all files of a package: what installers add to a wheel does not count."""
    lines = [",".join(rows[path]) for path in sorted(rows) if _is_member(path)]
    return hash_of("\n".join(lines).encode("utf-8"))


def _is_member(path: str) -> bool:
    top = path.split("/")[0]
    outside = top == ".." or top.endswith((".dist-info", ".data")) or path.startswith("/")
    return not outside and not path.endswith(".pyc")
