"""Expressions of an engine's source, evaluated as far as argument parsers need it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

from dspatch import syntax
from dspatch.serve.reading import builtin
from dspatch.serve.reading.classes import Classes
from dspatch.serve.reading.values import (
    Bound,
    ClassRef,
    Commands,
    External,
    Form,
    FunctionRef,
    Lambda,
    Member,
    ModuleRef,
    Opaque,
    Parser,
    Value,
)

_FORMS = frozenset({
    "Literal", "Union", "Optional", "Annotated", "ClassVar", "SkipValidation", "InstanceOf",
    "InitVar", "Final",
})  # fmt: skip
_ALIASES = {
    "List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Type": "type",
    "Sequence": "list", "Mapping": "dict", "Callable": "Callable", "FrozenSet": "set",
}  # fmt: skip
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Mult: operator.mul,
    ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le,
}  # fmt: skip


@dataclass
class Scope:
    """Where an expression stands: its module, the names around it, and the class whose body it is in."""

    module: str
    names: dict[str, Value] = field(default_factory=dict)
    body_of: ClassRef | None = None
    function: FunctionRef | None = None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call: what is called, with which values, and where it stands.

    `unread`: it has keywords that reading cannot tell, too.
    """

    function: Value
    args: list[Value]
    words: dict[str, Value]
    node: ast.Call
    scope: Scope
    unread: bool


class Expressions(Classes):
    """Expressions, on top of classes; calls of the engine's own functions are left to who derives."""

    def called(self, function: FunctionRef, args: list[Value], words: dict[str, Value]) -> Value:
        """What a function of the engine gives."""
        raise NotImplementedError

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression; `Opaque` where reading cannot tell."""
        handle = getattr(self, f"_{type(node).__name__.lower()}", None)
        return handle(node, scope) if handle else Opaque(type(node).__name__)

    def in_class(self, owner: ClassRef, node: ast.expr) -> Value:
        """The value of an expression in a class's body."""
        if _filled_later(node):
            return Opaque("filled while the engine starts")
        return self.evaluate(node, Scope(module=owner.module, body_of=owner))

    def in_module(self, module: str, node: ast.expr) -> Value:
        """The value of an expression at a module's top."""
        if _filled_later(node):
            return Opaque("filled while the engine starts")
        return self.evaluate(node, Scope(module=module))

    def _constant(self, node: ast.Constant, scope: Scope) -> Value:
        return node.value

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        if node.id in scope.names:
            return scope.names[node.id]
        if scope.body_of is not None:
            found = self.own_attribute(scope.body_of, node.id)
            if found is not None:
                return self.attribute_value(found, scope.body_of)
        return self.name(scope.module, node.id)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def attribute(self, of: Value, name: str) -> Value:
        """An attribute of a value."""
        if isinstance(of, ModuleRef):
            return self.member(of.name, name)
        if isinstance(of, External):
            whole = f"{of.name}.{name}"
            return builtin.CONSTANTS.get(whole, External(whole))
        if isinstance(of, ClassRef):
            return self.class_attribute(of, name)
        if isinstance(of, Parser | Commands | dict | list | str | tuple | set):
            return Bound(of, name)
        if isinstance(of, Member) and name in ("name", "value"):
            return getattr(of, name)
        return Opaque(f"attribute {name}")

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        of = self.evaluate(node.value, scope)
        if isinstance(of, dict | list | tuple):
            try:
                return of[self.evaluate(node.slice, scope)]
            except (LookupError, TypeError) as error:
                return Opaque(f"no item {error}")
        origin = of.name.rpartition(".")[2] if isinstance(of, External) else ""
        if origin in _FORMS or origin in ("list", "dict", "tuple", "set", "type", *_ALIASES):
            return Form(_ALIASES.get(origin, origin), tuple(self._arguments(node.slice, scope)))
        return Opaque("subscript")

    def _arguments(self, node: ast.expr, scope: Scope) -> Iterator[Value]:
        for each in node.elts if isinstance(node, ast.Tuple) else [node]:
            yield self.evaluate(each, scope)

    def _binop(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.evaluate(node.left, scope), self.evaluate(node.right, scope)
        if isinstance(node.op, ast.BitOr):
            return Form("Union", (left, right))
        return self._operated(node.op, left, right)

    def _operated(self, op: ast.AST, left: Value, right: Value) -> Value:
        known = _OPERATORS.get(type(op))
        if known is None or isinstance(left, Opaque) or isinstance(right, Opaque):
            return Opaque("operator")
        try:
            return known(left, right)
        except TypeError:
            return Opaque("operator")

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        if len(node.ops) != 1:
            return Opaque("comparison")
        left = self.evaluate(node.left, scope)
        return self._operated(node.ops[0], left, self.evaluate(node.comparators[0], scope))

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not) and truth(value) is not None:
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return Opaque("operator")

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        decides = isinstance(node.op, ast.Or)
        value: Value = Opaque("condition")
        doubtful = False
        for each in node.values:
            value = self.evaluate(each, scope)
            if truth(value) is decides and not doubtful:
                return value
            doubtful = doubtful or truth(value) is None
        return Opaque("condition") if doubtful else value

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        holds = truth(self.evaluate(node.test, scope))
        if holds is None:
            return Opaque("condition")
        return self.evaluate(node.body if holds else node.orelse, scope)

    def _list(self, node: ast.List | ast.Set, scope: Scope) -> Value:
        return self._items(node.elts, scope)

    _set = _list

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Value:
        found = self._items(node.elts, scope)
        return tuple(found) if isinstance(found, list) else found

    def _items(self, nodes: list[ast.expr], scope: Scope) -> Value:
        found: list[Value] = []
        for node in nodes:
            value = self.evaluate(node.value if isinstance(node, ast.Starred) else node, scope)
            if not isinstance(node, ast.Starred):
                found.append(value)
            elif isinstance(value, list | tuple | dict):
                found += value
            else:
                return Opaque("starred")
        return found

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        found: dict[Value, Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            got = self.evaluate(value, scope)
            if key is not None:
                name = self.evaluate(key, scope)
                found[name if name.__hash__ else str(name)] = got
            elif isinstance(got, dict):
                found |= got
            else:
                return Opaque("unpacked")
        return found

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts = [self.evaluate(each, scope) for each in node.values]
        if not all(isinstance(part, str | int | float) for part in parts):
            return Opaque("f-string")
        return "".join(str(part) for part in parts)

    def _formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Value:
        return self.evaluate(node.value, scope)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Value:
        if len(node.generators) != 1 or node.generators[0].ifs:
            return Opaque("comprehension")
        over, target = node.generators[0].iter, node.generators[0].target
        items = self.iterated(self.evaluate(over, scope))
        if items is None:
            return Opaque("comprehension")
        found = []
        for item in items:
            inner = Scope(scope.module, dict(scope.names), scope.body_of, scope.function)
            self.assign(target, item, inner)
            found.append(self.evaluate(node.elt, inner))
        return found

    _generatorexp = _listcomp
    _setcomp = _listcomp

    def iterated(self, value: Value) -> list[Value] | None:
        """The items that a loop over a value sees, an enumeration's members included."""
        if isinstance(value, ClassRef):
            return self.members(value)
        if isinstance(value, list | tuple | dict | set | str | ItemsView | KeysView | ValuesView):
            return list(value)
        return None

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind a target: a name, names in a row, or an item of a dict or list."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = list(value) if isinstance(value, list | tuple) else []
            for number, each in enumerate(target.elts):
                self.assign(
                    each, parts[number] if number < len(parts) else Opaque("unpacked"), scope
                )
        elif isinstance(target, ast.Subscript):
            of = self.evaluate(target.value, scope)
            key = self.evaluate(target.slice, scope)
            if isinstance(of, dict) and not isinstance(key, Opaque):
                of[key] = value

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        if len(node.args.args) != 1:
            return Opaque("lambda")
        name = node.args.args[0].arg
        names = scope.names

        def apply(value: Value) -> Value:
            inner = Scope(scope.module, {**names, name: value}, scope.body_of, scope.function)
            return self.evaluate(node.body, inner)

        return Lambda(apply)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        function = self.evaluate(node.func, scope)
        args, unread = self._positional(node, scope)
        words: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg is not None:
                words[keyword.arg] = value
            elif isinstance(value, dict):
                words |= value
            else:
                unread = True
        return self.call(
            Call(function=function, args=args, words=words, node=node, scope=scope, unread=unread)
        )

    def _positional(self, node: ast.Call, scope: Scope) -> tuple[list[Value], bool]:
        found = self._items(node.args, scope)
        return (found, False) if isinstance(found, list) else ([Opaque("starred")], True)

    def call(self, made: Call) -> Value:
        """What a call gives; who derives knows of parsers and of the engine's functions."""
        function, args = made.function, made.args
        if isinstance(function, Bound):
            return builtin.method(function.of, function.name, args, made.words)
        if isinstance(function, External):
            if function.name in ("list", "tuple", "sorted", "set") and len(args) == 1:
                items = self.iterated(args[0])
                args = [items] if items is not None else args
            return builtin.call(function.name, args, made.words)
        return Opaque("call")

    def in_string(self, owner: ClassRef, words: str) -> Value:
        """The value of an annotation that is written as a string in a class's body."""
        try:
            return self.in_class(owner, syntax.expression(words))
        except SyntaxError:
            return Opaque("string")


def _filled_later(node: ast.expr) -> bool:
    """Whether a shared dict or list starts empty, so that something must fill it."""
    return isinstance(node, ast.Dict | ast.List) and not (
        node.keys if isinstance(node, ast.Dict) else node.elts
    )


def truth(value: Value) -> bool | None:
    """Whether a value counts as true, `None` when reading cannot tell."""
    if isinstance(value, bool | int | float | str | list | tuple | dict) or value is None:
        return bool(value)
    return None
