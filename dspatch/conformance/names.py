"""Whether an engine's loaders take a published checkpoint's names: each once, every parameter filled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspatch import engines
from dspatch.conformance import published, quantised
from dspatch.conformance.published import Published
from dspatch.conformance.report import Report
from dspatch.conformance.taken import judged
from dspatch.engines import Options, vllm, worker
from dspatch.errors import EngineError

WORKER = vllm.WORKERS / "vllm_names_worker"
STAGES = 2


def cases(names: Sequence[str], engine: str, version: str) -> list[Published]:
    """The checkpoints to load: in the form that is named (`deepseek-v3/fp8`, `/bf16`), whatever the release says to it.

    Where none is, as published if a CPU build takes them so, else written as bfloat16. Raises
    `UnknownVariantError` for a variant whose tensors nobody has listed, and for a form that is none of its.
    """
    return [_case(name, engine, version) for name in names]


def _case(name: str, engine: str, version: str) -> Published:
    word, _, form = name.partition("/")
    case = published.checkpoint(word, form)
    return (
        published.checkpoint(word, "bf16") if not form and refused(case, engine, version) else case
    )


def refused(case: Published, engine: str, version: str) -> str:
    """Why a CPU build of the release loads no weights in FP8 blocks, on any processor; empty where it does."""
    return quantised.never(engine, version, "fp8-blocks") if case.form == "fp8" else ""


def run(
    models: Sequence[Published],
    *,
    python: Path,
    engine: str = vllm.NAME,
    options: Options,
    progress: engines.Progress = engines.silent,
) -> Report:
    """Have the engine load each checkpoint, as tensors without storage; raises `EngineError` for another engine."""
    if engine != vllm.NAME:
        raise EngineError(
            f"what {engine}'s loaders take is not known.",
            why=f"only {vllm.NAME}'s are run",
            next="leave out --names",
        )
    progress(f"{engine} loads {', '.join(case.name for case in models)}")
    asked = {"cases": [request(case) for case in models]}
    found = worker.ask(python, WORKER, asked, env=_environment(options), timeout=options.timeout)
    results = [
        each
        for case, load in zip(models, found["cases"], strict=True)
        for each in judged(case, load)
    ]
    return Report(results=tuple(results), facts={"engine": engine, **found["facts"]})


def _environment(options: Options) -> dict[str, str]:
    return {**vllm.environment(options), "VLLM_LOGGING_LEVEL": "ERROR", "GLOO_SOCKET_IFNAME": "lo"}


def request(case: Published) -> dict[str, Any]:
    """What the worker is asked of a checkpoint."""
    draft = bool(case.config.get("num_nextn_predict_layers"))
    return {"config": case.config, "tensors": case.tensors, "draft": draft, "stages": STAGES}
