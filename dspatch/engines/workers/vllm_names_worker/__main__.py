"""Usage: python -m vllm_names_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request: `cases`, each a `config` (config.json's content), `tensors` (by name, shape and dtype), `draft`
(whether its prediction layers are loaded, too) and `stages` (how many of a pipeline are loaded each by itself).
The result, with what each load took of which names, goes to `target`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import building, tracing

LENGTH = 300  # of a refusal


def main(request: Path) -> None:
    """Do what the request says."""
    asked = json.loads(request.read_text())
    import torch
    import vllm

    facts = {"vllm": vllm.__version__, "torch": torch.__version__, "drafts": building.drafts()}
    found = [_loads(case) for case in asked["cases"]]
    Path(asked["target"]).write_text(json.dumps({"facts": facts, "cases": found}) + "\n")


def _loads(case: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dspatch-names-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(case["config"]) + "\n")
        count = case["stages"] if building.staged() else 0
        whole = _whole(case, folder)
        with building.fused() as known:
            fused = _whole(case, folder) if known else None
        stages = [_load(case, folder, stage=(own, count)) for own in range(count)]
        return {**whole, "fused": fused, "stages": stages}


def _whole(case: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The main model, and the one that drafts for it where the release has one and it is asked for."""
    drafted = case["draft"] and building.drafts()
    return {
        "main": _load(case, folder),
        "draft": _load(case, folder, draft=True) if drafted else None,
    }


def _load(case: Mapping[str, Any], folder: str, **which: Any) -> dict[str, Any]:
    try:
        model = building.model(folder, **which)
    except Exception as error:  # whatever the engine raises
        said = "".join(str(error).splitlines()[:1])  # nothing, of a bare assertion
        return {"refused": f"{type(error).__name__}: {said[:LENGTH]}"}
    return tracing.load(model, case["tensors"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
