"""What running showed of a finding, release by release, and where nothing without a GPU can show it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspatch.pins import lookup
from dspatch.tomlfile import TomlFile

_RUN = ("revs", "has", "by", "stock", "patched", "date")
_NOT_RUN = ("revs", "why")


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """What was seen when releases ran: `stock`, and `patched` with the series, `None` where that is the same.

    Both are words of the outcome as `by`, a test or a committed proof, gives it; `has` says whether
    the stock outcome is the fault.
    """

    revs: tuple[str, ...]
    has: bool
    by: str
    stock: str
    patched: str | None
    date: datetime.date

    @property
    def words(self) -> str:
        """Both outcomes, in one line."""
        return f"stock: {self.stock}; patched: {self.patched or 'the same'} ({self.date})"


@dataclass(frozen=True, kw_only=True)
class Unshown:
    """Releases on which it was read and not run, and why a CPU cannot show it."""

    revs: tuple[str, ...]
    why: str


def confirmed(source: TomlFile) -> tuple[Confirmed, ...]:
    """The `[[confirmed]]` tables of a finding. Raises what the file's errors are."""
    return tuple(
        Confirmed(
            revs=_revs(source, row, "confirmed"),
            has=source.get(row, "has", bool, within="confirmed", default=True),
            by=source.get(row, "by", str, within="confirmed"),
            stock=source.get(row, "stock", str, within="confirmed"),
            patched=_patched(source, row),
            date=source.get(row, "date", datetime.date, within="confirmed"),
        )
        for row in source.tables(source.data, "confirmed", _RUN)
    )


def unshown(source: TomlFile) -> tuple[Unshown, ...]:
    """The `[[unshown]]` tables of a finding. Raises what the file's errors are."""
    return tuple(
        Unshown(
            revs=_revs(source, row, "unshown"),
            why=source.get(row, "why", str, within="unshown"),
        )
        for row in source.tables(source.data, "unshown", _NOT_RUN)
    )


def on(rows: Sequence[Confirmed], version: str | None) -> Confirmed | None:
    """What running showed on a release, where it ran."""
    if version is None:
        return None
    return next((row for row in rows if any(lookup.same(rev, version) for rev in row.revs)), None)


def _revs(source: TomlFile, row: Mapping[str, Any], within: str) -> tuple[str, ...]:
    revs = source.strings(row, "revs", within=within)
    if not revs:
        raise source.fail("`revs` must name releases", key="revs", within=within)
    return revs


def _patched(source: TomlFile, row: Mapping[str, Any]) -> str | None:
    return source.get(row, "patched", str, within="confirmed") if "patched" in row else None
