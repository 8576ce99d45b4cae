"""From noise and weakest fault to the tolerance between them, or to none where they are too close."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dspatch.bench.noise import Band
from dspatch.conformance import statistic
from dspatch.conformance.checks.cache import BYTES
from dspatch.conformance.tolerance import Key, Tolerance

ROOM = 10.0  # a tolerance that stands stays where noise and fault keep so far away from it
CLOSE = 4.0  # a fault below so many times the noise cannot be told from it


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the new table beside the old one, and where its noise and its fault were seen."""

    key: Key
    new: Tolerance
    old: Tolerance | None
    band: Band

    @property
    def verdict(self) -> str:
        """What became of the tolerance."""
        if self.new.value is None:
            return "decides nothing"
        if self.old is None or self.old.value is None:
            return "new"
        return "stands" if self.new.value == self.old.value else "changed"


def row(band: Band, known: Mapping[Key, Tolerance], *, of: str, date: str) -> Row | None:
    """The row of a band; `of` says what was measured. Without any known fault there is none.

    Of a row that was there noise and fault only widen: what was seen once stays seen.
    """
    check, dtype, _ = band.key
    old = known.get(band.key)
    if old is not None and not statistic.of(check, dtype, old.unit):
        old = None
    pattern = old or _alike(band, known.get((check, "float32", "cpu"))) or _first(band)
    if pattern is None:
        return None
    fault = _elsewhere(dtype, old, pattern) if band.fault is None else band.fault
    seen = max(band.noise, old.noise if old else 0.0)
    weakest = min(fault, old.fault if old else math.inf)
    value, why = limit(seen, weakest, pattern, own=pattern is old or dtype == "float32")
    stands = old is not None and value == old.value
    new = Tolerance(
        value=value,
        unit=pattern.unit if old else statistic.unit(check, dtype, pattern.unit),
        noise=_up(seen),
        fault=_down(weakest),
        reason=f"{why}; {of}" if why and not stands else pattern.reason,
        date=old.date if old and stands and (old.noise, old.fault) == (seen, weakest) else date,
    )
    return Row(key=band.key, new=new, old=old, band=band)


def _alike(band: Band, exact: Tolerance | None) -> Tolerance | None:
    """The row of float32, unless the check measures something else there."""
    other = exact is not None and band.unit and not band.unit.startswith(exact.unit)
    return None if other else exact


def _first(band: Band) -> Tolerance | None:
    """What a check that has no row yet begins with: its unit, where a fault says how much is wrong."""
    if band.fault is None or not band.unit:
        return None
    return Tolerance(
        value=None, unit=band.unit, noise=band.noise, fault=band.fault, reason="", date=""
    )


def limit(
    seen: float, weakest: float, before: Tolerance, *, own: bool = True
) -> tuple[float | None, str]:
    """The tolerance between noise and weakest fault, and how it was made.

    The one before stands where there is room around it, and its reason with it; one of another dtype
    (not its `own`) only where there was noise to hold it against, or where it is exact.
    """
    value = before.value
    held = own or seen > 0 or value == 0
    if held and value is not None and seen * ROOM <= value and value * ROOM <= weakest:
        return value, ""
    if not weakest > seen * CLOSE:
        return None, "noise and the weakest fault are too close for any limit"
    if math.isinf(weakest):
        return _digits(seen * ROOM), "ten times the noise, as no fault was finite"
    if seen == 0:
        return _digits(weakest / ROOM), "a tenth of the weakest fault, as there was no noise"
    mean = math.sqrt(seen) * math.sqrt(weakest)
    return _digits(mean), "the geometric mean of noise and weakest fault"


def _elsewhere(dtype: str, old: Tolerance | None, pattern: Tolerance) -> float:
    """The fault of a row whose check had none planted: what was seen before; of sizes, in this dtype."""
    if old is None and "bytes" in pattern.unit:
        return pattern.fault * BYTES.get(dtype, 4) / BYTES["float32"]
    return pattern.fault


def _digits(value: float) -> float:
    return float(f"{value:.2g}")


def _up(value: float) -> float:
    """Two digits, never below."""
    short = _digits(value)
    return short if short >= value else float(f"{value * 1.05:.2g}")


def _down(value: float) -> float:
    """Two digits, never above."""
    short = _digits(value)
    return short if short <= value else float(f"{value * 0.95:.2g}")
