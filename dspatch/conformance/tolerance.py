"""What each check accepts, from tolerance.toml and from a file of one's own."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dspatch.conformance import statistic
from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

APART = 2.0  # times: as far as noise and fault are apart where a place is told
KEYS = {"unit", "noise", "fault", "reason", "date"}
Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A limit in `unit`, between the largest `noise` and the smallest `fault` measured.

    Without a `value` the two are too close: there the check decides nothing.
    """

    value: float | None
    unit: str
    noise: float
    fault: float
    reason: str
    date: str

    @property
    def limit(self) -> float:
        """The value of a tolerance that decides."""
        assert self.value is not None
        return self.value

    @property
    def band(self) -> float | None:
        """Up to where noise is thought to reach, by those who look for the place of what another check found.

        The limit; without one the geometric mean of noise and weakest fault, if they are `APART`.
        """
        if self.value is not None:
            return self.value
        return math.sqrt(self.noise * self.fault) if self.fault >= APART * self.noise else None


def shipped() -> Path:
    """The table that comes with dspatch."""
    return PACKAGE / "conformance" / "tolerance.toml"


def own() -> Path | None:
    """A table of the user's own, whose rows go before those that ship: `DSPATCH_TOLERANCES`."""
    given = os.environ.get("DSPATCH_TOLERANCES")
    return Path(given).expanduser().resolve() if given else None


def table() -> Mapping[Key, Tolerance]:
    """Every row, by (check, dtype, device); raises `ConformanceError` for a file that is none."""
    mine = own()
    return {**read(shipped()), **(read(mine) if mine else {})}


def find(check: str, dtype: str, device: str = "cpu") -> Tolerance | None:
    """The tolerance of a check in a dtype on a device; `None` where none decides."""
    found = row(check, dtype, device)
    return found if found is not None and found.value is not None else None


def row(check: str, dtype: str, device: str = "cpu") -> Tolerance | None:
    """The same, or what was measured where noise cannot be told from fault; `None` where nobody measured.

    A row of the worst token says nothing of a typical one, which the check may measure in this dtype.
    """
    found = table().get((check, dtype, device))
    return found if found is not None and statistic.of(check, dtype, found.unit, device) else None


def unmeasured(checks: Iterable[str], dtype: str, device: str) -> list[str]:
    """Those of the checks that would fail, as nobody has measured them in a dtype on a device."""
    return [check for check in checks if row(check, dtype, device) is None]


def why_none(check: str, dtype: str, device: str = "cpu") -> str:
    """Why no tolerance of a check decides: nobody measured one, or noise hides the weakest fault."""
    known = row(check, dtype, device)
    if known is None:
        stale = " that is of what it measures" if (check, dtype, device) in table() else ""
        return f"tolerance.toml has no tolerance for {check} in {dtype} on {device}{stale}"
    return (
        f"in {dtype} on {device} it decides nothing: noise reaches {known.noise:.2g}"
        f" {known.unit}, the weakest fault {known.fault:.2g}"
    )


@cache
def read(path: Path) -> Mapping[Key, Tolerance]:
    """The rows of one file. Raises `ConformanceError` with file and row."""
    data = load(path, ConformanceError).data
    rows: dict[Key, Tolerance] = {}
    for check, dtypes in data.items():
        for dtype, devices in _tables(path, dtypes, check):
            for device, entry in _tables(path, devices, f"{check} in {dtype}"):
                rows[check, dtype, device] = _row(path, f"{check} in {dtype} on {device}", entry)
    return rows


def _tables(path: Path, value: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise ConformanceError(f"{path.name}, {where}: rows are named by check, dtype and device.")
    return list(value.items())


def _row(path: Path, where: str, entry: Any) -> Tolerance:
    keys = entry.keys() if isinstance(entry, Mapping) else set()
    if keys - {"value"} != KEYS:
        raise ConformanceError(
            f"{path.name}, {where}: the keys must be {', '.join(sorted(KEYS))}, and `value` where"
            " the check decides."
        )
    return Tolerance(**{"value": None, **entry, "date": str(entry["date"])})
