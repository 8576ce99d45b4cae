"""`dspatch conformance --names`: published checkpoints' names, held against what an engine's loaders take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dspatch import engines, receipt
from dspatch.console import Console
from dspatch.job import Job, locked, prepare_work
from dspatch.stages import prove, prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven


def of_job(job: Job, console: Console, named: Sequence[str]) -> Proven:
    """Prove a job's wheel; the report goes beside that of `conformance`, to `report-names`.

    Raises `UnknownVariantError` for a variant whose tensors are not listed, and what `prove.run` raises.
    """
    wheel = job.dist / receipt.require(job, "build-wheel")["wheel"]["path"]
    models = named or _listed(receipt.require(job, "apply")["variants"])
    prove.need_machine(job)
    with job.locked(), console.working("conformance") as step:
        python = proving.environment(job.id.engine, wheel, step)
        return _measure(
            str(job.id), job.id.engine, str(job.id.rev), python, job.folder, models, step
        )


def of_subject(subject: Subject, console: Console, named: Sequence[str]) -> Proven:
    """Prove what an environment has installed, or a wheel; raises as `of_job`."""
    from dspatch.conformance import published

    prove_any.need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        return _measure(
            subject.name, subject.engine, subject.version, subject.python(step),
            subject.folder, named or published.names(), step,
        )  # fmt: skip


def _listed(variants: Sequence[str]) -> list[str]:
    """Of a job's variants those whose tensors are listed, each list once."""
    from dspatch.conformance import published

    return [name for name in published.listed() if name in variants]


def _measure(
    name: str,
    engine: str,
    version: str,
    python: Path,
    folder: Path,
    models: Sequence[str],
    step: engines.Progress,
) -> Proven:
    from dspatch.conformance import names, render

    cases = names.cases(models, engine, version)
    report = names.run(
        cases, python=python, engine=engine, options=engines.Options(), progress=step
    )
    title = f"{name}, names of published checkpoints"
    files = tuple(render.write(report, folder / "report-names", name=title, selftest=None))
    return Proven(name=title, report=report, files=files)
