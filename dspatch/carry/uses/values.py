"""What a name of an engine stands for, and the ways from one such value to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspatch.carry.uses.bindings import Binding, bindings

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_DATACLASS_BASES = frozenset({"NamedTuple", "BaseModel", "Struct"})
_PROPERTIES = frozenset({"property", "cached_property", "setter", "getter", "deleter"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Module:
    """A module of the engine."""

    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Class:
    """A class, and the module that defines it."""

    module: str
    node: ast.ClassDef


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A function, or a method with the class that defines it."""

    module: str
    node: FunctionNode
    owner: Class | None = None
    # A function inside of another sees the names of that one.
    outer: Function | None = None

    @property
    def kind(self) -> str:
        """`function`, or what sort of method it is."""
        if self.owner is None:
            return "function"
        names = {decorator_name(d) for d in self.node.decorator_list}
        if names & _PROPERTIES:
            return "property"
        found = names & {"classmethod", "staticmethod"}
        return found.pop() if found else "method"


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """A name for data: a constant, an attribute, a parameter, a local variable."""

    kind: str
    binding: Binding
    module: str
    owner: Class | None = None
    function: Function | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """An object of a class."""

    of: Class


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """A container, as far as what it contains is known."""

    item: Value


@dataclass(frozen=True, kw_only=True, eq=False)
class Super:
    """`super()` in a class."""

    of: Class


Value = Module | Class | Function | Data | Instance | Items | Super


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where code stands: names are looked up in the function, then in the module."""

    module: str
    owner: Class | None = None
    function: Function | None = None


def scope_of(value: Function | Data) -> Scope:
    """The scope of a function's body, or of the statement that binds a name."""
    function = value if isinstance(value, Function) else value.function
    return Scope(module=value.module, owner=value.owner, function=function)


def is_self(data: Data) -> bool:
    """Whether a parameter is the one that a method is bound to."""
    function, node = data.function, data.binding.node
    if data.kind != "parameter" or function is None or function.owner is None:
        return False
    named = [*function.node.args.posonlyargs, *function.node.args.args]
    return bool(named) and named[0] is node and function.kind != "staticmethod"


def decorator_name(decorator: ast.expr) -> str:
    """The last name of a decorator: `setter` of `@x.setter`, `lru_cache` of `@lru_cache(4)`."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether the annotated names of a class are the parameters of its constructor."""
    if any(_makes_fields(decorator_name(d)) for d in node.decorator_list):
        return True
    return any(last_name(base) in _DATACLASS_BASES for base in node.bases)


def _makes_fields(decorator: str) -> bool:
    return "dataclass" in decorator or decorator in ("config", "define", "frozen", "attrs")


def last_name(node: ast.expr) -> str:
    """The last name of a dotted expression, its subscript left off."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_enum_base(node: ast.expr) -> bool:
    """Whether a base is one of the standard enums."""
    return last_name(node).endswith(("Enum", "Flag"))


def self_attributes(node: ast.ClassDef) -> dict[str, tuple[Binding, FunctionNode]]:
    """The attributes that methods set on `self`, each with the method that sets it first."""
    found: dict[str, tuple[Binding, FunctionNode]] = {}
    methods = [m for m in node.body if isinstance(m, FunctionNode)]
    methods.sort(key=lambda m: m.name != "__init__")
    for method in methods:
        me = method.args.args[0].arg if method.args.args else None
        for statement in statements(method.body):
            for name, binding in _set_on(statement, me):
                found.setdefault(name, (binding, method))
    return found


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a body and of the blocks in it, but not of the functions in it."""
    for statement in body:
        yield statement
        if isinstance(statement, FunctionNode | ast.ClassDef):
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, block, ()))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from statements(part.body)


def _set_on(statement: ast.stmt, me: str | None) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for part in parts:
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id == me
            ):
                alone = part is target
                yield (
                    part.attr,
                    Binding(
                        node=statement,
                        annotation=getattr(statement, "annotation", None),
                        value=statement.value if alone else None,
                    ),
                )


def parameter_names(node: FunctionNode) -> dict[str, Binding]:
    """The parameters of a function."""
    return {a.arg: Binding(node=a, annotation=a.annotation) for a in arguments(node)}


def local_names(node: FunctionNode) -> dict[str, Binding]:
    """The local variables of a function, those of its comprehensions included."""
    found = bindings(node.body)
    outside: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr):
            found.setdefault(inner.target.id, Binding(node=inner, value=inner.value))
        elif isinstance(inner, ast.comprehension) and isinstance(inner.target, ast.Name):
            loop = Binding(node=inner.target, value=inner.iter, item=True)
            found.setdefault(inner.target.id, loop)
        elif isinstance(inner, ast.ExceptHandler) and inner.name:
            found.setdefault(inner.name, Binding(node=inner))
        elif isinstance(inner, ast.Global):
            outside.update(inner.names)
    return {name: binding for name, binding in found.items() if name not in outside}


def arguments(node: FunctionNode) -> list[ast.arg]:
    """All parameters of a function, `*args` and `**kwargs` too."""
    a = node.args
    rest = [one for one in (a.vararg, a.kwarg) if one is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]
