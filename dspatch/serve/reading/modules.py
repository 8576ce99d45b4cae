"""The modules of an engine by their names: read when asked for, and what each name in them is bound to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dspatch import syntax


@dataclass(frozen=True, kw_only=True)
class Import:
    """A name that an import binds: a module, or with `name` something in it."""

    module: str
    name: str = ""


Binding = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | Import


class Modules:
    """An engine's modules. `read` gives a file's bytes by path; `unread` keeps those that did not parse."""

    def __init__(self, package: str, read: Callable[[str], bytes | None]) -> None:
        self.package = package
        self.unread: dict[str, str] = {}
        self._read = read
        self._trees: dict[str, tuple[ast.Module, bool] | None] = {}
        self._bindings: dict[str, dict[str, Binding]] = {}
        self._starred: dict[str, list[str]] = {}

    def tree(self, name: str) -> ast.Module | None:
        """The syntax tree of a module, `None` where it is not there or cannot be parsed."""
        found = self._found(name)
        return found[0] if found else None

    def exists(self, name: str) -> bool:
        """Whether the engine has a module of the name."""
        return self._found(name) is not None

    def path(self, name: str) -> str:
        """The path of a module that is there."""
        found = self._found(name)
        return _paths(name)[1 if found and found[1] else 0]

    def binding(self, module: str, name: str) -> Binding | None:
        """What a module binds a name to when it runs, `None` when that cannot be seen."""
        known = self._known(module)
        if name in known:
            return known[name]
        for star in self._starred.get(module, ()):
            if self.binding(star, name) is not None:
                return Import(module=star, name=name)
        return None

    def ours(self, module: str) -> bool:
        """Whether a module is the engine's."""
        return module.partition(".")[0] == self.package

    def _known(self, module: str) -> dict[str, Binding]:
        if module not in self._bindings:
            self._bindings[module] = {}
            found = self._found(module)
            if found is not None:
                for name, what in _bound(found[0].body):
                    self._bind(module, found[1], name, what)
        return self._bindings[module]

    def _bind(self, module: str, package: bool, name: str, what: ast.AST) -> None:
        if isinstance(what, ast.ImportFrom):
            source = _absolute(module, package, what)
            if name == "*":
                self._starred.setdefault(module, []).append(source)
                return
            original = next(a.name for a in what.names if (a.asname or a.name) == name)
            self._bindings[module][name] = Import(module=source, name=original)
        elif isinstance(what, ast.alias):
            whole = what.name if what.asname else what.name.partition(".")[0]
            self._bindings[module][name] = Import(module=whole)
        else:
            assert isinstance(what, Binding)
            self._bindings[module][name] = what

    def _found(self, name: str) -> tuple[ast.Module, bool] | None:
        if name not in self._trees:
            self._trees[name] = self._parsed(name)
        return self._trees[name]

    def _parsed(self, name: str) -> tuple[ast.Module, bool] | None:
        for number, path in enumerate(_paths(name)):
            data = self._read(path)
            if data is None:
                continue
            try:
                return syntax.parse(data), number == 1
            except syntax.UNREADABLE as error:
                self.unread[path] = str(error)
                return None
        return None


def _paths(name: str) -> tuple[str, str]:
    place = name.replace(".", "/")
    return f"{place}.py", f"{place}/__init__.py"


def _absolute(module: str, package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that statements bind, each with what it is bound to, the later after the earlier."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((t.id, node.value) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name) and node.value is not None:
                yield node.target.id, node.value
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((_first(alias), alias) for alias in node.names)
        elif isinstance(node, ast.If):
            yield from _branches(node)
        elif isinstance(node, ast.Try):
            # What stands in for a package that is missing is bound only where it is.
            yield from _bound([s for handler in node.handlers for s in handler.body])
            yield from _bound([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With):
            yield from _bound(node.body)


def _branches(node: ast.If) -> Iterator[tuple[str, ast.AST]]:
    if "TYPE_CHECKING" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}:
        # Names that only type checkers see still say which class is meant; what runs wins.
        yield from _bound(node.body)
        yield from _bound(node.orelse)
    else:
        yield from _bound(node.orelse)
        yield from _bound(node.body)


def _first(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]
