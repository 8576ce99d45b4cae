"""Run an engine beside the oracle and judge what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dspatch import engines, files, paths
from dspatch.conformance import (
    checks,
    curves,
    diagnosis,
    faults,
    oracle,
    passkey,
    small,
    sources,
    statistic,
    tolerance,
)
from dspatch.conformance import given as own
from dspatch.conformance.checks.seen import (
    PROBES,
    QUANTISED,
    UNPROMPTED,
    UNQUANTISED,
    Probe,
    Seen,
)
from dspatch.conformance.oracle import Golden, Oracle
from dspatch.conformance.report import CheckResult, Report
from dspatch.conformance.small import Case
from dspatch.engines import Observed, Options, Progress, Trial
from dspatch.series import digest_of

VARIANTS = ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An engine's interpreter, the oracle to judge it by, and the folder for what they write."""

    engine: str
    python: Path
    oracle: Oracle
    out: Path
    options: Options
    progress: Progress


def inputs() -> list[str]:
    """What the results of a run depend on beside what it is given: the suite, and tolerances of one's own."""
    mine = tolerance.own()
    return [
        digest_of([paths.PACKAGE / "conformance", paths.PACKAGE / "engines"]),
        files.sha256(mine) if mine and mine.is_file() else "",
    ]


def run(
    *,
    python: Path,
    out: Path,
    variants: Sequence[str] = VARIANTS,
    checkpoints: Sequence[Path] = (),
    engine: str = "vllm",
    options: Options | None = None,
    progress: Progress = engines.silent,
) -> Report:
    """Judge the engine that `python` imports on small models, named as `variant` or `variant/form`.

    `checkpoints` are folders of the user's own; one with wrong tensors fails `checkpoint.whole`, and
    the engine never sees it. What the engine wrote stays in `out`, its tensors only of models that
    fail. A model that the engine refuses is a failed check `engine.start`. Raises `EngineError`,
    `EngineEnvironmentError`, `CheckpointError` and `UnknownVariantError`.
    """
    given = [own.case(folder) for folder in checkpoints]
    named = [small.case(name) for name in variants]
    bench = make_bench(python=python, out=out, engine=engine, options=options, progress=progress)
    return _run(bench, named, given)


def of_cases(
    cases: Sequence[Case],
    *,
    python: Path,
    out: Path,
    engine: str = "vllm",
    options: Options | None = None,
    progress: Progress = engines.silent,
) -> Report:
    """The same of small models with seeds of their own; errors as of `run`.

    Neighbours of one checkpoint share an engine's start; what no prompt has a part in is judged on the first.
    """
    bench = make_bench(python=python, out=out, engine=engine, options=options, progress=progress)
    return _run(bench, cases, [])


def _run(bench: Bench, named: Sequence[Case], given: Sequence[Case]) -> Report:
    inspected = list(zip(given, bench.oracle.inspect(given), strict=True))
    cases = [*named, *(one for one, why in inspected if not why)]
    golden = bench.oracle.golden(cases, bench.progress)
    further = _further(golden)
    observed = observe(
        bench,
        [
            trial(case, one, engine=bench.engine, further=more)
            for case, one, more in zip(cases, golden, further, strict=True)
        ],
    )
    seen = measured(bench, list(zip(golden, observed, strict=True)))
    judged = [
        (one, [*_whole(one, case), *results(one, further=more)])
        for one, case, more in zip(seen, cases, further, strict=True)
    ]
    for one, (_, found) in zip(observed, judged, strict=True):
        if all(result.status != "fail" for result in found):
            one.tensors.unlink(missing_ok=True)
    damaged = [_damaged(bench, one, why) for one, why in inspected if why]
    return report(bench, observed, [*judged, *damaged])


def _further(golden: Sequence[Golden]) -> list[bool]:
    """Which of them have the checkpoint of the one before: further prompts in an engine that runs already."""
    paths = [one.checkpoint.path for one in golden]
    return [before == path for before, path in pairwise([None, *paths])]


def _whole(seen: Seen, case: Case) -> list[CheckResult]:
    if case.source is None:
        return []
    return [
        checks.engine("checkpoint.whole", seen, "pass", "no tensor is missing, extra or broken")
    ]


def _damaged(bench: Bench, case: Case, why: str) -> tuple[Seen, list[CheckResult]]:
    """A checkpoint that the engine is not given: one failure, and nothing else shown."""
    dtype = bench.options.dtype
    seen = Seen(variant=case.name, dtype=dtype, config=case.config, facts={}, measures={})
    failed = checks.engine("checkpoint.whole", seen, "fail", why)
    note = "the checkpoint is damaged"
    start = checks.engine("engine.start", seen, "not-shown", note)
    return seen, [failed, start, *checks.unshown(seen, note)]


def make_bench(
    *, python: Path, out: Path, engine: str, options: Options | None, progress: Progress
) -> Bench:
    """The bench for a run, with the oracle's environment made when it is not in the cache."""
    return Bench(
        engine=engine,
        python=python,
        oracle=oracle.ensure(progress),
        out=out,
        options=options or Options(),
        progress=progress,
    )


def starts(engine: str) -> bool:
    """Whether faults of what an engine loads take a start each, as nothing in it can be changed while it runs."""
    return bool(getattr(engines.get(engine), "STARTS", False))


def trial(
    case: Case,
    golden: Golden,
    *,
    engine: str = "vllm",
    hooks: bool = False,
    loads: bool = False,
    further: bool = False,
) -> Trial:
    """What the engine does with a case; with its hook faults and those of starts, or only its faults of loading.

    With `further` prompts it is not asked again what takes none.
    """
    kinds = ("hook", "load", "start")
    planted = {kind: faults.fitting(kind, case.features) for kind in kinds}
    apart = starts(engine)
    return Trial(
        name=case.name,
        checkpoint=golden.checkpoint.given,
        config=case.features,
        prompts=_prompts(case),
        steps=small.steps(),
        sparse_layers=case.sparse_layers,
        golden=golden.path,
        hook_faults=[
            {"name": f.name, "run": f.run, "hook": f.plants}
            for f in planted["hook"]
            if hooks and (apart or f.run != "scored")
        ],
        start_faults=[{"name": f.name, "run": f.run} for f in planted["start"] if hooks and apart],
        probes=() if loads else asked(case, further=further, apart=apart),
        late=small.late(),
        lookup={} if loads else passkey.asked(case.config),
        load_faults=[f.plant for f in planted["load"]] if loads else [],
    )


def _prompts(case: Case) -> dict[str, list[int]]:
    """Of a model made by hand one prompt only: it is there for what it looks up."""
    found = small.prompts(case.dice)
    return found if "passkey" not in case.config else {"block": found["block"]}


def asked(case: Case, *, further: bool = False, apart: bool = False) -> tuple[Probe, ...]:
    """The runs that ask one thing each, of those that the model has; with `further` prompts, that take any.

    `apart`: the engine reads prompts by requests of their own.
    """
    known: tuple[Probe, ...] = ("turned", "passkey")
    if "passkey" not in case.config:
        left: tuple[Probe, ...] = UNQUANTISED if case.stored else QUANTISED
        left = left if apart else (*left, "scored")
        known = tuple(name for name in PROBES if name not in (*left, "passkey"))
    return tuple(name for name in known if not (further and name in UNPROMPTED))


def observe(bench: Bench, trials: Sequence[Trial]) -> list[Observed]:
    """Run the trials in the bench's engine."""
    chosen = engines.get(bench.engine)
    return chosen.observe(
        bench.python, trials, out=bench.out, options=bench.options, progress=bench.progress
    )


def measured(bench: Bench, pairs: Sequence[tuple[Golden, Observed]]) -> list[Seen]:
    """What each trial gave beside the oracle; a trial that did not start has no measures."""
    ran = [pair for pair in pairs if pair[1].shown]
    bench.progress(f"measuring {len(ran)} of {len(pairs)} models against the oracle")
    found = iter(
        bench.oracle.measure(ran, _limits(bench, ran[0][1]), bench.options.dtype) if ran else []
    )
    return [_seen(bench, one, next(found) if one.shown else {}) for _, one in pairs]


def _limits(bench: Bench, observed: Observed) -> dict[str, float]:
    """Up to where a result is right, as the oracle's worker asks; 0 where nobody knows."""
    dtype, device = bench.options.dtype, _device(observed)
    inside, whole = diagnosis.band(dtype, device), tolerance.find("golden.fp32", dtype, device)
    if not statistic.narrow("layers.inside", dtype):
        return {"band": inside or 0.0, "times": 0.0}
    return {"band": whole.limit if whole else 0.0, "times": inside or 0.0}


def _device(observed: Observed) -> str:
    """What an engine computed on; one that does not say so is held to what holds on a CPU."""
    return str(observed.facts.get("device", "cpu"))


def _seen(bench: Bench, observed: Observed, measures: Any) -> Seen:
    return Seen(
        variant=observed.trial.name,
        dtype=bench.options.dtype,
        config=observed.trial.config,
        facts=observed.facts,
        measures=measures,
        device=_device(observed),
    )


def results(seen: Seen, *, further: bool = False) -> list[CheckResult]:
    """Every check on one model; of an engine that stopped half way, on what it had shown.

    On `further` prompts those that other prompts say more about.
    """
    error = str(seen.facts.get("error", ""))
    if error and not seen.measures:
        return checks.refused(seen, error)
    stopped = [checks.engine("engine.run", seen, "fail", error)] if error else []
    if further:
        return [*stopped, *checks.judge(seen, checks.prompted(seen.config))]
    backends = ", ".join(seen.facts.get("attention", []))
    return [checks.engine("engine.start", seen, "pass", backends), *stopped, *checks.judge(seen)]


def report(
    bench: Bench, observed: Sequence[Observed], judged: Sequence[tuple[Seen, list[CheckResult]]]
) -> Report:
    """The results with a diagnosis of what failed, and what is known about engine and oracle."""
    known = next((one.known for one in observed if not one.error), {})
    facts = {
        "engine": bench.engine,
        **known,
        "oracle": ", ".join(bench.oracle.requirements),
        **({} if bench.oracle.environment else {"measured with": str(bench.oracle.python)}),
        "reference-ops": bench.options.reference_ops,
        **({"tolerances": str(mine)} if (mine := tolerance.own()) else {}),
        "seconds": {o.trial.name: o.facts.get("seconds", {}).get("total") for o in observed},
    }
    ask = sources.asked_of(bench.python, bench.engine)
    diagnoses = (diagnosis.diagnose(one, found, ask) for one, found in judged)
    drawn = (curves.of(one) for one, _ in judged)
    return Report(
        results=tuple(result for _, found in judged for result in found),
        facts=facts,
        diagnoses=tuple(one for one in diagnoses if one is not None),
        curves=tuple(one for one in drawn if one is not None),
    )
