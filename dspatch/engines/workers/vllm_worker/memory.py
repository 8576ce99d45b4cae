"""How much of a GPU an engine with a small model takes: little, and the same whatever runs beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

ALL = 12 << 30  # bytes: weights, cache, and what a pass needs
CACHE = 1 << 30  # bytes
SHARE = "--gpu-memory-utilization"


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


def told(arguments: Sequence[str]) -> list[str]:
    """The arguments of a server, with its cache's size beside its share of a card where the release knows it.

    The release is read, not imported: the server that follows takes as long again to import it.
    """
    if SHARE not in arguments or "kv_cache_memory_bytes" not in _source():
        return [*arguments]
    return [*arguments, "--kv-cache-memory-bytes", str(CACHE)]


def _source() -> str:
    found = importlib.util.find_spec("vllm")
    folders = found.submodule_search_locations if found else None
    files = (Path(folder, "engine", "arg_utils.py") for folder in folders or ())
    return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
