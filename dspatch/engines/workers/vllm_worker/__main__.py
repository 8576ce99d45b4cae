"""Usage: python -m vllm_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request is a list under `trials`; each writes `result.safetensors` and `result.json` into its
own `out` folder. The first trial that fails says so in its `result.json` and is the last one,
because a failed start leaves vLLM's process-wide state half made.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import engine, faults, runs, weights

Trial = Mapping[str, Any]


def main(request: Path) -> None:
    """Run every trial of the request."""
    for trial in json.loads(request.read_text())["trials"]:
        out = Path(trial["out"])
        out.mkdir(parents=True, exist_ok=True)
        times: dict[str, float] = {}
        try:
            with engine.clock(times, "total"):
                tensors, facts = _load_only(trial) if trial["load_faults"] else _whole(trial, times)
        except Exception as error:
            tensors, facts = {}, {"error": _cause(error), "traceback": traceback.format_exc()}
        _save(out, tensors, {**facts, "seconds": times})
        print(f"{trial['name']}: {facts.get('error', 'done')} {times}", flush=True)
        if "error" in facts:
            break


def _whole(trial: Trial, times: dict[str, float]) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Any] = {}
    with ExitStack() as stack:
        loading = stack.enter_context(weights.observed())
        with engine.clock(times, "start"):
            llm = stack.enter_context(engine.started(trial["checkpoint"], trial["options"]))
        model, facts = engine.model_of(llm), engine.facts(llm)
        with engine.clock(times, "alone"):
            tensors |= _under("alone", runs.alone(llm, model, trial))
        with engine.clock(times, "together"):
            tensors |= _under("together", runs.together(llm, trial))
        with engine.clock(times, "again"):
            tensors |= _under("again", runs.again(llm, trial))
        with engine.clock(times, "faults"):
            planted, refused = runs.faulty(llm, model, trial)
    tensors |= _under("fault", planted) | _loaded(trial, loading)
    return tensors, {**facts, **_load_facts(loading), "refused": refused}


def _load_only(trial: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
    plants = trial["load_faults"]
    with (
        weights.observed(lambda stream: faults.spoiled(stream, plants)) as loading,
        engine.started(trial["checkpoint"], trial["options"]),
    ):
        pass
    return _loaded(trial, loading), _load_facts(loading)


def _loaded(trial: Trial, loading: weights.Loading) -> dict[str, Any]:
    return _under("weights", weights.unfused(loading.parameters, trial["config"]))


def _load_facts(loading: weights.Loading) -> dict[str, Any]:
    return {
        "offered": loading.offered,
        "loaded": loading.loaded,
        "unfilled": loading.unfilled,
        "parameters": sorted(loading.parameters),
    }


def _under(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _cause(error: BaseException) -> str:
    # The innermost cause names the fault; vLLM wraps it in "engine core failed" on the way out.
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _save(out: Path, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    if tensors:
        from safetensors.torch import save_file

        whole = {name: value.contiguous() for name, value in tensors.items()}
        save_file(whole, out / "result.safetensors")
    # Last and in one step: who finds this file finds the tensors too.
    partial = out / "result.json.partial"
    partial.write_text(json.dumps(facts, indent=1, sort_keys=True, default=str) + "\n")
    partial.replace(out / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
