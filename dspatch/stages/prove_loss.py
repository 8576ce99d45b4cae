"""`dspatch conformance --quantised-against`: what quantised checkpoints lose against the one before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import files
from dspatch.console import Console
from dspatch.job import Job
from dspatch.stages import prove_any
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
    return of_subject(prove_any.of_job(job), wanted, console)


def of_subject(subject: Subject, wanted: Wanted, console: Console) -> Done:
    """Measure with what an environment has installed, or a wheel; raises as `of_job`."""
    from dspatch.conformance import loss

    with prove_any.opened(subject, console) as (python, step):
        lost = loss.run(
            before=wanted.before, after=wanted.after, prompts=wanted.prompts, python=python,
            out=subject.folder / "conformance-loss", engine=subject.engine, progress=step,
        )  # fmt: skip
        files = _written(lost, subject.name, subject.folder / FOLDER)
        return Done(name=subject.name, lost=lost, files=files)


def _written(lost: Lost, name: str, folder: Path) -> tuple[Path, ...]:
    from dspatch.stages import show_loss

    folder.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(lost.as_dict(), indent=1) + "\n"
    texts = {"loss.json": whole, "loss.md": show_loss.markdown(lost, name)}
    for each, text in texts.items():
        files.write_atomically(folder / each, text.encode())
    return tuple(folder / each for each in texts)
