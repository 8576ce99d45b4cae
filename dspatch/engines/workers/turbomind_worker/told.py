"""What of an engine's tensors a conversion wrote, and what it did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def compared(
    wanted: Mapping[str, tuple[int, ...]], got: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """`tensors` as they are; `missing` and `extra` names, and `shapes` that are not the engine's."""
    wrong = [
        f"{name}: {list(got[name].shape)} where the engine has {list(shape)}"
        for name, shape in wanted.items()
        if name in got and tuple(got[name].shape) != shape
    ]
    return {
        "tensors": got,
        "missing": sorted(wanted.keys() - got.keys()),
        "extra": sorted(got.keys() - wanted.keys()),
        "shapes": wrong,
    }
