"""From a config.json to the variant that it is, or to the fields in which it is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspatch.errors import UnknownVariantError
from dspatch.facts import Variant
from dspatch.variants import table

# transformers does not write these for every model, and a checkpoint converted to bf16 has lost
# the last: where they are missing they decide nothing. A value that is there must be right.
MAY_BE_MISSING = {
    *("topk_method", "scoring_func", "tie_word_embeddings", "num_nextn_predict_layers"),
    *("rope.beta_fast", "rope.beta_slow", "quantization"),
}
# What the models' own code takes where config.json says nothing.
DEFAULTS = {"routed_scaling_factor": 1.0, "topk_method": "greedy", "num_nextn_predict_layers": 0}
ABSENT = "absent"


def read_object(path: Path) -> dict[str, Any]:
    """What a config.json holds, or an index beside it. Raises `OSError`, and `ValueError` for no object."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")
    return content


def identify(config: Mapping[str, Any]) -> Variant:
    """The variant whose published facts a config.json states, in whichever form it was written.

    Of variants with the same facts (`twins`) it is the first. Raises `UnknownVariantError` with the
    nearest variant and every field that differs.
    """
    stated = read(config)
    found = {each.name: differences(stated, each) for each in table().values()}
    nearest = min(found, key=lambda name: len(found[name]))
    if not found[nearest]:
        return table()[nearest]
    lines = [f"{field}: {got!r}, published {said!r}" for field, got, said in found[nearest]]
    raise UnknownVariantError(
        f"The config.json is that of no published DeepSeek model; the nearest is {nearest}.",
        why="\n        ".join(["these fields differ:", *lines]),
        next=f"use the published config.json of {nearest}, or another checkpoint",
    )


def differences(stated: Mapping[str, Any], variant: Variant) -> list[tuple[str, Any, Any]]:
    """Every fact in which a config.json is not the variant: name, its value, ours."""
    return [
        (field, stated[field], said)
        for field, said in variant.facts.items()
        if not _agrees(field, stated[field], said, variant.attention == "mla")
    ]


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that a config.json states, named as in `Variant.facts`, or `absent`."""
    architectures = config.get("architectures") or [ABSENT]
    # transformers 5 writes `rope_parameters`, with the type as `rope_type` and theta among them.
    rope = _table(config, "rope_parameters") or _table(config, "rope_scaling")
    rope = {"theta": rope.get("rope_theta", config.get("rope_theta", ABSENT)), **rope}
    rope["type"] = rope.get("rope_type", rope.get("type", "default"))
    nested = {"rope": rope, "quantization": _table(config, "quantization_config")}
    stated = {}
    for field in next(iter(table().values())).facts:
        group, _, key = field.partition(".")
        place = nested[group] if key else config
        stated[field] = place.get(key or field, ABSENT)
    return stated | {"architecture": architectures[0]}


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _agrees(field: str, got: Any, said: Any, latent: bool) -> bool:
    if isinstance(got, str) and got == ABSENT:
        if field in MAY_BE_MISSING or field.partition(".")[0] in MAY_BE_MISSING:
            return True
        # Where the key is missing the model classes take a rank of their own, not null.
        if field == "q_lora_rank" and latent:
            return False
        got = DEFAULTS.get(field)
    if said is None and field in DEFAULTS:
        said = DEFAULTS[field]
    return bool((tuple(got) if isinstance(got, list) else got) == said)
