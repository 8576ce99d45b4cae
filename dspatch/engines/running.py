"""Run trials in an engine's worker: one process for all, and a new one after a trial that failed."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspatch.engines import Observed, Options, Progress, Trial, unserved, worker
from dspatch.errors import EngineError

WORKERS = Path(__file__).with_name("workers")
RESULT = "result.json"
# Written after each part of a run, for the case that the process does not live to write the result.
PARTIAL = "partial.json"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """An engine's worker: the engine's module and how one calls it, the worker's package, what it was run on.

    `env` are the variables of its process; `options` say how it starts the engine, and how long results are awaited.
    """

    engine: str
    title: str
    package: str
    served: Sequence[str]
    env: Mapping[str, str]
    options: Options


def environment(options: Options) -> dict[str, str]:
    """The variables that any worker runs with: off the network, its twins chosen, kind to a busy machine."""
    return {
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        # Waiting threads must not hold the cores that others need.
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(options.threads),
        "DSPATCH_REFERENCE_OPS": "1" if options.reference_ops else "0",
    }


def observe(
    run: Worker, python: Path, trials: Sequence[Trial], out: Path, progress: Progress
) -> list[Observed]:
    """Run the trials one after the other with `python`; one folder each in `out`.

    A trial whose process dies has that as its error, and the next ones start anew. Raises
    `EngineError` when the interpreter does not have the engine, `ProcessTimeoutError` past the timeout.
    """
    out.mkdir(parents=True, exist_ok=True)
    log = out / "engine.log"
    folders = [out / f"{number}-{one.name.replace('/', '-')}" for number, one in enumerate(trials)]
    waiting = list(zip(trials, folders, strict=True))
    done: list[Observed] = []
    for _, folder in waiting:
        shutil.rmtree(folder, ignore_errors=True)
    while waiting:
        progress(f"starting {run.title} for {', '.join(one.name for one, _ in waiting)}")
        ended = _process(run, python, waiting, out, log)
        reported = [_observed(run, *pair) for pair in waiting if (pair[1] / RESULT).is_file()]
        done += reported or [died(*waiting[0], ended)]
        _need_engine(run, done[-1], log)
        waiting = waiting[len(reported) or 1 :]
    return done


def _process(
    run: Worker, python: Path, waiting: Sequence[tuple[Trial, Path]], out: Path, log: Path
) -> str:
    """Run the worker, which ends at the first trial that fails; how it died, or nothing."""
    asked = [_request(one, run.options, folder) for one, folder in waiting]
    done = worker.run(
        python,
        WORKERS / run.package,
        {"trials": asked},
        out,
        env=run.env,
        log=log,
        timeout=run.options.timeout,
        check=False,
    )
    return _ending(done.returncode, done.stderr)


def _request(trial: Trial, options: Options, out: Path) -> dict[str, Any]:
    """What a worker is asked of one trial, as JSON values; it writes into `out`."""
    return {
        **asdict(trial),
        "checkpoint": str(trial.checkpoint),
        "golden": str(trial.golden) if trial.golden else None,
        "options": asdict(options.fitting(trial.context)),
        "out": str(out),
    }


def _ending(code: int, said: str) -> str:
    """How a process ended that ended badly, with the last thing that it said; else nothing."""
    if code == 0:
        return ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    last = said.splitlines()[-1:] or ["nothing"]
    return f"{how}; it said last: {last[0]}"


def _need_engine(run: Worker, observed: Observed, log: Path) -> None:
    if observed.error == f"ModuleNotFoundError: No module named '{run.engine}'":
        raise EngineError(
            f"The interpreter that was to run {run.title} does not have it.",
            why=observed.error,
            next=f"give --env a Python that has it, or build a wheel; the log: {log}",
        )


def died(trial: Trial, folder: Path, why: str) -> Observed:
    """What a process that died had shown, and that it died."""
    partial = folder / PARTIAL
    facts = json.loads(partial.read_text()) if partial.is_file() else {}
    reached = facts.get("reached", ())
    when = f" after `{reached[-1]}`" if reached else ""
    facts |= {"error": f"the process died{when}: {why or 'without a result'}"}
    return Observed(trial=trial, tensors=folder / "result.safetensors", facts=facts)


def _observed(run: Worker, trial: Trial, folder: Path) -> Observed:
    facts = json.loads((folder / RESULT).read_text())
    if "error" in facts and (why := unserved(run.engine, run.served, facts.get(run.engine, ""))):
        facts["error"] += f" ({why})"
    return Observed(trial=trial, tensors=folder / "result.safetensors", facts=facts)
