"""What names and expressions of an engine's source stand for, as far as reading can tell."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Plain Python values (strings, numbers, None, lists, tuples, dicts) stand for themselves.
Value = Any


@dataclass(frozen=True)
class Opaque:
    """Something that reading cannot tell."""

    why: str = ""


@dataclass(frozen=True)
class External:
    """A name of the standard library, of Python itself or of another package: `argparse.Action`, `int`."""

    name: str


@dataclass(frozen=True, eq=False)
class ModuleRef:
    """A module of the engine, by its dotted name."""

    name: str


@dataclass(frozen=True, eq=False)
class ClassRef:
    """A class of the engine's source, and the module that it is in."""

    module: str
    node: ast.ClassDef


@dataclass(frozen=True, eq=False)
class FunctionRef:
    """A function of the engine's source; `bound` is its first argument where it has one already.

    `owner` is the class that it was found in, from where `super()` goes on; `about` is the class that
    it was asked of.
    """

    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    bound: Value = None
    owner: ClassRef | None = None
    about: ClassRef | None = None


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    name: str
    value: Value


@dataclass(frozen=True)
class Form:
    """A type with arguments: `Literal["a"]`, `list[int]`; a union's origin is `Union`."""

    origin: str
    args: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Bound:
    """A method of a value that reading knows: of a parser, a dict, a list, a string."""

    of: Value
    name: str


@dataclass(frozen=True, eq=False)
class Lambda:
    """A function of one value that stands where it is used; `apply` says what it gives."""

    apply: Callable[[Value], Value]


@dataclass(frozen=True, kw_only=True)
class Added:
    """One call of `add_argument`: its words, its keywords as read, and its place."""

    names: tuple[str, ...]
    keywords: Mapping[str, Value]
    module: str
    line: int
    unread: bool = False  # keywords that reading cannot tell, too


@dataclass(eq=False)
class Parser:
    """An argument parser: what was added to it, and its subcommands' parsers by name."""

    kind: Value
    added: list[Added] = field(default_factory=list)
    commands: dict[str, Parser] = field(default_factory=dict)
    keywords: Mapping[str, Value] = field(default_factory=dict)
    name: str = ""  # of a subcommand


@dataclass(frozen=True, eq=False)
class Commands:
    """What `add_subparsers` of a parser gives."""

    of: Parser


@dataclass(frozen=True)
class Hole:
    """A place that adds arguments which reading could not tell."""

    module: str
    line: int
    why: str


def literals(value: Value) -> tuple[Value, ...] | None:
    """The values of a `Literal`, those within it included; `None` when it is none, or not told."""
    if not isinstance(value, Form) or value.origin != "Literal":
        return None
    found: list[Value] = []
    for each in value.args:
        inner = literals(each) if isinstance(each, Form) else (each,)
        if inner is None or any(isinstance(one, Opaque) for one in inner):
            return None
        found += inner
    return tuple(found)


def told(values: Sequence[Value]) -> bool:
    """Whether reading could tell every one of some values."""
    return not any(isinstance(each, Opaque) for each in values)
