"""Prove an engine's conversion of weights without a GPU: what it wrote, run in float64, beside transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.conformance import engineconfig, given, oracle, refused, small, tolerance
from dspatch.conformance.faults import Fault
from dspatch.conformance.oracle import Golden, Oracle
from dspatch.conformance.report import CheckResult, Report, Status
from dspatch.conformance.selftest import Planted, Selftest
from dspatch.conformance.small import Case
from dspatch.engines import Progress, turbomind
from dspatch.engines.turbomind import Conversion, Release
from dspatch.errors import EngineEnvironmentError

# What the oracle's worker measures, by the check that judges it.
MEASURED = {
    "conversion.attention": "attention",
    "conversion.dense": "dense",
    "conversion.moe": "moe",
    "conversion.exact": "exact",
    "conversion.logits": "logits",
}
DTYPE = "float32"
NOT_RUN = "the engine was not started: what its conversion wrote was run instead, in float64"
STOPPED = "nothing: TurboMind was asked for"
FAULTS = (
    ("softmax-scale", "conversion.attention", ()),
    ("rope-in-halves", "conversion.attention", ()),
    ("rope-length", "conversion.attention", ("yarn",)),
    ("output-padded-wrong", "conversion.attention", ()),
    ("latent-norm-lost", "conversion.attention", ()),
    ("gate-is-up", "conversion.moe", ()),
    ("experts-swapped", "conversion.moe", ()),
    ("routes-unscaled", "conversion.moe", ()),
    ("block-scales-transposed", "conversion.attention", ("fp8-blocks",)),
    ("block-scales-inverted", "conversion.attention", ("fp8-blocks",)),
    ("last-block-dropped", "conversion.attention", ("fp8-blocks",)),
)
Numbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One checkpoint and what the conversion made of it."""

    case: Case
    golden: Golden
    conversion: Conversion


def run(
    *,
    wheel: Path,
    version: str,
    out: Path,
    variants: Sequence[str],
    progress: Progress,
    checkpoints: Sequence[Path] = (),
) -> Report:
    """Convert small models with the Python of a wheel, and judge what it wrote.

    `checkpoints` are folders of the user's own. Raises `EngineEnvironmentError`, `CheckpointError` and
    `UnknownVariantError`.
    """
    own = [given.case(folder) for folder in checkpoints]
    known, judge, ran = _convert(wheel, version, out, variants, progress, own)
    progress(f"running what {len(ran)} conversions wrote, in float64")
    return _report(judge, version, ran, _measure(judge, known, ran, ()))


def selftest(
    *, wheel: Path, version: str, out: Path, variants: Sequence[str], progress: Progress
) -> Selftest:
    """The same, and every fault planted into what was written; errors as of `run`."""
    known, judge, ran = _convert(wheel, version, out, variants, progress)
    progress(f"planting {len(FAULTS)} faults into what {len(ran)} conversions wrote")
    faults = [_fault(row) for row in FAULTS]
    measured = _measure(judge, known, ran, faults)
    planted = [
        Planted(fault=fault, variant=one.case.name, results=tuple(_numbers(one, found[fault.name])))
        for one, found in zip(ran, measured, strict=True)
        for fault in faults
        if found and _fits(fault, one.case)
    ]
    return Selftest(clean=_report(judge, version, ran, measured), planted=tuple(planted))


def _fault(row: tuple[str, str, tuple[str, ...]]) -> Fault:
    name, check, needs = row
    # No diagnosis names the place of what no engine ran.
    return Fault(name=name, kind="conversion", caught_by=check, at=("",), needs=needs)


def _fits(fault: Fault, case: Case) -> bool:
    return fault.fits(case.features)


def _convert(
    wheel: Path,
    version: str,
    out: Path,
    variants: Sequence[str],
    progress: Progress,
    own: Sequence[Case] = (),
) -> tuple[Release, Oracle, list[Ran]]:
    known, judge = turbomind.release(version), oracle.ensure(progress)
    assert known is not None
    if judge.environment is None:
        raise EngineEnvironmentError(
            "The conversion of a wheel needs the oracle's own environment.",
            why="DSPATCH_ORACLE names another Python",
            next="unset it",
        )
    cases = [*(small.case(name) for name in variants), *own]
    judge.need_whole(own)
    golden = judge.golden(cases, progress)
    environment = turbomind.prepare(wheel, known, judge.environment, progress)
    progress(f"converting {', '.join(case.name for case in cases)}")
    folders = {one.checkpoint.case.name: one.checkpoint.given for one in golden}
    made = turbomind.convert(environment.python, folders, known, out)
    ran = [
        Ran(case=case, golden=one, conversion=made[case.name])
        for case, one in zip(cases, golden, strict=True)
    ]
    return known, judge, ran


def _measure(
    judge: Oracle, known: Release, ran: Sequence[Ran], faults: Sequence[Fault]
) -> list[Numbers]:
    """The numbers of each conversion that can be run, by fault; nothing of the others."""
    whole = [one for one in ran if _whole(one)]
    if whole:
        judge.work([_task(one, known, faults) for one in whole])
    return [json.loads(_target(one).read_text()) if _whole(one) else {} for one in ran]


def _task(one: Ran, known: Release, faults: Sequence[Fault]) -> dict[str, Any]:
    return {
        "kind": "converted",
        "checkpoint": str(one.golden.checkpoint.path),
        "given": str(one.golden.checkpoint.given),
        "converted": str(one.conversion.folder),
        "layout": dict(known.layout),
        "prompt": small.prompts()["long"],
        "faults": [fault.name for fault in faults if _fits(fault, one.case)],
        "target": str(_target(one)),
    }


def _target(one: Ran) -> Path:
    return one.conversion.folder / "measure.json"


def _whole(one: Ran) -> bool:
    """Whether there is everything to run that the engine would have."""
    facts = one.conversion.facts
    return not one.conversion.error and not facts["missing"] and not facts["shapes"]


def _report(judge: Oracle, version: str, ran: Sequence[Ran], measured: Sequence[Numbers]) -> Report:
    facts: dict[str, Any] = {
        "engine": "lmdeploy",
        "lmdeploy": version,
        "oracle": ", ".join(judge.requirements),
        "not run": NOT_RUN,
    }
    if ran:
        known = ran[0].conversion.facts
        facts |= {"torch": known["torch"], "stubbed": "; ".join(known["stubbed"])}
    results = [
        result
        for one, numbers in zip(ran, measured, strict=True)
        for result in (*_facts(one, version), *_numbers(one, numbers.get("", {})), _started(one))
    ]
    return Report(results=tuple(results), facts=facts)


def _result(one: Ran, check: str, status: Status, note: str, **numbers: Any) -> CheckResult:
    return CheckResult(
        check=check, variant=one.case.name, dtype=DTYPE, status=status, note=note, **numbers
    )


def _facts(one: Ran, version: str) -> tuple[CheckResult, ...]:
    return _asked(one), _done(one), _config(one, version), _names(one)


def _asked(one: Ran) -> CheckResult:
    """Who asks for TurboMind gets TurboMind, or is told why nothing was started."""
    got = _named(one, one.conversion.facts.get("asked", ""))
    if not got:
        return _result(one, "conversion.asked", "not-shown", "the release's own choice did not run")
    kept = got.startswith("TurbomindEngineConfig") or got.startswith(STOPPED)
    return _result(one, "conversion.asked", "pass" if kept else "fail", f"started: {got}")


def _named(one: Ran, text: str) -> str:
    """What was said, with the model's name for the folder of its checkpoint."""
    return text.replace(str(one.golden.checkpoint.given), one.case.name)


def _done(one: Ran) -> CheckResult:
    error = _named(one, one.conversion.error)
    if refused.is_one(error):
        return _result(one, "conversion.done", "not-shown", f"{refused.TOLD}{error}")
    note = error or f"given to the engine as {', '.join(one.conversion.facts['dtypes'])}"
    return _result(one, "conversion.done", "fail" if error else "pass", note)


def _config(one: Ran, version: str) -> CheckResult:
    """Every field that the engine reads of its configuration is there, in its type."""
    check = "conversion.config"
    if one.conversion.error:
        return _result(one, check, "not-shown", "the conversion did not come to its end")
    known = engineconfig.fields(version)
    if not known:
        return _result(one, check, "not-shown", _unread_fields(version))
    config = json.loads((one.conversion.folder / "engine.json").read_text())
    wrong, unread = engineconfig.wrong(config, version), engineconfig.unread(config, version)
    note = "; ".join(wrong) or f"{len(known)} fields; not read: {', '.join(unread) or 'none'}"
    return _result(one, check, "fail" if wrong else "pass", note)


def _unread_fields(version: str) -> str:
    release = turbomind.release(version)
    if release is not None and release.builders:
        return "its C++ has structures; a field that they lack ends the conversion, types were not read"
    return f"nobody read which fields lmdeploy {version} reads"


def _names(one: Ran) -> CheckResult:
    """Every tensor of the checkpoint read, every one of the engine written, none besides, all in shape."""
    check = "conversion.names"
    if one.conversion.error:
        return _result(one, check, "not-shown", "the conversion did not come to its end")
    wrong = [
        f"{len(names)} {word}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for word in ("unread", "missing", "extra", "shapes", "rounded")
        if (names := one.conversion.facts[word])
    ]
    return _result(one, check, "fail" if wrong else "pass", "; ".join(wrong))


def _numbers(one: Ran, numbers: Mapping[str, float]) -> list[CheckResult]:
    return [_number(one, check, numbers.get(key)) for check, key in MEASURED.items()]


def _number(one: Ran, check: str, value: float | None) -> CheckResult:
    limit = tolerance.find(check, DTYPE)
    assert limit is not None
    if value is None:
        return _result(one, check, "not-shown", "there is nothing whole to run")
    # Written so that NaN fails.
    status: Status = "pass" if value <= limit.limit else "fail"
    return _result(one, check, status, "", measured=value, tolerance=limit.limit, unit=limit.unit)


def _started(one: Ran) -> CheckResult:
    return _result(one, "engine.start", "not-shown", NOT_RUN)
