"""Names, classes and their attributes, found through the imports and bases of an engine's source."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from dspatch import astfind
from dspatch.serve.reading.modules import Import, Modules
from dspatch.serve.reading.values import (
    ClassRef,
    External,
    FunctionRef,
    Member,
    ModuleRef,
    Opaque,
    Value,
)

# Objects that are made while an engine starts: what they are when nothing else was asked for.
INSTANCES = {"vllm.platforms.current_platform": ("vllm.platforms.interface", "Platform")}


class Classes:
    """Names of modules and attributes of classes, each evaluated once."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self._names: dict[tuple[str, str], Value] = {}
        self._attributes: dict[ast.expr, Value] = {}
        self._bodies: dict[ast.ClassDef, dict[str, ast.AST]] = {}

    def in_module(self, module: str, node: ast.expr) -> Value:
        """The value of an expression at a module's top."""
        raise NotImplementedError

    def in_class(self, owner: ClassRef, node: ast.expr) -> Value:
        """The value of an expression in a class's body."""
        raise NotImplementedError

    def name(self, module: str, name: str) -> Value:
        """What a name means at a module's top."""
        key = (module, name)
        if key not in self._names:
            self._names[key] = Opaque("recursive")
            self._names[key] = self._named(module, name)
        return self._names[key]

    def member(self, module: str, name: str) -> Value:
        """What `module.name` means: something in it, or a module below it."""
        if self.modules.binding(module, name) is None and self.modules.exists(f"{module}.{name}"):
            return ModuleRef(f"{module}.{name}")
        return self.name(module, name)

    def _named(self, module: str, name: str) -> Value:
        place = INSTANCES.get(f"{module}.{name}")
        if place is not None:
            return self.name(*place)
        found = self.modules.binding(module, name)
        if found is None:
            return External(name) if hasattr(builtins, name) else Opaque(f"no {name} in {module}")
        if isinstance(found, Import):
            return self._imported(found)
        if isinstance(found, ast.ClassDef):
            return ClassRef(module, found)
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return FunctionRef(module, found)
        return self.in_module(module, found)

    def _imported(self, found: Import) -> Value:
        if not self.modules.ours(found.module):
            return External(f"{found.module}.{found.name}" if found.name else found.module)
        if not found.name:
            return ModuleRef(found.module)
        return self.member(found.module, found.name)

    def bases(self, of: ClassRef) -> Iterator[ClassRef | External]:
        """A class and its bases, nearest first, those of other packages by name."""
        yield of
        for node in of.node.bases:
            base = self.in_module(of.module, node)
            if isinstance(base, ClassRef) and base.node is not of.node:
                yield from self.bases(base)
            elif isinstance(base, External):
                yield base

    def derives(self, of: Value, name: str) -> bool:
        """Whether a class is, or derives from, one of another package."""
        if isinstance(of, External):
            return of.name == name
        return isinstance(of, ClassRef) and any(
            isinstance(base, External) and base.name == name for base in self.bases(of)
        )

    def own_attribute(self, of: ClassRef, name: str) -> ast.AST | None:
        """What a class's own body binds a name to."""
        if of.node not in self._bodies:
            self._bodies[of.node] = {
                member: node
                for member, node in astfind.members(of.node)
                if not isinstance(node, ast.AnnAssign)
            }
        return self._bodies[of.node].get(name)

    def class_attribute(self, of: ClassRef, name: str, *, after: ClassRef | None = None) -> Value:
        """An attribute of a class, found as Python finds it; `after` a class, as `super()` does."""
        if name == "__name__":
            return of.node.name
        if name == "__doc__":
            return ast.get_docstring(of.node) or ""
        passed = after is None
        for base in self.bases(of):
            if passed and isinstance(base, ClassRef):
                found = self.own_attribute(base, name)
                if found is not None:
                    return self.attribute_value(found, base, of)
            if after is not None and isinstance(base, ClassRef) and base.node is after.node:
                passed = True
        return Opaque(f"{of.node.name}.{name}")

    def attribute_value(self, found: ast.AST, owner: ClassRef, of: ClassRef | None = None) -> Value:
        """The value of what a class's body binds."""
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return _function(found, owner, of or owner)
        if isinstance(found, ast.ClassDef):
            return ClassRef(owner.module, found)
        if not isinstance(found, ast.expr):
            return Opaque("attribute")
        if found not in self._attributes:
            self._attributes[found] = Opaque("recursive")
            self._attributes[found] = self.in_class(owner, found)
        return self._attributes[found]

    def members(self, of: ClassRef) -> list[Value] | None:
        """The members of an enumeration, each as a dict of `name` and `value`; `None` for none."""
        if not any(isinstance(b, External) and b.name.startswith("enum.") for b in self.bases(of)):
            return None
        found: list[Value] = []
        for base in [b for b in self.bases(of) if isinstance(b, ClassRef)]:
            for name, node in astfind.members(base.node):
                if isinstance(node, ast.expr) and not name.startswith("_"):
                    found.append(Member(name, self.attribute_value(node, base)))
        return found


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, owner: ClassRef, of: ClassRef
) -> FunctionRef:
    decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
    bound: Value = None if "staticmethod" in decorators else of
    return FunctionRef(owner.module, node, bound, owner, of)
