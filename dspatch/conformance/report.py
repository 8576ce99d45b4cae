"""The report: what each check measured on each small model, with its tolerance and margin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from dspatch.conformance.diagnosis import Diagnosis

Status = Literal["pass", "fail", "not-shown"]
# What passes before an engine has computed anything that is judged.
BEFORE = ("checkpoint.whole", "engine.start", "oracle.sane")


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check on one small model.

    `measured` and `tolerance` are in the check's unit; `margin` is how many times the measured
    value fits into the tolerance. A check that could not look is `not-shown`, and `note` says why.
    """

    check: str
    variant: str
    dtype: str
    status: Status
    measured: float | None = None
    tolerance: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def margin(self) -> float | None:
        """Tolerance over measured value; `None` when one of them is missing or zero."""
        if not self.measured or not self.tolerance:
            return None
        return self.tolerance / self.measured

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values; what is not finite as text, for which JSON has no number."""
        measured = self.measured
        if measured is not None and not math.isfinite(measured):
            return {**asdict(self), "measured": str(measured), "margin": None}
        return {**asdict(self), "margin": self.margin}


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What is drawn of one model: the relative difference by depth, log-probabilities by their error.

    `logprob_errors` counts them in half decades of nats: below 1e-9, from 1e-9 on, …, 10 and more.
    """

    variant: str
    depths: tuple[tuple[str, float], ...]
    logprob_errors: tuple[int, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The curves that `as_dict` gave."""
        depths = tuple((name, float(value)) for name, value in row["depths"])
        counts = tuple(row["logprob_errors"])
        return cls(variant=row["variant"], depths=depths, logprob_errors=counts)

    def as_dict(self) -> dict[str, Any]:
        """The curves as JSON values; what is not finite as text."""
        depths = [[n, v if math.isfinite(v) else str(v)] for n, v in self.depths]
        return {**asdict(self), "depths": depths}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one conformance run measured."""

    results: tuple[CheckResult, ...]
    facts: Mapping[str, Any]
    diagnoses: tuple[Diagnosis, ...] = ()
    curves: tuple[Curves, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no check failed and at least one passed of what the engine computes."""
        shown = any(one.status == "pass" and one.check not in BEFORE for one in self.results)
        return shown and self.count("fail") == 0

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(result.status == status for result in self.results)

    def on(self, variant: str) -> list[CheckResult]:
        """The results of one small model."""
        return [result for result in self.results if result.variant == variant]

    @property
    def variants(self) -> list[str]:
        """The small models, in the order of the run."""
        return list(dict.fromkeys(result.variant for result in self.results))

    @property
    def summary(self) -> str:
        """One line with the counts."""
        words = (f"{self.count('pass')} passed", f"{self.count('fail')} failed")
        return f"{', '.join(words)}, {self.count('not-shown')} not shown"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        results = [result.as_dict() for result in self.results]
        return {
            "ok": self.ok,
            "summary": self.summary,
            "facts": dict(self.facts),
            "results": results,
            "diagnoses": [each.as_dict() for each in self.diagnoses],
            "curves": [each.as_dict() for each in self.curves],
        }

    def failures(self) -> list[CheckResult]:
        """The checks that failed."""
        return [result for result in self.results if result.status == "fail"]
