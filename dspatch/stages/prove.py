"""`dspatch conformance`: a job's wheel, in an environment of its own, held against transformers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import receipt
from dspatch.console import Console
from dspatch.errors import ConformanceError, NoGpuError
from dspatch.job import Job

if TYPE_CHECKING:
    from dspatch.conformance import Report
    from dspatch.conformance.selftest import Selftest


@dataclass(frozen=True, kw_only=True)
class Proven:
    """What the suite found, and the files that say so; `selftest` only where it was asked for."""

    job: Job
    report: Report
    files: tuple[Path, ...]
    selftest: Selftest | None = None


def run(
    job: Job,
    console: Console,
    *,
    models: Sequence[str] = (),
    reference_ops: bool = False,
    selftest: bool = False,
) -> Proven:
    """Install the job's wheel, run the suite, write the report and the receipt.

    `models` narrows the small models; without it they are those of the job's variants. Raises
    `NoJobError` before build-wheel, `NoGpuError` for a CUDA wheel without a GPU.
    """
    from dspatch.conformance import render
    from dspatch.conformance import selftest as selftests
    from dspatch.conformance.suite import run as run_suite
    from dspatch.engines import Options
    from dspatch.engines.environment import for_wheel

    wheel = receipt.require(job, "build-wheel")["wheel"]
    _need_gpu(job)
    names = models_for(models or receipt.require(job, "apply")["variants"])
    path = job.dist / wheel["path"]
    with job.locked():
        made = for_wheel(job.id.engine, path, console.note)
        arguments = {
            "python": made.python,
            "out": job.folder / "conformance",
            "variants": names,
            "engine": job.id.engine,
            "options": Options(reference_ops=reference_ops),
            "progress": console.note,
        }
        tested = selftests.run(**arguments) if selftest else None  # type: ignore[arg-type]
        report = tested.clean if tested else run_suite(**arguments)  # type: ignore[arg-type]
        files = tuple(render.write(report, job.report))
        _write_receipt(job, wheel["sha256"], report, reference_ops)
    return Proven(job=job, report=report, files=files, selftest=tested)


def check(done: Proven) -> None:
    """Raise `ConformanceError` when a check failed, or a planted fault was missed."""
    if done.selftest is not None and not done.selftest.ok:
        missed = [
            f"{p.variant}: {p.fault.name}" for p in done.selftest.planted if p.outcome == "missed"
        ]
        raise ConformanceError(
            f"the suite's self-test failed: {len(missed)} planted faults were missed.",
            why="; ".join(missed) or "the clean run failed",
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
        raise ConformanceError(f"{done.job.id}: nothing was shown.", why=done.report.summary)


def models_for(variants: Sequence[str]) -> list[str]:
    """The small models, with their forms, that stand for the variants of a job."""
    from dspatch.conformance import small

    return small.standing_for(variants)


def _need_gpu(job: Job) -> None:
    if job.id.target == "cuda" and shutil.which("nvidia-smi") is None:
        raise NoGpuError(
            f"{job.id} is built, and needs an NVIDIA GPU to run; none is here.",
            why="nvidia-smi is not on PATH",
            next=f"on a machine with a GPU: dspatch conformance --engine {job.id.engine}"
            f" --rev {job.id.rev} --target cuda",
        )


def _write_receipt(job: Job, wheel: str, report: Report, reference_ops: bool) -> None:
    receipt.write(
        job,
        "conformance",
        {
            "wheel": wheel,
            "passed": report.ok,
            "summary": report.summary,
            "reference-ops": reference_ops,
            "facts": dict(report.facts),
            "results": [result.as_dict() for result in report.results],
        },
    )
