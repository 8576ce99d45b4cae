"""A Python module as units that can be compared: functions, statements, entries; never how they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from dspatch import syntax

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPOUND = (ast.If, ast.Try, ast.With)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One piece of a module: what it is, what it says, and its lines, counted from 1."""

    name: str
    scope: str
    meaning: str
    first: int
    last: int

    @property
    def is_definition(self) -> bool:
        """Whether it is a function or a class, which may move to another file."""
        return self.name.startswith(("def ", "class "))

    @property
    def symbol(self) -> str:
        """The dotted name of a definition."""
        return self.name.partition(" ")[2] if self.is_definition else self.name


Units: TypeAlias = Mapping[str, Unit]


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The units that differ between two states of a module."""

    set: tuple[Unit, ...]
    removed: tuple[Unit, ...]


def of(source: bytes | None) -> Units | None:
    """The units of a source by name; `None` for one that is no Python, none for a file not there."""
    return {} if source is None else _of(source)


# A series asks for the same few files again and again: patch by patch, release by release.
@lru_cache(maxsize=64)
def _of(source: bytes) -> Units | None:
    try:
        module = syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: dict[str, Unit] = {}
    for unit in _units(module.body, ""):
        found.setdefault(unit.name, unit)
    return found


def changed(before: Units, after: Units) -> Changed:
    """What a change does, in units."""
    return Changed(
        set=tuple(
            unit
            for name, unit in after.items()
            if name not in before or before[name].meaning != unit.meaning
        ),
        removed=tuple(unit for name, unit in before.items() if name not in after),
    )


def _units(body: list[ast.stmt], scope: str) -> Iterator[Unit]:
    for statement in _without_docstring(body):
        if isinstance(statement, _FUNCTIONS):
            yield _unit(f"def {scope}{statement.name}", scope, statement)
        elif isinstance(statement, ast.ClassDef):
            yield _header(statement, scope)
            yield from _units(statement.body, f"{scope}{statement.name}.")
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from _imports(statement, scope)
        elif isinstance(statement, _COMPOUND):
            yield from _branches(statement, scope)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from _assignment(statement, scope)
        else:
            yield _statement(statement, scope)


def _header(statement: ast.ClassDef, scope: str) -> Unit:
    empty = ast.ClassDef(
        name=statement.name,
        bases=statement.bases,
        keywords=statement.keywords,
        body=[],
        decorator_list=statement.decorator_list,
    )
    for name in ("type_params",):  # from Python 3.12 on
        if hasattr(statement, name):
            setattr(empty, name, getattr(statement, name))
    last = statement.body[0].lineno - 1
    return Unit(
        name=f"class {scope}{statement.name}",
        scope=scope,
        meaning=ast.dump(empty),
        first=_first_line(statement),
        last=max(last, statement.lineno),
    )


def _imports(statement: ast.Import | ast.ImportFrom, scope: str) -> Iterator[Unit]:
    for alias in statement.names:
        one: ast.stmt = ast.Import(names=[alias])
        if isinstance(statement, ast.ImportFrom):
            one = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
        text = ast.unparse(one)
        yield _spanning(f"{scope}{text}", scope, text, alias)


def _branches(statement: ast.If | ast.Try | ast.With, scope: str) -> Iterator[Unit]:
    for name in ("body", "orelse", "finalbody"):
        yield from _units(getattr(statement, name, []), scope)
    for handler in getattr(statement, "handlers", []):
        yield from _units(handler.body, scope)


def _assignment(statement: ast.Assign | ast.AnnAssign, scope: str) -> Iterator[Unit]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    name = scope + " = ".join(ast.unparse(target) for target in targets)
    value = statement.value
    if isinstance(value, ast.Dict) and value.keys:
        for key, item in zip(value.keys, value.values, strict=True):
            label = ast.unparse(key) if key is not None else f"**{ast.unparse(item)}"
            yield _spanning(f"{name}[{label}]", scope, ast.dump(item), key or item, item)
    elif isinstance(value, ast.List | ast.Set | ast.Tuple) and value.elts:
        for item in value.elts:
            yield _spanning(f"{name}[] {ast.unparse(item)}", scope, ast.dump(item), item)
    else:
        yield _unit(name, scope, statement)


def _statement(statement: ast.stmt, scope: str) -> Unit:
    return _unit(f"{scope}{ast.unparse(statement)}", scope, statement)


def _unit(name: str, scope: str, node: ast.stmt) -> Unit:
    first, last = _first_line(node), node.end_lineno or node.lineno
    # The tree is nobody else's: what does not run is taken out of it in place.
    meaning = ast.dump(_Bare().visit(node))
    return Unit(name=name, scope=scope, meaning=meaning, first=first, last=last)


def _spanning(
    name: str, scope: str, meaning: str, first: ast.expr | ast.alias, last: ast.expr | None = None
) -> Unit:
    end = (last or first).end_lineno or first.lineno
    return Unit(name=name, scope=scope, meaning=meaning, first=first.lineno, last=end)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


class _Bare(ast.NodeTransformer):
    """Takes away what does not run: docstrings and type comments."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            node.body = _without_docstring(node.body) or [ast.Pass()]
        if hasattr(node, "type_comment"):
            node.type_comment = None
        return super().generic_visit(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if said and isinstance(first.value.value, str):  # type: ignore[union-attr]
        return body[1:]
    return body
