"""Follow names through one tree of an engine: imports, re-exports, base classes, annotations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from dspatch.carry.modules import Binding, ModuleSource, Read, bindings
from dspatch.carry.values import (
    Class,
    Data,
    Function,
    FunctionNode,
    Instance,
    Items,
    Module,
    Scope,
    Super,
    Value,
    is_dataclass,
    is_enum_base,
    is_self,
    local_names,
    parameter_names,
    scope_of,
    self_attributes,
)

_STEPS = re.compile(r"[^.\[\]()]+|\(\)|\[\]")
# How far one annotation or assignment may lead to the next: real code needs few steps, loops need an end.
_DEPTH = 24


class Names:
    """The names of an engine in one tree; only the modules that a question leads to are read."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._modules: dict[str, ModuleSource | None] = {}
        self._bodies: dict[int, dict[str, Binding]] = {}
        self._on_self: dict[int, dict[str, tuple[Binding, FunctionNode]]] = {}
        self._locals: dict[int, dict[str, Binding]] = {}
        self._bases: dict[int, list[Class]] = {}
        self._depth = 0

    # -- modules -------------------------------------------------------------------------------

    def module(self, name: str) -> ModuleSource | None:
        """The module of a dotted name, `None` when the tree has none."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> ModuleSource | None:
        base = name.replace(".", "/")
        for path in (f"{base}/__init__.py", f"{base}.py"):
            source = self.read(path)
            if source is not None:
                return ModuleSource(name=name, path=path, source=source)
        return None

    def absolute(self, module: str, written: str, level: int) -> str:
        """The dotted name of the module that an import in another one means."""
        if level == 0:
            return written
        source = self.module(module)
        parts = module.split(".")
        keep = len(parts) - level + (1 if source is not None and source.is_package else 0)
        return ".".join([*parts[:keep], *([written] if written else [])])

    # -- paths ---------------------------------------------------------------------------------

    def walk(self, path: str) -> Value | None:
        """What a path leads to: dotted names, `()` for a result and `[]` for an item on the way."""
        steps = _STEPS.findall(path)
        value, done = self._deepest_module(steps)
        for step in steps[done:]:
            if value is None:
                return None
            value = self._step(value, step)
        return value

    def _deepest_module(self, steps: Sequence[str]) -> tuple[Value | None, int]:
        """The module nearest to a path's end, so that the packages above it need no parsing."""
        for count in range(len(steps) - 1, 1, -1):
            if steps[count - 1] not in ("()", "[]"):
                module = self.top(".".join(steps[:count]))
                if module is not None:
                    return module, count
        return self.top(steps[0]), 1

    def _step(self, value: Value, step: str) -> Value | None:
        if step == "()":
            return self.result(value)
        if step == "[]":
            return self.item(value)
        return self.attribute(value, step)

    def top(self, name: str) -> Module | None:
        """A package or module of a dotted name."""
        return Module(name=name) if self.module(name) is not None else None

    # -- from a value to the next ----------------------------------------------------------------

    def attribute(self, value: Value, name: str) -> Value | None:
        """What `value.name` is: for a function, its parameter or local variable of that name."""
        match value:
            case Module():
                return self.of_module(value.name, name)
            case Function():
                return self.local(value, name)
            case Data():
                settled = self.settled(value)
                return None if settled is None else self.attribute(settled, name)
            case Class() | Instance():
                return self.of_class(value if isinstance(value, Class) else value.of, name)
            case Super():
                found = (self.of_class(base, name) for base in self.bases(value.of))
                return next((one for one in found if one is not None), None)
        return None

    def of_module(self, module: str, name: str) -> Value | None:
        """A top-level name of a module, or its submodule; imports are followed."""
        source = self.module(module)
        if source is None or self._depth > _DEPTH:
            return None
        binding = source.binding(name)
        self._depth += 1
        try:
            found = None if binding is None else self._bound(binding, name, Scope(module=module))
            if found is None and binding is None:
                found = self._starred(source, name)
            if found is None and source.is_package:
                found = self._submodule(f"{module}.{name}")
            return found
        finally:
            self._depth -= 1

    def _submodule(self, name: str) -> Module | None:
        return Module(name=name) if self.module(name) is not None else None

    def _starred(self, source: ModuleSource, name: str) -> Value | None:
        for written in source.stars():
            level = len(written) - len(written.lstrip("."))
            target = self.absolute(source.name, written.lstrip("."), level)
            if target != source.name and (found := self.of_module(target, name)) is not None:
                return found
        return None

    def _bound(self, binding: Binding, name: str, scope: Scope) -> Value | None:
        node = binding.node
        match node:
            case ast.ClassDef():
                return Class(module=scope.module, node=node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return Function(module=scope.module, node=node, outer=scope.function)
            case ast.Import():
                alias = next(a for a in node.names if (a.asname or a.name.split(".")[0]) == name)
                return self._imported(alias.name if alias.asname else name)
            case ast.ImportFrom():
                alias = next(a for a in node.names if (a.asname or a.name) == name)
                target = self.absolute(scope.module, node.module or "", node.level)
                return self.imported_from(target, alias.name)
        kind = "constant" if scope.function is None else "local"
        return Data(kind=kind, binding=binding, module=scope.module, function=scope.function)

    def _imported(self, name: str) -> Module | None:
        return Module(name=name) if self.module(name) is not None else None

    def imported_from(self, module: str, name: str) -> Value | None:
        """What `from module import name` brings in."""
        return self.of_module(module, name)

    def local(self, function: Function, name: str) -> Value | None:
        """A parameter or a local variable of a function."""
        binding = parameter_names(function.node).get(name) or self._local_names(function).get(name)
        if binding is None:
            return None
        if not isinstance(binding.node, ast.arg):
            return self._bound(binding, name, scope_of(function))
        return Data(
            kind="parameter",
            binding=binding,
            module=function.module,
            owner=function.owner,
            function=function,
        )

    def _local_names(self, function: Function) -> dict[str, Binding]:
        key = id(function.node)
        if key not in self._locals:
            self._locals[key] = local_names(self.body(function))
        return self._locals[key]

    def of_class(self, cls: Class, name: str) -> Value | None:
        """An attribute of a class or of its objects, inherited ones included."""
        for owner in self.mro(cls):
            found = self.member(owner, name)
            if found is not None:
                return found
        return None

    def member(self, cls: Class, name: str) -> Value | None:
        """An attribute that a class itself defines, in its body or on `self` in a method."""
        found = self._own_member(cls, name)
        if found is None:
            return None
        binding, method = found
        if isinstance(binding.node, FunctionNode) and method is None:
            return Function(module=cls.module, node=binding.node, owner=cls)
        if isinstance(binding.node, ast.ClassDef):
            return Class(module=cls.module, node=binding.node)
        function = None if method is None else Function(module=cls.module, node=method, owner=cls)
        kind = "attribute" if method is not None else self._kind(cls, binding)
        return Data(kind=kind, binding=binding, module=cls.module, owner=cls, function=function)

    def _own_member(self, cls: Class, name: str) -> tuple[Binding, FunctionNode | None] | None:
        key = id(cls.node)
        if key not in self._bodies:
            self._bodies[key] = bindings(cls.node.body)
        if name in self._bodies[key]:
            return self._bodies[key][name], None
        if key not in self._on_self:
            self._on_self[key] = self_attributes(self.whole(cls))
        return self._on_self[key].get(name)

    def _kind(self, cls: Class, binding: Binding) -> str:
        if self.is_enum(cls) and binding.annotation is None:
            return "enum member"
        annotated = binding.annotation is not None and "ClassVar" not in ast.unparse(
            binding.annotation
        )
        return "field" if annotated and is_dataclass(cls.node) else "attribute"

    def whole(self, cls: Class) -> ast.ClassDef:
        """A class with the bodies of its methods, which are parsed when first asked for."""
        source = self.module(cls.module)
        return cls.node if source is None else source.whole(cls.node)

    def body(self, function: Function) -> FunctionNode:
        """A function with its body."""
        if function.owner is None:
            return function.node
        for node in self.whole(function.owner).body:
            if isinstance(node, FunctionNode) and node.lineno == function.node.lineno:
                return node
        return function.node

    # -- classes -------------------------------------------------------------------------------

    def bases(self, cls: Class) -> list[Class]:
        """The bases that the engine itself defines."""
        key = id(cls.node)
        if key not in self._bases:
            self._bases[key] = []  # a class that inherits from itself ends here
            scope = Scope(module=cls.module)
            values = [self.evaluate(base, scope) for base in cls.node.bases]
            self._bases[key] = [value for value in values if isinstance(value, Class)]
        return self._bases[key]

    def mro(self, cls: Class) -> Iterator[Class]:
        """A class and its ancestors, nearest first."""
        seen: set[int] = set()
        waiting = [cls]
        while waiting:
            one = waiting.pop(0)
            if id(one.node) not in seen:
                seen.add(id(one.node))
                yield one
                waiting = [*self.bases(one), *waiting]

    def is_enum(self, cls: Class) -> bool:
        """Whether a class is an enum."""
        return any(is_enum_base(base) for one in self.mro(cls) for base in one.node.bases)

    # -- expressions ---------------------------------------------------------------------------

    def settled(self, value: Value) -> Value | None:
        """What one holds after reading a name: data and properties give what they are said to be."""
        if isinstance(value, Data):
            return self._guarded(value)
        if isinstance(value, Function) and value.kind == "property":
            return self._annotated(value.node.returns, scope_of(value))
        return value

    def _guarded(self, value: Data) -> Value | None:
        if self._depth > _DEPTH:
            return None
        self._depth += 1
        try:
            return self._data(value)
        finally:
            self._depth -= 1

    def _data(self, value: Data) -> Value | None:
        binding, scope = value.binding, scope_of(value)
        if value.kind == "enum member" and value.owner is not None:
            return Instance(of=value.owner)
        if value.kind == "parameter":
            return self._parameter(value)
        if binding.annotation is not None:
            return self._annotated(binding.annotation, scope)
        if binding.value is None:
            return None
        found = self.evaluate(binding.value, scope)
        settled = None if found is None else self.settled(found)
        return self.item(settled) if binding.item and settled is not None else settled

    def _parameter(self, value: Data) -> Value | None:
        function, node = value.function, value.binding.node
        assert isinstance(node, ast.arg)
        if is_self(value) and value.owner is not None and function is not None:
            return value.owner if function.kind == "classmethod" else Instance(of=value.owner)
        return self._annotated(node.annotation, scope_of(value)) or self._asserted(value)

    def _asserted(self, value: Data) -> Value | None:
        """What an `isinstance` in the same function says of a parameter without an annotation."""
        assert isinstance(value.binding.node, ast.arg)
        if value.function is None:
            return None
        return self.asserted(value.function, value.binding.node.arg)

    def asserted(self, function: Function, name: str) -> Value | None:
        """What an `isinstance` in a function says of one of its names."""
        for node in ast.walk(self.body(function)):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=tested), cls]) if (
                    tested == name
                ):
                    found = self.evaluate(cls, scope_of(function))
                    if isinstance(found, Class):
                        return Instance(of=found)
        return None

    def _annotated(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """An object of what an annotation names; of a union, its one class of the engine."""
        match node:
            case None:
                return None
            case ast.Constant(value=str(text)):
                try:
                    return self._annotated(ast.parse(text, mode="eval").body, scope)
                except SyntaxError:
                    return None
            case ast.BinOp(op=ast.BitOr()):
                return self._annotated(node.left, scope) or self._annotated(node.right, scope)
            case ast.Subscript():
                return self._subscripted(node, scope)
            case ast.Name(id="Self") if scope.owner is not None:
                return Instance(of=scope.owner)
        found = self.evaluate(node, scope)
        return Instance(of=found) if isinstance(found, Class) else None

    def annotated(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """An object of what an annotation names."""
        return self._annotated(node, scope)

    def _subscripted(self, node: ast.Subscript, scope: Scope) -> Value | None:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match last_of(node.value):
            case "Optional" | "Final" | "ClassVar" | "Annotated" | "Union":
                any_of = (self._annotated(part, scope) for part in parts)
                return next((one for one in any_of if one is not None), None)
            case "type" | "Type":
                found = self._annotated(parts[0], scope)
                return found.of if isinstance(found, Instance) else None
            case "list" | "List" | "Sequence" | "Iterator" | "Iterable" | "tuple" | "set":
                item = self._annotated(parts[0], scope)
                return None if item is None else Items(item=item)
            case "dict" | "Mapping" | "Dict" | "defaultdict":
                item = self._annotated(parts[-1], scope)
                return None if item is None else Items(item=item)
        return self._annotated(node.value, scope)

    def evaluate(self, node: ast.expr, scope: Scope) -> Value | None:
        """What an expression stands for: names with what they are bound to, calls with their result."""
        match node:
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                value = self.evaluate(node.value, scope)
                return None if value is None else self.attribute_settled(value, node.attr)
            case ast.Call(func=ast.Name(id="super"), args=[]) if scope.owner is not None:
                return Super(of=scope.owner)
            case ast.Call():
                called = self.evaluate(node.func, scope)
                return None if called is None else self.result(called)
            case ast.Subscript():
                value = self.evaluate(node.value, scope)
                return value if isinstance(value, Class) else self._item_of(value)
            case ast.IfExp():
                return self.evaluate(node.body, scope) or self.evaluate(node.orelse, scope)
            case ast.BoolOp():
                return self.evaluate(node.values[-1], scope)
            case ast.Await() | ast.NamedExpr():
                return self.evaluate(node.value, scope)
        return None

    def attribute_settled(self, value: Value, name: str) -> Value | None:
        """An attribute of what a value settles to."""
        settled = value if isinstance(value, Function) else self.settled(value)
        if settled is None or isinstance(settled, Function):
            return None
        return self.attribute(settled, name)

    def _item_of(self, value: Value | None) -> Value | None:
        return None if value is None else self.item(value)

    def _name(self, name: str, scope: Scope) -> Value | None:
        function = scope.function
        while function is not None:
            found = self.local(function, name)
            if found is not None:
                return found
            function = function.outer
        return self.of_module(scope.module, name)

    def result(self, value: Value) -> Value | None:
        """What calling a value gives."""
        settled = self.settled(value) if isinstance(value, Data) else value
        match settled:
            case Class():
                return Instance(of=settled)
            case Function():
                return self._annotated(settled.node.returns, scope_of(settled))
            case Instance():
                call = self.of_class(settled.of, "forward") or self.of_class(settled.of, "__call__")
                return self.result(call) if isinstance(call, Function) else None
        return None

    def item(self, value: Value) -> Value | None:
        """What one item of a value is."""
        settled = self.settled(value)
        return settled.item if isinstance(settled, Items) else None


def last_of(node: ast.expr) -> str:
    """The last name of a dotted expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
