"""Usage: python -m vllm_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request is a list under `trials`; each writes `result.safetensors` and `result.json` into its
own `out` folder, and `partial.json` beside the tensors after each part of the run, so that a process
that dies leaves what it had shown. The first trial that fails says so in its `result.json` and is
the last one, because a failed start leaves vLLM's process-wide state half made. Neighbours with the same
checkpoint and options share one start.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from asking import probed
from kept import Kept, cause, clock

from . import engine, faults, probes, runs, weights

Trial = Mapping[str, Any]


def main(request: Path) -> None:
    """Run every trial of the request."""
    for alike in _by_start(json.loads(request.read_text())["trials"]):
        with ExitStack() as stack:
            shared = Shared()
            if not all(_run(trial, shared, stack) for trial in alike):
                break


def _by_start(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """The trials in runs of neighbours that one start serves; one that only loads has its own."""

    def start(trial: Trial) -> Any:
        return trial["checkpoint"], trial["options"], bool(trial["load_faults"])

    for _, alike in groupby(trials, start):
        yield [*alike]


def _run(trial: Trial, shared: Shared, stack: ExitStack) -> bool:
    """One trial, in the engine that was started for it or for those before it; whether it ended well."""
    kept = Kept(Path(trial["out"]))
    times = kept.facts["seconds"]
    try:
        with clock(times, "total"):
            if trial["load_faults"]:
                _load_only(trial, kept)
            else:
                _whole(trial, kept, shared, stack)
    except Exception as error:
        failed = {"error": cause(error), "traceback": traceback.format_exc()}
        kept.facts |= {**failed, "vllm": _version()}
    kept.write("result.json")
    print(f"{trial['name']}: {kept.facts.get('error', 'done')} {times}", flush=True)
    return "error" not in kept.facts


@dataclass
class Shared:
    """A running engine, what it said of itself, and the file with the weights that it loaded."""

    llm: Any = None
    facts: dict[str, Any] = field(default_factory=dict)


def _whole(trial: Trial, kept: Kept, shared: Shared, stack: ExitStack) -> None:
    times = kept.facts["seconds"]
    if shared.llm is None:
        _start(trial, kept, shared, stack)
    llm, model = shared.llm, engine.model_of(shared.llm)
    kept.facts |= shared.facts
    runs.forget(llm)
    with clock(times, "alone"):
        kept.part("alone", runs.alone(llm, model, trial))
    if trial["only_alone"]:
        return
    with clock(times, "together"):
        kept.part("together", runs.together(llm, model, trial))
    with clock(times, "again"):
        kept.part("again", runs.again(llm, model, trial))
    _probe(llm, model, trial, kept)
    with clock(times, "faults"):
        planted, kept.facts["refused"] = runs.faulty(llm, model, trial, probes.PROBES)
    kept.part("fault", planted)


def _start(trial: Trial, kept: Kept, shared: Shared, stack: ExitStack) -> None:
    """Start the engine; the trials after this one find what it loaded in this one's file."""
    loading = stack.enter_context(weights.observed())
    with clock(kept.facts["seconds"], "start"):
        shared.llm = stack.enter_context(engine.started(trial["checkpoint"], trial["options"]))
    # What ends an engine frees it only when nobody has it any more.
    stack.callback(setattr, shared, "llm", None)
    shared.facts = {**engine.facts(shared.llm), **_load_facts(loading)}
    kept.facts |= shared.facts
    kept.part("weights", weights.unfused(loading.parameters, trial["config"]))
    shared.facts["loaded_in"] = str(kept.out / "result.safetensors")


def _probe(llm: Any, model: Any, trial: Trial, kept: Kept) -> None:
    """The runs that ask one thing each; of one that this engine cannot be asked, the reason."""
    kept.facts |= {"unprobed": {}, "broken": {}}
    for name in trial["probes"]:
        runs.forget(llm)
        probed(kept, name, partial(probes.PROBES[name], llm, model, trial))
    runs.forget(llm)


def _load_only(trial: Trial, kept: Kept) -> None:
    plants = trial["load_faults"]
    with (
        weights.observed(lambda stream: faults.spoiled(stream, plants)) as loading,
        engine.started(trial["checkpoint"], trial["options"]),
    ):
        pass
    kept.facts |= _load_facts(loading)
    kept.part("weights", weights.unfused(loading.parameters, trial["config"]))


def _load_facts(loading: weights.Loading) -> dict[str, Any]:
    return {
        "offered": loading.offered,
        "loaded": loading.loaded,
        "unfilled": loading.unfilled,
        "parameters": sorted(loading.parameters),
    }


def _version() -> str:
    """The version of the vLLM that was imported, or an empty string."""
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
