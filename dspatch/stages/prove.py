"""`dspatch conformance`: a job's wheel, in an environment of its own, held against transformers."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import paths, pins, receipt
from dspatch.console import Console
from dspatch.errors import ConformanceError, EngineEnvironmentError, NoGpuError
from dspatch.job import Job
from dspatch.series import digest_of

if TYPE_CHECKING:
    from dspatch.conformance import Report
    from dspatch.conformance.selftest import Selftest


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to prove: small models (none: those of the job's variants), and how.

    `fresh` measures again although nothing changed since the last report.
    """

    models: tuple[str, ...] = ()
    reference_ops: bool = False
    selftest: bool = False
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Proven:
    """What the suite found, and the files that say so; `selftest` only where it was asked for."""

    job: Job
    report: Report
    files: tuple[Path, ...]
    selftest: Selftest | None = None


def run(job: Job, console: Console, wanted: Wanted) -> Proven:
    """Install the job's wheel, run the suite, write the report and the receipt.

    A passing report on the same wheel, models and suite is not made again. Raises `NoJobError`
    before build-wheel, `NoGpuError` for a CUDA wheel without a GPU.
    """
    wheel = receipt.require(job, "build-wheel")["wheel"]
    _need_gpu(job)
    need_libraries(pins.engine(job.id.engine).libraries.get(job.id.target, {}))
    models = models_for(wanted.models or receipt.require(job, "apply")["variants"])
    inputs = _inputs(wheel["sha256"], models, wanted)
    with job.locked():
        kept = None if wanted.fresh or wanted.selftest else _kept(job, inputs)
        if kept is not None:
            console.note(
                "conformance: nothing changed since the last report; --fresh measures again"
            )
            return kept
        return _measure(job, console, wanted, job.dist / wheel["path"], models, inputs)


def _measure(
    job: Job, console: Console, wanted: Wanted, wheel: Path, models: list[str], inputs: str
) -> Proven:
    from dspatch.conformance import render
    from dspatch.conformance import selftest as selftests
    from dspatch.conformance.suite import run as run_suite
    from dspatch.engines import Options
    from dspatch.engines.environment import for_wheel

    suite = selftests.run if wanted.selftest else run_suite
    with console.working("conformance") as step:
        found: Any = suite(
            python=for_wheel(job.id.engine, wheel, step).python,
            out=job.folder / "conformance",
            variants=models,
            engine=job.id.engine,
            options=Options(reference_ops=wanted.reference_ops),
            progress=step,
        )
    report: Report = found.clean if wanted.selftest else found
    files = tuple(render.write(report, job.report))
    _write_receipt(job, report, wanted, inputs)
    return Proven(job=job, report=report, files=files, selftest=found if wanted.selftest else None)


def _inputs(wheel: str, models: Sequence[str], wanted: Wanted) -> str:
    """Everything that the numbers of a report depend on, as one hash."""
    suite = digest_of([paths.PACKAGE / "conformance", paths.PACKAGE / "engines"])
    inputs = [wheel, list(models), wanted.reference_ops, suite]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _kept(job: Job, inputs: str) -> Proven | None:
    """The last report, when it passed and came from the same inputs."""
    from dspatch.conformance import CheckResult, Report

    content = receipt.read(job, "conformance")
    files = tuple(job.report / name for name in ("report.json", "report.md", "report.xml"))
    if content is None or content["inputs"] != inputs or not all(f.is_file() for f in files):
        return None
    results = tuple(CheckResult(**row) for row in content["results"])
    report = Report(results=results, facts=content["facts"])
    return Proven(job=job, report=report, files=files) if report.ok else None


def _write_receipt(job: Job, report: Report, wanted: Wanted, inputs: str) -> None:
    wheel = receipt.require(job, "build-wheel")["wheel"]["sha256"]
    receipt.write(
        job,
        "conformance",
        {
            "inputs": inputs,
            "wheel": wheel,
            "passed": report.ok,
            "summary": report.summary,
            "reference-ops": wanted.reference_ops,
            "facts": dict(report.facts),
            "results": [asdict(result) for result in report.results],
        },
    )


def check(done: Proven) -> None:
    """Raise `ConformanceError` when a check failed, or a planted fault was missed."""
    if done.selftest is not None and not done.selftest.ok:
        missed = [
            f"{p.variant}: {p.fault.name}" for p in done.selftest.planted if p.outcome == "missed"
        ]
        raise ConformanceError(
            f"the suite's self-test failed: {len(missed)} planted faults were missed.",
            why="; ".join(missed) or "the clean run failed",
            next=f"read {done.files[1]}",
        )
    failures = done.report.failures()
    if failures:
        raise ConformanceError(
            f"{done.job.id}: {done.report.summary}.",
            why="\n        ".join(f"{f.variant}: {f.check}: {f.note}" for f in failures[:6]),
            next="run it with --reference-ops to tell a kernel's fault from a model's, or read"
            f" {done.files[1]}",
        )
    if not done.report.ok:
        raise ConformanceError(
            f"{done.job.id}: nothing was shown.",
            why=done.report.summary,
            next=f"read {done.files[1]}",
        )


def models_for(variants: Sequence[str]) -> list[str]:
    """The small models, with their forms, that stand for the variants of a job."""
    from dspatch.conformance import small

    return small.standing_for(variants)


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


def _need_gpu(job: Job) -> None:
    if job.id.target == "cuda" and shutil.which("nvidia-smi") is None:
        raise NoGpuError(
            f"{job.id} is built, and needs an NVIDIA GPU to run; none is here.",
            why="nvidia-smi is not on PATH",
            next=f"on a machine with a GPU: dspatch conformance --engine {job.id.engine}"
            f" --rev {job.id.rev} --target cuda",
        )
