"""`dspatch conformance --tp`: an engine on several processes, held against itself on one."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch import engines, receipt, variants
from dspatch.console import Console
from dspatch.job import Job
from dspatch.stages import prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven, Wanted


def of_job(job: Job, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove a job's wheel; the report goes beside that of `conformance`, to `report-tpN`.

    Raises `ParallelError` before anything is installed or started, and what `prove.run` raises.
    """
    subject = prove_any.of_job(job)
    return _proven(subject, degree, console, wanted, receipt.require(job, "apply")["variants"])


def of_subject(subject: Subject, degree: int, console: Console, wanted: Wanted) -> Proven:
    """Prove what an environment has installed, or a wheel; raises as `of_job`."""
    return _proven(subject, degree, console, wanted, variants.names())


def _proven(
    subject: Subject, degree: int, console: Console, wanted: Wanted, usual: Sequence[str]
) -> Proven:
    from dspatch.conformance import parallel

    wanted = proving.settled(wanted, subject.target)
    models = proving.models_to_run(subject.engine, subject.target, wanted, usual, processes=degree)
    proving.need_tolerances(wanted.dtype)
    cases = parallel.cases(models, wanted.checkpoints, degree)
    with prove_any.opened(subject, console) as (python, step):
        report = parallel.run(
            cases, degree, python=python, out=subject.folder / "conformance", engine=subject.engine,
            options=engines.Options(reference_ops=wanted.reference_ops, dtype=wanted.dtype),
            progress=step,
        )  # fmt: skip
        title = f"{subject.name}, {degree} processes beside one"
        return proving.told(title, report, subject.folder / f"report-tp{degree}")
