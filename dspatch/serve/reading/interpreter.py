"""The functions that build an argument parser, followed statement by statement without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from dspatch.serve.reading.expressions import Call, Expressions, Scope, truth
from dspatch.serve.reading.fields import Fields
from dspatch.serve.reading.modules import Modules
from dspatch.serve.reading.values import (
    Added,
    Bound,
    ClassRef,
    Commands,
    External,
    FunctionRef,
    Hole,
    Opaque,
    Parser,
    Value,
)

DEPTH = 24  # calls within calls; parsers are built in about eight
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_PARSER = "argparse.ArgumentParser"
_RETURNED = "return"


class Interpreter(Expressions):
    """Follows functions that are given a parser; `holes` are the places where it lost track."""

    def __init__(self, modules: Modules) -> None:
        super().__init__(modules)
        self.holes: list[Hole] = []
        self.parsers: list[Parser] = []
        self._depth = 0

    def call(self, made: Call) -> Value:
        """What a call gives: of a parser's method, a parser's class, or a function of the engine."""
        function = made.function
        if isinstance(function, Bound) and isinstance(function.of, Parser | Commands):
            return self._of_parser(function, made)
        if isinstance(function, ClassRef | External) and self.derives(function, _PARSER):
            self.parsers.append(Parser(kind=function, keywords=made.words))
            return self.parsers[-1]
        if isinstance(function, FunctionRef):
            return self.called(function, made.args, made.words)
        if isinstance(function, External) and function.name == "super":
            within = made.scope.function
            return Opaque("super") if within is None else _Super(within)
        if _adds(made.node) or any(map(_tracked, (*made.args, *made.words.values()))):
            self._lost(made)
        return super().call(made)

    def attribute(self, of: Value, name: str) -> Value:
        """An attribute of a value, `super()` included."""
        if isinstance(of, _Super) and of.function.about is not None:
            return self.class_attribute(of.function.about, name, after=of.function.owner)
        return super().attribute(of, name)

    def _lost(self, made: Call) -> None:
        """Keep that a call may add arguments unseen, unless it is known to add none."""
        function = made.function
        known = isinstance(function, Bound) or (
            isinstance(function, External) and function.name in ("print", "len", "copy.deepcopy")
        )
        if not known:
            self._hole(made, f"`{ast.unparse(made.node.func)}` cannot be followed")

    def _hole(self, made: Call, why: str) -> None:
        self.holes.append(Hole(made.scope.module, made.node.lineno, why))

    def _of_parser(self, method: Bound, made: Call) -> Value:
        of, name = method.of, method.name
        if isinstance(of, Commands):
            return self._command(of.of, made) if name == "add_parser" else None
        if name == "add_argument":
            self._added(of, made)
            return None
        if name in _GROUPS:
            return of
        return Commands(of) if name == "add_subparsers" else None

    def _command(self, of: Parser, made: Call) -> Value:
        name = made.args[0] if made.args else Opaque("no name")
        if not isinstance(name, str):
            return Opaque("a subcommand without a name")
        of.commands[name] = Parser(kind=of.kind, keywords=made.words, name=name)
        self.parsers.append(of.commands[name])
        return of.commands[name]

    def _added(self, of: Parser, made: Call) -> None:
        names = [each for each in made.args if isinstance(each, str)]
        if len(names) < len(made.args) or not names:
            self._hole(made, "an argument whose name is made while the engine starts")
            return
        of.added.append(
            Added(
                names=tuple(names),
                keywords=made.words,
                module=made.scope.module,
                line=made.node.lineno,
                unread=made.unread,
            )
        )

    def called(self, function: FunctionRef, args: list[Value], words: dict[str, Value]) -> Value:
        """What a function gives that was handed a parser, or keywords of arguments; else nothing is known."""
        if function.node.name == "get_kwargs" and args and isinstance(args[0], ClassRef):
            return Fields(self, function.module).keywords(args[0])
        tracked = any(_tracked(each) for each in (*args, *words.values()))
        if not tracked or self._depth >= DEPTH:
            return Opaque(f"{function.node.name}()")
        return self.run(function, args, words)

    def run(self, function: FunctionRef, args: list[Value], words: dict[str, Value]) -> Value:
        """Follow a function's body; what it returns."""
        scope = Scope(module=function.module, function=function)
        scope.names = self._bound(function, args, words)
        self._depth += 1
        try:
            self._body(function.node.body, scope)
        finally:
            self._depth -= 1
        return scope.names.get(_RETURNED, None)

    def _bound(
        self, function: FunctionRef, args: list[Value], words: dict[str, Value]
    ) -> dict[str, Value]:
        """The parameters of a function with what they are bound to."""
        given = function.node.args
        names = [each.arg for each in (*given.posonlyargs, *given.args)]
        where = Scope(module=function.module)
        defaults = dict(zip(reversed(names), reversed(given.defaults), strict=False))
        found = {name: self.evaluate(node, where) for name, node in defaults.items()}
        for each, node in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            found[each.arg] = self.evaluate(node, where) if node else Opaque("not given")
        whole = [function.bound, *args] if function.bound is not None else args
        found |= dict(zip(names, whole, strict=False))
        found |= {name: Opaque("not given") for name in names if name not in found}
        return found | words

    def _body(self, body: Iterable[ast.stmt], scope: Scope) -> bool:
        """Follow statements; whether they surely returned."""
        return any(self._statement(each, scope) for each in body)

    def _statement(self, node: ast.stmt, scope: Scope) -> bool:
        handle = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        return bool(handle(node, scope)) if handle else False

    def _do_expr(self, node: ast.Expr, scope: Scope) -> None:
        self.evaluate(node.value, scope)

    def _do_return(self, node: ast.Return, scope: Scope) -> bool:
        value = self.evaluate(node.value, scope) if node.value else None
        if not isinstance(scope.names.get(_RETURNED), Parser):
            scope.names[_RETURNED] = value
        return True

    def _do_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _do_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _do_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        of, more = self.evaluate(node.target, scope), self.evaluate(node.value, scope)
        if isinstance(of, list) and isinstance(more, list | tuple):
            of += more
        else:
            self.assign(node.target, self._operated(node.op, of, more), scope)

    def _do_delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                of = self.evaluate(target.value, scope)
                if isinstance(of, dict):
                    of.pop(self.evaluate(target.slice, scope), None)

    def _do_functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = FunctionRef(scope.module, node)

    def _do_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            whole = node.module or ""
            inner = self.modules.ours(whole) and not node.level
            scope.names[alias.asname or alias.name] = (
                self.member(whole, alias.name) if inner else External(f"{whole}.{alias.name}")
            )

    def _do_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.names[name] = External(alias.name if alias.asname else name)

    def _do_if(self, node: ast.If, scope: Scope) -> bool:
        holds = truth(self.evaluate(node.test, scope))
        if holds is not None:
            return self._body(node.body if holds else node.orelse, scope)
        # Nobody can tell which: what either adds may be there.
        both = [self._body(node.body, scope), self._body(node.orelse, scope)]
        return all(both) and bool(node.orelse)

    def _do_for(self, node: ast.For, scope: Scope) -> bool:
        items = self.iterated(self.evaluate(node.iter, scope))
        if items is None:
            if any(_adds(each) for each in ast.walk(node) if isinstance(each, ast.Call)):
                why = "a loop adds arguments over what is known only when the engine starts"
                self.holes.append(Hole(scope.module, node.lineno, why))
            return False
        for item in items:
            self.assign(node.target, item, scope)
            if self._body(node.body, scope):
                return True
        return False

    def _do_with(self, node: ast.With, scope: Scope) -> bool:
        return self._body(node.body, scope)

    def _do_try(self, node: ast.Try, scope: Scope) -> bool:
        return self._body([*node.body, *node.orelse, *node.finalbody], scope)


class _Super:
    """`super()` in a function of a class."""

    def __init__(self, function: FunctionRef) -> None:
        self.function = function


def _adds(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def _tracked(value: Value) -> bool:
    """Whether a value is a parser, or keywords of arguments that a function may change."""
    if isinstance(value, Parser | Commands):
        return True
    return isinstance(value, dict) and any(isinstance(each, dict) for each in value.values())
