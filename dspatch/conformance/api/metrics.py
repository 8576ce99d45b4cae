"""What a server's /metrics say of its load, by the names that engines give it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.conformance.api.wire import Wire

# The first that is there; sums over the labels.
NAMES = {
    "running": ("vllm:num_requests_running", "lmdeploy:num_requests_running", "sglang:num_running_reqs"),
    "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "lmdeploy:gpu_cache_usage_perc", "sglang:token_usage"),
    "generated": ("vllm:generation_tokens_total", "lmdeploy:generation_tokens_total", "sglang:generation_tokens_total"),
}  # fmt: skip
LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>\S+)", re.M)


@dataclass(kw_only=True)
class Load:
    """Requests that run, the share of the cache that is in use, tokens generated so far."""

    running: float | None
    cache: float | None
    generated: float | None

    def idle_as(self, before: Load) -> bool:
        """Whether no more runs and no more cache is held than before."""
        held = before.cache is not None and (self.cache or 0) > before.cache + 1e-9
        return (self.running or 0) <= (before.running or 0) and not held


def read(wire: Wire) -> Load | None:
    """The load now; `None` where no metrics are offered."""
    answer = wire.get("/metrics")
    if answer.status != 200:
        return None
    found: dict[str, float] = {}
    for match in LINE.finditer(answer.body.decode(errors="replace")):
        found[match["name"]] = found.get(match["name"], 0.0) + float(match["value"])
    return Load(**{key: _first(found, names) for key, names in NAMES.items()})


def _first(found: dict[str, float], names: Sequence[str]) -> float | None:
    return next((found[name] for name in names if name in found), None)
