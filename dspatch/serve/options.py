"""The options that an engine's server has, read from the source that builds its parser."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dspatch import astfind
from dspatch.audit.source import Source
from dspatch.serve import option
from dspatch.serve.engines import Facts, Server, ahead, fitting
from dspatch.serve.option import Option
from dspatch.serve.reading.interpreter import Interpreter
from dspatch.serve.reading.modules import Modules
from dspatch.serve.reading.values import (
    ClassRef,
    Commands,
    External,
    FunctionRef,
    Hole,
    ModuleRef,
    Parser,
    Value,
)

HELP = Option(names=("-h", "--help"), values="none")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a parser does with words beyond what `argparse` does, read from its class."""

    underscores: bool = False  # `_` in a name means `-`
    dotted: bool = False  # `--name.key value` is one entry of a JSON object
    plus: bool = False  # `--name.key+ value` is one item of a list in it
    level: bool = False  # `-O3` is `-O 3`
    abbreviations: bool = True
    model: Literal["", "refused", "deprecated"] = ""  # what becomes of `--model` behind `serve`


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a server takes: options, positional arguments, rules; `holes` are what reading lost."""

    options: tuple[Option, ...]
    positionals: tuple[Option, ...]
    rules: Rules
    holes: tuple[Hole, ...] = ()
    unparsed: tuple[str, ...] = ()

    @cached_property
    def table(self) -> dict[str, Option]:
        """The options by each of their names."""
        return {name: each for each in self.options for name in each.names}

    @property
    def whole(self) -> bool:
        """Whether nothing was lost, so that a name which is not here is not there."""
        return not self.holes and not self.unparsed


def read(
    source: Source, facts: Facts, server: Server, modules: Modules | None = None
) -> Taken | None:
    """What a server of an engine takes; `None` where the source has no such server.

    `modules` are those of the same source, which several servers may share.
    """
    ahead(source, fitting(source, facts.parsers))
    modules = modules or Modules(facts.package, source.read)
    for start in server.start:
        interpreter = Interpreter(modules)
        found = _started(interpreter, start, server.command)
        if found is not None:
            return _taken(interpreter, found, start.partition(":")[0])
    return None


def _started(interpreter: Interpreter, start: str, command: str) -> Parser | None:
    module, _, path = start.partition(":")
    value: Value = ModuleRef(module)
    if not interpreter.modules.exists(module):
        return None
    for part in path.split("."):
        value = interpreter.attribute(value, part)
    if not isinstance(value, FunctionRef):
        return None
    root = Parser(kind=interpreter.name(value.module, "FlexibleArgumentParser"))
    bound: dict[str, Value] = {"parser": root, "subparsers": Commands(root)}
    names = {each.arg for each in value.node.args.args}
    given = {name: of for name, of in bound.items() if name in names}
    result = interpreter.run(value, [], given)
    if not command:
        return result if isinstance(result, Parser) else root
    parsers = (each for each in (root, *interpreter.parsers) if command in each.commands)
    return next((each.commands[command] for each in parsers), None)


def _taken(interpreter: Interpreter, parser: Parser, module: str) -> Taken:
    inverses = _inverses(interpreter, parser.kind)
    every = [
        option.of_added(added, interpreter.modules.path(added.module), inverses)
        for added in parser.added
    ]
    options = [HELP, *(each for each in every if not each.positional)]
    rules = _rules(interpreter, parser, module)
    return Taken(
        options=tuple(options),
        positionals=tuple(each for each in every if each.positional),
        rules=rules,
        holes=tuple(interpreter.holes),
        unparsed=tuple(interpreter.modules.unread),
    )


def _rules(interpreter: Interpreter, parser: Parser, module: str) -> Rules:
    """What the class of a parser does in its `parse_args`, as far as its code shows it.

    `module` is where the server begins, which may refuse words, too.
    """
    allowed = parser.keywords.get("allow_abbrev", True)
    abbreviations = allowed is not False
    found = (
        interpreter.class_attribute(parser.kind, "parse_args")
        if isinstance(parser.kind, ClassRef)
        else External("argparse")
    )
    if not isinstance(found, FunctionRef):
        return Rules(abbreviations=abbreviations)
    calls = set(_calls(found.node))
    places = [found.node, *filter(None, [interpreter.modules.tree(module)])]
    return Rules(
        underscores=("replace", "_", "-") in calls,
        dotted=("split", ".") in calls,
        plus=("endswith", "+") in calls,
        level=("startswith", "-O") in calls,
        abbreviations=abbreviations,
        model=_model(places) if parser.name else "",
    )


def _model(places: Sequence[ast.AST]) -> Literal["", "refused", "deprecated"]:
    """What the words of errors and warnings say of `--model`, where the model has a place of its own."""
    every = [node for place in places for node in ast.walk(place)]
    if any(isinstance(node, ast.Raise) and _of_model(node) for node in every):
        return "refused"
    return "deprecated" if any(_of_model(n) for n in every if isinstance(n, ast.Call)) else ""


def _of_model(node: ast.AST) -> bool:
    texts = " ".join(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant))
    return "--model" in texts and "positional argument" in texts


def _inverses(interpreter: Interpreter, kind: Value) -> dict[str, str]:
    """The beginnings of switches that the parser's own class for them pairs: `--enable-` and `--disable-`."""
    made = interpreter.class_attribute(kind, "__init__") if isinstance(kind, ClassRef) else None
    for node in ast.walk(made.node) if isinstance(made, FunctionRef) else ():
        if _registers_switches(node):
            assert isinstance(node, ast.Call)
            return _pairs(interpreter, kind.module, node)
    return {}


def _registers_switches(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register"
        and len(node.args) == 3
        and "BooleanOptionalAction" in ast.unparse(node.args[1])
    )


def _pairs(interpreter: Interpreter, module: str, node: ast.Call) -> dict[str, str]:
    action = interpreter.in_module(module, node.args[2])
    for _, value in astfind.members(action.node) if isinstance(action, ClassRef) else ():
        if isinstance(value, ast.Dict) and isinstance(action, ClassRef):
            pairs = interpreter.in_class(action, value)
            if isinstance(pairs, dict) and all(str(each).startswith("--") for each in pairs):
                return pairs
    why = "the parser has a class of its own for switches, whose names cannot be told"
    interpreter.holes.append(Hole(module, node.lineno, why))
    return {}


def _calls(node: ast.AST) -> Iterator[tuple[object, ...]]:
    """The methods that are called below a node with constants only: name and arguments."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            values = [arg.value for arg in each.args if isinstance(arg, ast.Constant)]
            if len(values) == len(each.args):
                yield (each.func.attr, *values)
