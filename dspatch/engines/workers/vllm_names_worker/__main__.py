"""Usage: python -m vllm_names_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request: `cases`, each a `config` (config.json's content), `tensors` (by name, shape and dtype), `draft`
(whether its prediction layers are loaded, too) and `stages` (how many of a pipeline are loaded each by itself).
The result, with what each load took of which names, goes to `target`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def main(request: Path) -> None:
    """Do what the request says."""
    asked = json.loads(request.read_text())
    import torch
    import vllm

    from . import building

    facts = {"vllm": vllm.__version__, "torch": torch.__version__, "drafts": building.drafts()}
    found = [_loads(case) for case in asked["cases"]]
    Path(asked["target"]).write_text(json.dumps({"facts": facts, "cases": found}) + "\n")


def _loads(case: Mapping[str, Any]) -> dict[str, Any]:
    from . import building

    with tempfile.TemporaryDirectory(prefix="dspatch-names-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(case["config"]) + "\n")
        count = case["stages"] if building.staged() else 0
        drafted = case["draft"] and building.drafts()
        return {
            "main": _load(case, lambda: building.model(folder)),
            "draft": _load(case, lambda: building.model(folder, draft=True)) if drafted else None,
            "fused": _fused(case, folder, drafted),
            "stages": [_stage(case, folder, (own, count)) for own in range(count)],
        }


def _fused(case: Mapping[str, Any], folder: str, drafted: bool) -> dict[str, Any] | None:
    from . import building

    with building.fused() as known:
        if not known:
            return None
        return {
            "main": _load(case, lambda: building.model(folder)),
            "draft": _load(case, lambda: building.model(folder, draft=True)) if drafted else None,
        }


def _stage(case: Mapping[str, Any], folder: str, stage: tuple[int, int]) -> dict[str, Any]:
    from . import building

    return _load(case, lambda: building.model(folder, stage=stage))


def _load(case: Mapping[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
    from . import tracing

    try:
        model = make()
    except Exception as error:  # whatever the engine raises
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    return tracing.load(model, case["tensors"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
