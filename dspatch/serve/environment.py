"""The environment variables that an engine reads, found in its source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dspatch import astfind, syntax
from dspatch.audit.source import Source
from dspatch.carry.uses.expressions import last_of
from dspatch.serve.engines import Facts, ahead, fitting

TABLE = "environment_variables"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable: what its value must be where the source says so, and where it is read.

    `folded`: the case of a choice does not matter. `type` int means that another text stops the start.
    """

    name: str
    choices: tuple[str, ...] = ()
    folded: bool = False
    type: Literal["", "int"] = ""
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables that were found, and why some file could not be read."""

    variables: Mapping[str, Variable]
    unread: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every file that is there could be read."""
        return not self.unread


def read(source: Source, facts: Facts, wanted: Collection[str] | None = None) -> Environment:
    """The variables that the files named for an engine read.

    `wanted` are the names that are asked after: when the engine's own table has them all, no other
    file is read. `None` asks after every one.
    """
    found: dict[str, Variable] = {}
    unread: list[str] = []
    _read_files(source, facts, facts.environment, found, unread)
    if wanted is None or any(
        each.startswith(facts.prefixes) and each not in found for each in wanted
    ):
        _read_files(source, facts, facts.elsewhere, found, unread)
    if not any(source.read(path) for path in (*facts.environment, *facts.elsewhere)):
        unread.append(f"none of {', '.join(facts.environment)} is there")
    return Environment(variables=found, unread=tuple(unread))


def _read_files(
    source: Source,
    facts: Facts,
    paths: Iterable[str],
    found: dict[str, Variable],
    unread: list[str],
) -> None:
    ahead(source, fitting(source, paths))
    for path in paths:
        data = source.read(path)
        try:
            tree = syntax.parse(data) if data is not None else None
        except syntax.UNREADABLE as error:
            unread.append(f"{path}: {error}")
            continue
        if tree is None:
            continue
        for each in _variables(tree):
            if path in facts.environment or each.name.startswith(facts.prefixes):
                found.setdefault(each.name, replace(each, place=f"{path}:{each.place}"))


def _variables(tree: ast.Module) -> Iterator[Variable]:
    """Those of the table first, which says most of each; then whatever else is read."""
    table = astfind.symbol(tree, TABLE)
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield _listed(key.value, key.lineno, value)
    for node in ast.walk(tree):
        for name in _read_by(node):
            yield Variable(name=name, place=str(getattr(node, "lineno", 1)))


def _listed(name: str, line: int, value: ast.expr) -> Variable:
    found = Variable(name=name, place=str(line))
    if isinstance(value, ast.Call) and last_of(value.func) == "env_with_choices":
        return _chosen(found, value)
    numbers = (each for each in ast.walk(value) if isinstance(each, ast.Call))
    if any(last_of(each.func) == "int" and each.args and _asks(each.args[0]) for each in numbers):
        return replace(found, type="int")
    return found


def _chosen(found: Variable, call: ast.Call) -> Variable:
    listed = call.args[2] if len(call.args) > 2 else None
    values = [each.value for each in getattr(listed, "elts", []) if isinstance(each, ast.Constant)]
    folded = any(
        word.arg == "case_sensitive" and getattr(word.value, "value", True) is False
        for word in call.keywords
    )
    return replace(found, choices=tuple(str(each) for each in values), folded=folded)


def _asks(node: ast.expr) -> bool:
    """Whether an expression is the text of a variable and nothing else."""
    return isinstance(node, ast.Call) and any(True for _ in _read_by(node))


def _read_by(node: ast.AST) -> Iterator[str]:
    """The variable that a node reads or sets: `os.getenv("A")`, `environ["A"]`, `"A" in os.environ`."""
    if isinstance(node, ast.Call) and node.args and _reads(node.func):
        yield from _text(node.args[0])
    elif isinstance(node, ast.Subscript) and _is_environ(node.value):
        yield from _text(node.slice)
    elif isinstance(node, ast.Compare) and any(_is_environ(each) for each in node.comparators):
        yield from _text(node.left)


def _reads(function: ast.expr) -> bool:
    """Whether a function takes the name of a variable first: Python's own, or an engine's helper."""
    name = last_of(function)
    if name in ("get", "pop", "setdefault"):
        return isinstance(function, ast.Attribute) and _is_environ(function.value)
    return name in ("getenv", "get_bool_env") or name.startswith(("env_", "_env_", "get_env"))


def _text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _is_environ(node: ast.expr) -> bool:
    return last_of(node) == "environ"
