"""What every way to conformance shares: run the suite in an environment, write the report, judge it."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import pins
from dspatch.errors import (
    ConformanceError,
    EngineEnvironmentError,
    NoGpuError,
    NoToleranceError,
    UncomputableError,
)

if TYPE_CHECKING:
    from dspatch.conformance import Report
    from dspatch.conformance.selftest import Selftest

DTYPE = "float32"
GPU_DTYPE = "bfloat16"  # no kernel of a GPU for latent attention knows float32
ADVERSARIAL = ("deepseek-v2-lite", "deepseek-v3")  # the variants that have such forms


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to prove: small models (none: those of the job's variants), and how.

    With `checkpoints`, folders of the user's own, no other models but those that are named.
    `adversarial`: the forms in which faults show that published models hide, and no others.
    `quantised`: the models in this quantised form, and no others.
    `backend`: the engine of an engine that has several; run, and not its conversion of weights proven.
    Without a `dtype`, in the one that the engine's target computes in (`settled`).
    `fresh` measures again although nothing changed since the last report.
    """

    models: tuple[str, ...] = ()
    reference_ops: bool = False
    selftest: bool = False
    fresh: bool = False
    dtype: str = ""
    checkpoints: tuple[Path, ...] = ()
    adversarial: bool = False
    quantised: str = ""
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class Proven:
    """What the suite found of what `name` says, and the files that say so.

    `selftest` is there only where it was asked for.
    """

    name: str
    report: Report
    files: tuple[Path, ...]
    selftest: Selftest | None = None


def measure(
    name: str,
    *,
    engine: str,
    version: str,
    target: str,
    python: Path,
    folder: Path,
    models: Sequence[str],
    wanted: Wanted,
    step: Callable[[str], None],
) -> Proven:
    """Run the suite on what `python` has installed; the report goes to `folder`/report.

    Raises `UncomputableError` before a start for a quantised model that nothing here serves.
    """
    from dspatch.conformance import quantised, sources
    from dspatch.conformance import selftest as selftests
    from dspatch.conformance.suite import run as run_suite
    from dspatch.engines import Options

    quantised.need_served(models, engine, version, target, sources.asked_of(python, engine))
    given: dict[str, Any] = {
        "python": python,
        "out": folder / "conformance",
        "variants": models,
        "engine": engine,
        "options": Options(
            reference_ops=wanted.reference_ops, dtype=wanted.dtype, backend=wanted.backend
        ),
        "progress": step,
    }
    tested = selftests.run(**given) if wanted.selftest else None
    report = tested.clean if tested else run_suite(**given, checkpoints=wanted.checkpoints)
    return told(name, report, folder / "report", tested)


def converts(engine: str, version: str, wanted: Wanted) -> bool:
    """Whether it is the conversion of weights that is proven: of an engine that no CPU can run.

    Whoever names a backend wants it run.
    """
    from dspatch.engines import turbomind

    return (
        engine == turbomind.NAME and turbomind.release(version) is not None and not wanted.backend
    )


def convert(
    name: str,
    *,
    wheel: Path,
    version: str,
    folder: Path,
    models: Sequence[str],
    wanted: Wanted,
    step: Callable[[str], None],
) -> Proven:
    """Prove the conversion of a wheel that no machine without a GPU can run; the rest is not shown."""
    from dspatch.conformance import conversion

    given: dict[str, Any] = {
        "wheel": wheel,
        "version": version,
        "out": folder / "conformance",
        "variants": models,
        "progress": step,
    }
    tested = conversion.selftest(**given) if wanted.selftest else None
    report = tested.clean if tested else conversion.run(**given, checkpoints=wanted.checkpoints)
    return told(name, report, folder / "report", tested)


def told(name: str, report: Report, folder: Path, tested: Selftest | None = None) -> Proven:
    """Write the report, and of a self-test what caught which fault, into the folder."""
    from dspatch.conformance import render

    files = tuple(render.write(report, folder, name=name, selftest=tested))
    return Proven(name=name, report=report, files=files, selftest=tested)


def models_to_convert(wanted: Wanted, variants: Sequence[str]) -> list[str]:
    """The models whose conversion is proven, as `models_of`."""
    from dspatch.conformance import small

    return _models(wanted, variants, small.converted)


def environment(engine: str, wheel: Path, step: Callable[[str], None]) -> Path:
    """The Python that has a wheel installed, made when it is not in the cache."""
    from dspatch.engines.environment import for_wheel

    return for_wheel(engine, wheel, step).python


def need_computed_in(engine: str, dtype: str) -> None:
    """Raise `NoToleranceError` for a dtype that an engine does not compute in."""
    from dspatch import engines

    known = getattr(engines.get(engine), "DTYPES", ())
    if known and dtype not in known:
        raise NoToleranceError(
            f"{engine} does not compute in {dtype}.",
            why=f"its engines know {' and '.join(known)}",
            next=f"say in what it shall: --dtype {known[0]}",
        )


def need_limits(engine: str, target: str, models: Sequence[str], wanted: Wanted) -> None:
    """Raise `NoToleranceError` where checks of quantised weights, or of answers alone, would fail unmeasured."""
    from dspatch import engines
    from dspatch.conformance import checks, quantised, statistic, tolerance

    if quantised.stored(models):
        asked = [check for check, key in checks.NEEDS.items() if key == "stored"]
        _need_measured(
            tolerance.unmeasured(asked, wanted.dtype, target), wanted.dtype, target,
            why="nobody has measured what kernels for quantised weights may differ by there",
            next="name unquantised models; on vLLM limits of your own are made by dspatch bench calibrate"
            " --assume-healthy, and named in DSPATCH_TOLERANCES",
        )  # fmt: skip
    if _backend(engine, wanted) in getattr(engines.get(engine), "BLIND", ()):
        device = f"{target}{statistic.ANSWERS}"
        _need_measured(
            tolerance.unmeasured(statistic.BY_ANSWERS, wanted.dtype, device), wanted.dtype, target,
            why=f"{wanted.backend or engine} is judged by its answers, and nobody has measured these in that dtype",
            next=f"leave --dtype out, or say --dtype {GPU_DTYPE}",
        )  # fmt: skip


def _need_measured(lacking: Sequence[str], dtype: str, target: str, *, why: str, next: str) -> None:
    if lacking:
        raise NoToleranceError(
            f"{', '.join(lacking)} would fail: tolerance.toml has no limit in {dtype} on {target}.",
            why=why,
            next=next,
        )


def need_tolerances(dtype: str) -> None:
    """Raise `NoToleranceError` for a dtype in which nobody has measured what the checks accept."""
    from dspatch.conformance import tolerance

    known = sorted({each for _, each, _ in tolerance.table()})
    if dtype not in known:
        raise NoToleranceError(
            f"No check has a tolerance in {dtype}, so every one would fail.",
            why=f"tolerance.toml was measured in {', '.join(known)}",
            next=f"leave --dtype out, or give one of {', '.join(known)}",
        )


def need_dtype(models: Sequence[str], dtype: str) -> None:
    """Raise `NoToleranceError` for a model that cannot be judged in a dtype."""
    from dspatch.conformance import quantised, small

    quantised.need_dtype(models, dtype)
    for name in models:
        if not small.judged_in(name, dtype):
            raise NoToleranceError(
                f"{name} cannot be judged in {dtype}.",
                why="its rounding there is beyond that of the models which limits were measured with",
                next=f"leave --dtype out, or say --dtype {DTYPE}",
            )


def check(done: Proven) -> None:
    """Raise `ConformanceError` when a check failed, or a planted fault was missed.

    `UncomputableError` when an engine refused all models with its reasons.
    """
    if done.selftest is not None and not done.selftest.ok:
        missed = [
            f"{p.variant}: {p.fault.name}" + (f" found at {p.found_at}" if p.misplaced else "")
            for p in done.selftest.planted
            if p.outcome == "missed" or p.misplaced
        ]
        raise ConformanceError(
            f"the suite's self-test failed: {len(missed)} planted faults were missed or misplaced.",
            why="; ".join(missed) or "the clean run failed",
            next=f"read {done.files[1]}",
        )
    failures = done.report.failures()
    if failures:
        raise ConformanceError(
            f"{done.name}: {done.report.summary}.",
            why="\n        ".join(f"{f.variant}: {f.check}: {f.note}" for f in failures[:6]),
            next=f"see {done.files[-1]} for where it diverges; --reference-ops tells a kernel's fault"
            " from a model's",
        )
    _need_computed(done)
    if not done.report.ok:
        raise ConformanceError(
            f"{done.name}: nothing was shown.",
            why=done.report.summary,
            next=f"read {done.files[1]}",
        )


def _need_computed(done: Proven) -> None:
    from dspatch.conformance import refused

    told = ((one.variant, refused.reason(one)) for one in done.report.results)
    reasons = {model: why for model, why in told if why}
    if reasons and reasons.keys() == {one.variant for one in done.report.results}:
        raise UncomputableError(
            f"{done.name}: it computes none of the models that were asked for.",
            why="\n        ".join(f"{model}: {reason}" for model, reason in reasons.items()),
            next="name another model, as in --variant deepseek-v2-lite; LMDeploy's PyTorch engine"
            " (--backend pytorch) may serve this one",
        )


def models_for(variants: Sequence[str]) -> list[str]:
    """The small models, with their forms, that stand for the variants of a job."""
    from dspatch.conformance import small

    return small.standing_for(variants)


def models_of(wanted: Wanted, variants: Sequence[str]) -> list[str]:
    """The models that were named, those of the variants where none were; none beside checkpoints."""
    return _models(wanted, variants, models_for)


def settled(wanted: Wanted, target: str) -> Wanted:
    """The same in a dtype, where nobody said one: that of the target which an engine was built for."""
    return replace(wanted, dtype=wanted.dtype or (DTYPE if target == "cpu" else GPU_DTYPE))


def models_to_run(
    engine: str, target: str, wanted: Wanted, variants: Sequence[str], *, processes: int = 1
) -> list[str]:
    """The models that an engine is run on: on a GPU in forms that its kernels take, else as `models_of`."""
    from dspatch.conformance import small

    if target == "cpu":
        return models_of(wanted, variants)
    kind = "processes" if processes > 1 else _backend(engine, wanted)
    chosen = _models(wanted, variants, lambda names: small.on_gpu(names, kind))
    return small.with_heads(chosen, kind) if wanted.adversarial or wanted.quantised else chosen


def _backend(engine: str, wanted: Wanted) -> str:
    """Which of an engine's engines is run, or the engine itself where it is but one."""
    from dspatch import engines

    usual: str = getattr(engines.get(engine), "BACKENDS", (engine,))[0]
    return wanted.backend or usual


def _models(
    wanted: Wanted, variants: Sequence[str], usual: Callable[[Sequence[str]], list[str]]
) -> list[str]:
    from dspatch.conformance import quantised, small

    if wanted.checkpoints and not wanted.models:
        return []
    if wanted.quantised:
        return quantised.models(wanted.models or variants, wanted.quantised)
    if wanted.adversarial:
        forms = small.adversarial(wanted.models or ADVERSARIAL)
        return [name for name in forms if small.judged_in(name, wanted.dtype)]
    return usual(wanted.models or variants)


def need_machine(engine: str, target: str, without: NoGpuError) -> None:
    """Raise `without` for a build for GPUs on a machine that has none, else for a missing library."""
    if target == "cuda" and shutil.which("nvidia-smi") is None:
        raise without
    need_libraries(pins.engine(engine).libraries.get(target, {}))


def need_libraries(libraries: Mapping[str, str]) -> None:
    """Raise `EngineEnvironmentError` for the first system library that the loader does not find."""
    for name, install in libraries.items():
        try:
            ctypes.CDLL(name)
        except OSError as error:
            raise EngineEnvironmentError(
                f"{name} is missing, and the engine's compiled members load it.",
                why=str(error),
                next=install,
            ) from None
