"""What a method takes and gives, by its annotations or its body, in a form that changes only where callers notice."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dspatch import syntax
from dspatch.carry.uses.expressions import last_of, parsed
from dspatch.carry.uses.values import Class, Function, FunctionNode, decorator_name, scope_of

if TYPE_CHECKING:
    from dspatch.carry.uses.names import Names
    from dspatch.carry.uses.values import Scope

# A form is an annotation: alternatives joined by `|`, names without their modules, `_` for every class
# of the engine, since subclasses pass for each other, and `Any` where nothing is said.
ANY = "Any"
_ENGINE = "_"
_NOTHING_SAID = frozenset({"Any", "object", "Self", "Never", "NoReturn"})
_UNIONS = frozenset({"Optional", "Union"})
_SEEN_THROUGH = frozenset({"Annotated", "Final", "ClassVar", "Required", "NotRequired"})
# What passes for something wider, by its own name.
_WIDER = {
    "bool": {"int", "float"},
    "int": {"float"},
    "list": {"Sequence", "Collection", "Iterable"},
    "tuple": {"Sequence", "Collection", "Iterable"},
    "set": {"Collection", "Iterable"},
    "Sequence": {"Collection", "Iterable"},
    "dict": {"Mapping", "MutableMapping"},
    "Iterator": {"Iterable"},
    "Generator": {"Iterator", "Iterable"},
    "AsyncGenerator": {"AsyncIterator", "AsyncIterable"},
    "AsyncIterator": {"AsyncIterable"},
}
_TYPING = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Type": "type"}
_LITERALS: dict[type[ast.expr] | None, str] = {
    ast.List: "list",
    ast.ListComp: "list",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.JoinedStr: "str",
}
MANAGERS = {
    "contextmanager": "AbstractContextManager",
    "asynccontextmanager": "AbstractAsyncContextManager",
}


def form(names: Names, node: ast.expr | None, scope: Scope) -> str:
    """The form of an annotation, `Any` where there is none."""
    found = list(dict.fromkeys(_alternatives(names, node, scope)))
    return ANY if ANY in found else " | ".join(sorted(found, key=lambda one: (one == "None", one)))


def _alternatives(names: Names, node: ast.expr | None, scope: Scope) -> Iterator[str]:
    match node:
        case None:
            yield ANY
        case ast.Constant(value=None):
            yield "None"
        case ast.Constant(value=str(words)):
            yield from _alternatives(names, parsed(words), scope)
        case ast.BinOp(op=ast.BitOr()):
            yield from _alternatives(names, node.left, scope)
            yield from _alternatives(names, node.right, scope)
        case ast.Subscript():
            yield from _subscripted(names, node, scope)
        case ast.Name() | ast.Attribute():
            yield _named(names, node, scope)
        case _:
            yield ANY


def _subscripted(names: Names, node: ast.Subscript, scope: Scope) -> Iterator[str]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = _TYPING.get(last_of(node.value), last_of(node.value))
    if name in _UNIONS:
        for part in parts:
            yield from _alternatives(names, part, scope)
        if name == "Optional":
            yield "None"
    elif name in _SEEN_THROUGH:
        yield from _alternatives(names, parts[0], scope)
    elif name == "Literal":
        yield from (_of_value(part) for part in parts)
    elif name == "Callable" or (outer := _named(names, node.value, scope)) in (_ENGINE, ANY):
        yield name if name == "Callable" else outer
    else:
        yield f"{outer}[{', '.join(_part(names, part, scope) for part in parts)}]"


def _part(names: Names, node: ast.expr, scope: Scope) -> str:
    if isinstance(node, ast.Constant) and node.value is ...:
        return "..."
    return form(names, node, scope)


def _named(names: Names, node: ast.expr, scope: Scope) -> str:
    name = last_of(node)
    if name in _NOTHING_SAID:
        return ANY
    found = names.evaluate(node, scope)
    if found is not None:
        return _ENGINE if isinstance(found, Class) else ANY
    return _TYPING.get(name, name) or ANY


def _of_value(node: ast.expr) -> str:
    if not isinstance(node, ast.Constant) or node.value is ...:
        return ANY
    return "None" if node.value is None else type(node.value).__name__


# -- what a call gives -------------------------------------------------------------------------


def given(names: Names, function: Function) -> str:
    """The form of what a call gives: as its annotation says, else as its body shows, else `Any`.

    For a coroutine: what awaiting it gives.
    """
    decorators = {decorator_name(d) for d in function.node.decorator_list}
    for name in sorted(decorators & MANAGERS.keys()):
        return MANAGERS[name]
    if function.node.returns is not None:
        return form(names, function.node.returns, scope_of(function))
    return _shown(names.body(function))


def is_generator(node: FunctionNode) -> bool:
    """Whether a function, with its body, yields."""
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(node.body))


def _shown(node: FunctionNode) -> str:
    if is_generator(node):
        return "AsyncIterator" if isinstance(node, ast.AsyncFunctionDef) else "Iterator"
    if all(_is_empty(statement) for statement in node.body):
        return ANY
    values = [each.value for each in _own(node.body) if isinstance(each, ast.Return)]
    found = dict.fromkeys(map(_shape_of, values or [None]))
    return ANY if ANY in found else " | ".join(sorted(found, key=lambda one: (one == "None", one)))


def _is_empty(statement: ast.stmt) -> bool:
    """Whether it is what stands where a subclass is to say what to do."""
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return text or isinstance(statement, ast.Pass | ast.Raise)


def _shape_of(value: ast.expr | None) -> str:
    match value:
        case None:
            return "None"
        case ast.Tuple(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
            return f"tuple[{', '.join([ANY] * len(parts)) or '()'}]"
        case ast.Constant():
            return _of_value(value)
    return _LITERALS.get(type(value), ANY)


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node of a body, but not those of the functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            yield from _own(ast.iter_child_nodes(node))


# -- whether one passes for another ------------------------------------------------------------


def fits(one: str, other: str) -> bool:
    """Whether whatever is of the first form is of the second, as far as both say."""
    if ANY in (one, other):
        return True
    return _fits(syntax.expression(one), syntax.expression(other))


def _fits(one: ast.expr, other: ast.expr) -> bool:
    others = list(_split(other))
    return all(any(_alike(mine, theirs) for theirs in others) for mine in _split(one))


def _split(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _split(node.left)
        yield from _split(node.right)
    else:
        yield node


def _alike(one: ast.expr, other: ast.expr) -> bool:
    mine, theirs = _head(one), _head(other)
    if ANY in (mine, theirs):
        return True
    if mine != theirs:
        return theirs in _WIDER.get(mine, ())
    return _parts_fit(mine, _parts(one), _parts(other))


def _parts_fit(name: str, mine: Sequence[ast.expr], theirs: Sequence[ast.expr]) -> bool:
    if not mine or not theirs or (name == "tuple" and (_endless(mine) or _endless(theirs))):
        return True
    return len(mine) == len(theirs) and all(map(_fits, mine, theirs))


def _endless(parts: Sequence[ast.expr]) -> bool:
    return any(isinstance(part, ast.Constant) and part.value is ... for part in parts)


def _head(node: ast.expr) -> str:
    inner = node.value if isinstance(node, ast.Subscript) else node
    return inner.id if isinstance(inner, ast.Name) else ast.unparse(inner)


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return ()
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
