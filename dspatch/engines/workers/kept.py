"""What a trial has given so far, on disk after each part: a process that dies leaves what it had shown.

For the workers of engines, beside which it lies: they import it as `kept`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Kept:
    """The tensors and facts of one trial: `result.safetensors`, `partial.json`, at its end `result.json`."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.tensors: dict[str, Any] = {}
        self.facts: dict[str, Any] = {"reached": [], "seconds": {}}

    def part(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Add the tensors of a part that ended well."""
        self.tensors |= {f"{name}/{key}": value for key, value in tensors.items()}
        if tensors:
            self._save()
        # After the tensors: who finds these facts finds them, too.
        self.facts["reached"].append(name)
        self.write("partial.json")

    def _save(self) -> None:
        from safetensors.torch import save_file

        whole = {key: value.contiguous() for key, value in self.tensors.items()}
        save_file(whole, self.out / "partial.safetensors")
        (self.out / "partial.safetensors").replace(self.out / "result.safetensors")

    def write(self, name: str) -> None:
        """Write the facts; the tensors are there already, since the last part that had any."""
        partial = self.out / f"{name}.tmp"
        text = json.dumps(self.facts, indent=1, sort_keys=True, default=str) + "\n"
        partial.write_text(text)
        partial.replace(self.out / name)


@contextmanager
def clock(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the block's seconds to `times`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        times[name] = round(times.get(name, 0.0) + time.perf_counter() - start, 3)


def cause(error: BaseException) -> str:
    """The innermost cause, which names the fault: engines wrap it on the way out."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
