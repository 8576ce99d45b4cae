"""Every weight of the checkpoint reached its parameter, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dspatch.conformance.checks.seen import Seen, Verdict, unseen

LAYER = re.compile(r"model\.layers\.(\d+)\.")
SHOWN = 3


def coverage(seen: Seen) -> Verdict:
    """Checkpoint names are consumed or declared ignored, and no parameter is left unloaded."""
    weights = seen.measures["weights"]
    if not weights["compared"]:
        return unseen("no parameter could be read back")
    problems = {**lost(weights, seen.config), "not in the checkpoint": weights["extra"]}
    note = "; ".join(f"{what} {_some(names)}" for what, names in problems.items() if names)
    return Verdict(
        measured=sum(len(names) for names in problems.values()),
        note=note or f"{weights['compared']} tensors",
    )


def lost(weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Weights of the checkpoint, and parameters of the engine, that the load left out, by what befell them."""
    missing = [name for name in weights["missing"] if not ignored(name, config)]
    return {"no parameter took": missing, "no weight reached": weights["unfilled"]}


def values(seen: Seen) -> Verdict:
    """Every parameter, taken apart from its fusion, equals the checkpoint's bytes."""
    weights = seen.measures["weights"]
    if not weights["compared"]:
        return unseen("no parameter could be read back")
    wrong = weights["differing"]
    note = f"differing: {_some(wrong)}" if wrong else f"{weights['compared']} tensors bit-equal"
    return Verdict(measured=len(wrong), note=note)


def quantised(seen: Seen, limit: float) -> Verdict:
    """What projections multiply by, and what MLA absorbed of them, is what the stored numbers stand for."""
    found = seen.probe("dequantised")
    if not found:
        return seen.absent("dequantised", "no quantised projection could be read back")
    if found["absent"] and found["worst"] <= limit:
        return unseen(f"could not be read back: {_some(found['absent'])}")
    absorbed = f"{found['absorbed']} absorbed" if found["absorbed"] else "none of them absorbed"
    note = f"worst: {found['where']}; {found['seen']} weights, {absorbed}"
    return Verdict(measured=found["worst"], note=note)


def ignored(name: str, config: Mapping[str, Any]) -> bool:
    """Whether an engine may leave a tensor out: rotary tables, extra prediction layers."""
    layer = LAYER.match(name)
    extra = layer is not None and int(layer[1]) >= config["num_hidden_layers"]
    return extra or name.endswith("rotary_emb.inv_freq")


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
