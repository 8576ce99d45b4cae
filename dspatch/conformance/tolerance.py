"""What each check accepts, from tolerance.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

KEYS = {"value", "unit", "noise", "fault", "reason", "date"}


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A limit in `unit`, between the largest `noise` and the smallest `fault` measured."""

    value: float
    unit: str
    noise: float
    fault: float
    reason: str
    date: str


@cache
def table() -> dict[tuple[str, str], Tolerance]:
    """Every tolerance, by (check, dtype)."""
    path = PACKAGE / "conformance" / "tolerance.toml"
    file = load(path, ConformanceError)
    return {
        (check, dtype): _read(check, dtype, entry)
        for check, dtypes in file.data.items()
        for dtype, entry in dtypes.items()
    }


def find(check: str, dtype: str) -> Tolerance | None:
    """The tolerance of a check in a dtype; nobody has measured it when there is none."""
    return table().get((check, dtype))


def _read(check: str, dtype: str, entry: dict[str, Any]) -> Tolerance:
    if entry.keys() != KEYS:
        raise ConformanceError(
            f"tolerance.toml, {check} in {dtype}: the keys must be {', '.join(sorted(KEYS))}."
        )
    return Tolerance(**{**entry, "date": str(entry["date"])})
