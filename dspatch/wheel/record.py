"""RECORD: the hash and size of every member of a wheel."""

from __future__ import annotations

import csv
import hashlib
import io
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file

from dspatch.errors import WheelError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A RECORD row: sha256 as lower-case hex (empty when it has none) and size in bytes."""

    sha256: str
    size: int


def entry_of(data: bytes) -> Entry:
    """The row for a member with these bytes."""
    return Entry(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def read_record(text: str) -> dict[str, Entry | None]:
    """The rows of a RECORD by path, None for those without a hash (RECORD itself).

    Raises `WheelError` for a malformed row, a hash other than sha256, or a path that comes twice.
    """
    rows: dict[str, Entry | None] = {}
    try:
        for elements in parse_record_file(text.splitlines()):
            row = RecordEntry.from_elements(*elements)
            if row.path in rows:
                raise ValueError(f"{row.path} is there twice")
            rows[row.path] = _entry(row)
    except (InvalidRecordEntry, ValueError, csv.Error) as error:
        raise _malformed(error) from None
    return rows


def paths_of(text: str) -> set[str]:
    """The paths that a RECORD names, whatever else is wrong with its rows."""
    try:
        return {row[0].replace("\\", "/") for row in csv.reader(text.splitlines()) if row}
    except csv.Error as error:
        raise _malformed(error) from None


def write_record(rows: Mapping[str, Entry], own_path: str) -> bytes:
    """RECORD's bytes for these members and for itself (`own_path`), sorted by path."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(_rows(rows, own_path))
    return text.getvalue().encode()


def _rows(rows: Mapping[str, Entry], own_path: str) -> Iterable[tuple[str, str, str]]:
    for path in sorted([*rows, own_path]):
        if path == own_path:
            yield RecordEntry(path, None, None).to_row()
        else:
            digest = urlsafe_b64encode(bytes.fromhex(rows[path].sha256)).decode().rstrip("=")
            yield RecordEntry(path, Hash("sha256", digest), rows[path].size).to_row()


def _malformed(error: Exception) -> WheelError:
    return WheelError(
        "The wheel's RECORD is malformed.",
        why=str(error),
        next="delete the wheel and fetch or build it again",
    )


def _entry(row: RecordEntry) -> Entry | None:
    if row.hash_ is None or row.size is None:
        return None
    if row.hash_.name != "sha256":
        raise ValueError(f"{row.path} has a {row.hash_.name} hash, sha256 is read")
    digest = urlsafe_b64decode(row.hash_.value + "=" * (-len(row.hash_.value) % 4))
    return Entry(sha256=digest.hex(), size=row.size)
