"""`dspatch conformance --tp`: an engine on several processes, held against itself on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dspatch import engines, receipt, variants
from dspatch.console import Console
from dspatch.job import Job, locked, prepare_work
from dspatch.stages import prove, prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven, Wanted


def of_job(job: Job, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove a job's wheel; the report goes beside that of `conformance`, to `report-tpN`.

    Raises `ParallelError` before anything is installed or started, and what `prove.run` raises.
    """
    models = proving.models_of(wanted, receipt.require(job, "apply")["variants"])
    wheel = job.dist / receipt.require(job, "build-wheel")["wheel"]["path"]
    _check(models, wanted, degree)
    prove.need_machine(job)
    with job.locked(), console.working("conformance") as step:
        return _measure(
            str(job.id), job.id.engine, lambda: prove.environment(job, wheel, step),
            job.folder, models, degree, wanted, step,
        )  # fmt: skip


def of_subject(subject: Subject, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove what an environment has installed, or a wheel; raises as `of_job`."""
    models = proving.models_of(wanted, variants.names())
    _check(models, wanted, degree)
    prove_any.need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        return _measure(
            subject.name, subject.engine, lambda: subject.python(step),
            subject.folder, models, degree, wanted, step,
        )  # fmt: skip


def _check(models: Sequence[str], wanted: Wanted, degree: int) -> None:
    from dspatch.conformance import parallel

    proving.need_tolerances(wanted.dtype)
    parallel.cases(models, wanted.checkpoints, degree)


def _measure(
    name: str,
    engine: str,
    python: Callable[[], Path],
    folder: Path,
    models: Sequence[str],
    degree: int,
    wanted: Wanted,
    step: engines.Progress,
) -> Proven:
    from dspatch.conformance import parallel, render

    report = parallel.run(
        parallel.cases(models, wanted.checkpoints, degree), degree,
        python=python(), out=folder / "conformance", engine=engine,
        options=engines.Options(reference_ops=wanted.reference_ops, dtype=wanted.dtype),
        progress=step,
    )  # fmt: skip
    title = f"{name}, {degree} processes beside one"
    files = tuple(render.write(report, folder / f"report-tp{degree}", name=title, selftest=None))
    return Proven(name=title, report=report, files=files)
