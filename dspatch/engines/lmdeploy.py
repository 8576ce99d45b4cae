"""Run LMDeploy on a GPU, in an environment of its own: TurboMind or its PyTorch engine, by its public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dspatch.engines import Observed, Options, Progress, Trial, running, served

NAME = "lmdeploy"
BACKENDS = ("turbomind", "pytorch")
# It shows nothing inside, so that it is judged by what it answers.
BLIND = ("turbomind",)
# Neither engine computes in float32.
DTYPES = ("bfloat16", "float16")
SERVED = served(NAME)
# Its faults of numbers inside stand in what it loads, a start each: no hook reaches into TurboMind.
STARTS = True


def observe(
    python: Path, trials: Sequence[Trial], *, out: Path, options: Options, progress: Progress
) -> list[Observed]:
    """Run the trials, one after the other, in one process of `python`; raises as `running.observe`."""
    backend = options.backend or BACKENDS[0]
    run = running.Worker(
        engine=NAME,
        title=f"LMDeploy ({backend})",
        package="lmdeploy_worker",
        served=SERVED,
        env=environment(options),
        options=replace(options, backend=backend),
    )
    return running.observe(run, python, trials, out, progress)


def environment(options: Options) -> dict[str, str]:
    """The environment variables of a run that stays in one process and off the network."""
    return {
        **running.environment(options),
        "TOKENIZERS_PARALLELISM": "false",
        "LMDEPLOY_ENABLE_CHECK_ENV": "0",
        **options.variables,
    }
