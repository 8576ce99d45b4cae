"""`dspatch bench alarms`: how often the checks of conformance fail a sound engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import engines, files
from dspatch.bench import alarms, ties
from dspatch.bench.alarms import Count, Judged, Plan
from dspatch.conformance.small import Case
from dspatch.console import Console, json_of
from dspatch.errors import FalseAlarmError
from dspatch.job import locked, prepare_work
from dspatch.stages import prove_any, proving
from dspatch.stages.prove_any import Subject

AT_ONCE = 2  # checkpoints in one process, after which what is known is written
SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was counted on which engine, in which dtype, and the file that says so."""

    name: str
    dtype: str
    count: Count
    file: Path


def run(subject: Subject, plan: Plan, file: Path, console: Console) -> Counted:
    """Run the engine on every checkpoint with its sets of prompts; the file is written after each few.

    A count that was stopped goes on with what the file holds, if that is of the same engine, suite and seeds.
    What a pair with an alarm left stays in the subject's folder. Raises as `prove_any.run`.
    """
    plan = settled(plan, subject)
    proving.need_tolerances(plan.dtype)
    proving.need_dtype(plan.models, plan.dtype)
    drawn = plan.drawn()
    prove_any.need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("alarms") as step:
        python = subject.python(step)
        about = _about(subject, plan)
        rows = _known(file, about)[: len(drawn)]
        if rows:
            console.note(f"alarms: {len(rows)} of {len(drawn)} checkpoints are in {file}")
        while len(rows) < len(drawn):
            few = drawn[len(rows) : len(rows) + AT_ONCE]
            step(f"{len(rows)} of {len(drawn)} checkpoints")
            rows += _measured(subject, python, plan.dtype, few, len(rows))
            _write(file, about, rows)
    return Counted(name=subject.name, dtype=plan.dtype, count=Count(rows=tuple(rows)), file=file)


def settled(plan: Plan, subject: Subject | None = None) -> Plan:
    """The same in a dtype and, for a GPU, of models that its kernels take, where none were named."""
    from dspatch.conformance import small

    on_gpu = subject is not None and subject.target != "cpu"
    dtype = plan.dtype or (proving.GPU_DTYPE if on_gpu else proving.DTYPE)
    if subject is None or not on_gpu or plan.models:
        return replace(plan, dtype=dtype)
    models = small.with_heads(small.counted(dtype), subject.engine)
    return replace(plan, dtype=dtype, models=tuple(models))


def _measured(
    subject: Subject, python: Path, dtype: str, few: Sequence[Sequence[Case]], number: int
) -> list[Judged]:
    from dspatch.conformance import oracle, suite
    from dspatch.engines import Options

    folder = subject.folder / "alarms" / f"{dtype}-{number}"
    standing = oracle.ensure()
    untied = ties.settled([case for cases in few for case in cases], standing)
    report = suite.of_cases(
        untied,
        python=python,
        out=folder,
        engine=subject.engine,
        options=Options(dtype=dtype),
        progress=engines.silent,
    )
    if report.ok:
        shutil.rmtree(folder)
    left = iter(untied)
    kept = [[next(left) for _ in cases] for cases in few]
    return [
        alarms.judged(cases, report.results, redrawn=ties.again(drawn, cases))
        for drawn, cases in zip(few, kept, strict=True)
    ]


def _about(subject: Subject, plan: Plan) -> dict[str, Any]:
    """What the rows of a file depend on, but for how many checkpoints were asked for."""
    from dspatch.conformance import suite

    drawn = {k: v for k, v in asdict(plan).items() if k not in ("checkpoints", "dtype")}
    return {"engine": subject.name, "dtype": plan.dtype, "suite": suite.inputs(), "plan": drawn}


def _known(file: Path, about: dict[str, Any]) -> list[Judged]:
    """The rows that a file has of the same count."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        same = kept["about"] == json.loads(json_of(about))
        return [Judged.read(row) for row in kept["rows"]] if same else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(file: Path, about: dict[str, Any], rows: Sequence[Judged]) -> None:
    count = Count(rows=tuple(rows))
    text = json_of({"about": about, **count.as_dict()})
    files.write_atomically(file, f"{text}\n".encode())


def check(done: Counted) -> None:
    """Raise `FalseAlarmError` when a check failed."""
    found = done.count.alarms
    if found:
        raise FalseAlarmError(
            f"{len(found)} checks failed {done.name}, which is said to be sound.",
            why="\n        ".join(found[:SHOWN]),
            next=f"prove the engine on these models with `dspatch conformance`; if it is sound, the"
            f" tolerance is not: {done.file} has all of them",
        )
