"""How much of a GPU an engine with a small model takes: little, and the same whatever runs beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

ALL = 12 << 30  # bytes: weights, cache, and what a pass needs
CACHE = 1 << 30  # bytes


def arguments() -> dict[str, Any]:
    """What `LLM` is told; nothing without a GPU. No context of CUDA is made in this process."""
    from vllm import EngineArgs
    from vllm.platforms import current_platform

    if not current_platform.is_cuda_alike():
        return {}
    return sized(current_platform.get_device_total_memory(), EngineArgs.__dataclass_fields__.keys())


def sized(total: int, known: Collection[str]) -> dict[str, Any]:
    """The same for a card of `total` bytes, in the words that a release knows.

    A release that is told the size of its cache does not take what is free at its start for its own,
    which engines beside it change meanwhile; an older one is told its share of the card alone.
    """
    size = {"kv_cache_memory_bytes": CACHE}
    share = {"gpu_memory_utilization": min(0.9, ALL / total)}
    return share | (size if size.keys() <= set(known) else {})
