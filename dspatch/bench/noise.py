"""What each check measured on healthy engines, and under the planted faults that it must catch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dspatch.conformance.report import CheckResult, Report
from dspatch.conformance.selftest import Selftest
from dspatch.conformance.tolerance import Key

INSIDE = "layers.inside"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One number: of a check, in a dtype on a device; `fault` names what was planted, if anything."""

    check: str
    dtype: str
    device: str
    measured: float
    where: str
    fault: str = ""
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """The largest number without a fault, the smallest under one that the check must catch.

    `fault` is `None` where no fault of the check could be planted.
    """

    key: Key
    noise: float
    noise_at: str
    fault: float | None = None
    fault_at: str = ""
    unit: str = ""


def of_clean(report: Report, engine: str) -> Iterator[Seen]:
    """The numbers of a run without a fault; of a check that could not look there is none."""
    return _seen(report.results, report, engine)


def of_faults(tested: Selftest, engine: str) -> Iterator[Seen]:
    """The number that each planted fault gave to the check that it names.

    To the check of operations, which a diagnosis goes by, the one at the place where it was planted.
    """
    for one in tested.planted:
        caught = [
            replace(result, measured=one.there) if result.check == INSIDE else result
            for result in one.results
            if result.check in (one.fault.caught_by, INSIDE)
        ]
        yield from _seen(caught, tested.clean, engine, one.fault.name)


def _seen(
    results: Iterable[CheckResult], report: Report, engine: str, fault: str = ""
) -> Iterator[Seen]:
    for result in results:
        if result.measured is not None:
            yield Seen(
                check=result.check,
                dtype=result.dtype,
                device=str(report.facts.get("device", "cpu")),
                measured=result.measured,
                where=f"{engine}, {result.variant}",
                fault=fault,
                unit=result.unit,
            )


def bands(numbers: Iterable[Seen]) -> dict[Key, Band]:
    """Noise and weakest fault of each check, dtype and device; without a clean number there is no band."""
    found: dict[Key, list[Seen]] = {}
    for one in numbers:
        found.setdefault((one.check, one.dtype, one.device), []).append(one)
    return {key: _band(key, rows) for key, rows in found.items() if any(not r.fault for r in rows)}


def _band(key: Key, rows: list[Seen]) -> Band:
    # A number that is none must count as the largest noise and the smallest fault.
    noise = max((r for r in rows if not r.fault), key=lambda r: _or(r.measured, math.inf))
    weakest = min((r for r in rows if r.fault), key=lambda r: _or(r.measured, 0.0), default=None)
    return Band(
        key=key,
        noise=_or(noise.measured, math.inf),
        noise_at=noise.where,
        fault=None if weakest is None else _or(weakest.measured, 0.0),
        fault_at="" if weakest is None else f"{weakest.fault}: {weakest.where}",
        unit=noise.unit,
    )


def _or(value: float, instead: float) -> float:
    return instead if math.isnan(value) else value
