"""Run vLLM, in an environment of its own, under observation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dspatch.engines import Observed, Options, Parsers, Progress, Trial, running, served
from dspatch.engines.serving import HOST, Service

NAME = "vllm"
WORKERS = running.WORKERS
SERVED = served(NAME)


def observe(
    python: Path, trials: Sequence[Trial], *, out: Path, options: Options, progress: Progress
) -> list[Observed]:
    """Run the trials, one after the other, in one process of `python`; raises as `running.observe`."""
    run = running.Worker(
        engine=NAME,
        title="vLLM",
        package="vllm_worker",
        served=SERVED,
        env=environment(options),
        options=options,
    )
    return running.observe(run, python, trials, out, progress)


def environment(options: Options) -> dict[str, str]:
    """The environment variables of a run that stays in one process and off the network."""
    return {
        "PYTHONPATH": str(WORKERS),
        **running.environment(options),
        "VLLM_NO_USAGE_STATS": "1",
        # Whoever looks for a fault wants more of it.
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        # Hooks and planted faults reach the live model only when it lives in the worker itself.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Small models need little cache, and pinned threads fight over the cores of a busy machine.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
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
