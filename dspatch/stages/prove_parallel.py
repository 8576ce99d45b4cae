"""`dspatch conformance --tp`: an engine on several processes, held against itself on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import engines, receipt, variants
from dspatch.console import Console
from dspatch.job import Job, locked, prepare_work
from dspatch.stages import prove, prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven, Wanted

if TYPE_CHECKING:
    from dspatch.conformance.small import Case


def of_job(job: Job, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove a job's wheel; the report goes beside that of `conformance`, to `report-tpN`.

    Raises `ParallelError` before anything is installed or started, and what `prove.run` raises.
    """
    models = proving.models_of(wanted, receipt.require(job, "apply")["variants"])
    wheel = job.dist / receipt.require(job, "build-wheel")["wheel"]["path"]
    cases = _cases(models, wanted, degree)
    prove.need_machine(job)
    with job.locked(), console.working("conformance") as step:
        return _measure(
            str(job.id), job.id.engine, proving.environment(job.id.engine, wheel, step),
            job.folder, cases, degree, wanted, step,
        )  # fmt: skip


def of_subject(subject: Subject, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove what an environment has installed, or a wheel; raises as `of_job`."""
    models = proving.models_of(wanted, variants.names())
    cases = _cases(models, wanted, degree)
    prove_any.need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        return _measure(
            subject.name, subject.engine, subject.python(step),
            subject.folder, cases, degree, wanted, step,
        )  # fmt: skip


def _cases(models: Sequence[str], wanted: Wanted, degree: int) -> list[Case]:
    from dspatch.conformance import parallel

    proving.need_tolerances(wanted.dtype)
    return parallel.cases(models, wanted.checkpoints, degree)


def _measure(
    name: str,
    engine: str,
    python: Path,
    folder: Path,
    cases: Sequence[Case],
    degree: int,
    wanted: Wanted,
    step: engines.Progress,
) -> Proven:
    from dspatch.conformance import parallel, render

    report = parallel.run(
        cases, degree, python=python, out=folder / "conformance", engine=engine,
        options=engines.Options(reference_ops=wanted.reference_ops, dtype=wanted.dtype),
        progress=step,
    )  # fmt: skip
    title = f"{name}, {degree} processes beside one"
    files = tuple(render.write(report, folder / f"report-tp{degree}", name=title, selftest=None))
    return Proven(name=title, report=report, files=files)
