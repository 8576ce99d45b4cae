"""Usage: python -m lmdeploy_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request is a list under `trials`; each writes `result.safetensors` and `result.json` into its
own `out` folder, and `partial.json` beside the tensors after each part of the run, so that a process
that dies leaves what it had shown. The first trial that fails is the last one. A trial takes two starts
of the engine, one without and one with a cache of prefixes, which nothing can empty in between; and one more for
each fault that stands in what is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from asking import UnaskableError, probed
from kept import Kept, cause, clock

from . import engine, faults, inside, probes, runs, spoiled

Trial = Mapping[str, Any]
Tensors = dict[str, Any]
INSIDE = "the engine shows nothing inside: it is asked by tokens and answers with logits"


def main(request: Path) -> None:
    """Run every trial of the request."""
    all(_run(trial) for trial in json.loads(request.read_text())["trials"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of engines would keep the process


def _run(trial: Trial) -> bool:
    """One trial; whether it ended well."""
    kept = Kept(Path(trial["out"]))
    times = kept.facts["seconds"]
    try:
        with clock(times, "total"):
            _whole(trial, kept)
    except Exception as error:
        said = engine.FOLDER.sub(trial["name"], cause(error))
        failed = {"error": said, "traceback": traceback.format_exc()}
        kept.facts |= {**failed, "lmdeploy": _version()}
    kept.write("result.json")
    print(f"{trial['name']}: {kept.facts.get('error', 'done')} {times}", flush=True)
    return "error" not in kept.facts


def _whole(trial: Trial, kept: Kept) -> None:
    times = kept.facts["seconds"]
    kept.facts["watched"] = []
    with _started(trial, kept, prefixes=False) as it:
        kept.facts |= engine.facts(it, trial["options"])
        with clock(times, "alone"):
            kept.part("alone", _alone(it, trial, kept))
        if trial["only_alone"]:
            return
        with clock(times, "together"):
            kept.part("together", runs.together(it, trial))
        _probe(it, trial, kept)
        planted, refused = _asked(it, trial, lambda run: run != "again")
    with _started(trial, kept, prefixes=True) as it:
        with clock(times, "again"):
            kept.part("again", runs.again(it, trial))
        further, more = _asked(it, trial, lambda run: run == "again")
    spoilt, rest = _spoilt(trial, kept)
    kept.facts["refused"] = {**refused, **more, **rest}
    kept.part("fault", {**planted, **further, **spoilt})


def _alone(it: engine.Started, trial: Trial, kept: Kept) -> Tensors:
    """Each prompt by itself, watched inside where the engine lets that happen."""
    if not runs.watchable(it):
        return runs.alone(it, trial)
    found = runs.watched(it, trial)
    # An indexer's keys lie elsewhere, in a form of their own.
    if "index_topk" not in trial["config"]:
        with suppress(UnaskableError):
            kept.facts["cache"] = inside.cache(it)
    kept.facts["watched"] = ["layers", "routes"]
    return found


def _started(trial: Trial, kept: Kept, *, prefixes: bool, **changes: Any) -> Any:
    """An engine for the trial, whose start is timed."""
    return _Timed(
        engine.started(trial["checkpoint"], trial["options"], prefixes=prefixes, **changes),
        kept.facts["seconds"],
    )


class _Timed:
    """A context whose entering is timed as `start`."""

    def __init__(self, inner: Any, times: dict[str, float]) -> None:
        self.inner, self.times = inner, times

    def __enter__(self) -> Any:
        with clock(self.times, "start"):
            return self.inner.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)


def _probe(it: engine.Started, trial: Trial, kept: Kept) -> None:
    """The runs that ask one thing each; of one that this engine cannot be asked, the reason."""
    kept.facts |= {"unprobed": {}, "broken": {}}
    for name in trial["probes"]:
        if name not in probes.PROBES or (name in probes.INSIDE and not runs.watchable(it)):
            kept.facts["unprobed"][name] = INSIDE
        else:
            probed(kept, name, partial(probes.PROBES[name], it, trial))


RUNS = {"alone": runs.alone, "together": runs.together, "again": runs.again, **probes.PROBES}


def _asked(it: engine.Started, trial: Trial, fits: Any) -> tuple[Tensors, dict[str, str]]:
    """One run under each fault that is planted from outside; and why another could not be planted."""
    out: Tensors = {}
    refused: dict[str, str] = {}
    for fault in trial["hook_faults"]:
        name, run = fault["name"], fault["run"]
        if not fits(run):
            continue
        if run not in RUNS:
            refused[name] = INSIDE
            continue
        try:
            found = RUNS[run](faults.planted(it, fault["hook"], trial), trial)
        except UnaskableError as error:
            refused[name] = str(error)
        except Exception as error:
            refused[name] = f"it broke: {cause(error)}"
        else:
            out |= {f"{name}:{key}": value for key, value in found.items()}
    return out, refused


def _spoilt(trial: Trial, kept: Kept) -> tuple[Tensors, dict[str, str]]:
    """One start, and the run that shows it, for each fault that stands in what is loaded."""
    out: Tensors = {}
    refused: dict[str, str] = {}
    for fault in trial["start_faults"]:
        name, run = fault["name"], fault["run"]
        try:
            with clock(kept.facts["seconds"], "faults"):
                found = _under(trial, kept, name, run)
        except Exception as error:
            refused[name] = cause(error)
        else:
            out |= {f"{name}:{key}": value for key, value in found.items()}
    return out, refused


def _under(trial: Trial, kept: Kept, name: str, run: str) -> Tensors:
    changes = spoiled.SETTINGS.get(name, {})
    # In the trial's own folder, which the next run empties, should the engine end the process.
    with tempfile.TemporaryDirectory(prefix="spoiled-", dir=kept.out) as folder:
        checkpoint = trial["checkpoint"]
        if name not in spoiled.SETTINGS:
            checkpoint = str(spoiled.write(Path(checkpoint), name, Path(folder) / "model"))
        asked = {**trial, "checkpoint": checkpoint}
        with _started(asked, kept, prefixes=run == "again", **changes) as it:
            return RUNS[run](it, asked)


def _version() -> str:
    """The version of the LMDeploy that was imported, or an empty string."""
    return str(getattr(sys.modules.get("lmdeploy"), "__version__", ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
