"""Prove the checks: each planted fault is caught by the check it names, the clean run is green."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dspatch import engines
from dspatch.conformance import (
    causes,
    checks,
    diagnosis,
    faults,
    small,
    suite,
)
from dspatch.conformance.checks import inside
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.diagnosis import Diagnosis
from dspatch.conformance.faults import Fault
from dspatch.conformance.report import CheckResult, Report
from dspatch.engines import Options, Progress

# What can be judged from each kind of run under a fault, and from a load without a run.
RUN_CHECKS = {
    "alone": (
        "golden.fp32",
        "golden.routes",
        "layers.inside",
        "indexer.choices",
        "logits.kl",
        "logits.topk",
        "greedy.forced",
        "decode.paged",
        "prefill.chunked",
    ),
    "together": ("golden.routes", "batch.mixed"),
    "again": ("golden.routes", "prefix.hit"),
    "local": ("layers.local",),
    "ladder": ("layers.ladder",),
    "replayed": ("routes.replayed",),
    "late": ("decode.late",),
    "scored": ("decode.scored",),
    "routed": ("kernels.route",),
    "turned": ("rope.table",),
    "sampled": ("sampling.distribution", "sampling.seed"),
    "selfkl": ("inv.selfkl",),
    "dequantised": ("weights.quantised",),
    "multiplied": ("kernels.quantised",),
    "passkey": ("longctx.passkey",),
}
LOAD_CHECKS = ("weights.coverage", "weights.values")
# Other projects' rules on the same runs, by the words for them.
RULES = {"vllm": "vLLM's rule", "sglang": "SGLang's rule"}
COLUMNS = (*dict.fromkeys(name for names in RUN_CHECKS.values() for name in names), *LOAD_CHECKS)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault in one model: what the checks said under it, or why it could not be planted.

    `rules` says of each rule of `RULES` whether it passes the same run; of no run, nothing. `there` is
    how far off the operation is in which the fault was planted, where that was watched.
    """

    fault: Fault
    variant: str
    results: tuple[CheckResult, ...] = ()
    refused: str = ""
    diagnosis: Diagnosis | None = None
    rules: Mapping[str, bool] = field(default_factory=dict)
    dtype: str = "float32"
    device: str = "cpu"
    there: float | None = None
    black_box: bool = False

    @property
    def found_at(self) -> str:
        """The place that the diagnosis names, or an empty string."""
        return self.diagnosis.symptom.place if self.diagnosis else ""

    @property
    def misplaced(self) -> bool:
        """Whether the fault was caught and its place is another than where it was planted.

        In a dtype without a band for numbers inside the model nothing can be looked for, nor in an engine that shows
        nothing inside.
        """
        unknown = self.black_box or diagnosis.band(self.dtype, self.device) is None
        return not unknown and self.outcome == "caught" and self.found_at not in self.fault.at

    @property
    def outcome(self) -> str:
        """`caught`, `missed` or `not-shown`, by the check that must catch the fault."""
        status = {result.check: result.status for result in self.results}
        verdict = status.get(self.fault.caught_by, "not-shown")
        return {"fail": "caught", "pass": "missed", "not-shown": "not-shown"}[verdict]


@dataclass(frozen=True, kw_only=True)
class Selftest:
    """The clean run and the matrix of faults."""

    clean: Report
    planted: tuple[Planted, ...]

    @property
    def ok(self) -> bool:
        """Whether the clean run passes, faults were caught, none was missed, all found in place."""
        outcomes = {one.outcome for one in self.planted}
        caught = "caught" in outcomes and "missed" not in outcomes
        return self.clean.ok and caught and not any(one.misplaced for one in self.planted)

    def as_dict(self) -> dict[str, Any]:
        """The self-test as JSON values."""
        rows = [
            {
                "fault": one.fault.name,
                "variant": one.variant,
                "must-be-caught-by": one.fault.caught_by,
                "outcome": one.outcome,
                "refused": one.refused,
                "planted-at": list(one.fault.at),
                "diagnosis": one.diagnosis.as_dict() if one.diagnosis else None,
                "rules": dict(one.rules),
                "checks": {result.check: result.status for result in one.results},
                "measured": {result.check: result.measured for result in one.results},
            }
            for one in self.planted
        ]
        counts = {name: list(each) for name, each in power(self).items()}
        return {"ok": self.ok, "clean": self.clean.as_dict(), "faults": rows, "power": counts}


def run(
    *,
    python: Path,
    out: Path,
    variants: Sequence[str] = suite.VARIANTS,
    engine: str = "vllm",
    options: Options | None = None,
    progress: Progress = engines.silent,
) -> Selftest:
    """Run each model clean and under every fault that it can have: two starts a model, or one a fault.

    An engine that shows nothing inside takes a start for each fault that stands in what it loads.
    """
    cases = [small.case(name) for name in variants]
    bench = suite.make_bench(
        python=python, out=out, engine=engine, options=options, progress=progress
    )
    golden = bench.oracle.golden(cases, progress)
    pairs = list(zip(cases, golden, strict=True))
    trials = [suite.trial(case, one, hooks=True, engine=engine) for case, one in pairs]
    starts = suite.starts(engine)
    trials += [suite.trial(case, one, loads=True) for case, one in pairs if not starts]
    observed = suite.observe(bench, trials)
    both = [*golden, *golden][: len(observed)]
    seen = suite.measured(bench, list(zip(both, observed, strict=True)))
    for one in observed:
        one.tensors.unlink(missing_ok=True)
    clean, spoiled = seen[: len(cases)], seen[len(cases) :]
    judged = [(one, suite.results(one)) for one in clean]
    planted = [row for one in clean for row in _hooked(one, outside=starts)]
    planted += [row for one in spoiled for row in _loaded(one)]
    return Selftest(
        clean=suite.report(bench, observed[: len(cases)], judged), planted=tuple(planted)
    )


def _hooked(seen: Seen, *, outside: bool = False) -> list[Planted]:
    """The faults of runs; those planted from `outside` an engine are seen in its answers alone."""
    if "error" in seen.facts:
        return []
    if outside:
        seen = replace(seen, facts={**seen.facts, "watched": []})
    refused = seen.facts["refused"]
    rows = []
    kinds = ("hook", "start") if outside else ("hook",)
    apart = bool(seen.facts.get("reads_apart"))
    for fault in (one for kind in kinds for one in faults.fitting(kind, seen.config)):
        if fault.caught_by in checks.READS_APART and not apart:
            continue
        under = replace(seen, runs={**seen.runs, fault.run: f"fault/{fault.name}:"})
        judged = checks.judge(under, RUN_CHECKS[fault.run])
        found = () if fault.name in refused else tuple(judged)
        rows.append(_row(fault, under, found, refused.get(fault.name, "")))
    return rows


def _loaded(seen: Seen) -> list[Planted]:
    if "error" in seen.facts:
        return []
    planted = [(fault, _only(seen, fault)) for fault in faults.fitting("load", seen.config)]
    return [_row(fault, one, tuple(checks.judge(one, LOAD_CHECKS)), "") for fault, one in planted]


def _row(fault: Fault, seen: Seen, found: tuple[CheckResult, ...], refused: str) -> Planted:
    return Planted(
        fault=fault,
        variant=seen.variant,
        dtype=seen.dtype,
        device=seen.device,
        results=found,
        refused=refused,
        diagnosis=diagnosis.diagnose(seen, found, causes.unasked),
        rules=rules_of(seen, fault.run) if found and fault.kind != "load" else {},
        there=inside.at(seen, fault) if found else None,
        black_box=seen.black_box,
    )


def rules_of(seen: Seen, run: str) -> dict[str, bool]:
    """Whether each rule passes every prompt of a run."""
    judged = [measures["rules"] for measures in seen.prompts(run).values()]
    return {rule: all(one[rule] for one in judged) for rule in RULES if judged}


def power(selftest: Selftest) -> dict[str, tuple[int, int]]:
    """Of the faults that were planted in a run: how many our checks caught, and how many each rule."""
    run = [one for one in selftest.planted if one.rules]
    ours = sum(one.outcome == "caught" for one in run)
    theirs = {word: sum(not one.rules[rule] for one in run) for rule, word in RULES.items()}
    return {name: (count, len(run)) for name, count in {"our checks": ours, **theirs}.items()}


def caught(selftest: Selftest) -> str:
    """The same counts in words."""
    return ", ".join(f"{name} {count} of {of}" for name, (count, of) in power(selftest).items())


def _only(seen: Seen, fault: Fault) -> Seen:
    """What the checks would have seen had this been the only fault of the load."""
    weights = dict(seen.measures["weights"])
    for key in ("missing", "extra", "unfilled", "differing"):
        weights[key] = [name for name in weights[key] if name in fault.tensors]
    return replace(seen, measures={**seen.measures, "weights": weights})


def passes(one: Planted, rule: str) -> str:
    """The mark of a rule on a fault: caught, passed, or not applied to a load without a run."""
    return {True: "·", False: "caught", None: ""}[one.rules.get(rule)]


def columns(selftest: Selftest) -> list[str]:
    """The checks that judged any of the faults."""
    judged = {result.check for one in selftest.planted for result in one.results}
    own = sorted(judged - set(COLUMNS))
    return [*(name for name in COLUMNS if name in judged), *own]


HEADERS = ("MODEL", "FAULT", "OUTCOME", "FOUND AT", "SEEN BY")


def rows(selftest: Selftest) -> list[tuple[str, ...]]:
    """The faults for the terminal, a row each; the matrix of all checks is in the report's files."""
    return [
        (
            one.variant,
            one.fault.name,
            f"{one.outcome} {one.refused}".strip(),
            f"{one.found_at} (misplaced)" if one.misplaced else one.found_at,
            _seen_by(one),
        )
        for one in selftest.planted
    ]


def _seen_by(one: Planted) -> str:
    """The checks that failed: that which the fault was planted for, and how many others."""
    failed = [result.check for result in one.results if result.status == "fail"]
    if one.fault.caught_by not in failed:
        return ", ".join(failed)
    more = len(failed) - 1
    return f"{one.fault.caught_by}{f' and {more} more' if more else ''}"
