"""What functions and methods of Python and its standard library give, for those that argument parsers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

from dspatch.serve.reading.values import Form, Opaque, Value, literals

# Mutating ones act on the value itself, as they do when the engine runs.
METHODS: Mapping[type, frozenset[str]] = {
    dict: frozenset(
        {"get", "items", "keys", "values", "pop", "update", "copy", "setdefault"}
    ),
    list: frozenset({"append", "extend", "remove", "copy", "index", "insert"}),
    tuple: frozenset({"index", "count"}),
    str: frozenset(
        {"replace", "join", "format", "lower", "upper", "strip", "removeprefix", "removesuffix"}
        | {"split", "startswith", "endswith", "title"}
    ),
    set: frozenset({"union", "add"}),
}  # fmt: skip
# Values of modules that are looked at, not only called.
CONSTANTS: Mapping[str, Value] = {
    "typing.TYPE_CHECKING": False,
    "inspect.cleandoc": Opaque(),
    "None": None,
}


def method(of: Value, name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    """What a method of a plain value gives; `Opaque` for one that fails or is not known."""
    if name not in METHODS.get(type(of), ()):
        return Opaque(f"{type(of).__name__}.{name}")
    try:
        return getattr(of, name)(*args, **keywords)
    except Exception as error:  # as the engine's own code may raise anything
        return Opaque(str(error))


def call(name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    """What a function gives; `Opaque` for one that is not known."""
    known = FUNCTIONS.get(name.removeprefix("builtins."))
    if known is None:
        return Opaque(name)
    try:
        return known(*args, **keywords)
    except Exception as error:
        return Opaque(str(error))


def _get_args(of: Value) -> Value:
    values = literals(of)
    if values is not None:
        return values
    return of.args if isinstance(of, Form) else Opaque("get_args")


def _over(make: Callable[[Any], Value]) -> Callable[..., Value]:
    def made(of: Value = (), **keywords: Value) -> Value:
        if isinstance(of, dict | list | tuple | set | frozenset | str):
            return make(of)
        return of if isinstance(of, Opaque) else Opaque("not told")

    return made


def _sorted(of: Any) -> Value:
    return sorted(of, key=str)


FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "typing.get_args": _get_args,
    "typing_extensions.get_args": _get_args,
    "list": _over(list),
    "tuple": _over(tuple),
    "set": _over(list),
    "frozenset": _over(list),
    "sorted": _over(_sorted),
    "dict": lambda *of, **keywords: dict(*of, **keywords),
    "len": _over(len),
    "str": lambda of="": of if isinstance(of, Opaque) else str(of),
    "copy.deepcopy": lambda of: of,
    "copy.copy": lambda of: of,
    "itertools.permutations": lambda of, r=None: list(permutations(of, r)),
    "range": lambda *of: list(range(*of)),
    "hasattr": lambda *of: Opaque("hasattr"),
}
