"""Usage: python -m turbomind_worker REQUEST.json: convert the checkpoints of its `trials`, by `builders` or not.

Each trial has a `checkpoint` and a folder `out`, which gets `result.json` and, where the conversion came
to its end, `engine.json` (the configuration) and `engine.safetensors`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from . import convert, stubs

# What a release that refuses a model says before it is asked to convert it.
REFUSED = "nothing: TurboMind"


def main(request: Path) -> None:
    """Convert every checkpoint; one that fails says why."""
    asked = json.loads(request.read_text())
    torch.set_num_threads(2)
    engine = {key: asked[key] for key in ("builders", "latent", "vocab_first", "gpus")}
    stubbed = stubs.BUILDERS if asked["builders"] else stubs.STUBBED
    facts: dict[str, Any] = {"stubbed": stubbed, "torch": torch.__version__}
    try:
        stubs.install(builders=asked["builders"])
    except ModuleNotFoundError as error:
        facts["error"] = f"ModuleNotFoundError: {error}"
    for trial in asked["trials"]:
        out = Path(trial["out"])
        out.mkdir(parents=True, exist_ok=True)
        found = facts if "error" in facts else {**facts, **_one(trial, out, engine)}
        (out / "result.json").write_text(json.dumps(found, indent=1) + "\n")


def _one(trial: dict[str, Any], out: Path, engine: dict[str, Any]) -> dict[str, Any]:
    from safetensors.torch import save_file

    checkpoint, asked = Path(trial["checkpoint"]), ""
    try:
        asked = convert.asked_for(checkpoint)
        config, found = _converted(checkpoint, asked, engine)
    except Exception as error:  # whatever the release's own code raises
        traceback.print_exc()
        return {"error": _told(error), "asked": asked}
    tensors = {name: value.contiguous().clone() for name, value in found.pop("tensors").items()}
    save_file(tensors, out / "engine.safetensors")
    (out / "engine.json").write_text(json.dumps(config, indent=1) + "\n")
    return {**found, "asked": asked}


def _converted(
    checkpoint: Path, asked: str, engine: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not engine["builders"]:
        return convert.run(
            checkpoint, **{key: engine[key] for key in ("latent", "vocab_first", "gpus")}
        )
    from . import builders

    if asked.startswith(REFUSED):
        raise NotImplementedError(asked.removeprefix("nothing: "))
    return builders.run(checkpoint, gpus=engine["gpus"])


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


main(Path(sys.argv[1]))
