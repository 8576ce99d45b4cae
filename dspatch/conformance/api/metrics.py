"""What a server's /metrics say of its load, by the names that engines give it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dspatch.conformance.api.wire import Wire

# The first that is there, whatever engine names itself before the colon; sums over the labels.
NAMES = {
    "running": ("num_requests_running", "num_running_reqs"),
    "cache": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage"),
    "generated": ("generation_tokens_total",),
}
LINE = re.compile(r"^(?:\w+:)?(?P<name>\w+)(?:\{[^}]*\})? (?P<value>\S+)", re.M)


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
    return parsed(answer.body.decode(errors="replace")) if answer.status == 200 else None


def parsed(text: str) -> Load:
    """The load that a page of metrics tells."""
    found: dict[str, float] = {}
    for match in LINE.finditer(text):
        with suppress(ValueError):  # a page of something else
            found[match["name"]] = found.get(match["name"], 0.0) + float(match["value"])
    return Load(**{key: _first(found, names) for key, names in NAMES.items()})


def _first(found: dict[str, float], names: Sequence[str]) -> float | None:
    return next((found[name] for name in names if name in found), None)
