"""What expressions and annotations of an engine's code stand for, as far as the source says it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dspatch import syntax
from dspatch.carry.uses.values import (
    Class,
    Data,
    Function,
    Instance,
    Items,
    Scope,
    Super,
    Value,
    is_self,
    scope_of,
)

if TYPE_CHECKING:
    from dspatch.carry.uses.names import Names

SEQUENCES = frozenset(
    {"list", "List", "Sequence", "Iterator", "Iterable", "tuple", "Tuple", "set", "Set"}
)
MAPPINGS = frozenset({"dict", "Dict", "Mapping", "defaultdict"})
WRAPPERS = frozenset({"Optional", "Final", "ClassVar", "Annotated", "Union"})
TYPES = frozenset({"type", "Type"})


def evaluate(names: Names, node: ast.expr, scope: Scope) -> Value | None:
    """What an expression stands for: names with what they are bound to, calls with their result."""
    match node:
        case ast.Name():
            return _name(names, node.id, scope)
        case ast.Attribute():
            value = evaluate(names, node.value, scope)
            return None if value is None else _attribute(names, value, node.attr)
        case ast.Call(func=ast.Name(id="super"), args=[]) if scope.owner is not None:
            return Super(of=scope.owner)
        case ast.Call():
            called = evaluate(names, node.func, scope)
            return None if called is None else result(names, called)
        case ast.Subscript():
            value = evaluate(names, node.value, scope)
            if value is None or isinstance(value, Class):
                return value
            return item(names, value)
        case ast.IfExp():
            return evaluate(names, node.body, scope) or evaluate(names, node.orelse, scope)
        case ast.BoolOp():
            return evaluate(names, node.values[-1], scope)
        case ast.Await() | ast.NamedExpr():
            return evaluate(names, node.value, scope)
    return None


def _name(names: Names, name: str, scope: Scope) -> Value | None:
    function = scope.function
    while function is not None:
        found = names.local(function, name)
        if found is not None:
            return found
        function = function.outer
    return names.of_module(scope.module, name)


def _attribute(names: Names, value: Value, name: str) -> Value | None:
    held = names.settled(value)
    return None if held is None or isinstance(held, Function) else names.attribute(held, name)


def annotated(names: Names, node: ast.expr | None, scope: Scope) -> Value | None:
    """An object of what an annotation names; of a union, its first class of the engine."""
    match node:
        case None:
            return None
        case ast.Constant(value=str(text)):
            return annotated(names, parsed(text), scope)
        case ast.BinOp(op=ast.BitOr()):
            return annotated(names, node.left, scope) or annotated(names, node.right, scope)
        case ast.Subscript():
            return _subscripted(names, node, scope)
        case ast.Name(id="Self") if scope.owner is not None:
            return Instance(of=scope.owner)
    found = evaluate(names, node, scope)
    return Instance(of=found) if isinstance(found, Class) else None


def parsed(annotation: str) -> ast.expr | None:
    """An annotation that is written as a string."""
    try:
        return syntax.expression(annotation)
    except (SyntaxError, ValueError):
        return None


def _subscripted(names: Names, node: ast.Subscript, scope: Scope) -> Value | None:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = last_of(node.value)
    if name in WRAPPERS:
        found = (annotated(names, part, scope) for part in parts)
        return next((one for one in found if one is not None), None)
    if name in TYPES:
        held = annotated(names, parts[0], scope)
        return held.of if isinstance(held, Instance) else None
    if name in SEQUENCES or name in MAPPINGS:
        held = annotated(names, parts[0 if name in SEQUENCES else -1], scope)
        return None if held is None else Items(item=held)
    return annotated(names, node.value, scope)


def last_of(node: ast.expr) -> str:
    """The last name of a dotted expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# -- what names hold ---------------------------------------------------------------------------


def held_by(names: Names, data: Data) -> Value | None:
    """What a name for data holds, as its annotation, its assignment or an `isinstance` says."""
    binding, scope = data.binding, scope_of(data)
    if data.kind == "enum member" and data.owner is not None:
        return Instance(of=data.owner)
    if data.kind == "parameter":
        return _parameter(names, data)
    if binding.annotation is not None:
        return annotated(names, binding.annotation, scope)
    found = None if binding.value is None else evaluate(names, binding.value, scope)
    held = None if found is None else names.settled(found)
    return item(names, held) if binding.item and held is not None else held


def _parameter(names: Names, data: Data) -> Value | None:
    function, node = data.function, data.binding.node
    assert isinstance(node, ast.arg)
    if function is None:
        return None
    if is_self(data) and data.owner is not None:
        return data.owner if function.kind == "classmethod" else Instance(of=data.owner)
    told = annotated(names, node.annotation, scope_of(data))
    if told is not None:
        return told
    cls = asserted(names, function, node.arg)
    found = None if cls is None else evaluate(names, cls, scope_of(function))
    return Instance(of=found) if isinstance(found, Class) else None


def asserted(names: Names, function: Function, name: str) -> ast.expr | None:
    """The class that an `isinstance` in a function says one of its names is of."""
    for node in ast.walk(names.body(function)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=tested), cls]) if (
                tested == name
            ):
                return cls
    return None


def result(names: Names, value: Value) -> Value | None:
    """What calling a value gives."""
    called = names.settled(value) if isinstance(value, Data) else value
    match called:
        case Class():
            return Instance(of=called)
        case Function():
            return annotated(names, called.node.returns, scope_of(called))
        case Instance():
            call = names.of_class(called.of, "forward") or names.of_class(called.of, "__call__")
            return result(names, call) if isinstance(call, Function) else None
    return None


def item(names: Names, value: Value) -> Value | None:
    """What one item of a value is."""
    held = names.settled(value)
    return held.item if isinstance(held, Items) else None
