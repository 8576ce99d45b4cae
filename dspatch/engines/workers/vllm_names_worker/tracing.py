"""Which parameters the tensors of a checkpoint flow into while a model loads them, element by element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SHOWN = 4  # names of those that went into a parameter

Sizes = Mapping[str, tuple[list[int], str]]


class Flow(TorchDispatchMode):  # type: ignore[misc]
    """Follows each offered tensor through whatever is computed of it, by the storages that hold it.

    `filled[PARAMETER]` counts the elements that were written, `sources[PARAMETER]` the names that they came from.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.parameters = {_place(value): name for name, value in parameters.items()}
        self.filled: dict[str, int] = defaultdict(int)
        self.sources: dict[str, set[str]] = defaultdict(set)
        self.last = ""
        self._names: dict[int, frozenset[str]] = {}
        # A storage that is gone would lend its place to another one.
        self._held: list[torch.Tensor] = []

    def offer(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """The checkpoint as a stream."""
        for name, value in tensors.items():
            self._mark(value, frozenset([name]))
            self.last = name
            yield name, value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; what it gives stands for the names that it read."""
        result = func(*args, **(kwargs or {}))
        given = _tensors(args) + (_tensors(tuple(kwargs.values())) if kwargs else [])
        names = frozenset().union(*(self._of(each) for each in given))
        if names:
            for each in _tensors(result if isinstance(result, tuple | list) else (result,)):
                self._arrived(each, given, names)
        return result

    def _arrived(
        self, value: torch.Tensor, given: Iterable[torch.Tensor], names: frozenset[str]
    ) -> None:
        into = self.parameters.get(_place(value))
        if into is None:
            self._mark(value, names)
        elif value is next(iter(given)):  # written in place
            self._count(into, value, names)

    def _count(self, into: str, value: torch.Tensor, names: frozenset[str]) -> None:
        self.filled[into] += value.numel()
        self.sources[into] |= names

    def _of(self, value: torch.Tensor) -> frozenset[str]:
        return self._names.get(_place(value), frozenset())

    def _mark(self, value: torch.Tensor, names: frozenset[str]) -> None:
        self._held.append(value)
        self._names[_place(value)] = names | self._of(value)

    def replaced(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Count parameters that took a tensor's storage instead of its numbers."""
        for name, value in parameters.items():
            if names := self._of(value):
                self._count(name, value, names)


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments, or in a list of them: operators nest them no deeper."""
    found = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += [one for one in each if isinstance(one, torch.Tensor)]
    return found


def _place(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def load(model: Any, sizes: Sizes) -> dict[str, Any]:
    """Have a model load the checkpoint; what each parameter took, and which got too few or too many elements.

    `error` is what the loader raised, and at which tensor.
    """
    parameters = dict(model.named_parameters())
    flow, error = Flow(parameters), ""
    # Made beforehand: what follows operators slows them down.
    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, (shape, dtype) in sizes.items()
    }
    try:
        with flow:
            model.load_weights(flow.offer(tensors))
    except Exception as problem:  # whatever the engine raises
        error = f"{type(problem).__name__}: {problem} (at {flow.last})"
    flow.replaced(dict(model.named_parameters()))
    got = {name: flow.filled[name] for name in parameters}
    return {
        "consumed": sorted(set().union(*flow.sources.values())),
        "parameters": len(parameters),
        "elements": sum(got.values()),
        "unfit": {
            name: {
                "got": got[name],
                "size": value.numel(),
                "of": sorted(flow.sources[name])[:SHOWN],
            }
            for name, value in parameters.items()
            if got[name] != value.numel()
        },
        "error": error,
    }
