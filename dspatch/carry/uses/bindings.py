"""Which names the statements of a module, class or function bind, and to what."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Where a name gets its meaning: the statement, and the value or annotation that it binds."""

    node: ast.AST
    annotation: ast.expr | None = None
    value: ast.expr | None = None
    # An item of `value` is bound, not `value`: a loop variable.
    item: bool = False
    # What another branch binds, where this one imports from what is not there.
    otherwise: Binding | None = None


def bindings(body: Sequence[ast.stmt]) -> dict[str, Binding]:
    """The names that statements bind; of the branches of an `if` or `try` the first one counts."""
    found: dict[str, Binding] = {}
    for statement in body:
        found.update(_bound_by(statement))
    return found


def _bound_by(statement: ast.stmt) -> dict[str, Binding]:
    match statement:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {statement.name: Binding(node=statement)}
        case ast.Import():
            return {_import_name(a): Binding(node=statement) for a in statement.names}
        case ast.ImportFrom():
            return {_from_name(statement, a): Binding(node=statement) for a in statement.names}
        case ast.AnnAssign(target=ast.Name(id=name)):
            bound = Binding(node=statement, annotation=statement.annotation, value=statement.value)
            return {name: bound}
        case ast.Assign():
            return dict(
                pair for target in statement.targets for pair in _targets(target, statement)
            )
        case ast.For() | ast.AsyncFor():
            return {
                **dict(_targets(statement.target, statement)),
                **bindings([*statement.body, *statement.orelse]),
            }
        case ast.With() | ast.AsyncWith():
            named = [i.optional_vars for i in statement.items if i.optional_vars is not None]
            return {
                **dict(pair for target in named for pair in _targets(target, statement)),
                **bindings(statement.body),
            }
        case ast.If() | ast.While() | ast.Try() | ast.Match():
            return _branches(statement)
    return {}


def _branches(statement: ast.stmt) -> dict[str, Binding]:
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    cases = [case.body for case in getattr(statement, "cases", [])]
    found: dict[str, Binding] = {}
    for block in [
        getattr(statement, "body", []),
        getattr(statement, "orelse", []),
        *handlers,
        *cases,
        getattr(statement, "finalbody", []),
    ]:
        for name, binding in bindings(block).items():
            first = found.get(name)
            found[name] = binding if first is None else _with_other(first, binding)
    return found


def _with_other(first: Binding, other: Binding) -> Binding:
    rest = other if first.otherwise is None else _with_other(first.otherwise, other)
    return replace(first, otherwise=rest)


def _targets(target: ast.expr, statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    match target:
        case ast.Name():
            loop = isinstance(statement, ast.For | ast.AsyncFor)
            value = getattr(statement, "iter" if loop else "value", None)
            yield target.id, Binding(node=statement, value=value, item=loop)
        case ast.Tuple() | ast.List():
            for part in target.elts:
                inner = part.value if isinstance(part, ast.Starred) else part
                for name, _ in _targets(inner, statement):
                    yield name, Binding(node=statement)


def _import_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".", 1)[0]


def _from_name(statement: ast.ImportFrom, alias: ast.alias) -> str:
    if alias.name == "*":
        return "*" + "." * statement.level + (statement.module or "")
    return alias.asname or alias.name
