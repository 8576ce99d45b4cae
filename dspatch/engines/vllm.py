"""Run vLLM, in an environment of its own, under observation."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dspatch.engines import Observed, Options, Parsers, Progress, Trial, served, unserved, worker
from dspatch.engines.serving import HOST, Service
from dspatch.errors import EngineError

NAME = "vllm"
WORKERS = Path(__file__).with_name("workers")
RESULT = "result.json"
# Written after each part of a run, for the case that the process does not live to write the result.
PARTIAL = "partial.json"
SERVED = served(NAME)


def observe(
    python: Path, trials: Sequence[Trial], *, out: Path, options: Options, progress: Progress
) -> list[Observed]:
    """Run the trials, one after the other, in one process of `python`; one folder each in `out`.

    A trial whose process dies has that as its error, and the next ones start anew. Raises
    `EngineError` when there is no vLLM at all, `ProcessTimeoutError` past the options' timeout.
    """
    out.mkdir(parents=True, exist_ok=True)
    log = out / "engine.log"
    folders = [out / f"{number}-{one.name.replace('/', '-')}" for number, one in enumerate(trials)]
    waiting = list(zip(trials, folders, strict=True))
    done: list[Observed] = []
    for _, folder in waiting:
        shutil.rmtree(folder, ignore_errors=True)
    while waiting:
        progress(f"starting vLLM for {', '.join(one.name for one, _ in waiting)}")
        ended = _process(python, waiting, out, log, options)
        reported = [_observed(*pair) for pair in waiting if (pair[1] / RESULT).is_file()]
        done += reported or [_died(*waiting[0], ended)]
        _need_vllm(done[-1], log)
        waiting = waiting[len(reported) or 1 :]
    return done


def _process(
    python: Path, waiting: Sequence[tuple[Trial, Path]], out: Path, log: Path, options: Options
) -> str:
    """Run the worker, which ends at the first trial that fails; how it died, or nothing."""
    asked = [_request(one, folder, options) for one, folder in waiting]
    done = worker.run(
        python,
        WORKERS / "vllm_worker",
        {"trials": asked},
        out,
        env=environment(options),
        log=log,
        timeout=options.timeout,
        check=False,
    )
    return _ending(done.returncode, done.stderr)


def _ending(code: int, said: str) -> str:
    """How a process ended that ended badly, with the last thing that it said; else nothing."""
    if code == 0:
        return ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    last = said.splitlines()[-1:] or ["nothing"]
    return f"{how}; it said last: {last[0]}"


def _need_vllm(observed: Observed, log: Path) -> None:
    if observed.error == "ModuleNotFoundError: No module named 'vllm'":
        raise EngineError(
            "The interpreter that was to run vLLM does not have it.",
            why=observed.error,
            next=f"build a wheel first, or read the log: {log}",
        )


def _died(trial: Trial, folder: Path, why: str) -> Observed:
    """What a process that died had shown, and that it died."""
    partial = folder / PARTIAL
    facts = json.loads(partial.read_text()) if partial.is_file() else {}
    reached = facts.get("reached", ())
    when = f" after `{reached[-1]}`" if reached else ""
    facts |= {"error": f"the process died{when}: {why or 'without a result'}"}
    return Observed(trial=trial, tensors=folder / "result.safetensors", facts=facts)


def environment(options: Options) -> dict[str, str]:
    """The environment variables of a run that stays in one process and off the network."""
    return {
        "PYTHONPATH": str(WORKERS),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Whoever looks for a fault wants more of it.
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        # Hooks and planted faults reach the live model only when it lives in the worker itself.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Small models need little cache, and pinned threads fight over the cores of a busy machine.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "DSPATCH_REFERENCE_OPS": "1" if options.reference_ops else "0",
        **options.variables,
    }


def service(
    python: Path,
    checkpoint: Path,
    *,
    name: str,
    port: int,
    parsers: Parsers,
    options: Options,
    share: float | None = None,
) -> Service:
    """What starts vLLM's server on loopback with a checkpoint, under the name that clients use.

    `share` is that of a GPU's memory which it may take, so that two servers fit beside each other.
    """
    flags = {
        "host": HOST,
        "port": port,
        "model": checkpoint,
        "served-model-name": name,
        "dtype": options.dtype,
        "max-model-len": options.max_model_len,
        "max-num-seqs": options.max_num_seqs,
        "tool-call-parser": parsers.tools,
        "reasoning-parser": parsers.reasoning,
        "seed": 0,
    }
    if share is not None:
        flags["gpu-memory-utilization"] = share
    given = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    argv = (
        str(python),
        "-m",
        "vllm_worker.serving",
        *given,
        "--enforce-eager",
        "--enable-auto-tool-choice",
    )
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return Service(argv=argv, env={**environment(options), **own})


def _request(trial: Trial, folder: Path, options: Options) -> dict[str, Any]:
    return {
        **asdict(trial),
        "checkpoint": str(trial.checkpoint),
        "golden": str(trial.golden) if trial.golden else None,
        "out": str(folder),
        "options": asdict(_fitting(options, trial.context)),
    }


def _fitting(options: Options, context: int) -> Options:
    """The options with room for a context; a long one goes in eight chunks or so, not in hundreds."""
    return replace(
        options,
        max_model_len=max(options.max_model_len, context),
        max_num_batched_tokens=max(options.max_num_batched_tokens, context // 8),
    )


def _observed(trial: Trial, folder: Path) -> Observed:
    facts = json.loads((folder / RESULT).read_text())
    if "error" in facts and (why := unserved(NAME, SERVED, facts.get("vllm", ""))):
        facts["error"] += f" ({why})"
    return Observed(trial=trial, tensors=folder / "result.safetensors", facts=facts)
