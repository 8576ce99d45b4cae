"""Change a live model inside a block and put it back: the tools that faults are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from asking import UnaskableError

from . import older

# Sampling parameters that take the place of those asked for.
UNHEEDED: dict[str, Any] = {}
BEHIND = 0.5  # nats, beyond what rounding may put two logits apart by


@contextmanager
def each(changes: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Several changes at once; a hook's handle is one that takes the hook off again."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


@contextmanager
def overwritten(parameter: Any, values: Any) -> Iterator[None]:
    """A parameter with other values inside the block, or filled with one."""
    before = parameter.detach().clone()
    parameter.data[...] = values
    try:
        yield
    finally:
        parameter.data.copy_(before)


@contextmanager
def attributes(owners: Iterable[Any], name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """One attribute of several objects changed inside the block; `UnaskableError` when none has it."""
    saved = [(owner, getattr(owner, name)) for owner in owners]
    if not saved:
        raise UnaskableError(f"nothing in this engine has `{name}`")
    for owner, value in saved:
        setattr(owner, name, change(value))
    try:
        yield
    finally:
        for owner, value in saved:
            setattr(owner, name, value)


@contextmanager
def output_changed(module: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """A module's output changed inside the block."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    with module.register_forward_hook(hook):
        yield


@contextmanager
def input_changed(module: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """A module's first input changed inside the block."""

    def hook(module: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, {**kwargs, first: change(kwargs[first])}

    with module.register_forward_pre_hook(hook, with_kwargs=True):
        yield


@contextmanager
def passed_through(layer: Any) -> Iterator[None]:
    """A decoder layer that adds nothing inside the block."""
    signature = inspect.signature(layer.forward)

    def forward(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = signature.bind(*args, **kwargs).arguments
        return given["hidden_states"], given["residual"]

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward


@contextmanager
def unheeded(**instead: Any) -> Iterator[None]:
    """Sampling parameters that the engine does not heed inside the block, and what it takes instead."""
    UNHEEDED.update(instead)
    try:
        yield
    finally:
        UNHEEDED.clear()


@contextmanager
def runner_up_picked() -> Iterator[None]:
    """Once a greedy step takes the second best token, where that lies half a nat behind.

    `UnaskableError` in a release whose sampler has another form.
    """
    if older.needed():
        raise UnaskableError("the sampler of this release shows no logits where it picks")
    from vllm.v1.sample.sampler import Sampler

    inner, picked = vars(Sampler)["greedy_sample"], set[int]()

    def greedy_sample(sampler: Any, logits: Any) -> Any:
        tokens = inner.__get__(sampler, type(sampler))(logits)
        best, order = logits.topk(2)
        behind = (best[:, 0] - best[:, 1] >= BEHIND).nonzero().flatten().tolist()
        for row in behind[: 1 - len(picked)]:
            tokens[row] = order[row, 1]
            picked.add(row)
        return tokens

    Sampler.greedy_sample = greedy_sample
    try:
        yield
    finally:
        Sampler.greedy_sample = inner


def owners_of(model: Any, name: str) -> list[Any]:
    """The modules, and the plain objects that they hold (kernels, routers), with this attribute."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for holder in (module, *vars(module).values()):
            for owner in (holder, *_held(holder)):
                if getattr(owner, "__dict__", None) and vars(owner).get(name) is not None:
                    found[id(owner)] = owner
    return list(found.values())


def _held(holder: Any) -> list[Any]:
    own = type(holder).__module__.startswith("vllm.")
    return list(vars(holder).values()) if own and hasattr(holder, "__dict__") else []
