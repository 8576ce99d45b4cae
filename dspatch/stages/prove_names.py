"""`dspatch conformance --names`: published checkpoints' names, held against what an engine's loaders take."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch import engines, receipt
from dspatch.console import Console
from dspatch.job import Job
from dspatch.stages import prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven


def of_job(job: Job, console: Console, named: Sequence[str]) -> Proven:
    """Prove a job's wheel; the report goes beside that of `conformance`, to `report-names`.

    Raises `UnknownVariantError` for a variant whose tensors are not listed, and what `prove.run` raises.
    """
    from dspatch.conformance import published

    subject, applied = prove_any.of_job(job), receipt.require(job, "apply")
    return of_subject(subject, console, named or published.standing_for(applied["variants"]))


def of_subject(subject: Subject, console: Console, named: Sequence[str]) -> Proven:
    """Prove what an environment has installed, or a wheel; raises as `of_job`."""
    from dspatch.conformance import names, published

    cases = names.cases(named or published.names(), subject.engine, subject.version)
    with prove_any.opened(subject, console) as (python, step):
        report = names.run(
            cases, python=python, engine=subject.engine, options=engines.Options(), progress=step
        )
        title = f"{subject.name}, names of published checkpoints"
        return proving.told(title, report, subject.folder / "report-names")
