"""`dspatch conformance --quantised-against`: what quantised checkpoints lose against the one before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import files, receipt
from dspatch.console import Console
from dspatch.engines import Progress
from dspatch.job import Job, locked, prepare_work
from dspatch.stages import prove, prove_any, proving
from dspatch.stages.prove_any import Subject

if TYPE_CHECKING:
    from dspatch.conformance.loss import Lost

FOLDER = "report-loss"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The checkpoint `before`, the quantised ones `after`, and a file of prompts, if there is one."""

    before: Path
    after: Sequence[Path]
    prompts: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Done:
    """What `name` measured, and the files that say so."""

    name: str
    lost: Lost
    files: tuple[Path, ...]


def of_job(job: Job, wanted: Wanted, console: Console) -> Done:
    """Measure with a job's wheel; raises as `conformance.loss.run`."""
    wheel = job.dist / receipt.require(job, "build-wheel")["wheel"]["path"]
    prove.need_machine(job)
    with job.locked(), console.working("conformance") as step:
        python = proving.environment(job.id.engine, wheel, step)
        return _measure(str(job.id), job.id.engine, python, job.folder, wanted, step)


def of_subject(subject: Subject, wanted: Wanted, console: Console) -> Done:
    """Measure with what an environment has installed, or a wheel; raises as `of_job`."""
    prove_any.need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        python = subject.python(step)
        return _measure(subject.name, subject.engine, python, subject.folder, wanted, step)


def _measure(
    name: str, engine: str, python: Path, folder: Path, wanted: Wanted, step: Progress
) -> Done:
    from dspatch.conformance import loss

    lost = loss.run(
        before=wanted.before, after=wanted.after, prompts=wanted.prompts, python=python,
        out=folder / "conformance-loss", engine=engine, progress=step,
    )  # fmt: skip
    return Done(name=name, lost=lost, files=_written(lost, name, folder / FOLDER))


def _written(lost: Lost, name: str, folder: Path) -> tuple[Path, ...]:
    from dspatch.stages import show_loss

    folder.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(lost.as_dict(), indent=1) + "\n"
    texts = {"loss.json": whole, "loss.md": show_loss.markdown(lost, name)}
    for each, text in texts.items():
        files.write_atomically(folder / each, text.encode())
    return tuple(folder / each for each in texts)
