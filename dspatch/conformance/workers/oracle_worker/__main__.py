"""Usage: python -m oracle_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request is a list under `tasks`, each with a `kind`: `make` a checkpoint, `remake` one by its recipe, make
one to `serve`, `adopt` or `inspect` one of the user's own, compute the `golden` results, the least `margin` of
their routers, `measure` an engine's results, weights that it `converted`, or the `loss` of quantisation.
A task's output appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make(task: Mapping[str, Any], target: Path) -> None:
    """Write the checkpoint of `config`, `seed` and `form`, as it is `stored`, into the folder `target`."""
    from .checkpoint import make as write

    write(task["config"], task["seed"], task["form"], target, task.get("stored", ""))


def remake(task: Mapping[str, Any], target: Path) -> None:
    """Draw the checkpoint of the file `recipe` again, into the folder `target`."""
    from .checkpoint import remake as write

    write(json.loads(Path(task["recipe"]).read_text()), target)


def serve(task: Mapping[str, Any], target: Path) -> None:
    """Write a checkpoint that can be served, with the `script` that it says."""
    from .script import make as write

    write(task["config"], task["seed"], task["form"], task["script"], target)


def inspect(task: Mapping[str, Any], target: Path) -> None:
    """Write what is wrong with the tensors of the folder `source`, of a model with `config`, as JSON."""
    from .adopt import inspect as look

    target.write_text(json.dumps(look(Path(task["source"]), task["config"])) + "\n")


def adopt(task: Mapping[str, Any], target: Path) -> None:
    """Write the checkpoint in the folder `source`, of a model with `config`, into the folder `target`."""
    from .adopt import adopt as write

    write(Path(task["source"]), task["config"], target)


def golden(task: Mapping[str, Any], target: Path) -> None:
    """Write the golden results of the folder `checkpoint` for `prompts` and `steps`."""
    from safetensors.torch import save_file

    from .golden import golden as compute

    folder = Path(task["checkpoint"])
    save_file(compute(folder, task["prompts"], task["steps"], task["late"]), target)


def measure(task: Mapping[str, Any], target: Path) -> None:
    """Write the measures of `result` against `golden` and `checkpoint` as JSON, by its `limits` and `scale`."""
    from .measure import measure as compute

    golden, checkpoint, result = (Path(task[key]) for key in ("golden", "checkpoint", "result"))
    stored = Path(task["stored"]) if task["stored"] else None
    limits = task["limits"]
    by = limits["band"], limits["times"], task["scale"], task["dtype"]
    found = compute(golden, checkpoint, result, Path(task["loaded"]), *by, stored)
    target.write_text(json.dumps(found, indent=1) + "\n")


def margin(task: Mapping[str, Any], target: Path) -> None:
    """Write how nearly a router of `checkpoint` chooses otherwise on the texts of `golden`, as JSON."""
    from .margins import least

    target.write_text(json.dumps(least(Path(task["golden"]), Path(task["checkpoint"]))) + "\n")


def converted(task: Mapping[str, Any], target: Path) -> None:
    """Write the measures of `converted`, in its `layout`, against `checkpoint`, stored as `given`, as JSON."""
    from .converted import measure as compute

    checkpoint, given, folder = (Path(task[key]) for key in ("checkpoint", "given", "converted"))
    found = compute(checkpoint, given, folder, task["layout"], task["prompt"], task["faults"])
    target.write_text(json.dumps(found, indent=1) + "\n")


def loss(task: Mapping[str, Any], target: Path) -> None:
    """Write what the run `after` loses against the run `before`, as JSON."""
    from .loss import measure as compute

    found = compute(Path(task["before"]), Path(task["after"]))
    target.write_text(json.dumps(found, indent=1) + "\n")


KINDS = {
    "make": make,
    "remake": remake,
    "serve": serve,
    "golden": golden,
    "measure": measure,
    "margin": margin,
    "inspect": inspect,
    "adopt": adopt,
    "converted": converted,
    "loss": loss,
}


def main(request: Path) -> None:
    """Run every task of the request."""
    import torch

    torch.set_num_threads(2)
    for task in json.loads(request.read_text())["tasks"]:
        target = Path(task["target"])
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        target.parent.mkdir(parents=True, exist_ok=True)
        KINDS[task["kind"]](task, partial)
        _settle(partial, target)
        print(f"{task['kind']} {target.name}", flush=True)


def _settle(partial: Path, target: Path) -> None:
    try:
        partial.replace(target)
    except OSError:
        # Another process made the same folder meanwhile; the bytes are the same.
        if not target.is_dir():
            raise
        shutil.rmtree(partial)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
