"""Find symbols and code in a Python source by its syntax tree: the eyes of traits and of edits."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dspatch import syntax

Scope = ast.AST
# Fields that say where or how code was written, not what it means.
_IGNORED = frozenset({"ctx", "type_comment", "kind", "type_ignores"})


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Code to look for: consecutive statements, or one expression."""

    source: str
    statements: tuple[ast.stmt, ...]

    @property
    def expression(self) -> ast.expr | None:
        """The expression, when the pattern is a single one."""
        first = self.statements[0]
        return first.value if len(self.statements) == 1 and isinstance(first, ast.Expr) else None


@dataclass(frozen=True, kw_only=True)
class Match:
    """Where a pattern was found: the nodes it covers, in order."""

    nodes: tuple[ast.stmt | ast.expr, ...]
    is_statement: bool


@lru_cache(maxsize=32)
def parsed(source: bytes) -> ast.Module:
    """A Python file as a syntax tree, which callers share and must not change.

    An edit is looked for, made and checked on the same few sources: each is parsed once. Raises
    `SyntaxError` and `ValueError`.
    """
    return syntax.parse(source)


def pattern(source: str) -> Pattern:
    """Parse the code of a pattern; `...` in it stands for anything. Raises `SyntaxError`."""
    body = syntax.parse(textwrap.dedent(source).strip("\n")).body
    if not body:
        raise SyntaxError("the pattern is empty")
    return Pattern(source=source, statements=tuple(body))


def symbol(module: ast.Module, qualified_name: str) -> Scope | None:
    """The class, function, assignment or dict value that a dotted name leads to, or `None`."""
    scope: Scope = module
    for part in qualified_name.split("."):
        found = next((node for name, node in members(scope) if name == part), None)
        if found is None:
            return None
        scope = found
    return scope


def members(scope: Scope) -> Iterator[tuple[str, Scope]]:
    """The names that a scope defines directly, each with its node."""
    if isinstance(scope, ast.Dict):
        yield from _dict_members(scope)
        return
    for statement in _body(scope):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign):
            yield from (
                (t.id, statement.value) for t in statement.targets if isinstance(t, ast.Name)
            )
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value or statement
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            yield from members(statement)


def _dict_members(scope: ast.Dict) -> Iterator[tuple[str, Scope]]:
    for key, value in zip(scope.keys, scope.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, value


def _body(scope: Scope) -> list[ast.stmt]:
    body = [*getattr(scope, "body", []), *getattr(scope, "orelse", [])]
    return [statement for statement in body if isinstance(statement, ast.stmt)]


def qualified_names(scope: Scope, prefix: str = "") -> Iterator[str]:
    """Every dotted name below a scope."""
    for name, node in members(scope):
        yield prefix + name
        if isinstance(node, ast.ClassDef | ast.Dict):
            yield from qualified_names(node, f"{prefix}{name}.")


def parameters(function: Scope) -> tuple[str, ...]:
    """The parameter names of a function, or of a class's `__init__`."""
    if isinstance(function, ast.ClassDef):
        init = next((node for name, node in members(function) if name == "__init__"), None)
        return parameters(init) if init is not None else ()
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    args = function.args
    return tuple(a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs))


def find(scope: Scope, wanted: Pattern) -> list[Match]:
    """Every place below a scope where a pattern stands, in source order."""
    expression = wanted.expression
    if expression is None:
        return [
            Match(nodes=run, is_statement=True)
            for block in _blocks(scope)
            for run in _runs(block, wanted.statements)
        ]
    statements = {id(n.value): n for n in ast.walk(scope) if isinstance(n, ast.Expr)}
    found = [n for n in ast.walk(scope) if isinstance(n, ast.expr) and equal(expression, n)]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return [
        Match(nodes=(statements.get(id(node), node),), is_statement=id(node) in statements)
        for node in found
    ]


def _blocks(scope: Scope) -> Iterator[list[ast.stmt]]:
    """Every list of consecutive statements below a scope, in source order."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        block = getattr(scope, name, None)
        if not isinstance(block, list):
            continue
        if block and isinstance(block[0], ast.stmt):
            yield block
        for child in block:
            yield from _blocks(child)


def _runs(block: list[ast.stmt], wanted: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, ...]]:
    width = len(wanted)
    for start in range(len(block) - width + 1):
        candidate = block[start : start + width]
        if all(equal(w, got) for w, got in zip(wanted, candidate, strict=True)):
            yield tuple(candidate)


def equal(wanted: object, got: object) -> bool:
    """Whether two nodes mean the same code; `...` in `wanted` stands for anything."""
    if _is_wildcard(wanted) and isinstance(got, ast.expr | ast.stmt):
        return True
    if isinstance(wanted, ast.AST):
        return type(wanted) is type(got) and all(
            equal(value, getattr(got, name)) for name, value in _compared(wanted)
        )
    if isinstance(wanted, list):
        return isinstance(got, list) and _equal_lists(wanted, got)
    return type(wanted) is type(got) and wanted == got


def _equal_lists(wanted: list[object], got: list[object]) -> bool:
    if len(wanted) == 1 and _is_wildcard(wanted[0]):
        return True
    return len(wanted) == len(got) and all(map(equal, wanted, got))


def _compared(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The fields of a pattern node that count.

    A body of `...` leaves the branches after it open, and the parameters of a `def` written without.
    """
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _IGNORED}
    if _open(fields.get("body")):
        fields = {n: v for n, v in fields.items() if n not in ("orelse", "finalbody", "handlers")}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not parameters(node):
            fields.pop("args")
    if isinstance(node, ast.Call) and _open(node.args):
        fields.pop("keywords")
    if not fields.get("decorator_list", True):
        fields.pop("decorator_list")
    if fields.get("returns", True) is None:
        fields.pop("returns")
    yield from fields.items()


def _open(value: object) -> bool:
    return isinstance(value, list) and len(value) == 1 and _is_wildcard(value[0])


def _is_wildcard(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def assigned(source: bytes, name: str) -> str | None:
    """The string that a module assigns to a name of its own; `None` without one, or of no Python."""
    try:
        module = syntax.parse(source)
    except (SyntaxError, ValueError):
        return None
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = statement.value
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    return value.value
                return None
    return None


def nearest_symbol(module: ast.Module, qualified_name: str) -> str | None:
    """The existing dotted name that looks most like a missing one."""
    names = list(qualified_names(module))
    close = difflib.get_close_matches(qualified_name, names, n=1, cutoff=0.4)
    if close:
        return close[0]
    last = qualified_name.rsplit(".", 1)[-1]
    return next((name for name in names if name.rsplit(".", 1)[-1] == last), None)


def nearest_code(scope: Scope, wanted: Pattern) -> tuple[int, str] | None:
    """Line and text of the statement that looks most like a pattern that was not found."""
    target = ast.unparse(wanted.statements[0])
    best: tuple[float, int, str] | None = None
    for node in ast.walk(scope):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef | ast.FunctionDef):
            text = ast.unparse(node)
            ratio = difflib.SequenceMatcher(None, target[:400], text[:400]).quick_ratio()
            if best is None or ratio > best[0]:
                best = (ratio, node.lineno, text.splitlines()[0])
    return (best[1], best[2]) if best and best[0] > 0.5 else None
