"""What the expressions of our own code stand for, and by which path the engine's part is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dspatch.carry.uses.bindings import Binding
from dspatch.carry.uses.expressions import (
    MAPPINGS,
    SEQUENCES,
    TYPES,
    WRAPPERS,
    asserted,
    last_of,
    parsed,
)
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.values import (
    Class,
    Data,
    Function,
    Instance,
    Items,
    Module,
    Scope,
    Super,
    Value,
    is_self,
    scope_of,
)

_DEPTH = 12


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A value in our code, and the path that leads to it from the top of the engine.

    `named` says that the expression itself names the symbol at the path; otherwise the path is that
    of what the expression is an object of.
    """

    path: str
    value: Value
    named: bool = True


class Ours:
    """Our code in the patched tree (`after`), seen beside the tree as it was (`before`)."""

    def __init__(self, before: Names, after: Names) -> None:
        self.before = before
        self.after = after
        self._upstream: dict[str, bool] = {}
        self._depth = 0

    def is_upstream(self, path: str) -> bool:
        """Whether a path led somewhere before the patch."""
        if path not in self._upstream:
            self._upstream[path] = self.before.walk(path) is not None
        return self._upstream[path]

    def refer(self, node: ast.expr, scope: Scope) -> Ref | None:
        """What an expression of our code stands for, `None` when that cannot be told."""
        if self._depth > _DEPTH:
            return None
        self._depth += 1
        try:
            return self._refer(node, scope)
        finally:
            self._depth -= 1

    def _refer(self, node: ast.expr, scope: Scope) -> Ref | None:
        match node:
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                ref = self.refer(node.value, scope)
                return None if ref is None else self.attribute(ref, node.attr)
            case ast.Call(func=ast.Name(id="super"), args=[]) if scope.owner is not None:
                path = class_path(scope.owner)
                return Ref(path=path, value=Super(of=scope.owner), named=False)
            case ast.Call():
                ref = self.refer(node.func, scope)
                return None if ref is None else self._result(ref)
            case ast.Subscript():
                ref = self.refer(node.value, scope)
                return None if ref is None else self._item(ref)
            case ast.IfExp():
                return self.refer(node.body, scope) or self.refer(node.orelse, scope)
            case ast.Await() | ast.NamedExpr():
                return self.refer(node.value, scope)
        return None

    # -- names ---------------------------------------------------------------------------------

    def _name(self, name: str, scope: Scope) -> Ref | None:
        function = scope.function
        while function is not None:
            found = self.after.local(function, name)
            if found is not None:
                return self._local(function, name, found)
            function = function.outer
        return self._global(name, scope.module)

    def _local(self, function: Function, name: str, found: Value) -> Ref | None:
        path = f"{function_path(function)}.{name}"
        if isinstance(found, Data) and is_self(found):
            return self.meaning(found)
        if self.is_upstream(path):
            return Ref(path=path, value=found)
        if isinstance(found, Data):
            return self.meaning(found)
        return Ref(path=self._import_path(function, name) or path, value=found)

    def _import_path(self, function: Function, name: str) -> str | None:
        binding = self.after.local_names(function).get(name)
        return None if binding is None else self._imported(binding, name, function.module)

    def _imported(self, binding: Binding, name: str, module: str) -> str | None:
        """The path by which an import names what it brings in."""
        node = binding.node
        if isinstance(node, ast.ImportFrom):
            alias = next(a for a in node.names if (a.asname or a.name) == name)
            base = self.after.absolute(module, node.module or "", node.level)
            return f"{base}.{alias.name}"
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.split(".")[0]) == name)
            return alias.name if alias.asname else name
        return None

    def _global(self, name: str, module: str) -> Ref | None:
        found = self.after.of_module(module, name)
        if found is None:
            return None
        path = f"{module}.{name}"
        source = self.after.module(module)
        binding = source.binding(name) if source is not None else None
        if not self.is_upstream(path) and binding is not None:
            path = self._imported(binding, name, module) or path
        if isinstance(found, Data) and not self.is_upstream(path):
            return self.meaning(found)
        return Ref(path=path, value=found)

    # -- what our own names hold ---------------------------------------------------------------

    def meaning(self, data: Data) -> Ref | None:
        """What one of our own names holds, as its annotation or assignment says."""
        binding, scope = data.binding, scope_of(data)
        if data.kind == "parameter":
            return self._parameter(data)
        if binding.annotation is not None:
            return self.annotated(binding.annotation, scope)
        found = None if binding.value is None else self.refer(binding.value, scope)
        if found is None:
            return self._asserted(data)
        return self._item(found) if binding.item else replace(found, named=False)

    def _parameter(self, data: Data) -> Ref | None:
        node, owner = data.binding.node, data.owner
        assert isinstance(node, ast.arg)
        value = self.after.settled(data) if is_self(data) else None
        if owner is not None and value is not None:
            return Ref(path=class_path(owner), value=value, named=False)
        return self.annotated(node.annotation, scope_of(data)) or self._asserted(data)

    def _asserted(self, data: Data) -> Ref | None:
        """What an `isinstance` in the function says that a name holds."""
        function, name = data.function, _bound_name(data.binding)
        if function is None or name is None:
            return None
        cls = asserted(self.after, function, name)
        return None if cls is None else self.annotated(cls, scope_of(data))

    def annotated(self, node: ast.expr | None, scope: Scope) -> Ref | None:
        """An object of what an annotation in our code names."""
        match node:
            case None:
                return None
            case ast.Constant(value=str(words)):
                return self.annotated(parsed(words), scope)
            case ast.BinOp(op=ast.BitOr()):
                return self.annotated(node.left, scope) or self.annotated(node.right, scope)
            case ast.Subscript():
                return self._subscripted(node, scope)
        ref = self.refer(node, scope)
        if ref is None or not isinstance(ref.value, Class):
            return None
        return Ref(path=ref.path, value=Instance(of=ref.value), named=False)

    def _subscripted(self, node: ast.Subscript, scope: Scope) -> Ref | None:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = last_of(node.value)
        if name in WRAPPERS:
            found = (self.annotated(part, scope) for part in parts)
            return next((one for one in found if one is not None), None)
        if name in TYPES:
            ref = self.annotated(parts[0], scope)
            inner = ref.value.of if ref is not None and isinstance(ref.value, Instance) else None
            return None if ref is None or inner is None else replace(ref, value=inner)
        if name in SEQUENCES or name in MAPPINGS:
            ref = self.annotated(parts[0 if name in SEQUENCES else -1], scope)
            return None if ref is None else replace(ref, value=Items(item=ref.value))
        return self.annotated(node.value, scope)

    # -- steps ---------------------------------------------------------------------------------

    def attribute(self, ref: Ref, name: str) -> Ref | None:
        """`value.name`; on an object of our own class, what it inherits from upstream too."""
        value = self._settled(ref.value)
        if value is None:
            return None
        if isinstance(value, Super):
            return self._inherited(value.of, name)
        if isinstance(value, Class | Instance):
            cls = value if isinstance(value, Class) else value.of
            if not self.is_upstream(class_path(cls)):
                return self._of_own_class(cls, name)
        if not isinstance(value, Module | Class | Instance):
            return None
        found = self.after.attribute(value, name)
        path = f"{ref.path}.{name}"
        if found is None:
            return None
        if isinstance(found, Data) and not self.is_upstream(path) and found.owner is not None:
            return (
                self.meaning(found)
                if found.kind != "enum member"
                else Ref(path=class_path(found.owner), value=Instance(of=found.owner), named=False)
            )
        return Ref(path=path, value=found)

    def _settled(self, value: Value) -> Value | None:
        if isinstance(value, Function) and value.kind != "property":
            return None
        return self.after.settled(value)

    def _of_own_class(self, cls: Class, name: str) -> Ref | None:
        found = self.after.member(cls, name)
        if isinstance(found, Data):
            return self.meaning(found)
        if found is not None:
            return Ref(path=f"{class_path(cls)}.{name}", value=found)
        return self._inherited(cls, name)

    def _inherited(self, cls: Class, name: str) -> Ref | None:
        """An attribute of the nearest base that has it."""
        for base in self.bases(cls):
            found = self.attribute(base, name)
            if found is not None:
                return found
        return None

    def overridden(self, cls: Class, name: str) -> Ref | None:
        """What of upstream a class's own `name` stands in for, also behind bases of ours that have one."""
        for base in self.bases(cls):
            assert isinstance(base.value, Class)
            own = not self.is_upstream(class_path(base.value))
            found = self.overridden(base.value, name) if own else self.attribute(base, name)
            if found is not None:
                return found
        return None

    def bases(self, cls: Class) -> Iterator[Ref]:
        """The bases of a class by the paths that its module gives them."""
        scope = Scope(module=cls.module)
        for node in cls.node.bases:
            named = node.value if isinstance(node, ast.Subscript) else node
            ref = self._shadowed(cls) if _is_named(named, cls) else self.refer(named, scope)
            if ref is not None and isinstance(ref.value, Class):
                yield ref

    def _shadowed(self, cls: Class) -> Ref | None:
        """The base that is called as the class itself: what was imported by that name."""
        source = self.after.module(cls.module)
        binding = source.shadowed(cls.node.name) if source is not None else None
        path = None if binding is None else self._imported(binding, cls.node.name, cls.module)
        value = None if path is None else self.after.walk(path)
        return None if path is None or value is None else Ref(path=path, value=value)

    def _result(self, ref: Ref) -> Ref | None:
        value = ref.value
        if isinstance(value, Class):
            return Ref(path=ref.path, value=Instance(of=value), named=False)
        if isinstance(value, Function) and not self.is_upstream(ref.path):
            return self.annotated(value.node.returns, scope_of(value))
        result = self.after.result(value)
        return None if result is None else Ref(path=f"{ref.path}()", value=result, named=False)

    def _item(self, ref: Ref) -> Ref | None:
        if isinstance(ref.value, Class):
            return ref
        value = self.after.item(ref.value)
        if value is None:
            return None
        held = self.after.walk(ref.path)
        steps = "[]" if held is not None and self.after.item(held) is not None else ""
        return Ref(path=ref.path + steps, value=value, named=False)


def _is_named(base: ast.expr, cls: Class) -> bool:
    return isinstance(base, ast.Name) and base.id == cls.node.name


def class_path(cls: Class) -> str:
    """Where a class is defined."""
    return f"{cls.module}.{cls.node.name}"


def function_path(function: Function) -> str:
    """Where a function is defined."""
    if function.outer is not None:
        return f"{function_path(function.outer)}.{function.node.name}"
    owner = f".{function.owner.node.name}" if function.owner is not None else ""
    return f"{function.module}{owner}.{function.node.name}"


def _bound_name(binding: Binding) -> str | None:
    match binding.node:
        case ast.arg():
            return binding.node.arg
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return None
