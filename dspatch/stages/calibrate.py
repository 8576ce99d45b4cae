"""`dspatch bench calibrate`: what the checks accept, measured on healthy engines and under planted faults."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import engines
from dspatch.bench import limits, noise, tolerancefile
from dspatch.bench.limits import Row
from dspatch.bench.noise import Seen
from dspatch.console import Console
from dspatch.errors import CalibrationError
from dspatch.job import locked, prepare_work
from dspatch.stages import prove_any
from dspatch.stages.prove_any import Subject

if TYPE_CHECKING:
    from dspatch.conformance import Report

HEALTH = "float32"  # what an engine must pass before its numbers count as noise
DTYPES = ("float32", "bfloat16", "float16")
MODELS = ("deepseek-v2-lite", "deepseek-v3")  # both routers, both kinds of query projection


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to measure in, on which small models; `assume_healthy` leaves out the run in float32."""

    dtypes: tuple[str, ...] = DTYPES
    models: tuple[str, ...] = ()
    assume_healthy: bool = False


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The rows that were measured, the file of all rows, and the engines that they were measured on."""

    rows: tuple[Row, ...]
    file: Path
    engines: tuple[str, ...]


def run(subjects: Sequence[Subject], wanted: Wanted, file: Path, console: Console) -> Calibrated:
    """Measure the engines and write the table; rows of other dtypes and devices stay.

    Each engine runs each model clean, under every planted fault, and clean again with one thread and
    chunks of another size. Raises `CalibrationError` for an engine that fails a check in float32, or
    fails to start, and `NoGpuError` for one that needs a GPU.
    """
    models = _models(subjects, wanted)
    for subject in subjects:
        _need_watched(subject)
        prove_any.need_machine(subject)
    prepare_work()
    numbers: list[Seen] = []
    for subject in subjects:
        with locked(subject.folder, subject.name), console.working("calibrate") as step:
            numbers += _measured(subject, wanted, models, console, step)
    names = tuple(subject.name.partition(" (")[0] for subject in subjects)
    return _written(numbers, names, models, file)


def _models(subjects: Sequence[Subject], wanted: Wanted) -> list[str]:
    """The models that were named, else those of both kinds, of builds for GPUs in heads that their kernels take."""
    from dspatch.conformance import small

    if wanted.models:
        return [small.case(name).name for name in wanted.models]
    built = next((one.engine for one in subjects if one.target != "cpu"), "")
    return small.on_gpu(MODELS, built) if built else list(MODELS)


def _need_watched(subject: Subject) -> None:
    """Raise `CalibrationError` for an engine whose faults are seen in its answers alone: they set no other's limits."""
    from dspatch.conformance import suite

    if suite.starts(subject.engine):
        raise CalibrationError(
            f"limits cannot be measured with {subject.engine}.",
            why="its faults are planted from outside and seen in its answers, which have limits of their own",
            next="calibrate with vLLM; dspatch conformance --selftest shows what each fault measures",
        )


def _written(
    numbers: Sequence[Seen], names: tuple[str, ...], models: Sequence[str], file: Path
) -> Calibrated:
    from dspatch.conformance import tolerance

    known = dict(tolerance.table())
    of = f"{', '.join(dict.fromkeys(names))}; {len(models)} models"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    found = [
        row
        for band in noise.bands(numbers).values()
        if (row := limits.row(band, known, of=of, date=today)) is not None
    ]
    tolerancefile.write(file, known | {row.key: row.new for row in found})
    return Calibrated(rows=tuple(found), file=file, engines=names)


def _measured(
    subject: Subject,
    wanted: Wanted,
    models: Sequence[str],
    console: Console,
    step: engines.Progress,
) -> Iterator[Seen]:
    from dspatch.conformance import selftest, suite
    from dspatch.engines import Options

    python = subject.python(step)
    with tempfile.TemporaryDirectory(prefix="dspatch-calibrate-") as folder:
        for dtype in _in_order(wanted):
            options = Options(dtype=dtype)
            given: dict[str, Any] = {
                "python": python,
                "out": Path(folder),
                "variants": models,
                "progress": step,
            }
            console.note(f"calibrate: {subject.name} in {dtype}")
            if dtype not in wanted.dtypes:
                _need_healthy(subject, suite.run(**given, engine=subject.engine, options=options))
                continue
            tested = selftest.run(**given, engine=subject.engine, options=options)
            if dtype == HEALTH and not wanted.assume_healthy:
                _need_healthy(subject, tested.clean)
            _need_started(subject, tested.clean)
            other = replace(options, threads=1, max_num_batched_tokens=96)
            again = suite.run(**given, engine=subject.engine, options=other)
            for report in (tested.clean, again):
                yield from noise.of_clean(report, subject.name)
            yield from noise.of_faults(tested, subject.name)


def _in_order(wanted: Wanted) -> list[str]:
    """The dtypes, float32 first, as it says whether the engine is sound."""
    first = [] if wanted.assume_healthy else [HEALTH]
    return list(dict.fromkeys([*first, *wanted.dtypes]))


def _need_healthy(subject: Subject, report: Report) -> None:
    if failures := report.failures():
        raise CalibrationError(
            f"{subject.name} is not sound: {report.summary} in {HEALTH}.",
            why="\n        ".join(f"{f.variant}: {f.check}: {f.note}" for f in failures[:4]),
            next="calibrate with an engine that passes, or name models that it passes: --variant",
        )


def _need_started(subject: Subject, report: Report) -> None:
    for result in report.failures():
        if result.check in ("engine.start", "engine.run"):
            raise CalibrationError(
                f"{subject.name} did not run {result.variant} in {result.dtype}.",
                why=result.note,
                next="leave that dtype out: --dtype",
            )
