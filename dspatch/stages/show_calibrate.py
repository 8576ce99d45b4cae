"""A calibration as a table of noise, tolerance and fault, and as the object that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dspatch.bench.limits import Row
from dspatch.conformance.render import number
from dspatch.console import Console
from dspatch.stages.calibrate import Calibrated
from dspatch.stages.show import relative

HEADERS = ("CHECK", "DTYPE", "DEVICE", "NOISE", "TOLERANCE", "WEAKEST FAULT", "", "UNIT")


def written(done: Calibrated, console: Console) -> None:
    """Every row that was measured, and the file."""
    console.table(HEADERS, [_cells(row) for row in done.rows])
    console.say(f"{relative(done.file)}: written, measured on {', '.join(done.engines)}")
    console.result(
        {"file": done.file, "engines": list(done.engines), "rows": [_as_dict(r) for r in done.rows]}
    )


def _cells(row: Row) -> tuple[str, ...]:
    new = row.new
    value = "none" if new.value is None else number(new.value)
    return (*row.key, number(new.noise), value, number(new.fault), row.verdict, new.unit)


def _as_dict(row: Row) -> dict[str, Any]:
    check, dtype, device = row.key
    return {
        "check": check,
        "dtype": dtype,
        "device": device,
        **asdict(row.new),
        "verdict": row.verdict,
        "before": None if row.old is None else row.old.value,
        "measured": {k: v for k, v in asdict(row.band).items() if k != "key"},
    }
