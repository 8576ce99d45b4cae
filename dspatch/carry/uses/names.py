"""Follow names through one tree of an engine: imports, re-exports, base classes, annotations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from dspatch.carry.uses import expressions
from dspatch.carry.uses.bindings import Binding, bindings
from dspatch.carry.uses.modules import ModuleSource, Read
from dspatch.carry.uses.values import (
    Class,
    Data,
    Function,
    FunctionNode,
    Instance,
    Module,
    Scope,
    Super,
    Value,
    is_dataclass,
    is_enum_base,
    last_name,
    local_names,
    parameter_names,
    scope_of,
    self_attributes,
)

_STEPS = re.compile(r"[^.\[\]()]+|\(\)|\[\]")


class Names:
    """The names of an engine in one tree; only the modules that a question leads to are read."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._modules: dict[str, ModuleSource | None] = {}
        self._bodies: dict[int, dict[str, Binding]] = {}
        self._on_self: dict[int, dict[str, tuple[Binding, FunctionNode]]] = {}
        self._locals: dict[int, dict[str, Binding]] = {}
        self._bases: dict[int, list[Class]] = {}
        self._held: dict[tuple[object, ...], Value | None] = {}
        self._found: dict[tuple[str, str], Value | None] = {}
        self._asked: set[tuple[str, str]] = set()

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
        key = (module, name)
        if key in self._found:
            return self._found[key]
        asked = not self._asked
        if key in self._asked:  # modules that import from each other
            return None
        self._asked.add(key)
        try:
            found = self._of_module(module, name)
        finally:
            if asked:
                self._asked.clear()
        # On the way to an answer, a module asked before tells nothing; that is no answer of its own.
        if asked or found is not None:
            self._found[key] = found
        return found

    def _of_module(self, module: str, name: str) -> Value | None:
        source = self.module(module)
        if source is None:
            return None
        binding = source.binding(name)
        found = self._bound_or_other(binding, name, Scope(module=module))
        if found is None and binding is None:
            found = self._starred(source, name)
        if found is None and source.is_package:
            found = self._submodule(f"{module}.{name}")
        return found

    def _bound_or_other(self, binding: Binding | None, name: str, scope: Scope) -> Value | None:
        while binding is not None:
            found = self._bound(binding, name, scope)
            if found is not None:
                return found
            binding = binding.otherwise
        return None

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
        binding = parameter_names(function.node).get(name) or self.local_names(function).get(name)
        if binding is None:
            return None
        if not isinstance(binding.node, ast.arg):
            return self._bound_or_other(binding, name, scope_of(function))
        return Data(
            kind="parameter",
            binding=binding,
            module=function.module,
            owner=function.owner,
            function=function,
        )

    def local_names(self, function: Function) -> dict[str, Binding]:
        """What the statements of a function bind, by name."""
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
            values = [self._base(cls, base) for base in cls.node.bases]
            self._bases[key] = [value for value in values if isinstance(value, Class)]
        return self._bases[key]

    def _base(self, cls: Class, node: ast.expr) -> Value | None:
        """What a base stands for; of one that is called as the class itself, what was imported by that name."""
        scope = Scope(module=cls.module)
        source = self.module(cls.module)
        if source is None or last_name(node) != cls.node.name or isinstance(node, ast.Attribute):
            return self.evaluate(node, scope)
        binding = source.shadowed(cls.node.name)
        return None if binding is None else self._bound_or_other(binding, cls.node.name, scope)

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

    def evaluate(self, node: ast.expr, scope: Scope) -> Value | None:
        """What an expression stands for."""
        return expressions.evaluate(self, node, scope)

    def result(self, value: Value) -> Value | None:
        """What calling a value gives."""
        return expressions.result(self, value)

    def item(self, value: Value) -> Value | None:
        """What one item of a value is."""
        return expressions.item(self, value)

    def settled(self, value: Value) -> Value | None:
        """What one holds after reading a name: data and properties give what they are said to be."""
        if isinstance(value, Function) and value.kind == "property":
            return expressions.annotated(self, value.node.returns, scope_of(value))
        if not isinstance(value, Data):
            return value
        key = _key(value)
        if key not in self._held:
            self._held[key] = None  # a name that is said to hold itself holds nothing known
            self._held[key] = expressions.held_by(self, value)
        return self._held[key]


def _key(data: Data) -> tuple[object, ...]:
    """What tells one name for data from another; the nodes live as long as their modules."""
    binding, function = data.binding, data.function
    parts = (binding.node, binding.value, function.node if function is not None else None)
    return (data.kind, *map(id, parts))
