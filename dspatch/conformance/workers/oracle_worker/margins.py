"""How nearly the routers of a model choose other experts on its golden texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from . import twin


def least(golden: Path, checkpoint: Path) -> float:
    """The least margin of all texts of a file of golden results, of a score; see `margin`."""
    from safetensors.torch import load_file

    config = json.loads(checkpoint.with_name("oracle.json").read_text())
    weights = load_file(checkpoint)
    texts = [ids for name, ids in load_file(golden).items() if name.endswith(".ids")]
    return min(margin(config, weights, ids.tolist()) for ids in texts)


def margin(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: list[int]) -> float:
    """The least difference between what a router takes and what it leaves, by the second model; inf without any."""
    found = [math.inf]
    for layer, raw in twin.run(config, weights, ids).routers.items():
        bias = twin.biased(twin.below(weights, f"model.layers.{layer}.mlp."), raw)
        found.append(float(twin.routed(config, raw, bias)[1].min()))
    return min(found)
