"""Record what a module of a model gives, pass by pass.

For the workers of engines, beside which it lies: they import it as `states`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Records(Protocol):
    """Tensors by name, one a pass, and how many rows each pass had."""

    states: dict[str, list[Any]]
    forwards: list[int]


@contextmanager
def recorded(module: Any, records: Records, name: str) -> Iterator[None]:
    """Record a module's output (rows, width) within the block, as `layer.N` or `final`."""

    def hook(module: Any, args: Any, output: Any) -> None:
        first, rest = output if isinstance(output, tuple) else (output, None)
        # A layer returns its addition to the residual stream apart from the stream, which a norm may return, too.
        # Added in float32, so that in a narrow dtype the sum is not rounded once more by us.
        whole = name.startswith("layer.") and rest is not None
        value = (first.float() + rest.float() if whole else first).detach().flatten(0, -2)
        records.states.setdefault(name, []).append(value.clone())
        if name == "final":
            records.forwards.append(value.shape[0])

    with module.register_forward_hook(hook):
        yield
