"""Walk a patched file and note every use of the engine on the lines that are the patch's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dspatch.carry.uses import signatures
from dspatch.carry.uses.binding import call_of
from dspatch.carry.uses.ours import Ours, Ref, class_path
from dspatch.carry.uses.values import (
    Class,
    Function,
    FunctionNode,
    Instance,
    Scope,
    is_dataclass,
)

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?")


@dataclass
class Found:
    """The uses found so far: the ways in which each upstream symbol is used, and where."""

    ours: Ours
    ways: dict[str, set[str]] = field(default_factory=dict)
    where: dict[str, set[str]] = field(default_factory=dict)
    imports: set[tuple[str, str]] = field(default_factory=set)

    def add(self, symbol: str, way: str, where: str) -> None:
        """Note a use, if the symbol is upstream's."""
        if "." in symbol and self.ours.is_upstream(symbol):
            self.ways.setdefault(symbol, set()).add(way)
            self.where.setdefault(symbol, set()).add(where)


class Reader(ast.NodeVisitor):
    """Walks one patched file and notes the uses on the patch's own lines."""

    def __init__(self, found: Found, path: str, lines: frozenset[int] | None) -> None:
        self.ours = found.ours
        self.found = found
        self.path = path
        self.lines = lines
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.scope = Scope(module=name)
        self.within: list[str] = []
        self.tried = False

    # -- what is ours --------------------------------------------------------------------------

    def is_ours(self, node: ast.AST) -> bool:
        """Whether a node begins on a line of the patch."""
        return self.lines is None or getattr(node, "lineno", 0) in self.lines

    def touches(self, node: ast.expr) -> bool:
        """Whether any line of a node is the patch's."""
        last = node.end_lineno or node.lineno
        return self.lines is None or any(n in self.lines for n in range(node.lineno, last + 1))

    def add(self, symbol: str, way: str) -> None:
        """Note one use."""
        where = ".".join(self.within)
        self.found.add(symbol, way, f"{self.path}: {where}" if where else self.path)

    # -- imports and strings -------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        if self.is_ours(node):
            for alias in node.names:
                self._imported(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if self.is_ours(node):
            base = self.ours.after.absolute(self.scope.module, node.module or "", node.level)
            for alias in node.names:
                self._imported(base if alias.name == "*" else f"{base}.{alias.name}")

    def _imported(self, symbol: str) -> None:
        self.add(symbol, "import")
        if not self.tried:
            self.found.imports.add((self.path, symbol))

    def visit_Try(self, node: ast.Try) -> None:
        outer, self.tried = self.tried, True  # an import that may fail
        self.generic_visit(node)
        self.tried = outer

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and self.is_ours(node) and _DOTTED.fullmatch(node.value):
            self.add(node.value.replace(":", "."), "named in a string")

    # -- scopes --------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        cls = self._class(node)
        self._visit_all(node.decorator_list, self._decorator)
        self._visit_all([*node.keywords])
        self.within.append(node.name)
        if cls is not None:
            self._bases(cls)
            self._overrides(cls)
        outer, self.scope = self.scope, Scope(module=self.scope.module, owner=cls)
        self._visit_all(node.body)
        self.scope = outer
        self.within.pop()

    def _class(self, node: ast.ClassDef) -> Class | None:
        if self.scope.owner is None and self.scope.function is None:
            found = self.ours.after.of_module(self.scope.module, node.name)
            if isinstance(found, Class):
                return found
        return Class(module=self.scope.module, node=node)

    def _visit_all(
        self, nodes: Iterable[ast.AST], visit: Callable[[ast.AST], None] | None = None
    ) -> None:
        for node in nodes:
            (visit or self.visit)(node)

    def visit_FunctionDef(self, node: FunctionNode) -> None:
        self._visit_all(node.decorator_list, self._decorator)
        self._visit_all([node.args, *([node.returns] if node.returns else [])])
        self.within.append(node.name)
        outer = self.scope
        function = self._function(node)
        self.scope = Scope(module=outer.module, owner=outer.owner, function=function)
        self._visit_all(node.body)
        self.scope = outer
        self.within.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def _function(self, node: FunctionNode) -> Function:
        owner = self.scope.owner if self.scope.function is None else None
        return Function(module=self.scope.module, node=node, owner=owner, outer=self.scope.function)

    def _decorator(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            if self.is_ours(node):
                self._note(node, "call (_)")
            self._visit_all(ast.iter_child_nodes(node))
        else:
            self.visit(node)

    # -- classes -------------------------------------------------------------------------------

    def _bases(self, cls: Class) -> None:
        if not self.is_ours(cls.node):
            return
        own = " ".join(sorted(self._own_names(cls)))
        for ref in self.ours.bases(cls):
            self.add(ref.path, f"subclass {own}".rstrip())
        for base in cls.node.bases:
            if isinstance(base, ast.Subscript):
                self._note(base.value, "subscript")

    def _own_names(self, cls: Class) -> set[str]:
        """The names that our class gives itself and that no base has."""
        named = {s.name for s in cls.node.body if isinstance(s, FunctionNode)}
        return {
            n for n in named if not any(self.ours.attribute(b, n) for b in self.ours.bases(cls))
        }

    def _overrides(self, cls: Class) -> None:
        for statement in cls.node.body:
            if not self.is_ours(statement):
                continue
            for name, way in self._defined(cls, statement):
                ref = self.ours.overridden(cls, name)
                if ref is not None:
                    self.add(ref.path, way)

    def _defined(self, cls: Class, statement: ast.stmt) -> Iterable[tuple[str, str]]:
        """The names that a statement of a class body defines, each with the way it overrides."""
        if isinstance(statement, FunctionNode):
            method = Function(module=cls.module, node=statement, owner=cls)
            yield (
                statement.name,
                f"override {signatures.override_shape(self.ours.after, method)}",
            )
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, "assign"
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, "assign"

    # -- expressions ---------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        ref = self.ours.refer(node.func, self.scope) if self.touches(node) else None
        if ref is None or not ref.named:
            self.visit(node.func)
        else:
            self._called(ref, node)
            if isinstance(node.func, ast.Attribute):
                self.visit(node.func.value)
        self._visit_all([*node.args, *(keyword.value for keyword in node.keywords)])

    def _called(self, ref: Ref, node: ast.Call) -> None:
        self.add(ref.path, f"call {call_of(node)}")
        if isinstance(ref.value, Class) and not self.ours.is_upstream(ref.path):
            self._inherited_constructor(ref.value, node)

    def _inherited_constructor(self, cls: Class, node: ast.Call) -> None:
        """Our class is called, and what it takes is partly its base's to say."""
        own = self.ours.after.member(cls, "__init__")
        if own is not None:
            return
        fields = signatures.fields(self.ours.after, cls) if is_dataclass(cls.node) else ()
        for base in self.ours.bases(cls):
            theirs = (
                signatures.constructor(self.ours.after, base.value)
                if isinstance(base.value, Class)
                else None
            )
            names = frozenset(f.name for f in theirs or ())
            mine = frozenset(f.name for f in fields) - names
            self.add(base.path, f"call {call_of(node, leave_out=mine)}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self.is_ours(node) or self.touches(node):
            written = not isinstance(node.ctx, ast.Load)
            self._note(node, "write" if written else "read")
            if written:
                self._shadowed(node)
        self.visit(node.value)

    def _shadowed(self, node: ast.Attribute) -> None:
        """Our class sets an attribute that its base has as well."""
        value = self.ours.refer(node.value, self.scope)
        if value is None or not isinstance(value.value, Instance):
            return
        cls = value.value.of
        if not self.ours.is_upstream(class_path(cls)):
            for base in self.ours.bases(cls):
                ref = self.ours.attribute(base, node.attr)
                if ref is not None and ref.named:
                    self.add(ref.path, "write")

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self.is_ours(node):
            self._note(node, "read")

    def _note(self, node: ast.expr, way: str) -> None:
        ref = self.ours.refer(node, self.scope)
        if ref is None or not ref.named:
            return
        called_by_others = isinstance(ref.value, Function) and ref.value.kind != "property"
        self.add(ref.path, "passed on" if way == "read" and called_by_others else way)
