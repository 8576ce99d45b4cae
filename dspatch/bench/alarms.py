"""False alarms of the checks on sound engines: which models and prompts are drawn, and what their number bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dspatch.conformance import small
from dspatch.conformance.report import CheckResult
from dspatch.conformance.small import Case
from dspatch.conformance.statistic import rank

SEED = 100  # the first of seeds that nothing else uses
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many checkpoints, of which models in turn (none: those that are judged in `dtype`), and prompts on each."""

    models: tuple[str, ...] = ()
    dtype: str = "float32"
    checkpoints: int = 20
    prompt_sets: int = 10
    seed: int = SEED

    def drawn(self) -> list[list[Case]]:
        """The cases of each checkpoint. No two checkpoints have the same weights, no two cases the same prompts.

        Raises `UnknownVariantError`.
        """
        usual = [small.case(name) for name in self.models or small.counted(self.dtype)]
        return [
            list(self._of(usual[number % len(usual)], number)) for number in range(self.checkpoints)
        ]

    def _of(self, usual: Case, number: int) -> Iterator[Case]:
        for turn in range(self.prompt_sets):
            yield replace(
                usual,
                name=f"{usual.name}#{number}.{turn}",
                seed=self.seed + number,
                dice=self.seed + number * self.prompt_sets + turn,
            )


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The largest number that a check measured, the tolerance that it was held to, and on which pair."""

    measured: float
    tolerance: float
    pair: str

    @property
    def margin(self) -> float:
        """How many times the measured value fits into the tolerance; infinite of one that is 0."""
        return self.tolerance / self.measured if self.measured else math.inf


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One checkpoint on all of its sets of prompts."""

    model: str
    seed: int
    pairs: int
    passed: int
    alarmed: int  # pairs
    redrawn: int = 0  # pairs whose first prompts had a router that nearly tied
    alarms: tuple[str, ...] = ()
    unshown: Mapping[str, int] = field(default_factory=dict)
    nearest: Mapping[str, Nearest] = field(default_factory=dict)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Judged:
        """One that `asdict` gave, through JSON."""
        nearest = {
            name: Nearest(**{**one, "measured": float(one["measured"])})
            for name, one in row["nearest"].items()
        }
        return cls(**{**row, "alarms": tuple(row["alarms"]), "nearest": nearest})


def judged(cases: Sequence[Case], results: Iterable[CheckResult], *, redrawn: int = 0) -> Judged:
    """What the checks said of one checkpoint's cases, of which so many were drawn again."""
    names = {case.name for case in cases}
    own = [one for one in results if one.variant in names]
    failed = [one for one in own if one.status == "fail"]
    return Judged(
        model=cases[0].name.partition("#")[0],
        seed=cases[0].seed,
        pairs=len(cases),
        passed=sum(one.status == "pass" for one in own),
        alarmed=len({one.variant for one in failed}),
        redrawn=redrawn,
        alarms=tuple(_alarm(one) for one in failed),
        unshown=dict(Counter(one.check for one in own if one.status == "not-shown")),
        nearest=_nearest(own),
    )


def _alarm(one: CheckResult) -> str:
    measured = "" if one.measured is None else f" {one.measured:.3g} over {one.tolerance:.3g}"
    return f"{one.variant}: {one.check}:{measured} {one.note}"


def _nearest(results: Iterable[CheckResult]) -> dict[str, Nearest]:
    found: dict[str, Nearest] = {}
    for one in results:
        if one.status != "not-shown" and one.measured is not None and one.tolerance is not None:
            _keep(found, one.check, Nearest(
                measured=rank(one.measured), tolerance=one.tolerance, pair=one.variant
            ))  # fmt: skip
    return found


def _keep(found: dict[str, Nearest], check: str, one: Nearest) -> None:
    if check not in found or one.measured > found[check].measured:
        found[check] = one


@dataclass(frozen=True, kw_only=True)
class Count:
    """All checkpoints together."""

    rows: tuple[Judged, ...]

    @property
    def pairs(self) -> int:
        """How many sets of prompts were run on a checkpoint."""
        return sum(row.pairs for row in self.rows)

    @property
    def redrawn(self) -> int:
        """How many pairs have other prompts than were drawn first, as a router nearly tied on these."""
        return sum(row.redrawn for row in self.rows)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Every check that failed."""
        return tuple(alarm for row in self.rows for alarm in row.alarms)

    @property
    def unshown(self) -> Counter[str]:
        """How often each check showed nothing."""
        return sum((Counter(row.unshown) for row in self.rows), Counter())

    @property
    def judged(self) -> int:
        """How many checks passed or failed."""
        return sum(row.passed for row in self.rows) + len(self.alarms)

    @property
    def nearest(self) -> dict[str, Nearest]:
        """Of each check what came nearest to its tolerance."""
        found: dict[str, Nearest] = {}
        for row in self.rows:
            for check, one in row.nearest.items():
                _keep(found, check, one)
        return found

    @property
    def bound(self) -> float | None:
        """What the share of pairs with a false alarm is below; `None` when there was one."""
        return bound(self.pairs, sum(row.alarmed for row in self.rows))

    @property
    def bound_of_checkpoints(self) -> float | None:
        """The same of checkpoints: for alarms that hang on weights alone, on which ten sets say no more than one."""
        return bound(len(self.rows), sum(row.alarmed > 0 for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """The count as JSON values."""
        nearest = self.nearest.items()
        return {
            "checkpoints": len(self.rows),
            "pairs": self.pairs,
            "pairs-drawn-again": self.redrawn,
            "checks": self.judged,
            "alarms": list(self.alarms),
            "pairs-with-an-alarm": sum(row.alarmed for row in self.rows),
            "rate-below": {"of-pairs": self.bound, "of-checkpoints": self.bound_of_checkpoints},
            "confidence": CONFIDENCE,
            "not-shown": dict(self.unshown),
            "nearest": {name: {**asdict(one), "margin": one.margin} for name, one in nearest},
            "rows": [asdict(row) for row in self.rows],
        }


def bound(tries: int, alarms: int) -> float | None:
    """Below which share alarms are with 95 % confidence when none was seen, by the rule of three.

    Source: (1 - p)^n = 0.05 gives p = 1 - 0.05^(1/n), which is below 3/n.
    """
    return None if alarms or not tries else min(3 / tries, 1.0)
