"""`dspatch conformance`: a job's wheel, in an environment of its own, held against transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import receipt
from dspatch.console import Console
from dspatch.errors import NoGpuError
from dspatch.job import Job
from dspatch.stages import proving
from dspatch.stages.proving import Proven, Wanted
from dspatch.wheel.names import WheelName

if TYPE_CHECKING:
    from dspatch.conformance import Report


def run(job: Job, console: Console, wanted: Wanted) -> Proven:
    """Install the job's wheel, run the suite, write the report and the receipt.

    Of an engine that only a GPU runs, whose conversion of weights a CPU does, that is proven. A
    passing report on the same wheel, models and suite is not made again. Raises `NoJobError` before
    build-wheel, `NoGpuError` for a CUDA wheel without a GPU.
    """
    wheel = receipt.require(job, "build-wheel")["wheel"]
    converts = _converts(job, wheel["path"], wanted)
    if not converts:
        need_machine(job, wanted.backend)
    wanted = proving.settled(wanted, "cpu" if converts else job.id.target)
    proving.need_tolerances(wanted.dtype)
    variants = receipt.require(job, "apply")["variants"]
    models = (
        proving.models_to_convert(wanted, variants)
        if converts
        else proving.models_to_run(job.id.engine, job.id.target, wanted, variants)
    )
    if not converts:
        proving.need_computed_in(job.id.engine, wanted.dtype)
        proving.need_dtype(models, wanted.dtype)
        proving.need_limits(job.id.engine, job.id.target, models, wanted)
    inputs = _inputs(wheel["sha256"], models, wanted)
    with job.locked():
        kept = None if wanted.fresh or wanted.selftest or wanted.checkpoints else _kept(job, inputs)
        if kept is not None:
            console.note(
                "conformance: nothing changed since the last report; --fresh measures again"
            )
            return kept
        return _measure(job, console, wanted, job.dist / wheel["path"], models, inputs)


def _measure(
    job: Job, console: Console, wanted: Wanted, wheel: Path, models: list[str], inputs: str
) -> Proven:
    with console.working("conformance") as step:
        shared: dict[str, Any] = {
            "folder": job.folder,
            "models": models,
            "wanted": wanted,
            "step": step,
        }
        if _converts(job, wheel.name, wanted):
            version = version_of(wheel.name)
            done = proving.convert(str(job.id), wheel=wheel, version=version, **shared)
        else:
            done = proving.measure(
                str(job.id),
                engine=job.id.engine,
                version=version_of(wheel.name),
                target=job.id.target,
                python=proving.environment(job.id.engine, wheel, step),
                **shared,
            )
    _write_receipt(job, done.report, wanted, inputs)
    return done


def version_of(wheel: str) -> str:
    """The version in a wheel's file name."""
    return str(WheelName.parse(wheel).version)


def _converts(job: Job, wheel: str, wanted: Wanted) -> bool:
    return proving.converts(job.id.engine, version_of(wheel), wanted)


def _inputs(wheel: str, models: Sequence[str], wanted: Wanted) -> str:
    """Everything that the numbers of a report depend on, as one hash."""
    from dspatch.conformance import suite

    own = [str(folder) for folder in wanted.checkpoints]
    given = [wheel, list(models), own, wanted.reference_ops, wanted.dtype, wanted.backend]
    inputs = [*given, *suite.inputs()]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _kept(job: Job, inputs: str) -> Proven | None:
    """The last report, when it passed and came from the same inputs."""
    from dspatch.conformance import CheckResult, Report, render
    from dspatch.conformance.report import Curves

    content = receipt.read(job, "conformance")
    files = tuple(job.report / name for name in render.FILES)
    if content is None or content["inputs"] != inputs or not all(f.is_file() for f in files):
        return None
    results = tuple(CheckResult(**row) for row in content["results"])
    curves = tuple(Curves.of(row) for row in content["curves"])
    report = Report(results=results, facts=content["facts"], curves=curves)
    return Proven(name=str(job.id), report=report, files=files) if report.ok else None


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
            "curves": [each.as_dict() for each in report.curves],
        },
    )


def need_machine(job: Job, backend: str = "") -> None:
    """Raise `NoGpuError` for a CUDA wheel without a GPU, or for what else it lacks here."""
    chosen = f" --backend {backend}" if backend else ""
    without = NoGpuError(
        f"{job.id} is built, and needs an NVIDIA GPU to run; none is here.",
        why="nvidia-smi is not on PATH",
        next=f"on a machine with a GPU: dspatch conformance --engine {job.id.engine}"
        f" --rev {job.id.rev} --target cuda{chosen}",
    )
    proving.need_machine(job.id.engine, job.id.target, without)
