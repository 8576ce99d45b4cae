"""A diagnosis of a model that failed: the first wrong place, one token there, the likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dspatch.conformance import causes, symptom, tolerance
from dspatch.conformance.causes import Ask, Cause, knowledge
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.report import CheckResult
from dspatch.conformance.symptom import Symptom

ROWS = {
    "every": "every position",
    "not-first": "every position but the first",
    "later-chunk": "every position from the second chunk on",
    "generated": "generated tokens only",
    "some": "some positions",
}
MANNERS = {
    "zero": "all zero",
    "order": "the right values in another order",
    "not-finite": "not finite",
}
SHOWN = 4  # causes


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is first wrong with one model, and why that may be."""

    variant: str
    symptom: Symptom
    causes: tuple[Cause, ...]

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON values."""
        found = [cause.as_dict() for cause in self.causes]
        return {"variant": self.variant, "symptom": self.symptom.as_dict(), "causes": found}

    def lines(self) -> list[str]:
        """The diagnosis in words: where, what was expected and got, the causes."""
        return [f"{self.variant}: {where(self.symptom)}", *_evidence(self.symptom), *self._told()]

    def _told(self) -> Iterator[str]:
        for cause in self.causes[:SHOWN]:
            yield f"  {cause.standing}: {cause.text}"
            yield f"    to tell: {cause.confirm}"


def diagnose(seen: Seen, results: Sequence[CheckResult], ask: Ask) -> Diagnosis | None:
    """The diagnosis of a model with a failed check; `None` when none failed or no place is wrong."""
    if all(result.status != "fail" for result in results):
        return None
    found = symptom.find(seen, band(seen.dtype, seen.device))
    if found is None:
        return None
    likely = causes.rank(found, seen.config, results, ask)
    return Diagnosis(variant=seen.variant, symptom=found, causes=likely)


def band(dtype: str, device: str) -> float | None:
    """Up to what `layers.inside` measures an operation's result is right; `None` where nobody knows."""
    known = tolerance.row("layers.inside", dtype, device)
    return known.band if known else None


def where(found: Symptom) -> str:
    """The place in words."""
    what = knowledge().places.get(found.operation, "")
    place = f"{found.operation} ({what})" if what else "no place that could be told"
    if found.layer is not None:
        place = f"layer {found.layer}, {place}"
    if found.kind == "load":
        return f"the engine stopped at {place}: {found.detail}" if what else found.detail
    if found.kind == "weights":
        return f"wrong weights, first at {place}: {found.detail}"
    rows = f", {ROWS[found.rows]}" if found.rows else ""
    return f"first wrong at {place}; run `{found.run}`, prompt `{found.prompt}`{rows}"


def manner(found: Symptom) -> str:
    """How the numbers differ, in words; empty where there is nothing simple to say."""
    if found.factor is not None:
        return f"{found.factor:.6g} times what was expected"
    return MANNERS.get(found.manner, "")


def _evidence(found: Symptom) -> Iterator[str]:
    if found.kind != "run":
        return
    error = f"  relative difference {found.relative:.2g}" if found.relative is not None else ""
    yield ", ".join(filter(None, (error, manner(found))))
    if found.position is not None:
        differ, width = found.columns
        share = f" ({differ} of {width} values differ, from number {found.column})" if width else ""
        yield f"  token {found.position}{share}"
        yield f"    expected {' '.join(found.expected)}"
        yield f"    got      {' '.join(found.got)}"
    if found.unobserved:
        yield f"  not observed, so it may lie there: {', '.join(found.unobserved)}"
